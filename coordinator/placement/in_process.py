"""The executor that runs Python functions right here: no service, no node, the same contract (C8)."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.life import StepLife, failed
from fanfold.agent import TOLD_CODES, AgentFailed, AgentResult, WorkspaceFiles
from fanfold.anchors import Anchors
from fanfold.model.step import (
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    Progress,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.ports import OnStepEvent
from fanfold.schema import SchemaValidator
from fanfold.schema.structured import structured_text

AgentFunction = Callable[[AgentStepSpec, Any], Any]
"""An agent as `fanfold.agent` describes it: an async function, or a plain one, which runs in a thread."""

NODE = "in-process"
"""What outcomes name as their node."""


class InProcessExecutor:
    """Implements `AgentExecutor` with functions of this process, `parallelism` of them wanted at once.

    It suits tests and agents that only wait for others. Nothing keeps the steps apart: one that blocks the loop
    blocks all, and a plain function that is cancelled goes on in its thread until it returns.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentFunction],
        validator: SchemaValidator,
        *,
        parallelism: int = 8,
        workspace: WorkspaceFiles | None = None,
    ) -> None:
        self._agents = agents
        self._validator = validator
        self._parallelism = parallelism
        self._workspace = workspace

    def concurrency_hint(self) -> int:
        """The configured parallelism (C10)."""
        return self._parallelism

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step (AgentExecutor)."""
        life = StepLife(spec, on_event)
        agent = self._agents.get(spec.agent)
        if agent is None:
            return life.end(failed(spec, FailureCode.AGENT_UNKNOWN, f"there is no agent {spec.agent!r}"))
        attempt = _Attempt(spec, life, self._workspace)
        life.tell(StepStarted(task_id=spec.task_id, time=attempt.started_at, session_id=attempt.session_id, node=NODE))
        try:
            result = _result_of(await attempt.run(agent))
        except _Stopped as stop:
            return life.end(attempt.failed(stop.code, stop.message))
        except AgentFailed as error:
            code = error.code if error.code in TOLD_CODES else FailureCode.AGENT_FAILED
            failure = StepFailure(code=code, message=str(error.message), retryable=bool(error.retryable))
            return life.end(attempt.outcome(str(error.output), failure=failure))
        except Exception as error:  # whatever an agent raises is the step's failure (C9)
            return life.end(attempt.failed(FailureCode.CRASHED, f"{type(error).__name__}: {error}"))
        return life.end(await self._conclude(spec, attempt, result))

    async def _conclude(self, spec: AgentStepSpec, attempt: _Attempt, result: _Result) -> StepOutcome:
        if spec.output_schema is None:
            return attempt.outcome(result.output, usage=result.usage)
        structured = await structured_text(self._validator, spec.output_schema, result.structured_text or result.output)
        output = structured.annotate(result.output)
        return attempt.outcome(output, structured.value, result.usage, structured.failure)


class _Stopped(Exception):
    """The step was stopped at one of its bounds."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class _Result:
    """An agent's result in text: `structured_text` is the JSON of its structured value, empty if it gave none."""

    output: str
    structured_text: str
    usage: Usage


