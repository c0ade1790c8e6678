"""What a step's schema asks: that it can be used, before the agent runs, and that the output satisfies it (C20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import structlog

from executor_node.agents.llm.agents import LlmAgents
from executor_node.agents.llm.repair import Repair, can_mend
from executor_node.running import RunningStep
from executor_node.texts import is_longer
from executor_node.told import Result
from fanfold.errors import InvalidArgument
from fanfold.model.step import AgentStepSpec, FailureCode, StepOutcome
from fanfold.schema import SchemaValidator
from fanfold.schema.structured import UNCHECKED, Structured, structured_text
from fanfold.strict_json import compact_json

_MOST_GROWTH = 16  # 4 bytes a character, and numbers that are written out

log = structlog.get_logger(__name__)


class Schemas:
    """Holds steps to their schemas. An async context manager; leave it when no step runs any more.

    `settle` takes each step whose output was looked at, with the value if there is one.
    """

    def __init__(
        self, validator: SchemaValidator, models: LlmAgents, settle: Callable[[RunningStep, Any], None]
    ) -> None:
        self._validator = validator
        self._models = models
        self._settle = settle
        self._checks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._checks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._checks.__aexit__(kind, error, trace)

    async def check(self, spec: AgentStepSpec, *, owner: str) -> None:
        """See that the schema of a step, if it has one, can be used. Raises InvalidArgument, Unavailable."""
        if spec.output_schema is not None:
            await self._validator.check(spec.output_schema, field="step.output_schema", owner=owner)

    def carry_out_if_usable(self, step: RunningStep, carry_out: Callable[[RunningStep], None]) -> None:
        """What an agent does may be paid for, so nothing is carried out that no value could come of."""
        self._act(step, partial(self._carry_out_if_usable, step, carry_out), lambda: step.end(Result()))

    def satisfy(self, step: RunningStep) -> None:
        """See whether the value that the agent gave, or else its output read as JSON, satisfies the schema.

        If not, the agent's `repair_model` may mend it, for which the step goes on.
        """
        self._act(step, partial(self._check_output, step), lambda: self._settle(step, None))

    def _act(
        self, step: RunningStep, check: Callable[[], Coroutine[Any, Any, None]], on_stop: Callable[[], None]
    ) -> None:
        """Check something of the step, which can be stopped meanwhile: deadlines are for all that it takes (C6)."""
        step.act(lambda _step: _Check(self._checks.create_task(check()), on_stop))

    async def _carry_out_if_usable(self, step: RunningStep, carry_out: Callable[[RunningStep], None]) -> None:
        try:
            await self.check(step.spec, owner=step.owner)
        except InvalidArgument as error:
            step.end(Result.of_failure(FailureCode.OUTPUT_INVALID, error.message))
        except Exception:
            log.exception("checking a schema failed", execution_id=step.execution_id)
            message = "its output_schema could not be checked"
            step.end(Result.of_failure(FailureCode.INTERNAL, message, retryable=True))
        else:
            carry_out(step)

    async def _check_output(self, step: RunningStep) -> None:
        result = step.result
        text = result.output if result.structured_json is None else result.structured_json
        structured = await self._read(step, text)
        failure = structured.failure
        if failure is not None and failure.code is FailureCode.OUTPUT_INVALID and can_mend(step, text):
            mended = partial(self._take_mended, step, structured)
            step.act(lambda step: Repair(step, text, failure.message, self._models, mended))
        else:
            self._end(step, structured, text)

    def _take_mended(self, step: RunningStep, invalid: Structured, repair: StepOutcome) -> None:
        """A model was given what the agent wrote, which stays the step's output whatever came of that (F14)."""
        if step.stopped_by is not None:
            self._settle(step, None)
        elif repair.failure is not None:
            self._end(step, invalid.unmended(repair.failure), "")
        else:
            check = partial(self._check_mended, step, invalid, repair.output)
            self._act(step, check, lambda: self._settle(step, None))

    async def _check_mended(self, step: RunningStep, invalid: Structured, text: str) -> None:
        structured = await self._read(step, text)
        if structured.failure is not None:
            structured = invalid.unmended(structured.failure)
        self._end(step, structured, text)

    async def _read(self, step: RunningStep, text: str) -> Structured:
        try:
            return await structured_text(self._validator, step.spec.output_schema, text, owner=step.owner)
        except Exception:
            log.exception("checking structured output failed", execution_id=step.execution_id)
            return UNCHECKED

    def _end(self, step: RunningStep, structured: Structured, text: str) -> None:
        """Settle a step with the value that was read from `text`, or with why there is none."""
        result = step.result
        if structured.failure is not None:
            step.result = replace(result, output=structured.annotate(result.output), failure=structured.failure)
        elif _is_told_longer(structured.value, text, step.max_output_bytes):
            step.result = result.too_large("structured value", step.max_output_bytes)
            structured = Structured()
        self._settle(step, structured.value)


class _Check:
    """A check while it runs, as what is done for a step."""

    def __init__(self, task: asyncio.Task[None], on_stop: Callable[[], None]) -> None:
        self._task = task
        self._on_stop = on_stop

    def stop(self) -> None:
        """Leave it, and have the step end."""
        self._task.cancel()
        self._on_stop()


def _is_told_longer(value: object, text: str, max_bytes: int) -> bool:
    """Whether a value, which was read from `text`, is too large to be told: 1e15 has 4 bytes, told it has 18."""
    if len(text) * _MOST_GROWTH <= max_bytes:
        return False
    return is_longer(compact_json(value), max_bytes)
