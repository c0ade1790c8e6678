"""One step while it runs: its events, its deadlines, and its one end, whoever causes it (C2, C3, C11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from executor_node.agents import AgentDefinition
from executor_node.clock import TurnClock
from executor_node.progress import ProgressTeller
from executor_node.secrets import NO_SECRETS
from executor_node.told import Progress, Result
from executor_node.tracing import UNTRACED, StepTrace
from fanfold.model.step import (
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
    TurnFinished,
    Usage,
)


class Act(Protocol):
    """What is done for a step: its agent runs, or something of it is checked.

    An agent's run settles the step when a result is known, and ends it when its processes are gone.
    """

    def stop(self) -> None:
        """Stop it: an agent is asked to, and killed after the grace. Called once at most."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where steps run: a node by its name, and the clock by which it tells times."""

    node: str
    clock: TurnClock


class RunningStep:
    """A step until its outcome. Of result, cancellation and deadlines, what comes first decides the outcome."""

    __slots__ = (
        "_act",
        "_held_back",
        "_is_settled",
        "_listener",
        "_loop",
        "_on_end",
        "_progress",
        "_progressed_at",
        "_silence_timer",
        "_timeout_timer",
        "_usage_before",
        "_usage_told",
        "agent",
        "began_at",
        "execution_id",
        "home",
        "max_output_bytes",
        "result",
        "secrets",
        "session_id",
        "spec",
        "started_at",
        "stopped_by",
        "trace",
    )

    def __init__(
        self,
        execution_id: str,
        spec: AgentStepSpec,
        agent: AgentDefinition,
        *,
        home: Home,
        session_id: str,
        max_output_bytes: int,
        listener: Callable[[StepEvent], None],
        on_end: Callable[[RunningStep], None],
    ) -> None:
        self.execution_id = execution_id
        self.spec = spec
        self.agent = agent
        self.home = home
        self.session_id = session_id
        self.max_output_bytes = max_output_bytes
        self.result = Result()
        """What came of the agent, once that is known."""
        self.stopped_by: StepFailure | None = None
        """Why it is being stopped, if it is."""
        self.secrets = NO_SECRETS
        """What its agent was given in confidence, which no failure tells."""
        self.trace: StepTrace = UNTRACED
        self.started_at = home.clock.now()
        self._listener = listener
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.began_at = self._loop.time()
        self._act: Act | None = None
        self._is_settled = False
        self._held_back = False
        self._progress: ProgressTeller | None = None
        self._progressed_at = self.began_at
        self._usage_before = NO_USAGE
        """What was spent on its behalf besides: in workers that were lost, and on mending its output."""
        self._usage_told = NO_USAGE
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._silence_timer: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> str:
        """Whose step it is, as far as the node can tell: the run that its execution id begins with."""
        return self.execution_id.partition("/")[0]

    @property
    def has_to_satisfy_schema(self) -> bool:
        """Whether all went well so far, so that the structured output is to be checked (C20)."""
        return self.spec.output_schema is not None and self.stopped_by is None and self.result.failure is None

    @property
    def failure(self) -> StepFailure | None:
        """Why it fails, as far as is known."""
        return self.stopped_by or self.result.failure

    @property
    def usage(self) -> Usage:
        """What it has cost so far, as far as that was told."""
        return self._usage_before + (self._usage_told if self.result.usage is NO_USAGE else self.result.usage)

    def spend(self, usage: Usage) -> None:
        """Count what was spent on its behalf besides what its agent tells."""
        self._usage_before += usage

    def begin(self) -> None:
        """Tell that the step started, and watch its deadlines."""
        task_id, node = self.spec.task_id, self.home.node
        self._listener(StepStarted(task_id=task_id, time=self.started_at, session_id=self.session_id, node=node))
        policy = self.spec.policy
        timeout = policy.timeout or self.agent.timeout
        if timeout is not None:
            self._timeout_timer = self._loop.call_later(timeout, self._time_out, timeout)
        silence = policy.no_progress_timeout or self.agent.no_progress_timeout
        if silence is not None:
            self._watch_silence(silence)

    def act(self, carry_out: Callable[[RunningStep], Act]) -> None:
        """Have the step carried out, or checked, unless it was stopped before there was anything to stop."""
        if self.stopped_by is not None:
            self.end(Result())
        else:
            self._act = carry_out(self)

    def run_again(self) -> None:
        """Its worker was lost, and it runs from its beginning in another: what it has spent is spent all the same."""
        self._usage_before, self._usage_told = self._usage_before + self._usage_told, NO_USAGE

    def progressed(self, progress: Progress, seconds: float | None = None) -> None:
        """The agent told progress; `seconds` is how long that took, if it has told so."""
        if self._is_settled:
            return
        self.trace.progressed(progress, seconds)
        self._progressed_at = self._loop.time()
        if self._progress is None:
            self._progress = ProgressTeller(self.tell)
        self._progress.add(progress)
        if isinstance(progress, TurnFinished):
            self._usage_told = progress.usage
            self._stop_if_spent((self._usage_before + progress.usage).tokens)

    def tell(self, progress: Progress) -> None:
        """Tell progress as it is, at once."""
        self._listener(StepProgressed(task_id=self.spec.task_id, time=self.home.clock.now(), progress=progress))

    def stirred(self) -> None:
        """The agent gets on, though there is nothing to tell."""
        self._progressed_at = self._loop.time()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """The step is made to wait while the block lasts: that it tells nothing then is not its doing (C6)."""
        self._held_back = True
        try:
            yield
        finally:
            self._held_back = False
            self._progressed_at = self._loop.time()

    def stop(self, failure: StepFailure) -> None:
        """Stop the step, unless its result is known, and good enough to be told. The first reason is kept."""
        if self.stopped_by is None and (not self._is_settled or self.has_to_satisfy_schema):
            self.stopped_by = failure
            if self._act is not None:
                self._act.stop()

    def settle(self, result: Result) -> None:
        """What came of the agent is known, though its processes may still be there."""
        if not self._is_settled:
            self._is_settled = True
            self.result = result.within(self.max_output_bytes)
            if self._silence_timer is not None:
                self._silence_timer.cancel()
            if self._timeout_timer is not None and not self.has_to_satisfy_schema:
                self._timeout_timer.cancel()

    def end(self, result: Result) -> None:
        """Nothing of the step is left. `result` counts if none was known before."""
        self.settle(result)
        self._on_end(self)

    def tell_outcome(self, structured: Any = None) -> None:
        """Tell the outcome, with the structured value if there is a valid one. Nothing comes after it."""
        result, failure = self.result, self.failure
        if failure is not None:
            failure = replace(failure, message=self.secrets.blotted(failure.message))
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        if self._progress is not None:
            self._progress.close()
        self._act = None  # which holds this step in turn
        now = self.home.clock.now()
        outcome = StepOutcome(
            task_id=self.spec.task_id,
            session_id=self.session_id,
            agent=self.spec.agent,
            output=result.output,
            success=failure is None,
            structured=structured,
            source_anchors=result.source_anchors,
            failure=failure,
            usage=self.usage,
            attempts=1,
            node=self.home.node,
            started_at=self.started_at,
            ended_at=now,
            agent_session_id=result.session_id,
        )
        self.trace.end(outcome)
        self._listener(StepEnded(task_id=self.spec.task_id, time=now, outcome=outcome))

    def _stop_if_spent(self, tokens: int) -> None:
        """It may not go on once it has spent more than its cap: so it overshoots by one model call at most (C13)."""
        most = self.spec.policy.max_tokens
        if most is not None and tokens > most:
            message = f"it spent {tokens:,} of the {most:,} tokens it may"
            self.stop(StepFailure(code=FailureCode.BUDGET_EXHAUSTED, message=message))

    def _time_out(self, timeout: float) -> None:
        self.stop(StepFailure(code=FailureCode.TIMED_OUT, message=f"it took longer than {timeout:g} seconds"))

    def _watch_silence(self, allowed: float) -> None:
        left = allowed if self._held_back else self._progressed_at + allowed - self._loop.time()
        if left > 0:
            self._silence_timer = self._loop.call_later(left, self._watch_silence, allowed)
        else:
            self.stop(StepFailure(code=FailureCode.STALLED, message=f"no progress for {allowed:g} seconds"))
