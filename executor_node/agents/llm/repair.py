"""A model that mends the output of an agent that is none: what was to satisfy the step's schema and does not (C20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from executor_node.agents import AgentDefinition
from executor_node.agents.llm.agents import LlmAgents
from executor_node.agents.llm.definition import MAX_REPAIRS
from executor_node.running import RunningStep
from executor_node.told import Result
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import (
    FailureCode,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    TurnFinished,
)

MAX_MENDED = 64 * 2**10
"""Characters of an output that a model is given to mend."""

_INSTRUCTIONS = """\
You are given what another program wrote. It was to be one JSON value that satisfies a schema, and is not.
Write that value. Change the form of what the program wrote, and nothing of what it says; make nothing up."""


def can_mend(step: RunningStep, text: str) -> bool:
    """Whether the step's agent has a model for that, and the step may still spend tokens on it."""
    most = step.spec.policy.max_tokens
    is_left = most is None or step.usage.tokens < most
    return bool(step.agent.repair_model) and is_left and len(text) <= MAX_MENDED


class Repair:
    """The repair of one step's output, as what is done for the step: itself a step of an agent of kind llm.

    `on_end` gets its outcome once nothing of it is left. What it has cost is the step's by then.
    """

    def __init__(
        self, step: RunningStep, text: str, fault: str, models: LlmAgents, on_end: Callable[[StepOutcome], None]
    ) -> None:
        self._step = step
        self._on_end = on_end
        self._spent_before = step.usage
        policy = step.spec.policy
        left = None if policy.max_tokens is None else policy.max_tokens - step.usage.tokens
        silence = policy.no_progress_timeout or step.agent.no_progress_timeout
        mender = _mender(step.agent)
        self._mending = RunningStep(
            step.execution_id,
            replace(
                step.spec,
                prompt=f"It is not valid: {fault}\n\nThis is what the program wrote:\n{text}",
                max_steps=MAX_REPAIRS,
                policy=StepPolicy(no_progress_timeout=silence, max_tokens=left),
            ),
            mender,
            home=step.home,
            session_id=step.session_id,
            max_output_bytes=step.max_output_bytes,
            listener=self._hear,
            on_end=RunningStep.tell_outcome,
        )
        self._mending.trace = step.trace.repair(mender)
        self._mending.begin()
        try:
            self._mending.act(models.carry_out)
        except OSError as error:
            message = f"the node cannot start it: {error.strerror}"
            self._mending.end(Result.of_failure(FailureCode.INTERNAL, message))

    def stop(self) -> None:
        """Stop it."""
        assert self._step.stopped_by is not None
        self._mending.stop(self._step.stopped_by)

    def _hear(self, event: StepEvent) -> None:
        if isinstance(event, StepProgressed) and isinstance(event.progress, TurnFinished):
            usage = self._spent_before + event.progress.usage
            self._step.tell(replace(event.progress, usage=usage))
        elif isinstance(event, StepEnded):
            self._step.spend(event.outcome.usage)
            self._on_end(event.outcome)


def _mender(agent: AgentDefinition) -> AgentDefinition:
    return AgentDefinition(
        name=agent.name,
        description=agent.description,
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED,
        idempotent=True,
        model=agent.repair_model,
        base_url_env=agent.base_url_env,
        api_key_env=agent.api_key_env,
        settings=agent.settings,
        tools=(),
        instructions=_INSTRUCTIONS,
    )
