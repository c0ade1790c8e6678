"""The executor that runs Python functions right here: no service, no node, the same contract (C8)."""

from __future__ import annotations

import asyncio
import inspect
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.life import StepLife, failed
from fanfold.agent import AgentFailed, AgentResult, WorkspaceFiles
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
        bound = asyncio.timeout(spec.policy.timeout)
        try:
            async with bound:
                result = _result_of(await _call(agent, spec, attempt))
        except AgentFailed as error:
            outcome = attempt.failed(FailureCode.AGENT_FAILED, error.message, retryable=error.retryable)
        except Exception as error:  # whatever an agent raises is the step's failure (C9)
            if bound.expired():
                outcome = attempt.failed(FailureCode.TIMED_OUT, f"it took longer than {spec.policy.timeout:g} s")
            else:
                outcome = attempt.failed(FailureCode.CRASHED, f"{type(error).__name__}: {error}")
        else:
            outcome = await self._conclude(spec, attempt, result)
        return life.end(outcome)

    async def _conclude(self, spec: AgentStepSpec, attempt: _Attempt, result: AgentResult) -> StepOutcome:
        if spec.output_schema is None:
            return attempt.outcome(result.output, usage=result.usage)
        given = result.output if result.structured is None else json.dumps(result.structured)
        structured = await structured_text(self._validator, spec.output_schema, given)
        output = structured.annotate(result.output)
        return attempt.outcome(output, structured.value, result.usage, structured.failure)


@dataclass(slots=True)
class _Attempt:
    """One call of an agent: its context (implements `fanfold.agent.StepContext`), and what becomes of it."""

    spec: AgentStepSpec
    life: StepLife
    files: WorkspaceFiles | None
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    anchors: Anchors = field(init=False)

    def __post_init__(self) -> None:
        self.anchors = Anchors(self.files.root if self.files else Path("/"))

    @property
    def workspace(self) -> WorkspaceFiles:
        if self.files is None:
            raise AgentFailed("this executor has no workspace")
        return self.files

    def tool_finished(self, name: str, *, success: bool = True, detail: str = "") -> None:
        self._progress(ToolFinished(name=name, success=success, detail=detail))

    def turn_finished(self, turn: int, usage: Usage = NO_USAGE) -> None:
        self._progress(TurnFinished(turn=turn, usage=usage))

    def write_text(self, text: str) -> None:
        self._progress(TextWritten(text=text))

    def observe(self, tool: str, url_or_path: str, lines: str = "") -> None:
        self.anchors.observe(tool, url_or_path, lines)

    def is_cancelled(self) -> bool:
        return False

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
            usage=usage,
            attempts=1,
            node=NODE,
            started_at=self.started_at,
            ended_at=datetime.now(UTC),
        )

    def _progress(self, progress: Progress) -> None:
        self.life.tell(StepProgressed(task_id=self.spec.task_id, time=datetime.now(UTC), progress=progress))


async def _call(agent: AgentFunction, spec: AgentStepSpec, attempt: _Attempt) -> Any:
    if inspect.iscoroutinefunction(agent):
        return await agent(spec, attempt)
    return await asyncio.to_thread(agent, spec, attempt)


def _result_of(value: Any) -> AgentResult:
    if isinstance(value, AgentResult):
        return value
    if isinstance(value, str):
        return AgentResult(output=value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise AgentFailed(f"the agent's result is neither text nor JSON: {error}") from None
    return AgentResult(output=text, structured=value)
