"""Puts the layers around every call, whatever kind its method is of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

from fanfold.errors import InvalidArgument, Unimplemented
from fanfold.rpc.call import Call, Method, begin_call

UNDECODABLE = "UNDECODABLE"
_MAX_PATH_TOLD = 200

# Only generated code knows what a handler takes and gives.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Answer: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
Serve: TypeAlias = Callable[[Call, Answer, Any], Awaitable[Any]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Hands every call, also those of methods that do not exist, to `serve(call, answer, requests)`.

    That is to await `answer(requests, call.context)`, which runs the servicer. Servicers are coroutines and async
    generators that raise domain errors; an undecodable message is such an error too, and in a request stream it is
    raised where the servicer reads it. A request stream that breaks off, as at a message above the size limit, looks
    to the servicer like one that its client has ended: gRPC tells the client, not us.
    """

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler of the called method, led through `serve`."""
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None:
            found = await continuation(handler_call_details)
            if found is None:  # not kept: clients may make up as many as they like
                return _unknown(path, self._serve)
            handler = self._handlers[path] = _served(Method.of_path(path), found, self._serve)
        return handler


def _served(method: Method, handler: Handler, serve: Serve) -> Handler:
    """The handler as one that takes a stream of requests, whatever it takes itself.

    So a single request is read and decoded within `serve`, as its errors and its absence occur there too: gRPC would
    leave a call without its request unanswered for ever.
    """
    decode, encode = _decoder(handler.request_deserializer), handler.response_serializer or bytes
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def begin(requests: Any, context: Context) -> Any:
        request = requests if handler.request_streaming else decode(await _the_only_one(context))
        try:
            return behaviour(request, context)
        except NotImplementedError:  # only what protoc generates raises before it is awaited
            raise Unimplemented(f"{method.path} is not implemented here") from None

    async def answer_once(requests: Any, context: Context) -> bytes:
        return encode(await (await begin(requests, context)))

    async def answer_many(requests: Any, context: Context) -> None:
        await _send(await begin(requests, context), context)

    answer: Answer = answer_many if handler.response_streaming else answer_once

    async def handle(requests: Any, context: Context) -> Any:
        return await serve(begin_call(method, context), answer, requests)

    decode_each = decode if handler.request_streaming else None
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(handle, decode_each, encode)
    return grpc.stream_unary_rpc_method_handler(handle, decode_each)


async def _the_only_one(context: Context) -> bytes:
    request = await context.read()
    if request is grpc.aio.EOF:
        raise InvalidArgument("the call ended without a request", reason="REQUEST_MISSING")
    assert isinstance(request, bytes)
    return request


async def _send(responses: Any, context: Context) -> None:
    if not hasattr(responses, "__aiter__"):  # a coroutine, which writes by itself
        await responses
        return
    async with aclosing(responses):  # or its `finally` blocks would run whenever it is collected
        async for response in responses:
            await context.write(response)


def _unknown(path: str, serve: Serve) -> Handler:
    method = Method(path)

    async def answer(requests: Any, context: Context) -> None:
        raise Unimplemented(f"there is no method {path[:_MAX_PATH_TOLD]} here")

    async def handle(requests: Any, context: Context) -> None:
        await serve(begin_call(method, context), answer, requests)

    return grpc.stream_stream_rpc_method_handler(handle)


def _decoder(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    def decode(raw: bytes) -> Any:
        assert deserialize is not None
        try:
            return deserialize(raw)
        except DecodeError:
            raise InvalidArgument(f"the request is no valid {name}", reason=UNDECODABLE) from None

    kind: Any = getattr(deserialize, "__self__", None)  # the message class, whose `FromString` it is
    name = kind.DESCRIPTOR.full_name if hasattr(kind, "DESCRIPTOR") else "message"
    return decode
