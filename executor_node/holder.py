"""What one coordinator has on the node, whatever becomes of its links."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from executor_node.executions import Executions
from executor_node.held import Endings, Held
from executor_node.keeping import Keeping
from executor_node.lease import Lease
from executor_node.link import CoordinatorLink, Word
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
from fanfold.ports import ExecutionStart, Rejection, RejectionReason, RunAdopted

if TYPE_CHECKING:
    from executor_node.links import Links

RETRY_DELAY = 0.1
"""Seconds after which the node may be asked again, unless it knows better."""

WORK_LASTS_SECONDS = 2.0
"""How long a coordinator counts as one that has work here after it last asked for something."""


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
        self._running: dict[str, Held] = {}
        self._endings = Endings()
        self._loop = asyncio.get_running_loop()
        self._has_work_until = 0.0

    @property
    def held(self) -> list[str]:
        """The executions that run, and those whose ending was not acknowledged."""
        return [*self._running, *(each.execution_id for each in self._endings)]

    @property
    def unacknowledged(self) -> int:
        """Endings that it has not acknowledged."""
        return len(self._endings)

    def has_work(self) -> bool:
        """Whether it runs something here, or wanted to a moment ago."""
        return bool(self._running) or self._loop.time() < self._has_work_until

    # Its links.

    def open(self, link: CoordinatorLink, lease: float) -> None:
        """Tell what is to be told over a new link, at first the endings that were not acknowledged.

        What it has here lives for `lease` seconds without a word of it; with 0 it ends with the link.

        Raises:
            FailedPrecondition: a newer link is up.
        """
        if self._link is not None:
            if self._link.epoch > link.epoch:
                raise superseded()
            self._link.end(superseded())
        self._link = link
        self._lease.begin(lease)
        for held in self._running.values():
            held.progress_credit = link.progress_window
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None
        if lease == 0:
            self._stop_all("its coordinator's link was made anew")
        for held in self._endings:
            self._tell_again(held)

    def closed(self, link: CoordinatorLink) -> None:
        """A link's stream has ended."""
        if self._link is not link:
            return
        self._link = None
        self._endings.drop_oldest(self._keeping.characters)
        if self._lease.seconds == 0:
            self._stop_all("its coordinator's link ended")
        keep = max(self._keeping.seconds, self._lease.seconds) if self.held else 0.0
        self._forget_timer = self._loop.call_later(keep, self._forget)

    def renew(self) -> None:
        """The coordinator was heard."""
        self._lease.renew()

    def acknowledge(self, execution_id: str) -> None:
        """The coordinator has the ending of this execution."""
        if execution_id in self._endings:
            self._endings.remove(execution_id)
            if self._link is not None:
                self._link.discard(execution_id)

    def say(self, word: Word) -> None:
        """Tell something, if there is a link to tell it over."""
        if self._link is not None and not self._link.words.is_closed:
            self._link.words.push(word)

    def credit(self, execution_id: str, progress_events: int) -> None:
        """The coordinator takes so many more progress events of an execution."""
        held = self._running.get(execution_id)
        if held is not None and held.progress_credit is not None:
            held.progress_credit += progress_events

    # What it wants to be run.

    def start(self, start: ExecutionStart) -> None:
        """Run an execution, or say why not (C10). One that is held already is left as it is."""
        if self._is_held(start.execution_id):
            return
        held = Held(self, start)
        held.progress_credit = None if self._link is None else self._link.progress_window
        self._running[start.execution_id] = held
        rejection = self._refusal(
            start, lambda: self._executions.start(start.execution_id, start.spec, held.tell, start.trace)
        )
        if rejection is not None:
            self._running.pop(start.execution_id, None)
            self._end(held, rejection)

    def expect(self, link: CoordinatorLink, start: ExecutionStart, sizes: Mapping[TextField, int]) -> None:
        """Have the texts of a start come and then run it, or say why not."""
        execution_id = start.execution_id
        if execution_id in link.arrivals or self._is_held(execution_id):
            return
        rejection = self._refusal(start, lambda: self._executions.reserve(execution_id, start.spec.agent))
        if rejection is not None:
            self._end(Held(self, start), rejection)
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

    def fail(self, start: ExecutionStart, message: str, code: FailureCode = FailureCode.INTERNAL) -> None:
        """End an execution that cannot even be started, because what was sent is no step, or is not wanted any more."""
        if self._is_held(start.execution_id):
            return
        held, task_id, now = Held(self, start), start.spec.task_id, datetime.now(UTC)
        failure = StepFailure(code=code, message=message)
        outcome = StepOutcome(task_id=task_id, agent=start.spec.agent, success=False, failure=failure, ended_at=now)
        self.tell(held, StepStarted(task_id=task_id, time=now))
        self._end(held, StepEnded(task_id=task_id, time=now, outcome=outcome))

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> None:
        """Stop an execution of this coordinator, in `delay` seconds unless it is adopted before.

        What it does not hold is none of its business.
        """
        held = self._running.get(execution_id)
        if held is not None:
            held.go_on()
            if delay > 0:
                held.stop_timer = self._loop.call_later(delay, self._executions.cancel, execution_id, reason)
            else:
                self._executions.cancel(execution_id, reason)
        elif self._link is not None and (start := self._link.arrivals.discard(execution_id)) is not None:
            self.fail(start, reason, FailureCode.CANCELLED)

    def _fail_arrival(self, link: CoordinatorLink, execution_id: str, error: InvalidArgument) -> None:
        start = link.arrivals.discard(execution_id)
        if start is not None:
            self.fail(start, not_a_step(error))

    def _is_held(self, execution_id: str) -> bool:
        """Whether it runs, or its outcome is known. One that was only rejected may be asked for again."""
        ended = self._endings.get(execution_id)
        if ended is not None and ended.was_rejected:
            self.acknowledge(execution_id)
            return False
        return ended is not None or execution_id in self._running

    def _refusal(self, start: ExecutionStart, take: Callable[[], None]) -> Rejection | None:
        """Why the node does not take an execution; it is tried with `take`."""
        if self._links.is_stale(start.run_id, start.epoch):
            return Rejection(reason=RejectionReason.STALE_EPOCH)
        self._links.begin(start.run_id)
        self._note_work(WORK_LASTS_SECONDS)
        if self._endings.characters > self._keeping.characters:
            return Rejection(reason=RejectionReason.FULL, retry_delay=RETRY_DELAY)
        try:
            take()
        except Aborted:
            # Another coordinator's, or one that is still being stopped. It is free again soon.
            return Rejection(reason=RejectionReason.FULL, retry_delay=RETRY_DELAY)
        except ResourceExhausted as error:
            delay = error.retry_delay or RETRY_DELAY
            self._note_work(WORK_LASTS_SECONDS + delay)
            return Rejection(reason=RejectionReason.FULL, retry_delay=delay)
        except Unavailable:
            return Rejection(reason=RejectionReason.DRAINING)
        except NotFound:
            return Rejection(reason=RejectionReason.AGENT_NOT_OFFERED)
        return None

    def _note_work(self, seconds: float) -> None:
        self._has_work_until = max(self._has_work_until, self._loop.time() + seconds)

    # Executions that change their holder.

    def hand_over(self, run_id: str, heir: Holder) -> None:
        """Give the heir all that is held of a run; this coordinator is told that it has lost it (C19, F5)."""
        for held in self._of_run(run_id):
            self._running.pop(held.execution_id, None)
            self.acknowledge(held.execution_id)
            self._tell_of(held, Rejection(reason=RejectionReason.STALE_EPOCH))
            heir.take(held)

    def take(self, held: Held) -> None:
        """Hold what was another's."""
        held.holder = self
        if held.ending is None:
            self._running[held.execution_id] = held
        else:
            self._endings.add(held)

    def tell_adopted(self, run_id: str, epoch: int, *, stale: bool, unbegun: bool) -> None:
        """Answer an adoption, and tell again what is known of each execution."""
        mine = [] if stale else self._of_run(run_id)
        ended = frozenset(held.execution_id for held in mine if held.ending is not None)
        running = frozenset(held.execution_id for held in mine if held.ending is None)
        unbegun = unbegun and not mine  # an epoch may be forgotten while something of the run goes on
        self.say(RunAdopted(run_id=run_id, epoch=epoch, running=running, ended=ended, stale=stale, unbegun=unbegun))
        for held in mine:
            held.go_on()
            held.progress_credit = None if self._link is None else self._link.progress_window
            self._tell_again(held)

    def _of_run(self, run_id: str) -> list[Held]:
        """What is held of a run. What was rejected was never here."""
        every = itertools.chain(self._running.values(), self._endings)
        return [held for held in every if held.run_id == run_id and not held.was_rejected]

    # What becomes of its executions.

    def tell(self, held: Held, event: StepEvent) -> None:
        """Something happened to an execution of this coordinator."""
        if isinstance(event, StepEnded):
            self._running.pop(held.execution_id, None)
            held.go_on()
            self._end(held, self._handed_back(event) or _as_lost(held, event))
            return
        if isinstance(event, StepStarted):
            held.started = event
        elif not self._has_room() or not held.may_tell_progress():
            return
        self._tell_of(held, event)

    def _handed_back(self, event: StepEnded) -> Rejection | None:
        """What a draining node has stopped is handed back, so that it costs the step no attempt (C43)."""
        failure = event.outcome.failure
        if failure is not None and failure.code is FailureCode.NODE_LOST and self._executions.hands_back:
            return Rejection(reason=RejectionReason.DRAINING, usage=event.outcome.usage)
        return None

    def _end(self, held: Held, ending: StepEnded | Rejection) -> None:
        held.ending = ending
        self._endings.add(held)
        if isinstance(ending, Rejection):
            self._executions.counts.note_refused(ending.reason)
        if self._link is None:
            self._endings.drop_oldest(self._keeping.characters)
        else:
            self._tell_of(held, ending)

    def _tell_again(self, held: Held) -> None:
        word = held.ending or held.started
        if word is not None:
            self._tell_of(held, word)

    def _tell_of(self, held: Held, event: StepEvent | Rejection) -> None:
        if self._link is not None and not self._link.words.is_closed:
            self._link.tell(held.execution_id, event)

    def _has_room(self) -> bool:
        return self._link is not None and self._link.words.has_room()

    # Its end.

    def _lease_ended(self) -> None:
        self._executions.counts.leases_expired += 1
        for held in self._running.values():
            held.has_expired = True
        self._stop_all("its coordinator was not heard for the time of its lease")
        if self._link is not None:
            self._link.end(Unavailable("nothing was heard from the coordinator for the time of its lease"))

    def _stop_all(self, reason: str) -> None:
        for execution_id in list(self._running):
            self._executions.cancel(execution_id, reason)

    def _forget(self) -> None:
        if self._running:  # still being stopped
            self._forget_timer = self._loop.call_later(RETRY_DELAY, self._forget)
            return
        self._lease.stop()
        self._links.forget(self)


def not_a_step(error: InvalidArgument) -> str:
    """What is said of an execution that cannot be started because of this."""
    return f"the node was sent what is no step: {error.message}"


def superseded() -> FailedPrecondition:
    """What an older link of the same coordinator is told."""
    return FailedPrecondition("a newer link of the same coordinator is up", reason="LINK_SUPERSEDED")


def _as_lost(held: Held, event: StepEnded) -> StepEnded:
    """What ended with its lease was not cancelled by anybody: it is lost, and may be tried again."""
    outcome = event.outcome
    if not held.has_expired or outcome.failure is None or outcome.failure.code is not FailureCode.CANCELLED:
        return event
    failure = StepFailure(code=FailureCode.NODE_LOST, message=outcome.failure.message, retryable=True)
    return replace(event, outcome=replace(outcome, failure=failure))
