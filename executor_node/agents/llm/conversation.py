"""A step's conversation with its model, to the text that counts. Imports pydantic-ai, so only workers import this."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterable, Sequence
from contextlib import AsyncExitStack

from pydantic_ai import Agent, exceptions
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPartDelta,
    ToolCallPartDelta,
    ToolReturnPart,
)
from pydantic_ai.usage import UsageLimits

from executor_node.agents.llm.assignment import Assignment
from executor_node.agents.llm.calls import Calls
from executor_node.agents.llm.definition import MAX_REPAIRS
from executor_node.agents.llm.failures import failure_of
from executor_node.agents.llm.toolsets import build_toolsets
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed
from fanfold.model.step import AgentStepSpec, FailureCode
from fanfold.parts import byte_size

_EVENTS_A_TURN = 64


async def converse(spec: AgentStepSpec, context: Context) -> str:
    """Have the model do what the spec asks. Answers with its final text, which is never empty (C2).

    Raises:
        AgentFailed: it could not; `code` says why.
    """
    assignment = Assignment.from_json(context.assignment)
    conversation = _Conversation(spec, context, assignment)
    try:
        return await conversation.run()
    except exceptions.UsageLimitExceeded:
        raise AgentFailed(f"no answer after {conversation.max_steps} calls of the model") from None
    except exceptions.AgentRunError as error:
        raise failure_of(error, assignment) from error
    except exceptions.UserError as error:
        raise AgentFailed(f"the model cannot be asked: {error}") from None


class _Conversation:
    def __init__(self, spec: AgentStepSpec, context: Context, assignment: Assignment) -> None:
        self._spec = spec
        self._context = context
        self._calls = Calls(assignment, context)
        self._assignment = assignment
        self._called: dict[str, tuple[str, float]] = {}
        """Arguments of the tool calls under way, and since when they are, by their ids."""
        self._written = _Written(context.max_output_bytes)
        self.max_steps = min(spec.max_steps, assignment.max_steps or spec.max_steps)
        instructions = "\n\n".join(filter(None, [assignment.instructions, _schema_words(spec.output_schema)]))
        self._calls.expect(instructions)
        self._agent = Agent(
            self._calls,
            instructions=instructions or None,
            toolsets=build_toolsets(assignment, context),
            model_settings=self._calls.next_settings,
        )

    async def run(self) -> str:
        async with AsyncExitStack() as stack:
            await self._enter_tool_servers(stack)
            text, history = await self._ask(self._spec.prompt)
            if self._spec.output_schema is None:
                return text
            for _ in range(MAX_REPAIRS):
                fault = await self._context.ask("check", text)
                if not fault:
                    break
                try:
                    text, history = await self._ask(_repair_words(fault), history)
                except (AgentFailed, exceptions.AgentRunError) as error:
                    if isinstance(error, AgentFailed) and error.code is FailureCode.QUOTA_EXHAUSTED:
                        error.output = text
                        raise  # so that the step waits, or its run does not complete (C24)
                    break  # what was paid for is kept, and found wanting by the node (F14)
            return text

    async def _enter_tool_servers(self, stack: AsyncExitStack) -> None:
        """Connect to the agent's MCP servers. Raises AgentFailed if one cannot be reached; another attempt may do."""
        try:
            await stack.enter_async_context(self._agent)
        except (exceptions.UserError, AgentFailed):
            raise
        except Exception as error:
            words = self._assignment.secrets.blotted(str(error))
            raise AgentFailed(f"a tool server cannot be used: {words}", retryable=True) from error

    async def _ask(self, prompt: str, history: Sequence[ModelMessage] = ()) -> tuple[str, Sequence[ModelMessage]]:
        self._calls.expect(prompt)
        left = self.max_steps - self._calls.usage.requests
        try:
            result = await self._agent.run(
                prompt,
                message_history=history,
                usage_limits=UsageLimits(request_limit=left),
                event_stream_handler=self._tell,
            )
        except (AttributeError, TypeError, LookupError, ValueError) as error:  # of a form that nobody has foreseen
            why = self._assignment.secrets.blotted(f"{type(error).__name__}: {error}")
            raise AgentFailed(f"the provider answered what makes no sense: {why}") from error
        if not result.output.strip():
            raise AgentFailed("the model ended without any text")
        return result.output, result.all_messages()

    async def _tell(self, _run: object, events: AsyncIterable[AgentStreamEvent]) -> None:
        self._written.begin()
        async for event in events:
            await self._written.add(event)
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    self._context.write_text(text)
                case FunctionToolCallEvent(part=call):
                    self._called[call.tool_call_id] = call.args_as_json_str(), time.monotonic()
                case FunctionToolResultEvent(part=part):
                    success = isinstance(part, ToolReturnPart) and part.outcome == "success"
                    now = time.monotonic()
                    detail, since = self._called.pop(part.tool_call_id, ("", now))
                    self._calls.expect(str(part.content))
                    self._context.tool_finished(
                        part.tool_name or "", success=success, detail=detail, seconds=now - since
                    )


class _Written:
    """What the model writes in one answer, of which there is to be an end."""

    def __init__(self, most: int) -> None:
        self._most = most

    def begin(self) -> None:
        """Another answer begins."""
        self._size = self._events = 0
        self._text: list[str] = []

    async def add(self, event: AgentStreamEvent) -> None:
        """More is written; once in a while others that share the worker get on meanwhile, however fast it comes.

        Raises:
            AgentFailed: it is too much.
        """
        self._events += 1
        if self._events % _EVENTS_A_TURN == 0:
            await asyncio.sleep(0)
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._text.append(text)
                self._size += byte_size(text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(piece))):
                self._size += byte_size(piece)
            case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=str(piece))):
                self._size += byte_size(piece)
        if self._size > self._most:
            message = f"the model's answer is larger than {self._most:,} bytes"
            raise AgentFailed(message, code=FailureCode.PAYLOAD_TOO_LARGE, output="".join(self._text))


def _schema_words(schema: object) -> str:
    if schema is None:
        return ""
    return f"End with one JSON value that satisfies this JSON Schema, and no other text:\n{json.dumps(schema)}"


def _repair_words(fault: str) -> str:
    return f"That does not satisfy the schema: {fault}\nAnswer with the corrected JSON value, and no other text."
