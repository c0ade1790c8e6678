"""The protocol of a journal: runs with their holders, and what is appended to them (C16 to C19).

A run is one row, which says who holds it until when, and an append-only log of events. Records are the successful steps
of a workflow; they outlive its runs until all steps have succeeded. Time is the journal's own: holders never compare
clocks. Every write by a holder carries the epoch with which it holds the run, and is refused once the row has moved on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from fanfold.errors import Aborted, Unavailable
from fanfold.model.principal import covers
from fanfold.model.run import Budget, Run, RunKind, RunState, StepCounts


class Fenced(Aborted):
    """The run has moved on to another coordinator, or has ended."""

    default_reason = "RUN_MOVED"


class NameTaken(Aborted):
    """Another coordinator has this one's name by now."""

    default_reason = "NAME_TAKEN"


class JournalFailed(Unavailable):
    """The journal cannot be read or written; its coordinator's log says why."""

    default_reason = "JOURNAL_FAILED"


class PayloadGone(JournalFailed):
    """What the journal keeps of a run or a workflow is not whole any more; to ask again is no use."""

    default_reason = "PAYLOAD_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A coordinator by its name, and where others reach it, as host:port. `life` tells processes of one name apart."""

    name: str
    address: str
    life: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Namesake:
    """The life of a coordinator that has a name, until then unless it says once more that it is there."""

    life: str
    address: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be kept. `run` says what it is and whose; its state is PENDING and its counts are as asked for.

    Its times are the journal's own, each later than those of the owner's runs before, so that pages have one order.
    `request` is all that another coordinator needs to go on with it, and `request_digest` tells two requests apart.
    """

    run: Run
    request_id: str = ""
    request_digest: str = ""
    request: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run as the journal has it.

    `lease_left` is in seconds, negative when the lease is over, and 0 for a run that has ended or was let go.
    `nodes` are the nodes that its steps may be on. `last_sequence` is the number of its last event, and stays when
    events are swept. The holder of a run that has ended or was let go has no name; `run.coordinator` is the last one.
    """

    run: Run
    request_id: str
    request_digest: str
    holder: Holder
    epoch: int
    lease_left: float
    held_since: datetime
    nodes: tuple[str, ...] = ()
    last_sequence: int = 0
    cancel_reason: str | None = None
    """Why it is to be cancelled, if somebody asked for that."""
    unheld: float = 0.0
    """Of a run that was just claimed: seconds since its last lease was over; infinite if the run was let go."""


class Entry(NamedTuple):
    """One kept event, encoded. `outcomes_only` says whether those who want only outcomes are told it too."""

    sequence: int
    data: bytes
    outcomes_only: bool = True


