"""The protocol of a store: jobs, the order in which they changed, their output and their results.

Every change of a job that others are told has a number, which only grows over all jobs, and a job carries its last one.
So whoever has seen everything up to a number asks for the jobs with larger ones, and is told each as it is (F23).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from fanfold.errors import OutOfRange, Unavailable
from fanfold.model.job import ALL_JOBS, JobFilter, JobState, OutputPiece, OutputSource
from fanfold.model.principal import covers
from fanfold.model.trace import TraceContext
from job_registry.limits import Room
from job_registry.states import RUNNING, Move, Standing

RESULT_PART_BYTES = 256 * 1024


class StoreFailed(Unavailable):
    """The registry's store cannot be read or written; its log says why."""

    default_reason = "STORE_FAILED"


class ChangesGone(OutOfRange):
    """Changes from that cursor on are no longer held; list the jobs again."""

    default_reason = "CHANGES_GONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob:
    """A job as it is kept.

    `number` is the last part of its id. `producer` is the principal that registered it, `holds` what its work holds, in
    words. `owner` is empty for a job that is open to all, `result_bytes` None for one without a result. `change` is the
    number of its last change. One that is `deleted` is only still there to be told as a change.

    `holder` names the registry to which its producer's stream came last, and is empty once that is known to have ended.
    `hold` counts these streams: what one of them has to write is refused once there was another (F5). `trace` is what
    the first of them was traced as, None if nobody traces it.
    """

    number: int
    kind: str
    owner: str
    producer: str
    request_id: str
    epoch: int
    holder: str = ""
    hold: int = 1
    label: str = ""
    parent: str = ""
    holds: str = ""
    standing: Standing = RUNNING
    progress: str = ""
    sources: Sequence[OutputSource] = ()
    result_bytes: int | None = None
    created_at: datetime
    settled_at: datetime | None = None
    change: int
    deleted: bool = False
    trace: TraceContext | None = None

    @property
    def id(self) -> str:
        """What callers call it (C33)."""
        return f"{self.kind}-{self.number}"

    @property
    def counted_by(self) -> str:
        """The principal whose limit it counts for."""
        return self.owner or self.producer

    @property
    def state(self) -> JobState:
        """Its state."""
        return self.standing.state


@dataclass(frozen=True, slots=True)
class Moved:
    """A job after a move, and whether it was that which moved it."""

    job: KeptJob
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be kept; see KeptJob."""

    number: int
    kind: str
    owner: str
    producer: str
    request_id: str
    epoch: int
    holder: str = ""
    label: str = ""
    parent: str = ""
    holds: str = ""
    sources: Sequence[str] = ()
    trace: TraceContext | None = None

    @property
    def counted_by(self) -> str:
        """The principal whose limit it counts for."""
        return self.owner or self.producer


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWrite:
    """Output of a job to be kept: `source` as it is now, and the `pieces` that are new, or `afresh` all there are.

    Output before the source's earliest offset is forgotten.
    """

    number: int
    source: OutputSource
    pieces: Sequence[OutputPiece] = ()
    afresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to give. `reach` is the principal who must cover the owner, None for all owners."""

    reach: str | None = None
    wanted: JobFilter = ALL_JOBS
    limit: int = 100


