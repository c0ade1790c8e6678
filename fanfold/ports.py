"""The protocols between the domain and whatever serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fanfold.model.job import ALL_JOBS, Job, JobChanges, JobFilter, JobPage, JobSpec, JobState, OutputPiece
from fanfold.model.light import light
from fanfold.model.node import Node, NodeStatus
from fanfold.model.step import NO_USAGE, AgentStepSpec, StepEvent, StepOutcome, Usage
from fanfold.model.trace import TraceContext

OnStepEvent = Callable[[StepEvent], None]
"""Takes one event; must not block and must not raise."""


class AgentExecutor(Protocol):
    """Runs steps, somewhere (C8). Combinators are written against this and cannot see where a step ran."""

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step to its end and tell its life to `on_event` in order (C11).

        A step that goes wrong is an outcome with `success` false, never an exception (C9).

        Raises:
            InvalidArgument: the spec is wrong.
            asyncio.CancelledError: this call was cancelled; the step's processes are gone.
        """
        ...

    def concurrency_hint(self) -> int:
        """Steps it would like to have at once (C10): advice, not a ceiling; may move at any time, also to 0."""
        ...


@light
class ExecutionStart:
    """One attempt of a step, to be run by a node. A second start of the same `execution_id` is the same execution."""

    execution_id: str
    run_id: str
    epoch: int
    spec: AgentStepSpec
    progress: bool
    trace: TraceContext | None = None


class RejectionReason(StrEnum):
    """Why a node did not take an execution; never the step's failure (C10)."""

    FULL = "full"
    DRAINING = "draining"
    AGENT_NOT_OFFERED = "agent not offered"
    STALE_EPOCH = "stale epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A node did not take an execution, or hands it back; `retry_delay` in seconds.

    `usage` is what was spent on it before it was handed back.
    """

    reason: RejectionReason
    retry_delay: float = 0.0
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdopted:
    """A node's answer to an adoption: the run's executions that it holds, which are the asker's from now on.

    With `stale` there are none: the run has moved on to an epoch newer than the one that was asked with. With `unbegun`
    there are none either: the node was started after it was sent any of the run, if it ever was.
    """

    run_id: str
    epoch: int
    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    stale: bool = False
    unbegun: bool = False


class NodeLink(Protocol):
    """The live link to one node. Its methods gather messages and never wait."""

    def start(self, start: ExecutionStart) -> None:
        """Ask the node to run an execution."""
        ...

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        """Ask the node to stop an execution, in `delay` seconds unless it is adopted before; its `ended` still comes.

        False when its start had not left yet: it never will, and nothing comes.
        """
        ...

    def adopt(self, run_id: str, epoch: int) -> None:
        """Ask the node to make all that it holds of a run this coordinator's; it answers with `run_adopted` (C19)."""
        ...

    def acknowledge(self, execution_id: str) -> None:
        """Tell the node, now or soon, that it need not keep the ending of an execution, nor have it come."""
        ...

    def want(self, execution_id: str) -> None:
        """Have the ending of an execution come that the node withholds because its texts are large."""
        ...

    def unsent(self) -> list[str]:
        """The executions whose start has not wholly left, so that the node cannot have begun them."""
        ...

    def finish(self) -> None:
        """Ask for nothing more: the node ends the link once it has told everything. Idempotent."""
        ...


class LinkListener(Protocol):
    """Hears what a node says on its link. Its methods must not block."""

    def welcomed(self, node: Node, link: NodeLink, held: frozenset[str]) -> None:
        """The link is there, and the node holds these executions of ours and no others.

        Raises FanfoldError to give the link up.
        """
        ...

    def status_changed(self, status: NodeStatus) -> None:
        """How the node fares now; about once a second."""
        ...

    def offer_changed(self, node: Node) -> None:
        """The node offers other agents from now on."""
        ...

    def run_adopted(self, adopted: RunAdopted) -> None:
        """A run's executions are this coordinator's now; comes before anything else of them."""
        ...

    def execution_event(self, execution_id: str, event: StepEvent) -> None:
        """Something happened to an execution; nothing comes after `StepEnded`, before which there may be no start.

        The node keeps that until it is acknowledged, and tells it again over each new link.
        """
        ...

    def execution_rejected(self, execution_id: str, rejection: Rejection) -> None:
        """The node did not take an execution, or it has become another coordinator's; nothing comes after."""
        ...

    def execution_withheld(self, execution_id: str, size: int) -> None:
        """An execution has ended; its ending, with texts of `size` bytes, comes once it is wanted."""
        ...

    def keeps_up(self, execution_id: str) -> bool:
        """Whether whoever an execution is for reads its progress as fast as it comes."""
        ...


