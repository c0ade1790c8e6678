"""What a job may be, and how many there may be (C32, C39). Every refusal names the limit and its value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fanfold.errors import FieldViolation, InvalidArgument, ResourceExhausted
from fanfold.measures import Tally
from fanfold.model.job import JobSpec
from fanfold.model.principal import outermost
from fanfold.model.validation import parse_line
from job_registry.config import JobLimits
from job_registry.refusals import TRY_AGAIN_SECONDS, TooManyJobs

MAX_KIND = 63
MAX_SOURCES = 8
MAX_CHUNKS = 1024
"""Pieces of output in one message; each takes its time, also if it is empty."""

MAX_WORDS = 4096
"""Characters of progress, details and reasons."""

MAX_OFFSET = MAX_EPOCH = 2**63 - 1
"""As far as databases count."""

_KIND = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

RESULTS_AT_ONCE = 4
"""Results of the largest size that may be under way for one principal."""


def check_spec(spec: JobSpec, limits: JobLimits) -> None:
    """Raise InvalidArgument, naming the field and the limit, for a job that cannot be."""
    if len(spec.kind) > MAX_KIND or _KIND.fullmatch(spec.kind) is None:
        raise InvalidArgument.of_field(
            "open.spec.kind", f"must be 1 to {MAX_KIND} characters in kebab-case, as web-search"
        )
    parse_line(spec.label, path="open.spec.label", most=limits.label_length)
    parse_line(spec.parent, path="open.spec.parent", most=limits.label_length)
    _check_sources(spec.sources)


def _check_sources(sources: Sequence[str]) -> None:
    path = "open.spec.sources"
    if len(sources) > MAX_SOURCES:
        raise InvalidArgument.of_field(path, f"must be at most {MAX_SOURCES}, not {len(sources)}")
    wrong = [
        FieldViolation(f"{path}[{index}]", "must be 1 to 64 characters of letters, digits and ._-, and not repeated")
        for index, name in enumerate(sources)
        if _SOURCE.fullmatch(name) is None or name in sources[:index]
    ]
    if wrong:
        raise InvalidArgument(violations=wrong)


def line_of(words: str) -> str:
    """A producer's words as one line. What is beyond the limit is cut: no settlement must be lost for its words."""
    line = _CONTROL.sub(" ", words)
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for one more job of a principal, as a registry knows.

    Up to the change at `position`, there are at most `live` jobs that are not settled, and `live_of_root` of the
    principal's outermost one and those nested in it.
    """

    limits: JobLimits
    root: str
    live: int = 0
    live_of_root: int = 0
    position: int = -1

    def is_certain(self, more: int) -> bool:
        """Whether there is room also with so many more."""
        limits = self.limits
        return self.live + more < limits.live_jobs and self.live_of_root + more < limits.live_jobs_per_owner

    def require(self, live: int, live_of_root: int) -> None:
        """Raise TooManyJobs unless there is room where there are exactly so many."""
        if live >= self.limits.live_jobs:
            raise TooManyJobs("there are", "live_jobs", self.limits.live_jobs)
        if live_of_root >= self.limits.live_jobs_per_owner:
            raise TooManyJobs(f"{self.root} has", "live_jobs_per_owner", self.limits.live_jobs_per_owner)


class Capacity:
    """How many jobs are live or about to be, by whom they are for: a principal with all those nested in it."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()
        self._total = 0
        self.refused = Tally()
        """How often there was no room, by the limit."""

    @contextmanager
    def reserved(self, principal: str) -> Iterator[None]:
        """Have room for one more while the block lasts, as far as is known here: the store knows better.

        Raises:
            TooManyJobs: there is none.
        """
        room = self.room(principal)
        try:
            room.require(room.live, room.live_of_root)
            self.take(principal)
            try:
                yield
            finally:
                self.give(principal)
        except TooManyJobs as refusal:
            self.refused[refusal.limit,] += 1
            raise

    def room(self, principal: str, position: int = -1) -> Room:
        """What there is for one more, counted up to the change at a position, or further."""
        root = outermost(principal)
        return Room(self._limits, root, self._total, self._taken[root], position)

    def take(self, principal: str) -> None:
        """Count one more, also beyond the limits, as after a restart with smaller ones."""
        self._taken[outermost(principal)] += 1
        self._total += 1

    def give(self, principal: str) -> None:
        """Count one less."""
        root = outermost(principal)
        self._total -= 1
        self._taken[root] -= 1
        if not self._taken[root]:
            del self._taken[root]


class ResultsUnderWay:
    """Bytes of results that have come and are not kept yet, by whom they are for: as Capacity counts."""

    def __init__(self, limits: JobLimits) -> None:
        self._most = RESULTS_AT_ONCE * limits.result_bytes
        self._held: Counter[str] = Counter()

    @contextmanager
    def of(self, principal: str) -> Iterator[Callable[[int], None]]:
        """Take up one more result in the block, with what this gives, which raises ResourceExhausted beyond the limit.

        Of one that comes alone any size is taken.
        """
        root, mine = outermost(principal), 0

        def take(size: int) -> None:
            nonlocal mine
            if self._held[root] > mine and self._held[root] + size > self._most:
                raise ResourceExhausted(
                    f"{root} settles as many large results at once as may be: they have at most {self._most:,} bytes"
                    f" together, {RESULTS_AT_ONCE} times result_bytes",
                    reason="RESULTS_UNDER_WAY",
                    retry_delay=TRY_AGAIN_SECONDS,
                )
            self._held[root] += size
            mine += size

        try:
            yield take
        finally:
            self._held[root] -= mine
            if not self._held[root]:
                del self._held[root]
