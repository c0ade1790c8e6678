"""What faults befall, and what can befall it.

A new kind of fault is an entry in its subject's `kinds`; a new subject is a class, and an entry in `stormy_mesh`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """What faults have in common. A storm brings at least one of each that can be."""

    KILL = "kill"
    FREEZE = "freeze"
    CUT = "cut"
    OUTAGE = "outage"


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that may befall a subject: `happen` does it for so many seconds, and everything is well after it."""

    family: Family
    happen: Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something was done to a subject, by the machine's monotonic clock."""

    subject: str
    began: float
    ended: float


class Subject(ABC):
    """Whatever faults befall: one after another, beside those of other subjects."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[tuple[float, str]] = []
        """What was done to it, and when."""
        self.suffered: list[Span] = []
        """When something befell it, and when all was well again."""
        self._one_at_a_time = asyncio.Lock()

    @abstractmethod
    def kinds(self) -> Mapping[str, Kind]:
        """What may befall it, by name."""

    async def suffer(self, kind: str, seconds: float) -> None:
        """Let something befall it, and return when all is well again."""
        async with self._one_at_a_time:
            self.tell(f"{kind}, {seconds:.2f} s")
            began = time.monotonic()
            await self.kinds()[kind].happen(seconds)
            self.suffered.append(Span(self.name, began, time.monotonic()))
            self.tell(f"well again ({kind})")

    def tell(self, what: str) -> None:
        """Note what happens, for whoever looks into a failure."""
        now = time.monotonic()
        self.told.append((now, f"{now:.3f}: {self.name} {what}"))


def told_of(subjects: Iterable[Subject]) -> str:
    """All that was done to them, in order."""
    return "\n".join(line for _, line in sorted(line for subject in subjects for line in subject.told))
