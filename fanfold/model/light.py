"""Types that every step builds anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

_Type = TypeVar("_Type")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def light(cls: type[_Type]) -> type[_Type]:
    """A dataclass with slots, of keywords, which is frozen for type checkers only.

    Python would freeze it by a call for every field that is set, which triples what building one costs, and makes up
    a tenth of all that the mesh does for a step. Whoever has one does not change it all the same: others have it too.
    """
    build: Any = dataclass(slots=True, kw_only=True, unsafe_hash=True)
    return build(cls)  # type: ignore[no-any-return]
