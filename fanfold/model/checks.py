"""Annotations that say what a field accepts, light enough for worker processes.

The types of `fanfold.model` are plain dataclasses; these annotations are read only by pydantic, which
`fanfold.model.forms` loads when there is something to check.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Protocol

from annotated_types import Ge, Gt, Le, MaxLen, MinLen


class _Handler(Protocol):
    def __call__(self, source: Any, /) -> dict[str, Any]: ...


class Exact:
    """Refuses values of another type instead of converting them: "3" is no number, True is no number."""

    def __get_pydantic_core_schema__(self, source: Any, handler: _Handler) -> dict[str, Any]:
        return {**handler(source), "strict": True}


class Must:
    """Refuses values that do not satisfy `predicate`; `words` complete the sentence "the field must ..."."""

    def __init__(self, words: str, predicate: Callable[[Any], bool]) -> None:
        self.words = words
        self.predicate = predicate

    def _check(self, value: Any) -> Any:
        if not self.predicate(value):
            raise ValueError(f"must {self.words}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: _Handler) -> dict[str, Any]:
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": self._check},
            "schema": handler(source),
        }


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

OneLine = Must(
    "have no control characters or line breaks",
    lambda text: text.isprintable() or _CONTROL.search(text) is None,  # the former is a hint only, but a cheap one
)
WholeMilliseconds = Must("be whole milliseconds", lambda seconds: round(seconds, 3) == seconds)

MAX_TOKENS = 2**63 - 1
WEEK_SECONDS = 7 * 24 * 3600.0

MAX_LINE = 4096
MAX_IDENTIFIER = 256
MAX_NAME = 128

# Field types, by what they accept.

Text = Annotated[str, Exact()]
RequiredText = Annotated[str, Exact(), MinLen(1)]
Line = Annotated[str, Exact(), MinLen(1), MaxLen(MAX_LINE), OneLine]
Identifier = Annotated[str, Exact(), MinLen(1), MaxLen(MAX_IDENTIFIER), OneLine]
OptionalIdentifier = Annotated[str, Exact(), MaxLen(MAX_IDENTIFIER), OneLine]
Name = Annotated[str, Exact(), MinLen(1), MaxLen(MAX_NAME), OneLine]
Label = Annotated[str, Exact(), MaxLen(MAX_NAME), OneLine]
WorkflowId = Annotated[str, Exact(), MinLen(1), MaxLen(MAX_NAME), OneLine]
Seconds = Annotated[float, Exact(), Gt(0), Le(WEEK_SECONDS), WholeMilliseconds]
Count = Annotated[int, Exact(), Ge(0), Le(2**32 - 1)]
Tokens = Annotated[int, Exact(), Ge(0), Le(MAX_TOKENS)]
Flag = Annotated[bool, Exact()]