class NodeDialer(Protocol):
    """Makes links to nodes."""

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        """Hold a link to the node at `address` for as long as it lasts.

        Raises:
            FanfoldError: why it could not be made or why it ended.
        """
        ...


class JobRegistry(Protocol):
    """Finds, follows and stops the jobs that the caller may see (C33, C34).

    Each method raises NotFound for a job that is not there and for one of somebody else, which look the same.
    """

    async def get_job(self, job_id: str) -> Job:
        """How a job fares."""
        ...

    async def list_jobs(self, wanted: JobFilter = ALL_JOBS, *, page_size: int = 100, page_token: str = "") -> JobPage:
        """One page of jobs, newest first. Raises InvalidArgument for a token that was not given by this method."""
        ...

    def watch_jobs(self, cursor: str = "", wanted: JobFilter = ALL_JOBS) -> AsyncIterator[JobChanges]:
        """Changes of jobs from a cursor on, or from now on; each settlement once for a cursor (F23).

        Raises OutOfRange if they are no longer held; list again then.
        """
        ...

    async def wait_job(self, job_id: str, timeout: float = 60.0) -> Job:
        """The job once it is settled (C36), or as it is when the time is over, in seconds."""
        ...

    def read_output(
        self, job_id: str, source: str = "", *, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[OutputPiece]:
        """Output of a source, by default the first, from a byte on; with `follow` until the job is settled (C37)."""
        ...

    def read_result(self, job_id: str) -> AsyncIterator[bytes]:
        """The parts of a settled job's result. Raises FailedPrecondition if it is not settled or has none."""
        ...

    async def cancel_job(self, job_id: str, reason: str = "") -> Job:
        """Ask a job to stop; the first reason is kept (C38). Gives the job as it then is."""
        ...

    async def delete_job(self, job_id: str) -> None:
        """Remove a settled job. Raises FailedPrecondition if it is not settled."""
        ...


Start = Callable[[], Awaitable[str]]
"""Begins a job's work; says on one line what that holds, as "process 4711 on host-a"; may be empty (C38)."""


class Production(Protocol):
    """A job as its producer holds it, from its commitment to its settlement (C32). Broken connections are mended."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        ...

    @property
    def max_result_bytes(self) -> int | None:
        """Largest result that the registry keeps; None as long as it has not said so."""
        ...

    def write(self, source: str, data: bytes) -> None:
        """Add to a source's output. Never waits; what cannot be sent in time is dropped and told as a gap (C37)."""
        ...

    def tell_progress(self, line: str) -> None:
        """Replace the line that says how far it is. Never waits."""
        ...

    async def stop_asked(self) -> str:
        """Wait until somebody asks the job to stop; gives the reason (C38).

        Raises:
            NotFound: the registry has given the job up ("gone"): stop the work.
            Aborted: another producer holds it.
        """
        ...

    async def settle(self, state: JobState, detail: str = "", result: bytes | None = None) -> Job:
        """Say how it ended, once all it held is released (C36); gives the job as it is kept, for the first word wins.

        Returns when that is durable, however long the registry is away.

        Raises:
            NotFound: the registry has given the job up ("gone").
            Aborted: another producer holds it.
            ResourceExhausted: the result is larger than the registry keeps; settle without it.
        """
        ...

    async def let_go(self) -> None:
        """Produce it no longer from here, unsettled as it is, for another producer to go on with it.

        What was written is sent before, if the registry is there.
        """
        ...


class JobProducer(Protocol):
    """Registers jobs and carries their lives."""

    async def open_job(
        self,
        spec: JobSpec,
        request_id: str,
        *,
        epoch: int,
        start: Start,
        owner: str = "",
        trace: TraceContext | None = None,
    ) -> Production:
        """Register a job: once it is admitted, `start` is called, once, and then it is committed.

        What `start` raises takes the registration back and is raised here. A `request_id` that was used before gives
        its job, taken over with `epoch`; `start` is not called then. `owner` is whom the job is for, if not the
        producer itself, and `trace` what it is part of, if not of the span that the caller is in. Once the work has
        begun, a registry that vanishes is waited for.

        Raises:
            Aborted: a producer with a newer epoch holds the request's job.
            ResourceExhausted: a limit is reached; names it.
            Unavailable: the registry cannot be reached; nothing was started.
        """
        ...

    def reattach(
        self, job_id: str, *, epoch: int, rewrites: bool = False, trace: TraceContext | None = None
    ) -> Production:
        """Go on with a job that was produced before, with a newer epoch or the same, as soon as the registry is there.

        Its output goes on behind what is kept; with `rewrites` it is written again from its first byte, and what is
        kept of it is not kept twice.
        If the job is not this producer's any more, `stop_asked` and `settle` say so.
        """
        ...
