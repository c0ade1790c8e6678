"""Text as every database is to keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

_NUL, _ITS_SYMBOL = "\0", "\N{SYMBOL FOR NULL}"


class Words(TypeDecorator[str]):
    """Text that is ordered by its bytes, which is SQLite's way.

    PostgreSQL keeps no NUL, which the words of programs may contain; there its symbol stands in its place.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type in a dialect."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """What happens to values on their way in."""
        return _without_nul if dialect.name == "postgresql" else None


def _without_nul(value: str | None) -> str | None:
    return value if value is None else value.replace(_NUL, _ITS_SYMBOL)
