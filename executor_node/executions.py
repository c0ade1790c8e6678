"""The steps that the node runs: it takes them on, and follows each to its one outcome."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import structlog

from executor_node.admission import Admission, Limits
from executor_node.agents import AgentDefinition
from executor_node.agents.command.agents import CommandAgents
from executor_node.agents.llm.agents import LlmAgents
from executor_node.agents.python import PythonAgents
from executor_node.clock import TurnClock
from executor_node.counts import Counts
from executor_node.places import Places
from executor_node.running import Act, Home, RunningStep
from executor_node.schemas import Schemas
from executor_node.supervisor.client import Supervision
from executor_node.told import Result
from executor_node.tracing import UNTRACED, StepTrace, TracedStep
from fanfold.errors import Aborted, InvalidArgument, NotFound, Unavailable
from fanfold.model.node import AgentKind, NodeStatus
from fanfold.model.step import AgentStepSpec, FailureCode, StepEvent, StepFailure
from fanfold.model.trace import TraceContext
from fanfold.parts import byte_size
from fanfold.schema import SchemaValidator
from fanfold.tracing import NO_TRACER, Tracer

_DRAINING_RETRY_SECONDS = 1.0

log = structlog.get_logger(__name__)

Listener = Callable[[StepEvent], None]
"""Takes one event at once; must not raise."""


class _Kind(Protocol):
    """Carries out steps of one kind of agent."""

    def carry_out(self, step: RunningStep) -> Act:
        """Begin with a step. Raises OSError when this process is out of file descriptors or memory."""
        ...


class Executions:
    """What runs on the node. An async context manager; leaving it stops every step and waits until it is gone.

    Args:
        node_name: the node's name, told in events and outcomes.
        agents: what the node offers, by name.
        supervision: the connection to the supervisor, entered before this and left after it.
        validator: checks schemas and structured output.
        places: the folders that steps see, and those for what they need.
        environment: where commands' variables come from; each sees those that its agent file names.
        limits: how many steps the node takes, and what each of them may.
        tracer: traces what runs.
    """

    def __init__(
        self,
        *,
        node_name: str,
        agents: Mapping[str, AgentDefinition],
        supervision: Supervision,
        validator: SchemaValidator,
        places: Places,
        environment: Mapping[str, str],
        limits: Limits,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.counts = Counts()
        self._node_name = node_name
        self._tracer = tracer
        self._agents = agents
        self._supervision = supervision
        self._admission = Admission(limits.max_concurrent_steps)
        self._limits = limits
        workspace = places.workspace
        self._python = PythonAgents(
            supervision, workspace=workspace, directory=places.agents, environment=environment, limits=limits
        )
        self._commands = CommandAgents(
            supervision, workspace=workspace, environment=environment, limits=limits, scratch=places.scratch
        )
        self._llm = LlmAgents(
            supervision, workspace=workspace, environment=environment, limits=limits, validator=validator
        )
        self._kinds: Mapping[AgentKind, _Kind] = {
            AgentKind.PYTHON: self._python,
            AgentKind.COMMAND: self._commands,
            AgentKind.LLM: self._llm,
        }
        self._steps: dict[str, RunningStep] = {}
        self._reserved: set[str] = set()
        self._schemas = Schemas(validator, self._llm, self._settle)
        self._ended = asyncio.Event()
        self._draining = False
        self._session_prefix = uuid.uuid4().hex[:16]
        self._session_numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._home = Home(node=self._node_name, clock=TurnClock())
        await self._schemas.__aenter__()
        await self._llm.__aenter__()
        await self._commands.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.drain(0)
            await self._python.close()
            await self._llm.__aexit__(None, None, None)
            await self._commands.__aexit__(None, None, None)
        finally:
            await self._schemas.__aexit__(None, None, None)

    def offer(self, agents: Mapping[str, AgentDefinition]) -> None:
        """Offer these agents from now on. What runs goes on with what it began with."""
        self._agents = agents

    def prestart(self) -> None:
        """Start the workers that steps share now, so that the first step need not wait for one."""
        self._python.prestart(self._agents.values())

    def start(
        self, execution_id: str, spec: AgentStepSpec, listener: Listener, trace: TraceContext | None = None
    ) -> None:
        """Take on a step. Its agent runs once its schema, if it has one, is known to be usable (C20).

        `listener` gets one `StepStarted`, progress, and one `StepEnded` when no process of the step remains (C11, F1).
        The first event, and in rare cases the last one, comes before this returns.

        Raises:
            Aborted: an execution of this id is still there; somebody else listens to it.
            NotFound: the node does not offer the agent.
            ResourceExhausted: the node is full; `retry_delay` says when to try again (C10).
            Unavailable: the node is draining, or its supervisor is gone.
        """
        self.release(execution_id)
        agent = self._take_place(execution_id, spec.agent)
        most = self._limits.output_bytes
        step = RunningStep(
            execution_id,
            agent.held_to_schema(spec),
            agent,
            home=self._home,
            session_id=f"{self._session_prefix}-{next(self._session_numbers)}",
            max_output_bytes=min(agent.max_output_bytes or most, most),
            listener=listener,
            on_end=self._end,
        )
        step.trace = self._trace_of(step, trace)
        self._steps[execution_id] = step
        step.begin()
        if step.spec.output_schema is None:
            self._carry_out(step)
        else:
            self._schemas.carry_out_if_usable(step, self._carry_out)

    def _trace_of(self, step: RunningStep, parent: TraceContext | None) -> StepTrace:
        if not self._tracer.is_on or (parent is not None and not parent.is_sampled):
            return UNTRACED if parent is None else StepTrace(parent)
        return TracedStep.begin(
            self._tracer,
            parent,
            step.agent,
            step.spec,
            step.execution_id,
            session_id=step.session_id,
            node=self._node_name,
        )

    def reserve(self, execution_id: str, agent: str) -> None:
        """Keep a place for a step whose texts are still to come, until `start` or `release`. Raises as `start`."""
        self._take_place(execution_id, agent)
        self._reserved.add(execution_id)

    def release(self, execution_id: str) -> None:
        """Give back the place that is kept for a step, if there is one."""
        if execution_id in self._reserved:
            self._reserved.discard(execution_id)
            self._admission.give_back_unused()

    def cancel(self, execution_id: str, reason: str) -> None:
        """Stop a step; one that has ended, or is about to, is left as it is. Its outcome comes through its listener."""
        step = self._steps.get(execution_id)
        if step is not None:
            step.stop(StepFailure(code=FailureCode.CANCELLED, message=reason))

    async def check(self, spec: AgentStepSpec) -> None:
        """Look at what was asked without a coordinator, which would have done so.

        Raises:
            InvalidArgument: the prompt is too large, or the schema cannot be used (C20).
            Unavailable: that cannot be told.
        """
        limit = self._limits.prompt_bytes
        if len(spec.prompt) * 4 > limit and (size := byte_size(spec.prompt)) > limit:
            raise InvalidArgument.of_field(
                "step.prompt", f"must be at most {limit:,} bytes (step.prompt_bytes), not {size:,}"
            )
        await self._schemas.check(spec, owner="direct")

    def status(self) -> NodeStatus:
        """How the node fares (C10)."""
        offered = self._agents.values()
        return NodeStatus(
            concurrency_hint=self._limits.concurrency_hint,
            max_concurrent_steps=self._limits.max_concurrent_steps,
            running_steps=self._admission.running,
            draining=self._draining or self._supervision.lost,
            held_back=(*self._llm.held_back(offered), *self._commands.held_back(offered)),
        )

    @property
    def hands_back(self) -> bool:
        """Whether what it stops is to run elsewhere at no cost (C43): it drains, and did not break."""
        return self._draining and not self._supervision.lost

    def begin_drain(self) -> None:
        """Take nothing new from now on (C43)."""
        self._draining = True

    async def drain(self, grace: float) -> None:
        """Take nothing new, and wait until nothing runs. What runs after `grace` seconds is stopped (C43)."""
        self.begin_drain()
        try:
            async with asyncio.timeout(grace):
                await self._wait_for_none()
        except TimeoutError:
            for step in list(self._steps.values()):
                step.stop(StepFailure(code=FailureCode.NODE_LOST, message="the node is stopping", retryable=True))
            await self._wait_for_none()

    def _take_place(self, execution_id: str, agent: str) -> AgentDefinition:
        if execution_id in self._steps or execution_id in self._reserved:
            raise Aborted("the execution is under way", reason="EXECUTION_UNDER_WAY")
        if self._supervision.lost:
            raise Unavailable("the node has lost its supervisor", reason="NODE_BROKEN")
        if self._draining:
            raise Unavailable("the node is draining", reason="NODE_DRAINING", retry_delay=_DRAINING_RETRY_SECONDS)
        definition = self._agents.get(agent)
        if definition is None:
            raise NotFound("the node does not offer the agent", reason="AGENT_NOT_OFFERED")
        self._admission.take()
        return definition

    async def _wait_for_none(self) -> None:
        while self._steps:
            self._ended.clear()
            await self._ended.wait()

    def _carry_out(self, step: RunningStep) -> None:
        try:
            step.act(self._kinds[step.agent.kind].carry_out)
        except OSError as error:
            message = f"the node cannot start it: {error.strerror}"
            step.end(Result.of_failure(FailureCode.INTERNAL, message, retryable=True))

    def _end(self, step: RunningStep) -> None:
        """The step's processes are gone: so is its slot (F24), unless a model may yet mend what it gave."""
        if not _may_be_mended(step):
            self._admission.give_back(self._loop.time() - step.began_at)
        if self._supervision.lost and step.result.failure is not None:
            # Not the agent's doing: the node itself is broken, and another may do it.
            step.result = Result.of_failure(FailureCode.NODE_LOST, "the node's supervisor is gone", retryable=True)
        if step.has_to_satisfy_schema:
            self._schemas.satisfy(step)
        else:
            self._settle(step)

    def _settle(self, step: RunningStep, structured: Any = None) -> None:
        if _may_be_mended(step):
            self._admission.give_back(self._loop.time() - step.began_at)
        del self._steps[step.execution_id]
        self._ended.set()
        if self.hands_back:
            step.trace.hand_back()
        step.tell_outcome(structured)
        self.counts.note_ended(step.agent.name, step.failure, step.usage, self._loop.time() - step.began_at)


def _may_be_mended(step: RunningStep) -> bool:
    return bool(step.agent.repair_model) and step.spec.output_schema is not None
