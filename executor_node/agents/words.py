"""What keys of agent files accept that more than one kind of agent has.

Worker processes import this; it stays light.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import MaxLen, MinLen

from fanfold.model.checks import Exact, Must, OneLine


def _is_variable(text: str) -> bool:
    return text.isascii() and text.isidentifier()


Argument = Annotated[str, Exact(), Must("have no NUL character", lambda text: "\0" not in text)]
VariableName = Annotated[str, Exact(), MaxLen(256), Must("be the name of an environment variable", _is_variable)]
ShortName = Annotated[str, Exact(), MinLen(1), MaxLen(128), OneLine]
