"""What coordinators on one journal tell one another."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.journal.journal import Listener
from fanfold.sql.writer import Transaction

_LET_GO, _CANCEL = "let-go", "cancel"


def tell_let_go(transaction: Transaction) -> None:
    """A run was let go."""
    transaction.notices.add(_LET_GO)


def tell_cancel(transaction: Transaction) -> None:
    """A run is to be cancelled."""
    transaction.notices.add(_CANCEL)


def heard_by(listener: Listener) -> Callable[[str], None]:
    """What takes notices for a listener; one that says nothing may stand for any."""

    def hear(notice: str) -> None:
        if notice != _CANCEL:
            listener.on_let_go()
        if notice != _LET_GO:
            listener.on_cancel()

    return hear