def matches(job: KeptJob, query: JobQuery) -> bool:
    """Whether a query is for a job."""
    if query.reach is not None and job.owner != "" and not covers(query.reach, job.owner):
        return False
    wanted = query.wanted
    return (
        (not wanted.owner or covers(wanted.owner, job.owner))
        and (not wanted.kind or job.kind == wanted.kind)
        and (not wanted.states or job.state in wanted.states)
        and (not wanted.label or job.label == wanted.label)
        and (not wanted.parent or job.parent == wanted.parent)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Jobs as they are after changes, by the number of their last one; all of it up to `position` has been told."""

    jobs: Sequence[KeptJob]
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOutput:
    """What is kept of a source, in order."""

    source: OutputSource
    pieces: Sequence[OutputPiece]


class Listener(Protocol):
    """Hears what other registries on a store have done. Its methods never wait."""

    def on_changes(self) -> None:
        """There are changes, or there may be some."""
        ...

    def on_output(self, numbers: Collection[int]) -> None:
        """There is output of these jobs."""
        ...

    def on_anything(self) -> None:
        """There may be changes, and output of any jobs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How many settled jobs are kept, of all and of an owner with all nested in it, and for how many seconds (C39)."""

    settled_jobs: int
    settled_jobs_per_owner: int
    settled_age: float


def is_beyond(sources: Iterable[OutputSource], writes: Iterable[OutputWrite], most: int) -> bool:
    """Whether of a source more bytes are kept than that, after writes."""
    after = {source.name: source for source in (*sources, *(write.source for write in writes))}
    return any(source.total_bytes - source.earliest_offset > most for source in after.values())


class JobStore(Protocol):
    """Keeps jobs, for one registry or several. Whatever has returned is durable.

    Every method raises StoreFailed when the store cannot be read or written; then it may have taken effect or not.
    Writes are made one after the other, whichever registry they come from; what a call reads has all that had returned
    before.
    """

    @property
    def identity(self) -> str:
        """Tells it from all other stores."""
        ...

    async def take_number(self) -> int:
        """A number that was never given before, and will not be again (C32)."""
        ...

    async def add(self, new: NewJob, room: Room) -> KeptJob:
        """Keep a new job. What its owner has with the same request id already is given instead.

        Raises:
            TooManyJobs: there are as many as may be. A registry that has the store alone sees to that itself.
        """
        ...

    async def attach(self, number: int, epoch: int, holder: str, hold: int) -> KeptJob:
        """Have another stream hold a job, at the registry `holder`, where the last one before it has this `hold`.

        What is settled, or has come to have another hold, is given as it is.

        Raises:
            Aborted: the job has a newer epoch.
        """
        ...

    async def leave(self, holds: Mapping[int, int]) -> None:
        """Note that streams have ended, by the numbers of their jobs and their holds; not where others have come."""
        ...

    async def move(
        self,
        number: int,
        move: Move,
        *,
        hold: int | None = None,
        progress: str | None = None,
        output: Sequence[OutputWrite] = (),
        result: bytes | None = None,
        settled_bytes: int = sys.maxsize,
    ) -> Moved:
        """Move a job from where it stands, with its progress, its last output and its result; gives it as it then is.

        One that does not move, as it is settled, keeps all that it has. One that is settled by it and has more than
        `settled_bytes` of a source is `uncut`.

        Raises:
            Aborted: `hold` is not that of the job any more.
        """
        ...

    async def write_output(
        self, writes: Sequence[OutputWrite], progress: Mapping[int, str], holds: Mapping[int, int]
    ) -> None:
        """Keep output of many jobs, and the progress lines that have changed.

        Not of jobs that are settled, or have another hold than `holds` says.
        """
        ...

    async def uncut(self, seconds: float) -> Sequence[int]:
        """Numbers of jobs that are uncut and have settled longer than `seconds` ago; of many those that were first."""
        ...

    async def cut_output(self, cut: Mapping[int, Sequence[OutputWrite]]) -> None:
        """Keep less output of jobs that are uncut: what is written afresh, if anything is. They are so no longer."""
        ...

    async def find(self, number: int) -> KeptJob | None:
        """A job; also one that is deleted."""
        ...

    async def find_request(self, owner: str, request_id: str) -> KeptJob | None:
        """The job that an owner has with a request id."""
        ...

    async def unsettled(self) -> Sequence[KeptJob]:
        """All jobs that are not settled."""
        ...

    async def list_jobs(self, query: JobQuery, before: int | None = None) -> Sequence[KeptJob]:
        """Jobs that are not deleted, by descending number, with numbers below `before`."""
        ...

    async def position(self) -> int:
        """The number of the last change of all."""
        ...

    async def changes(self, query: JobQuery, after: int) -> Changes:
        """Jobs that have changed after that number, also deleted ones.

        Raises:
            ChangesGone: some of them are not held any more, or there never was such a number.
        """
        ...

    async def output(self, number: int, source: str | None = None, offset: int = 0) -> Sequence[KeptOutput]:
        """What is kept of a source of a job, or of each; pieces with bytes from `offset` on. None of one not there."""
        ...

    async def result_part(self, number: int, part: int) -> bytes | None:
        """The n-th part of a result, from 0 on, each of at most RESULT_PART_BYTES; None beyond the last."""
        ...

    async def renew(self, name: str, lease: float) -> Collection[str]:
        """Note that a registry is there, for `lease` seconds from now; gives the names of all that are."""
        ...

    async def listen(self, listener: Listener) -> None:
        """Let a registry hear what others do, for ever; those of a store of its own have nothing to tell."""
        ...

    async def delete(self, number: int) -> None:
        """Delete a settled job. Its output, result and request id are gone; as a change it is held on."""
        ...

    async def purge(self, retention: Retention) -> int:
        """Forget the settled jobs that are beyond the retention, those that settled first first; gives how many.

        What an owner has too much of is deleted as by `delete`, and not counted against others. Of deleted jobs, what
        tells their changes goes by the same limits, counted by itself.
        """
        ...
