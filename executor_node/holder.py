"""What one coordinator has on the node, whatever becomes of its links."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from executor_node.executions import Executions
from executor_node.lease import Lease
from executor_node.link import CoordinatorLink, Update, Word
from fanfold.errors import Aborted, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from fanfold.model.step import (
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepStarted,
)
from fanfold.parts import Piece, TextField
from fanfold.ports import ExecutionStart, Rejection, RejectionReason

if TYPE_CHECKING:
    from executor_node.links import Links

RETRY_DELAY = 0.1
"""Seconds after which the node may be asked again, unless it knows better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How long, and how much, the node keeps of steps that have ended."""

    seconds: float = 600.0
    """How long endings are kept for whoever does not come back for them."""
    characters: int = 256 * 2**20
    """Output kept for one coordinator, or for all direct callers."""


DEFAULT_KEEPING = Keeping()


class Holder:
    """What one coordinator has here: its executions, and the endings that it has not acknowledged.

    Both outlive a link by the lease, so that a link that breaks costs no work (F2). When the lease ends without a word
    of the coordinator, the executions are killed; it may then give the steps to another node.

    Endings are kept as `keeping` says. While the coordinator is there none is dropped: it may only be slow to take
    large ones, and the node is then full. While it is away the oldest are dropped.
    """

    def __init__(self, coordinator: str, executions: Executions, links: Links, keeping: Keeping) -> None:
        self.coordinator = coordinator
        self._executions = executions
        self._links = links
        self._keeping = keeping
        self._link: CoordinatorLink | None = None
        self._lease = Lease(self._lease_ended)
        self._forget_timer: asyncio.TimerHandle | None = None
        self._running: dict[str, _Running] = {}
        self._expired: set[str] = set()
        """Executions that are being stopped because the lease has ended."""
        self._unacknowledged: OrderedDict[str, Update] = OrderedDict()
        self._unacknowledged_characters = 0

    @property
    def held(self) -> list[str]:
        """The executions that run, and those whose ending was not acknowledged."""
        return [*self._running, *(each for each in self._unacknowledged if each not in self._running)]

    def open(self, link: CoordinatorLink, lease: float) -> None:
        """Tell what is to be told over a new link, at first the endings that were not acknowledged.

        Raises:
            FailedPrecondition: a newer link is up.
        """
        if self._link is not None:
            if self._link.epoch > link.epoch:
                raise superseded()
            self._link.end(superseded())
        self._link = link
        self._lease.begin(lease)
        for running in self._running.values():
            running.progress_credit = link.progress_window
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None
        if lease == 0:
            self._stop_all("its coordinator's link was made anew")
        for update in self._unacknowledged.values():
            link.words.push(update)

    def closed(self, link: CoordinatorLink) -> None:
        """A link's stream has ended."""
        if self._link is not link:
            return
        self._link = None
        self._drop_oldest()
        if self._lease.seconds == 0:
            self._stop_all("its coordinator's link ended")
        keep = max(self._keeping.seconds, self._lease.seconds) if self.held else 0.0
        self._forget_timer = asyncio.get_running_loop().call_later(keep, self._forget)

    def renew(self) -> None:
        """The coordinator was heard."""
        self._lease.renew()

    def acknowledge(self, execution_id: str) -> None:
        """The coordinator has the ending of this execution."""
        update = self._unacknowledged.pop(execution_id, None)
        if update is not None:
            self._unacknowledged_characters -= _characters(update)
            if self._link is not None:
                self._link.discard(execution_id)

    def say(self, word: Word) -> None:
        """Tell something, if there is a link to tell it over."""
        if self._link is not None and not self._link.words.is_closed:
            self._link.words.push(word)

    def credit(self, execution_id: str, progress_events: int) -> None:
        """The coordinator takes so many more progress events of an execution."""
        running = self._running.get(execution_id)
        if running is not None and running.progress_credit is not None:
            running.progress_credit += progress_events

    def start(self, start: ExecutionStart) -> None:
        """Run an execution, or say why not (C10). One that is held already is left as it is."""
        execution_id = start.execution_id
        if execution_id in self._running or self._has_ended(execution_id):
            return
        running = _Running(self._tell, start, None if self._link is None else self._link.progress_window)
        self._running[execution_id] = running
        rejection = self._refusal(start, lambda: self._executions.start(execution_id, start.spec, running.listen))
        if rejection is not None:
            self._running.pop(execution_id, None)
            self._end((execution_id, rejection))

    def expect(self, link: CoordinatorLink, start: ExecutionStart, sizes: Mapping[TextField, int]) -> None:
        """Have the texts of a start come and then run it, or say why not."""
        execution_id = start.execution_id
        if execution_id in self._running or execution_id in link.arrivals or self._has_ended(execution_id):
            return
        rejection = self._refusal(start, lambda: self._executions.reserve(execution_id, start.spec.agent))
        if rejection is not None:
            self._end((execution_id, rejection))
            return
        try:
            link.arrivals.expect(start, sizes)
        except InvalidArgument as error:
            self._fail_arrival(link, execution_id, error)

    def add(self, link: CoordinatorLink, piece: Piece) -> None:
        """A piece of a text that was to come; with the last one the execution runs."""
        try:
            start = link.arrivals.add(piece)
        except InvalidArgument as error:
            self._fail_arrival(link, piece.key, error)
        else:
            if start is not None:
                self.start(start)

    def fail(
        self, execution_id: str, task_id: str, agent: str, message: str, code: FailureCode = FailureCode.INTERNAL
    ) -> None:
        """End an execution that cannot even be started, because what was sent is no step, or is not wanted any more."""
        if execution_id in self._running or self._has_ended(execution_id):
            return
        now = datetime.now(UTC)
        failure = StepFailure(code=code, message=message)
        outcome = StepOutcome(task_id=task_id, agent=agent, success=False, failure=failure, ended_at=now)
        self.say((execution_id, StepStarted(task_id=task_id, time=now)))
        self._end((execution_id, StepEnded(task_id=task_id, time=now, outcome=outcome)))

    def cancel(self, execution_id: str, reason: str) -> None:
        """Stop an execution of this coordinator; what it does not run is none of its business."""
        if execution_id in self._running:
            self._executions.cancel(execution_id, reason)
        elif self._link is not None and (start := self._link.arrivals.discard(execution_id)) is not None:
            self.fail(execution_id, start.spec.task_id, start.spec.agent, reason, FailureCode.CANCELLED)

    def _fail_arrival(self, link: CoordinatorLink, execution_id: str, error: InvalidArgument) -> None:
        start = link.arrivals.discard(execution_id)
        if start is not None:
            self.fail(execution_id, start.spec.task_id, start.spec.agent, not_a_step(error))

    def _has_ended(self, execution_id: str) -> bool:
        """Whether its outcome is known. One that was only rejected may be asked for again."""
        update = self._unacknowledged.get(execution_id)
        if update is not None and isinstance(update[1], Rejection):
            self.acknowledge(execution_id)
            return False
        return update is not None

    def _refusal(self, start: ExecutionStart, take: Callable[[], None]) -> Rejection | None:
        """Why the node does not take an execution; it is tried with `take`."""
        if self._links.is_stale(start.run_id, start.epoch):
            return Rejection(reason=RejectionReason.STALE_EPOCH)
        if self._unacknowledged_characters > self._keeping.characters:
            return Rejection(reason=RejectionReason.FULL, retry_delay=RETRY_DELAY)
        try:
            take()
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

    def _tell(self, running: _Running, event: StepEvent) -> None:
        execution_id = running.execution_id
        if isinstance(event, StepEnded):
            self._running.pop(execution_id, None)
            self._end((execution_id, self._handed_back(event) or self._as_lost(execution_id, event)))
        elif isinstance(event, StepStarted) or (running.progress and self._has_room() and running.may_tell()):
            self.say((execution_id, event))

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
        if self._link is None:
            self._drop_oldest()
        else:
            self.say(update)

    def _drop_oldest(self) -> None:
        while self._unacknowledged_characters > self._keeping.characters and len(self._unacknowledged) > 1:
            self.acknowledge(next(iter(self._unacknowledged)))

    def _has_room(self) -> bool:
        return self._link is not None and self._link.words.has_room()

    def _lease_ended(self) -> None:
        self._expired |= set(self._running)
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
        self._lease.stop()
        self._links.forget(self)


class _Running:
    """An execution that runs, and how much of its progress may be told; None is no bound."""

    __slots__ = ("_tell", "execution_id", "progress", "progress_credit")

    def __init__(
        self, tell: Callable[[_Running, StepEvent], None], start: ExecutionStart, progress_credit: int | None
    ) -> None:
        self._tell = tell
        self.execution_id = start.execution_id
        self.progress = start.progress
        self.progress_credit = progress_credit

    def listen(self, event: StepEvent) -> None:
        """Take an event of the execution."""
        self._tell(self, event)

    def may_tell(self) -> bool:
        """Whether there is credit for one more progress event, which is then used."""
        if self.progress_credit is None:
            return True
        if self.progress_credit == 0:
            return False
        self.progress_credit -= 1
        return True


def not_a_step(error: InvalidArgument) -> str:
    """What is said of an execution that cannot be started because of this."""
    return f"the node was sent what is no step: {error.message}"


def superseded() -> FailedPrecondition:
    """What an older link of the same coordinator is told."""
    return FailedPrecondition("a newer link of the same coordinator is up", reason="LINK_SUPERSEDED")


def _characters(update: Update) -> int:
    _, what = update
    return len(what.outcome.output) if isinstance(what, StepEnded) else 0
