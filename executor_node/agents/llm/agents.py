"""The runtime's side of agents of kind llm: starts their steps in workers, and answers what they ask.

A step asks before each call of its model whether it may make it, tells what the provider said to it, and asks whether
its text satisfies the schema:

    turn               -> nothing, or the failure with which the step is to end
    answered           -> nothing
    limited, SECONDS   -> nothing
    exhausted, MESSAGE -> nothing
    check, TEXT        -> nothing, or what is wrong with it
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from executor_node.admission import Limits
from executor_node.agents import AgentDefinition
from executor_node.agents.llm.assignment import assign
from executor_node.agents.llm.gates import Gate, Gates
from executor_node.running import RunningStep
from executor_node.supervisor.client import Supervision
from executor_node.told import Result
from executor_node.tracing import LIMITED
from executor_node.workers.messages import Setup
from executor_node.workers.pool import SharedStep, SharedWorkers
from fanfold.model.node import AgentKind, HeldBack, Isolation
from fanfold.model.step import FailureCode
from fanfold.schema.structured import Validator, structured_text

log = structlog.get_logger(__name__)

_ENTRY = "executor_node.agents.llm.step:run"
_TEXTS_ON_THEIR_WAY = 4
_TEXT_BYTES_BESIDE = 2**20


class LlmAgents:
    """Carries out steps with models. An async context manager; leave it when no step runs any more."""

    def __init__(
        self,
        supervision: Supervision,
        *,
        workspace: Path,
        environment: Mapping[str, str],
        limits: Limits,
        validator: Validator,
    ) -> None:
        setup = Setup(shared=True, path=(), workspace=str(workspace.resolve()), file_bytes=limits.file_bytes)
        most = limits.output_bytes * _TEXTS_ON_THEIR_WAY + _TEXT_BYTES_BESIDE
        self._workers = SharedWorkers(supervision, setup, limits, max_text_bytes=most)
        self._environment = environment
        self._validator = validator
        self._quota_pause = limits.quota_pause
        self._answering = asyncio.TaskGroup()
        self._answers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.gates = Gates(lambda provider: Gate(provider, quota_pause=self._quota_pause))
        await self._answering.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._workers.close()
        finally:
            for answer in self._answers:  # who asked is gone, and may have waited for minutes
                answer.cancel()
            await self._answering.__aexit__(None, None, None)

    def carry_out(self, step: RunningStep) -> SharedStep:
        """Have a model carry out a step.

        Raises:
            OSError: this process is out of file descriptors or memory.
        """
        assignment = assign(step.agent, self._environment)
        step.secrets = assignment.secrets
        gate = self.gates.of(assignment)
        answers = _Answers(step, gate, self._validator, self._begin)
        shared = SharedStep(step, _ENTRY, assignment.to_json(), answers)
        if refusal := gate.refusal:
            step.end(Result(failure=refusal))  # F8: nothing starts
        else:
            self._workers.place(shared, apart=step.agent.isolation is Isolation.PROCESS)
        return shared

    def held_back(self, agents: Iterable[AgentDefinition]) -> tuple[HeldBack, ...]:
        """Which of these agents do not get on at the moment, because of their providers (F8, F9)."""
        if self.gates.all_open():
            return ()
        gates = {
            each.name: self.gates.of(assign(each, self._environment)) for each in agents if each.kind is AgentKind.LLM
        }
        return tuple(
            HeldBack(agent=name, waiting_on=gate.waiting_on, quota=gate.is_out_of_quota)
            for name, gate in gates.items()
            if gate.waiting_on
        )

    def _begin(self, answer: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._answering.create_task(answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        return task


class _Answers:
    """Answers what one step asks."""

    def __init__(
        self,
        step: RunningStep,
        gate: Gate,
        validator: Validator,
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._step = step
        self._gate = gate
        self._validator = validator
        self._begin = begin
        self._answer: asyncio.Task[None] | None = None

    def take(self, what: str, text: str, tell: Callable[[str], None]) -> None:
        """Answer, now or later. Raises ValueError if there is no such question."""
        match what:
            case "turn":
                self._answer = self._begin(self._turn(tell))
                return
            case "check":
                self._answer = self._begin(self._check(text, tell))
                return
            case "answered":
                self._gate.answered(self)
            case "limited":
                self._step.trace.call_failed(LIMITED)
                self._gate.limited(_seconds(text))
            case "exhausted":
                self._step.trace.call_failed(FailureCode.QUOTA_EXHAUSTED)
                self._gate.exhausted(text)
            case _:
                raise ValueError(f"an unknown question: {what!r:.64}")
        tell("")

    def close(self) -> None:
        """The step has ended, or begins anew in another worker: nobody waits for an answer."""
        if self._answer is not None:
            self._answer.cancel()
        self._gate.leave(self)

    async def _turn(self, tell: Callable[[str], None]) -> None:
        with self._step.held_back():
            failure = await self._gate.turn(self)
        if failure is None:
            self._step.trace.call_began()
        tell(json.dumps([failure.code, failure.message, failure.retryable]) if failure else "")

    async def _check(self, text: str, tell: Callable[[str], None]) -> None:
        schema, owner = self._step.spec.output_schema, self._step.owner
        try:
            failure = (await structured_text(self._validator, schema, text, owner=owner)).failure
        except Exception:  # the step's own end says so once more; the other steps go on
            log.exception("checking a model's text failed", execution_id=self._step.execution_id)
            failure = None
        tell(failure.message if failure else "")


def _seconds(text: str) -> float | None:
    """The pause that a provider asks for, if it does and that makes sense."""
    seconds = float(text) if text else None
    return seconds if seconds is None or 0 <= seconds < float("inf") else None
