"""What producers and the registry say to one another on a stream (C32)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fanfold.model.job import Job, JobSpec, JobState


@dataclass(frozen=True, slots=True)
class Open:
    """A new job, for another principal if `on_behalf_of` says so."""

    spec: JobSpec
    request_id: str
    on_behalf_of: str = ""
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Reattach:
    """A job that was produced before."""

    job_id: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Started:
    """The work has started, and holds what `holds` says. Epoch 0 is that of `Open`."""

    epoch: int = 0
    holds: str = ""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The work could not start."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output."""

    source: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """Output and, unless it stays as it is, the progress line."""

    chunks: Sequence[Chunk] = ()
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The work has ended; with `more`, a part of its result ahead."""

    state: JobState
    detail: str = ""
    result: bytes | None = None
    more: bool = False


ProducerWord: TypeAlias = Open | Reattach | Started | StartFailed | Output | Settled


@dataclass(frozen=True, slots=True)
class Admitted:
    """The work may start."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The job is visible, and held with this epoch."""

    job: Job
    epoch: int
    max_result_bytes: int


@dataclass(frozen=True, slots=True)
class Credit:
    """So many more bytes of output may come."""

    count: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody asks for a stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The settlement is durable."""

    job: Job


RegistryWord: TypeAlias = Admitted | Committed | Credit | Cancel | Kept
