"""A server that speaks as model providers do: OpenAI's chat completions and responses, and Anthropic's messages."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Chunk = Mapping[str, Any]
Usage = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the provider answers one call: text and tool calls, or an error.

    `broken` ends the stream without its end, `cut` says that the limit of tokens ended it, `pace` are the seconds
    between words, and `hangs` leaves the stream open after them; one that is `mute` never begins. `raw` is sent so.
    """

    text: str = ""
    tools: Sequence[tuple[str, Mapping[str, Any]]] = ()
    usage: Usage = (10, 5)
    status: int = 200
    error: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False
    cut: bool = False
    pace: float = 0.0
    hangs: bool = False
    mute: bool = False
    raw: str = ""


def refusal(status: int, message: str, *, code: str = "", kind: str = "", **headers: str) -> Reply:
    """An error, in the form that both providers' errors have. Header names are given with underscores."""
    error = {"message": message, "type": kind or "error", "code": code or None}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, error=error, headers=sent)


Answering = Callable[[dict[str, Any]], Reply]


class Provider:
    """The server, what it was asked, and what it answers next. Replies are used up in order; the last one stays."""

    def __init__(self, answers: Iterable[Reply] | Answering) -> None:
        self._answers = answers if callable(answers) else _in_order(answers)
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.open = 0
        """Calls that are being answered."""
        self.port = 0

    @property
    def openai(self) -> dict[str, str]:
        """The variables for agents of provider `openai`."""
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "sk-for-tests"}

    @property
    def anthropic(self) -> dict[str, str]:
        """The variables for agents of provider `anthropic`."""
        return {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self.port}", "ANTHROPIC_API_KEY": "sk-for-tests"}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's calls, one after the other."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode(), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = head.split(" ", 2)[1]
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append(body)
        self.times.append(asyncio.get_running_loop().time())
        reply = self._answers(body)
        self.open += 1
        try:
            if reply.mute:
                await reader.read()
                return
            if reply.status != 200:
                await _send(writer, reply.status, json.dumps({"type": "error", "error": dict(reply.error)}), reply)
                return
            if not body.get("stream"):
                await _send(writer, 200, json.dumps(_openai_completion(reply)), reply)
                return
            kinds = {"/messages": _anthropic_events, "/responses": _responses_events}
            events = next((make for end, make in kinds.items() if end in path), _openai_events)(reply)
            await _stream(writer, [reply.raw] if reply.raw else events, reply)
            if reply.hangs:
                await reader.read()  # until the other side hangs up
        finally:
            self.open -= 1


@asynccontextmanager
async def running_provider(*answers: Reply, answer: Answering | None = None) -> AsyncIterator[Provider]:
    """A provider on loopback that gives these answers."""
    provider = Provider(answer or answers)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()


def _in_order(replies: Iterable[Reply]) -> Answering:
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def _send(writer: asyncio.StreamWriter, status: int, body: str, reply: Reply) -> None:
    data = body.encode()
    headers = {"content-type": "application/json", "content-length": str(len(data)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode() + data)
    await writer.drain()


async def _stream(writer: asyncio.StreamWriter, events: Iterable[str], reply: Reply) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for event in events:
        data = event.encode()
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        await asyncio.sleep(reply.pace)
    if reply.hangs:
        return
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


def _openai_events(reply: Reply) -> Iterable[str]:
    def chunk(delta: Mapping[str, Any], finish: str | None = None, usage: Usage | None = None) -> str:
        body: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        body["choices"] = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
        if usage:
            given, written = usage
            body["usage"] = {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}
        return f"data: {json.dumps(body)}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for word in _words(reply.text):
        yield chunk({"content": word})
    for index, (name, arguments) in enumerate(reply.tools):
        function = {"name": name, "arguments": json.dumps(arguments)}
        yield chunk({"tool_calls": [{"index": index, "id": f"t{index}", "type": "function", "function": function}]})
    if reply.broken or reply.hangs:
        return
    yield chunk({}, "length" if reply.cut else "tool_calls" if reply.tools else "stop")
    yield chunk({}, usage=reply.usage)
    yield "data: [DONE]\n\n"


def _anthropic_events(reply: Reply) -> Iterable[str]:
    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    given, written = reply.usage
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    usage = {"input_tokens": given, "output_tokens": 0}
    yield event("message_start", message={**message, "stop_sequence": None, "usage": usage})
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if reply.text:
        deltas = [{"type": "text_delta", "text": word} for word in _words(reply.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for index, (name, arguments) in enumerate(reply.tools):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        blocks.append(({"type": "tool_use", "id": f"t{index}", "name": name, "input": {}}, [delta]))
    for index, (block, deltas) in enumerate(blocks):
        yield event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        if not reply.broken and not reply.hangs:
            yield event("content_block_stop", index=index)
    if reply.broken or reply.hangs:
        return
    reason = "max_tokens" if reply.cut else "tool_use" if reply.tools else "end_turn"
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": written})
    yield event("message_stop")


def _openai_completion(reply: Reply) -> dict[str, Any]:
    """The answer to a call that is not streamed."""
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in reply.tools]
    calls = [{"id": f"t{index}", "type": "function", "function": each} for index, each in enumerate(functions)]
    message = {"role": "assistant", "content": reply.text or None} | ({"tool_calls": calls} if calls else {})
    given, written = reply.usage
    usage = {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def _responses_events(reply: Reply) -> Iterable[str]:
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': next(numbers), **fields})}\n\n"

    def response(status: str, **fields: Any) -> dict[str, Any]:
        base = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": status, "output": []}
        return {**base, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None, **fields}

    yield event("response.created", response=response("in_progress"))
    index = 0
    if reply.text:
        item = {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        place = {"output_index": 0, "content_index": 0, "item_id": "i"}
        part = {"type": "output_text", "text": "", "annotations": []}
        yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.content_part.added", **place, part=part)
        for word in _words(reply.text):
            yield event("response.output_text.delta", **place, delta=word, logprobs=[])
        index = 1
    for number, (name, arguments) in enumerate(reply.tools, start=index):
        call = {"id": f"i{number}", "type": "function_call", "call_id": f"t{number}", "name": name}
        text = json.dumps(arguments)
        yield event("response.output_item.added", output_index=number, item={**call, "arguments": ""})
        place = {"output_index": number, "item_id": f"i{number}"}
        yield event("response.function_call_arguments.delta", **place, delta=text)
        yield event("response.function_call_arguments.done", **place, name=name, arguments=text)
        yield event("response.output_item.done", output_index=number, item={**call, "arguments": text})
    if reply.broken or reply.hangs:
        return
    given, written = reply.usage
    usage = {"input_tokens": given, "output_tokens": written, "total_tokens": given + written}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    status = "incomplete" if reply.cut else "completed"
    incomplete = {"reason": "max_output_tokens"} if reply.cut else None
    yield event(f"response.{status}", response=response(status, usage=usage | details, incomplete_details=incomplete))
