"""What coordinators run here, over links that may break and come back, and what the node has to tell each of them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime

from executor_node.executions import Executions
from fanfold.errors import Aborted, FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from fanfold.feed import Feed
from fanfold.model.node import NodeStatus
from fanfold.model.step import (
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepStarted,
)
from fanfold.ports import ExecutionStart, Rejection, RejectionReason

MAX_RUNS_REMEMBERED = 10_000
"""Runs whose epoch is kept, to refuse older ones; the longest unheard of are forgotten first."""

MAX_UNACKNOWLEDGED_CHARACTERS = 64 * 2**20
"""Output kept for a coordinator that has not acknowledged it; the oldest endings are dropped first."""

KEEP_ENDINGS_SECONDS = 600.0
"""How long endings are kept for a coordinator that does not come back."""

RETRY_DELAY = 0.1
"""Seconds after which the node may be asked again, unless it knows better."""

Update = tuple[str, StepEvent | Rejection]
"""An execution id and what happened to it."""

Word = Update | NodeStatus
"""What a node says on a link."""


class Links:
    """The coordinators that have something here, and the epochs of the runs they spoke of."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions
        self._holders: dict[str, Holder] = {}
        self._epochs: OrderedDict[str, int] = OrderedDict()

    def open(self, coordinator: str, epoch: int, lease: float) -> CoordinatorLink:
        """The coordinator's new link, in place of an older one; it takes over what that one held.

        `lease` in seconds is how long executions live without a word; with 0 they end with the link.

        Raises:
            FailedPrecondition: a newer link of the same coordinator is up.
        """
        holder = self._holders.get(coordinator)
        if holder is None:
            holder = self._holders[coordinator] = Holder(coordinator, self._executions, self)
        return holder.open(epoch, lease)

    def forget(self, holder: Holder) -> None:
        """A coordinator has nothing here any more."""
        if self._holders.get(holder.coordinator) is holder:
            del self._holders[holder.coordinator]

    def tell_status(self) -> None:
        """Tell every coordinator at once how the node fares now."""
        for holder in self._holders.values():
            holder.say(self._executions.status())

    def is_stale(self, run_id: str, epoch: int) -> bool:
        """Whether a newer epoch of the run has been heard of; remembers this one if not."""
        newest = max(epoch, self._epochs.pop(run_id, 0))
        self._epochs[run_id] = newest
        if len(self._epochs) > MAX_RUNS_REMEMBERED:
            self._epochs.popitem(last=False)
        return epoch < newest


class CoordinatorLink:
    """One stream of a coordinator: what it is to be told over it. The executions are the holder's."""

    def __init__(self, holder: Holder, epoch: int) -> None:
        self.holder = holder
        self.epoch = epoch
        self.words: Feed[Word] = Feed()
        self.ended_by: FailedPrecondition | Unavailable | None = None
        """Why the node ended it, if it did."""

    def end(self, error: FailedPrecondition | Unavailable) -> None:
        """End it from this side, after what is still to be told."""
        self.ended_by = error
        self.words.close()

    def finish(self) -> None:
        """The coordinator asks for nothing more."""
        self.words.close()

    def close(self) -> None:
        """The stream has ended, however. What it held goes on until the lease ends."""
        self.words.close()
        self.holder.closed(self)


