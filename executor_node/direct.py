"""Steps that callers have run here without a coordinator (`ExecutorNode.ExecuteStep`).

Without a request id a step lasts as long as its caller's stream. With one it outlives it: a further call with the same
id takes the running step over, and for some time after it has ended gets its outcome again, without running it (C44).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from executor_node.executions import Executions
from executor_node.keeping import Keeping
from fanfold.errors import Aborted, InvalidArgument
from fanfold.feed import Feed
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepProgressed, StepStarted
from fanfold.model.trace import TraceContext

_CHARACTERS_OF_AN_OUTCOME = 4096
"""What an outcome without output counts for, so that there is a bound to their number."""


class DirectCalls:
    """The steps of direct callers; one with a request id goes on for `caller_grace` seconds without a call."""

    def __init__(self, executions: Executions, keeping: Keeping, *, caller_grace: float) -> None:
        self._executions = executions
        self._caller_grace = caller_grace
        self._running: dict[str, DirectStep] = {}
        self._kept = KeptSteps(keeping)

    @asynccontextmanager
    async def call(
        self, spec: AgentStepSpec, request_id: str = "", *, progress: bool = False, trace: TraceContext | None = None
    ) -> AsyncIterator[Feed[StepEvent]]:
        """The events of a step for one caller, while the block lasts.

        Leaving early cancels the step and waits until it is gone; with a request id it goes on for the caller's grace.

        Raises:
            InvalidArgument: the step cannot be run, or the request id was given with another one.
            NotFound, ResourceExhausted, Unavailable: as `Executions.start`.
            Aborted: from the feed, when another call with the request id takes the step over.
        """
        step = self._known(request_id, spec)
        if step is None:
            await self._executions.check(spec)
            step = self._known(request_id, spec) or self._start(request_id, spec, trace)
        feed = step.attach(progress=progress)
        try:
            yield feed
        finally:
            if request_id:
                step.detach(feed, self._caller_grace)
            elif not step.has_ended:
                step.cancel("the call was cancelled")
                while await feed.read():
                    pass

    def _known(self, request_id: str, spec: AgentStepSpec) -> DirectStep | None:
        step = self._running.get(request_id) or self._kept.get(request_id)
        if step is not None and step.digest != _digest(spec):
            raise InvalidArgument.of_field("request_id", "was given with another step before")
        return step

    def _start(self, request_id: str, spec: AgentStepSpec, trace: TraceContext | None) -> DirectStep:
        execution_id = f"direct/{request_id or uuid.uuid4().hex}/1"
        step = DirectStep(request_id, _digest(spec), lambda reason: self._executions.cancel(execution_id, reason))
        if request_id:
            self._running[request_id] = step
            step.on_end = self._keep
        try:
            self._executions.start(execution_id, spec, step.listen, trace)
        except BaseException:
            self._running.pop(request_id, None)
            raise
        return step

    def _keep(self, step: DirectStep) -> None:
        self._running.pop(step.request_id, None)
        self._kept.add(step)


class DirectStep:
    """One step, whoever hears of it now."""

    def __init__(self, request_id: str, digest: int, cancel: Callable[[str], None]) -> None:
        self.request_id = request_id
        self.digest = digest
        self.cancel = cancel
        """Stops it, for a reason in words."""
        self.on_end: Callable[[DirectStep], None] = lambda _step: None
        self._started: StepStarted | None = None
        self._ended: StepEnded | None = None
        self._feed: Feed[StepEvent] | None = None
        self._progress = False
        self._grace_timer: asyncio.TimerHandle | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is there."""
        return self._ended is not None

    @property
    def characters(self) -> int:
        """About what it holds in memory once it has ended."""
        return _CHARACTERS_OF_AN_OUTCOME + (len(self._ended.outcome.output) if self._ended else 0)

    def listen(self, event: StepEvent) -> None:
        """Take an event of it."""
        if isinstance(event, StepStarted):
            self._started = event
        elif isinstance(event, StepEnded):
            self._ended = event
            self._stop_timer()
        if self._feed is not None and self._is_wanted(event, self._feed):
            self._feed.push(event)
        if self._ended is not None:
            self._end_feed()
            self.on_end(self)

    def attach(self, *, progress: bool) -> Feed[StepEvent]:
        """Tell its life to a caller from the start, and to the one before no more."""
        self._stop_timer()
        self._end_feed(Aborted("another call with this request id took the step over", reason="TAKEN_OVER"))
        feed = self._feed = Feed()
        self._progress = progress
        for event in (self._started, self._ended):
            if event is not None:
                feed.push(event)
        if self._ended is not None:
            self._end_feed()
        return feed

    def detach(self, feed: Feed[StepEvent], grace: float) -> None:
        """A caller's stream has ended. Unless another takes its place within so many seconds, the step is cancelled."""
        if self._feed is feed:
            self._feed = None
            reason = f"its caller did not come back within {grace:g} s"
            self._grace_timer = asyncio.get_running_loop().call_later(grace, self.cancel, reason)

    def _is_wanted(self, event: StepEvent, feed: Feed[StepEvent]) -> bool:
        return not isinstance(event, StepProgressed) or (self._progress and feed.has_room())

    def _end_feed(self, error: Aborted | None = None) -> None:
        if self._feed is not None:
            self._feed.close(error)
            self._feed = None

    def _stop_timer(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None


class KeptSteps:
    """Steps that have ended, for callers who ask again; the oldest go first when there are too many."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._steps: OrderedDict[str, tuple[DirectStep, float]] = OrderedDict()
        """Each with when it is to go, in the order in which they ended."""
        self._characters = 0
        self._timer: asyncio.TimerHandle | None = None

    def get(self, request_id: str) -> DirectStep | None:
        """The step of a request that is kept."""
        kept = self._steps.get(request_id)
        return None if kept is None else kept[0]

    def add(self, step: DirectStep) -> None:
        """Keep a step that has ended."""
        loop = asyncio.get_running_loop()
        self._steps[step.request_id] = step, loop.time() + self._keeping.seconds
        self._characters += step.characters
        while self._characters > self._keeping.characters and len(self._steps) > 1:
            self._drop_oldest()
        if self._timer is None:
            self._timer = loop.call_later(self._keeping.seconds, self._drop_old)

    def _drop_old(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._steps:
            _, end = next(iter(self._steps.values()))
            if end > loop.time():
                self._timer = loop.call_at(end, self._drop_old)
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (step, _) = self._steps.popitem(last=False)
        self._characters -= step.characters


def _digest(spec: AgentStepSpec) -> int:
    """What tells one piece of work from another, within this process."""
    return hash((spec.task_id, spec.agent, spec.prompt, spec.max_steps, json.dumps(spec.output_schema, sort_keys=True)))
