"""The calls that a step makes of its model: each waits for its turn, is counted, and is seen to its end.

A call that was refused is made again where that may help, but none of which a part has already been told.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

from pydantic_ai import RunContext, exceptions
from pydantic_ai.messages import ModelMessage, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from executor_node.agents.llm.assignment import Assignment
from executor_node.agents.llm.failures import PASSING, failure_of, words_of
from executor_node.agents.llm.models import build_model
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed
from fanfold.model.step import NO_USAGE, FailureCode, Usage

_MOST_TRIES = 4
_BYTES_A_TOKEN = 4


class Calls(WrapperModel):
    """The model of one step, as pydantic-ai sees it."""

    def __init__(self, assignment: Assignment, context: Context) -> None:
        super().__init__(build_model(assignment))
        self._assignment = assignment
        self._asked = cast(ModelSettings, dict(assignment.settings))
        self._context = context
        self.usage = NO_USAGE
        """What all calls cost together, also those that failed: as the provider says, else as far as can be told."""
        self._turn = 0
        self._expected_input = 0

    def next_settings(self, _run: RunContext[None]) -> ModelSettings:
        """How the next call is asked: as the agent file says, for no more tokens than are left of the cap (C13).

        Raises:
            AgentFailed: nothing is left.
        """
        settings = self._asked | ModelSettings(max_retries=0)  # trying again is done here
        most = self._context.max_tokens
        if most is not None:
            left = most - self.usage.tokens - self._expected_input
            if left < 1:
                message = f"another call would exceed the {most:,} tokens that the step may spend"
                raise AgentFailed(message, code=FailureCode.BUDGET_EXHAUSTED)
            settings["max_tokens"] = min(left, settings.get("max_tokens", left))
        return settings

    def expect(self, text: str) -> None:
        """More text goes into the next call: what it will about cost."""
        self._expected_input += _tokens_in(text)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """One call, streamed."""
        async with AsyncExitStack() as stack:
            stream = await self._open(stack, messages, model_settings, model_request_parameters, run_context)
            try:
                yield stream
            finally:
                self._count(stream)
            self._see_to_end(stream, model_settings)

    async def _open(self, stack: AsyncExitStack, *arguments: Any) -> StreamedResponse:
        for tries_left in reversed(range(_MOST_TRIES)):
            await self._wait_for_turn()
            try:
                stream = await stack.enter_async_context(self.wrapped.request_stream(*arguments))
            except exceptions.ModelQuotaExceededError as error:
                await self._context.ask("exhausted", words_of(error, self._assignment))
                raise failure_of(error, self._assignment) from error
            except PASSING as error:
                retry_after = "" if error.retry_after is None else str(error.retry_after)
                await self._context.ask("limited", retry_after)
                if not tries_left:
                    raise failure_of(error, self._assignment) from error
            else:
                await self._context.ask("answered")
                return stream
        raise AssertionError("unreachable")

    async def _wait_for_turn(self) -> None:
        if failure := await self._context.ask("turn"):
            code, message, retryable = json.loads(failure)
            raise AgentFailed(message, retryable=retryable, code=FailureCode(code))

    def _count(self, stream: StreamedResponse) -> None:
        call = self._cost_of(stream)
        self.usage += call
        self._expected_input = call.tokens  # the next one holds all of this one again
        self._turn += 1
        self._context.turn_finished(self._turn, self.usage)

    def _cost_of(self, stream: StreamedResponse) -> Usage:
        """What a call has cost. Providers tell it at its end, or never: then it is counted by the text."""
        used, response = stream.usage, stream.get()
        written = sum(_tokens_of(part) for part in response.parts)
        is_whole = response.finish_reason is not None and used.output_tokens
        return Usage(
            input_tokens=used.input_tokens or self._expected_input,
            output_tokens=used.output_tokens if is_whole else max(used.output_tokens, written),
            requests=1,
        )

    def _see_to_end(self, stream: StreamedResponse, settings: ModelSettings | None) -> None:
        """See how the answer ended; a stream may break off and look like a whole one.

        Raises:
            AgentFailed: it is no whole answer.
        """
        match stream.get().finish_reason:
            case None:
                raise AgentFailed("the model's answer broke off", retryable=True)
            case "length":
                raise self._too_long(settings)
            case "content_filter":
                raise AgentFailed("the model refused, or what it wrote was withheld")

    def _too_long(self, settings: ModelSettings | None) -> AgentFailed:
        most, own = self._context.max_tokens, (settings or {}).get("max_tokens")
        if most is not None and self.usage.tokens >= most:
            message = f"the answer was cut off at the {most:,} tokens that the step may spend"
            return AgentFailed(message, code=FailureCode.BUDGET_EXHAUSTED)
        return AgentFailed(f"the model's answer is longer than the {own or 'most'} tokens it may have")


def _tokens_of(part: ModelResponsePart) -> int:
    if isinstance(part, ToolCallPart):
        return _tokens_in(part.args_as_json_str())
    return _tokens_in(part.content) if isinstance(part, TextPart | ThinkingPart) else 0


def _tokens_in(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text.encode(errors="replace")) // _BYTES_A_TOKEN)