class Holder:
    """What one coordinator has here: its executions, and the endings that it has not acknowledged.

    Both outlive a link by the lease, so that a link that breaks costs no work (F2). When the lease ends without a word
    of the coordinator, the executions are killed; it may then give the steps to another node.
    """

    def __init__(self, coordinator: str, executions: Executions, links: Links) -> None:
        self.coordinator = coordinator
        self._executions = executions
        self._links = links
        self._link: CoordinatorLink | None = None
        self._lease = 0.0
        self._renewed_at = 0.0
        self._lease_timer: asyncio.TimerHandle | None = None
        self._forget_timer: asyncio.TimerHandle | None = None
        self._running: set[str] = set()
        self._expired: set[str] = set()
        """Executions that are being stopped because the lease has ended."""
        self._unacknowledged: OrderedDict[str, Update] = OrderedDict()
        self._unacknowledged_characters = 0

    @property
    def held(self) -> list[str]:
        """The executions that run, and those whose ending was not acknowledged."""
        return [*self._running, *(each for each in self._unacknowledged if each not in self._running)]

    def open(self, epoch: int, lease: float) -> CoordinatorLink:
        """A new link; it begins with the endings that were not acknowledged. Raises as `Links.open`."""
        if self._link is not None:
            if self._link.epoch > epoch:
                raise superseded()
            self._link.end(superseded())
        link = self._link = CoordinatorLink(self, epoch)
        self._lease = lease
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None
        if lease == 0:
            self._stop_all("its coordinator's link was made anew")
        else:
            self.renew()
            self._watch_lease()
        for update in self._unacknowledged.values():
            link.words.push(update)
        return link

    def closed(self, link: CoordinatorLink) -> None:
        """A link's stream has ended."""
        if self._link is not link:
            return
        self._link = None
        if self._lease == 0:
            self._stop_all("its coordinator's link ended")
        keep = max(KEEP_ENDINGS_SECONDS, self._lease) if self.held else 0.0
        self._forget_timer = asyncio.get_running_loop().call_later(keep, self._forget)

    def renew(self) -> None:
        """The coordinator was heard."""
        self._renewed_at = _boottime()

    def acknowledge(self, execution_id: str) -> None:
        """The coordinator has the ending of this execution."""
        update = self._unacknowledged.pop(execution_id, None)
        if update is not None:
            self._unacknowledged_characters -= _characters(update)

    def say(self, word: Word) -> None:
        """Tell something, if there is a link to tell it over."""
        if self._link is not None and not self._link.words.is_closed:
            self._link.words.push(word)

    def start(self, start: ExecutionStart) -> None:
        """Run an execution, or say why not (C10). One that is held already is left as it is."""
        execution_id = start.execution_id
        if execution_id in self._running or self._has_ended(execution_id):
            return
        rejection = self._try_start(start)
        if rejection is not None:
            self._running.discard(execution_id)
            self._end((execution_id, rejection))

    def fail(self, execution_id: str, task_id: str, agent: str, message: str) -> None:
        """End an execution that cannot even be started, because what was sent is no step."""
        if execution_id in self._running or self._has_ended(execution_id):
            return
        now = datetime.now(UTC)
        failure = StepFailure(code=FailureCode.INTERNAL, message=message)
        outcome = StepOutcome(task_id=task_id, agent=agent, success=False, failure=failure, ended_at=now)
        self.say((execution_id, StepStarted(task_id=task_id, time=now)))
        self._end((execution_id, StepEnded(task_id=task_id, time=now, outcome=outcome)))

    def cancel(self, execution_id: str, reason: str) -> None:
        """Stop an execution of this coordinator; what it does not run is none of its business."""
        if execution_id in self._running:
            self._executions.cancel(execution_id, reason)

    def _has_ended(self, execution_id: str) -> bool:
        """Whether its outcome is known. One that was only rejected may be asked for again."""
        update = self._unacknowledged.get(execution_id)
        if update is not None and isinstance(update[1], Rejection):
            self.acknowledge(execution_id)
            return False
        return update is not None

    def _try_start(self, start: ExecutionStart) -> Rejection | None:
        if self._links.is_stale(start.run_id, start.epoch):
            return Rejection(reason=RejectionReason.STALE_EPOCH)

        def listener(event: StepEvent) -> None:
            self._tell(start, event)

        self._running.add(start.execution_id)
        try:
            self._executions.start(start.execution_id, start.spec, listener)
        except Aborted:
            # Another coordinator's, or one that is still being stopped. It is free again soon.
            return Rejection(reason=RejectionReason.FULL, retry_delay=RETRY_DELAY)
        except ResourceExhausted as error:
            return Rejection(reason=RejectionReason.FULL, retry_delay=error.retry_delay or RETRY_DELAY)
        except Unavailable:
            return Rejection(reason=RejectionReason.DRAINING)
        except NotFound:
            return Rejection(reason=RejectionReason.AGENT_NOT_OFFERED)
        return None

    def _tell(self, start: ExecutionStart, event: StepEvent) -> None:
        if isinstance(event, StepEnded):
            self._running.discard(start.execution_id)
            self._end((start.execution_id, self._handed_back(event) or self._as_lost(start.execution_id, event)))
        elif isinstance(event, StepStarted) or (start.progress and self._has_room()):
            self.say((start.execution_id, event))

    def _handed_back(self, event: StepEnded) -> Rejection | None:
        """What a draining node has stopped is handed back, so that it costs the step no attempt (C43)."""
        failure = event.outcome.failure
        if failure is not None and failure.code is FailureCode.NODE_LOST and self._executions.hands_back:
            return Rejection(reason=RejectionReason.DRAINING)
        return None

    def _as_lost(self, execution_id: str, event: StepEnded) -> StepEnded:
        """What ended with its lease was not cancelled by anybody: it is lost, and may be tried again."""
        if execution_id not in self._expired:
            return event
        self._expired.discard(execution_id)
        outcome = event.outcome
        if outcome.failure is None or outcome.failure.code is not FailureCode.CANCELLED:
            return event
        failure = StepFailure(code=FailureCode.NODE_LOST, message=outcome.failure.message, retryable=True)
        return replace(event, outcome=replace(outcome, failure=failure))

    def _end(self, update: Update) -> None:
        self._unacknowledged[update[0]] = update
        self._unacknowledged_characters += _characters(update)
        while self._unacknowledged_characters > MAX_UNACKNOWLEDGED_CHARACTERS and len(self._unacknowledged) > 1:
            self.acknowledge(next(iter(self._unacknowledged)))
        self.say(update)

    def _has_room(self) -> bool:
        return self._link is not None and self._link.words.has_room()

    def _watch_lease(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._lease == 0:
            return
        left = self._renewed_at + self._lease - _boottime()
        if left > 0:
            self._lease_timer = asyncio.get_running_loop().call_later(left, self._watch_lease)
        else:
            self._expired |= self._running
            self._stop_all("its coordinator was not heard for the time of its lease")
            if self._link is not None:
                self._link.end(Unavailable("nothing was heard from the coordinator for the time of its lease"))

    def _stop_all(self, reason: str) -> None:
        for execution_id in list(self._running):
            self._executions.cancel(execution_id, reason)

    def _forget(self) -> None:
        if self._running:  # still being stopped
            self._forget_timer = asyncio.get_running_loop().call_later(RETRY_DELAY, self._forget)
            return
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._links.forget(self)


def superseded() -> FailedPrecondition:
    """What an older link of the same coordinator is told."""
    return FailedPrecondition("a newer link of the same coordinator is up", reason="LINK_SUPERSEDED")


def _characters(update: Update) -> int:
    _, what = update
    return len(what.outcome.output) if isinstance(what, StepEnded) else 0


def _boottime() -> float:
    """Seconds on a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
