"""A job: detached work that somebody may look for later, and what it leaves behind (C31 to C38)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class JobState(StrEnum):
    """The states of a job (C35). The last three are final, and the first of them that is told wins."""

    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def is_settled(self) -> bool:
        """Whether the producer has released what the job held (C36)."""
        return self not in {JobState.RUNNING, JobState.STOPPING}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSource:
    """One stream of a job's output, of which the last bytes are kept (C37).

    `total_bytes` were ever written; the first that is still held has the offset `earliest_offset`; `lossy` says that
    bytes were dropped before it.
    """

    name: str
    total_bytes: int = 0
    earliest_offset: int = 0
    lossy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a producer wants registered (C32).

    `kind` is in kebab-case, and begins the job's id; `sources` are the names of the outputs it will write. An `unowned`
    job is open to every authenticated caller (C34).
    """

    kind: str
    label: str = ""
    parent: str = ""
    sources: Sequence[str] = ()
    unowned: bool = False
    unknown_fields: bytes = b""
    """What only a newer peer knows, as it came (C5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as somebody may see it.

    `id` is `<kind>-<n>` (C33). `owner` is empty for a job that is open to all. `progress` is the producer's line while
    it runs, `detail` its word on how it ended, `stop_reason` why it was asked to stop; each may be empty.
    `waiting_on` says in words what an unfinished job waits on (C42); empty when it moves.
    """

    id: str
    kind: str
    label: str
    state: JobState
    owner: str
    parent: str = ""
    progress: str = ""
    detail: str = ""
    stop_reason: str = ""
    waiting_on: str = ""
    sources: Sequence[OutputSource] = ()
    has_result: bool = False
    created_at: datetime | None = None
    settled_at: datetime | None = None
    unknown_fields: bytes = b""
    """What only a newer peer knows, as it came (C5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to show, of those that may be seen. What is empty does not matter; `owner` covers what it nests."""

    owner: str = ""
    kind: str = ""
    states: Sequence[JobState] = ()
    label: str = ""
    parent: str = ""


ALL_JOBS = JobFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Jobs, newest first. The next page begins at `next_page_token`, empty on the last one.

    Whoever watches from `watch_cursor` on misses nothing that happens after this list was made.
    """

    jobs: Sequence[Job]
    next_page_token: str = ""
    watch_cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """Jobs as they are after changes; `cursor` is where to go on (F23)."""

    jobs: Sequence[Job]
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPiece:
    """Output from the byte at `offset` on; the `gap_bytes` right before it were dropped (C37)."""

    offset: int
    data: bytes
    gap_bytes: int = 0
    time: datetime | None = None