class Record(NamedTuple):
    """One successful step of a workflow. `data` is the encoded event of its end."""

    key: str
    fingerprint: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What a holder writes at once: events, records, and how the run then stands.

    Entries have the sequence numbers that follow the last kept one. A call that failed may have taken effect, so it may
    be repeated as it was: what is kept already is not kept twice. `budget` None leaves what is kept of it.

    `state` other than RUNNING ends the run: `reason` says why, the row is nobody's any more, and with `forget_records`
    the workflow's records are deleted (C16).
    """

    run_id: str
    epoch: int
    entries: Sequence[Entry] = ()
    records: Sequence[Record] = ()
    steps: StepCounts
    budget: Budget | None = None
    waiting_on: str = ""
    state: RunState = RunState.RUNNING
    reason: str = ""
    forget_records: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A run that a coordinator still holds, as a renewal tells."""

    run_id: str
    epoch: int
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which runs to claim: of these kinds, and none of `besides`, which others are to go on with."""

    kinds: frozenset[RunKind] = frozenset(RunKind)
    besides: frozenset[str] = frozenset()


ANY = Claim()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list, newest first: those that `owner` covers, of whatever owner if it is None (C34).

    Empty `states` and `workflow_id` mean all. `before` is the created_at and run id of the last run of the page before.
    """

    owner: str | None
    states: frozenset[RunState] = frozenset()
    workflow_id: str = ""
    before: tuple[datetime, str] | None = None
    limit: int = 100

    def covers(self, owner: str) -> bool:
        """Whether runs of `owner` are among them."""
        return self.owner is None or covers(self.owner, owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of the past (C39), by count and by age in seconds.

    `events` bounds the events of all ended runs together; those of the runs that ended first go first, while their
    rows stay. Records go `record_age` after the last one of their workflow was written, unless a run of it goes on.
    """

    ended_runs: int = 1_000
    ended_run_age: float = 7 * 86_400.0
    events: int = 2_000_000
    record_age: float = 30 * 86_400.0


class Listener(Protocol):
    """Hears what other coordinators on a journal have done. Its methods never wait."""

    def on_let_go(self) -> None:
        """Runs were let go, or may have been."""
        ...

    def on_cancel(self) -> None:
        """Runs are to be cancelled, or may be."""
        ...


class Journal(Protocol):
    """Keeps runs. Whatever has returned is durable.

    Every method raises JournalFailed when the journal cannot be read or written (C17); then, and when the call is
    cancelled, it may have taken effect or not. Calls may be made at the same time: those that write to one run take
    effect in the order in which they were made, and what a call reads has all that had returned before.
    """

    async def accept(self, new: NewRun, holder: Holder, lease: float) -> KeptRun:
        """Keep a new run, held by `holder` for `lease` seconds with epoch 1.

        A request id of the same owner that is known already gives its run instead, whose `run_id` then differs; unless
        that run was cancelled or failed and is no job, in which case the id becomes the new run's (C18). A run that is
        kept already, as after a call that failed, is given as it is.

        Raises:
            Aborted: a run that has not ended has the workflow id; the message tells since when it is held (C18), and
                the reason is WORKFLOW_HELD.
        """
        ...

    async def append(self, append: Append) -> None:
        """Write to a run.

        Raises:
            Fenced: the epoch is not the run's own, or it has ended; nothing was written.
            InternalError: the entries do not follow the last kept one, or the run has no workflow that records could be
                of; nothing was written.
        """
        ...

    async def use_node(self, run_id: str, epoch: int, node: str) -> None:
        """Note that the run's steps may be on this node from now on (C19). Raises Fenced as `append`."""
        ...

    async def set_job(self, run_id: str, epoch: int, job_id: str) -> None:
        """Note which job in the registry a detached run is (C31). Raises Fenced as `append`."""
        ...

    async def take_name(self, holder: Holder, lease: float) -> Namesake | None:
        """Have the holder's name for `lease` seconds from now; else who has it.

        A name belongs to one life of a coordinator at a time, and so do the runs that are held by it. Where another one
        was before, it cannot be any more: at the same address the next life has the name at once.
        """
        ...

    async def drop_name(self, holder: Holder) -> None:
        """Leave the name to the coordinator's next life. Does nothing if this one does not have it."""
        ...

    async def renew(self, holder: Holder, lease: float) -> Sequence[Held]:
        """Renew the holder's name and every lease of it, for `lease` seconds from now; gives the runs it holds.

        Also of runs whose lease is over, as after an outage of the journal, as long as nobody has claimed them: nobody
        else can have done anything for them meanwhile. Runs that are accepted or claimed during the call may be missing
        from the answer.

        Raises:
            NameTaken: another life has the name; nothing was renewed.
        """
        ...

    async def claim(self, holder: Holder, lease: float, limit: int = 100, wanted: Claim = ANY) -> Sequence[KeptRun]:
        """Take over runs whose lease is over or that were let go, for `lease` seconds, each with its next epoch."""
        ...

    @property
    def tells(self) -> bool:
        """Whether coordinators hear of one another through it; where they do not, they have to look."""
        ...

    async def listen(self, listener: Listener) -> None:
        """Let a coordinator hear what others do, for ever."""
        ...

    async def until_end_of_leases(self) -> float:
        """Seconds until the first of the leases that run now is over; infinite if there is none."""
        ...

    async def let_go(self, run_id: str, epoch: int) -> None:
        """Give a run up, so that it can be claimed at once. Does nothing unless it is held with this epoch."""
        ...

    async def ask_to_cancel(self, run_id: str, reason: str) -> None:
        """Note that a run is to be cancelled; the first reason is kept. Does nothing to one that has ended."""
        ...

    async def find(self, run_id: str) -> KeptRun | None:
        """A run by its id."""
        ...

    async def find_workflow(self, owner: str, workflow_id: str) -> KeptRun | None:
        """The latest run of a workflow."""
        ...

    async def find_request(self, owner: str, request_id: str) -> KeptRun | None:
        """The run of a request."""
        ...

    async def list_runs(self, wanted: RunFilter) -> Sequence[KeptRun]:
        """Runs by filter, newest first."""
        ...

    async def request(self, run_id: str) -> bytes:
        """What the run was asked for; empty for a run that is not kept."""
        ...

    async def entries(self, run_id: str, first: int, max_bytes: int = 1_048_576) -> Sequence[Entry]:
        """Kept events from number `first` on, in order, at least one if there is any, at most about `max_bytes`.

        Where events were swept, the first one has a higher number than was asked for.
        """
        ...

    async def records(self, owner: str, workflow_id: str) -> Sequence[Record]:
        """The records of a workflow, in no order."""
        ...

    async def put_records(self, owner: str, workflow_id: str, records: Sequence[Record]) -> None:
        """Replace the records of a workflow by these.

        Raises:
            Aborted: a run of it has not ended (reason WORKFLOW_HELD).
        """
        ...

    async def sweep(self, retention: Retention) -> int:
        """Delete what is beyond the retention; gives the number of runs deleted. Runs that have not ended stay."""
        ...