@dataclass(slots=True)
class _Attempt:
    """One call of an agent: its context (implements `fanfold.agent.StepContext`), and what becomes of it."""

    spec: AgentStepSpec
    life: StepLife
    files: WorkspaceFiles | None
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    stopped: bool = False
    usage: Usage = NO_USAGE
    """The cost as last told, which is all that is known of a step that fails."""
    anchors: Anchors = field(init=False)
    began_at: float = field(init=False)
    progressed_at: float = field(init=False)
    work: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.began_at = self.progressed_at = self.loop.time()
        self.anchors = Anchors(self.files.root if self.files else Path("/"))

    @property
    def max_tokens(self) -> int | None:
        return self.spec.policy.max_tokens

    @property
    def workspace(self) -> WorkspaceFiles:
        if self.files is None:
            raise AgentFailed("this executor has no workspace")
        return self.files

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        self._progress(ToolFinished(name=name, success=success, detail=detail))

    def turn_finished(self, turn: int, usage: Usage = NO_USAGE) -> None:
        self.usage = usage
        self._progress(TurnFinished(turn=turn, usage=usage))
        if self._has_overspent():
            raise asyncio.CancelledError

    def write_text(self, text: str) -> None:
        self._progress(TextWritten(text=text))

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        self.anchors.observe(tool, url_or_path, lines)

    def is_cancelled(self) -> bool:
        return self.stopped

    async def run(self, agent: AgentFunction) -> Any:
        """Call the agent within the step's bounds (C6). Raises _Stopped at one of them."""
        work = self.work = asyncio.ensure_future(_call(agent, self.spec, self))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=self._seconds_left())
                if not work.done():
                    self._stop_at_bound()
        finally:
            self.stopped = True
            if work.cancel():
                await asyncio.wait({work})
        if self._has_overspent():
            message = f"it spent {self.usage.tokens:,} of the {self.max_tokens:,} tokens it may"
            raise _Stopped(FailureCode.BUDGET_EXHAUSTED, message)
        return work.result()

    def _has_overspent(self) -> bool:
        """Whether it told to have spent more than its cap, past which it may not go on (C13)."""
        return self.max_tokens is not None and self.usage.tokens > self.max_tokens

    def _seconds_left(self) -> float | None:
        bounds = [until for until, _, _ in self._bounds()]
        return max(0.0, min(bounds) - self.loop.time()) if bounds else None

    def _stop_at_bound(self) -> None:
        for until, code, message in self._bounds():
            if until <= self.loop.time():
                raise _Stopped(code, message)

    def _bounds(self) -> Iterator[tuple[float, FailureCode, str]]:
        policy = self.spec.policy
        if policy.timeout is not None:
            message = f"it took longer than {policy.timeout:g} seconds"
            yield self.began_at + policy.timeout, FailureCode.TIMED_OUT, message
        if policy.no_progress_timeout is not None:
            message = f"no progress for {policy.no_progress_timeout:g} seconds"
            yield self.progressed_at + policy.no_progress_timeout, FailureCode.STALLED, message

    def failed(self, code: FailureCode, message: str, *, retryable: bool = False) -> StepOutcome:
        return self.outcome(failure=StepFailure(code=code, message=message, retryable=retryable))

    def outcome(
        self, output: str = "", structured: Any = None, usage: Usage = NO_USAGE, failure: StepFailure | None = None
    ) -> StepOutcome:
        return StepOutcome(
            task_id=self.spec.task_id,
            session_id=self.session_id,
            agent=self.spec.agent,
            output=output,
            success=failure is None,
            structured=structured,
            source_anchors=self.anchors.collected,
            failure=failure,
            usage=self.usage if usage is NO_USAGE else usage,
            attempts=1,
            node=NODE,
            started_at=self.started_at,
            ended_at=datetime.now(UTC),
        )

    def _progress(self, progress: Progress) -> None:
        # Plain functions tell it from a thread of their own.
        self.loop.call_soon_threadsafe(self._tell, progress)

    def _tell(self, progress: Progress) -> None:
        self.progressed_at = self.loop.time()
        if self._has_overspent():
            self.work.cancel()
        self.life.tell(StepProgressed(task_id=self.spec.task_id, time=datetime.now(UTC), progress=progress))


async def _call(agent: AgentFunction, spec: AgentStepSpec, attempt: _Attempt) -> Any:
    if inspect.iscoroutinefunction(agent):
        return await agent(spec, attempt)
    return await asyncio.to_thread(agent, spec, attempt)


def _result_of(value: Any) -> _Result:
    if isinstance(value, AgentResult):
        structured = "" if value.structured is None else _json(value.structured)
        return _Result(str(value.output), structured, value.usage)
    if isinstance(value, str):
        return _Result(value, "", NO_USAGE)
    text = _json(value)
    return _Result(text, text, NO_USAGE)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentFailed(f"the agent's result is neither text nor JSON: {error}") from None
