"""What registries on one store tell one another."""

from __future__ import annotations

from collections.abc import Callable, Collection

from fanfold.sql.writer import Transaction
from job_registry.store.store import Listener

MOST_NUMBERS = 300
"""Numbers in one notice, of which databases carry 8,000 bytes; of more jobs it is told without them."""

_CHANGES, _OUTPUT = "changes", "output"


def tell_changes(transaction: Transaction) -> None:
    """There are changes."""
    transaction.notices.add(_CHANGES)


def tell_output(transaction: Transaction, numbers: Collection[int]) -> None:
    """There is output of these jobs."""
    if numbers:
        few = sorted(numbers) if len(numbers) <= MOST_NUMBERS else ()
        transaction.notices.add(" ".join([_OUTPUT, *map(str, few)]))


def heard_by(listener: Listener) -> Callable[[str], None]:
    """What takes notices for a listener."""

    def hear(notice: str) -> None:
        match notice.split():
            case [topic] if topic == _CHANGES:
                listener.on_changes()
            case [topic, *numbers] if topic == _OUTPUT and numbers:
                listener.on_output([int(number) for number in numbers])
            case _:
                listener.on_anything()

    return hear
