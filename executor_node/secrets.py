"""What an agent was given in confidence, and no failure tells: programs and providers repeat what they were shown.

Worker processes import this; it stays light.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_LEAST = 6
"""Characters of the shortest text that is taken for a secret, or for a piece of one."""
_BLOT = "***"


class Secrets:
    """Texts that are blotted out of others."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms_of(value) if len(form) >= _LEAST}
        self._forms = sorted(forms, key=len, reverse=True)  # or one within another would leave the rest of that

    @classmethod
    def of(cls, *environments: Mapping[str, str]) -> Self:
        """The values of the variables whose names say that they are secret."""
        return cls(value for each in environments for name, value in each.items() if _SECRET_NAME.search(name))

    def blotted(self, text: str) -> str:
        """The text without them, nor a piece of one at either end, for it may have been cut out of a longer one."""
        for form in self._forms:
            text = text.replace(form, _BLOT)
        for form in self._forms:
            text = _without_piece(text, form)
        return text


NO_SECRETS = Secrets(())


def _forms_of(value: str) -> Iterator[str]:
    """The value; its lines, which may be told one by one; and both as they stand in JSON."""
    for form in (value, value.strip(), *(line.strip() for line in value.splitlines())):
        yield form
        yield json.dumps(form)[1:-1]
        yield json.dumps(form, ensure_ascii=False)[1:-1]


def _without_piece(text: str, form: str) -> str:
    for length in range(min(len(form) - 1, len(text)), _LEAST - 1, -1):
        if text.startswith(form[-length:]):
            text = _BLOT + text[length:]
            break
    for length in range(min(len(form) - 1, len(text)), _LEAST - 1, -1):
        if text.endswith(form[:length]):
            return text[:-length] + _BLOT
    return text
