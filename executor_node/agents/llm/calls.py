"""The calls that a step makes of its model: each waits for its turn, is counted, and is seen to its end.

A call that was refused is made again where that may help, but none of which a part has already been told.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic_ai import RunContext, exceptions
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from executor_node.agents.llm.failures import PASSING, failure_of, words_of
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed
from fanfold.model.step import NO_USAGE, FailureCode, Usage

_MOST_TRIES = 4
_CHARACTERS_A_TOKEN = 4


class Calls(WrapperModel):
    """The model of one step, as pydantic-ai sees it."""

    def __init__(self, model: Model, settings: ModelSettings, context: Context) -> None:
        super().__init__(model)
        self._asked = settings
        self._context = context
        self.usage = NO_USAGE
        """What all calls cost together, also those that failed, as far as the provider has said."""
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
        self._expected_input += len(text.encode(errors="replace")) // _CHARACTERS_A_TOKEN

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
                await self._context.ask("exhausted", words_of(error))
                raise failure_of(error) from error
            except PASSING as error:
                retry_after = "" if error.retry_after is None else str(error.retry_after)
                await self._context.ask("limited", retry_after)
                if not tries_left:
                    raise failure_of(error) from error
            else:
                await self._context.ask("answered")
                return stream
        raise AssertionError("unreachable")

    async def _wait_for_turn(self) -> None:
        if failure := await self._context.ask("turn"):
            code, message, retryable = json.loads(failure)
            raise AgentFailed(message, retryable=retryable, code=FailureCode(code))

    def _count(self, stream: StreamedResponse) -> None:
        used = stream.usage
        call = Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, requests=1)
        self.usage += call
        self._expected_input = call.tokens  # the next one holds all of this one again
        self._turn += 1
        self._context.turn_finished(self._turn, self.usage)

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
