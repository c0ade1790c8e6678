"""What surrounds every call: observation outside, translation of errors within.

Written as classes, for the generators of contextlib would cost each call several times as much.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import NoReturn

import grpc.aio
import structlog

from fanfold.errors import DRAINING, FanfoldError, InternalError, Unavailable
from fanfold.rpc.call import Call
from fanfold.rpc.metrics import RpcMetrics

RETRY_ELSEWHERE_SECONDS = 1.0

log = structlog.get_logger(__name__)


def stopping() -> Unavailable:
    """What callers are told by a server that drains (C43)."""
    return Unavailable("the server is stopping", reason=DRAINING, retry_delay=RETRY_ELSEWHERE_SECONDS)


class Observed:
    """Counts the call, times it and logs its end."""

    __slots__ = ("_call", "_metrics")

    def __init__(self, call: Call, metrics: RpcMetrics) -> None:
        self._call = call
        self._metrics = metrics

    def __enter__(self) -> None:
        self._metrics.began(self._call.method)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call
        code = call.context.code() or grpc.StatusCode.OK
        if isinstance(error, asyncio.CancelledError):
            late = call.context.time_remaining() == 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
        seconds = time.monotonic() - call.started_at
        self._metrics.ended(call.method, code, seconds)
        log.debug("call ended", code=code.name, seconds=seconds, peer=call.peer)


class ErrorsAnswered:
    """Answers domain errors as statuses, and all others as INTERNAL without a word of theirs (C41)."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        match error:
            case None | grpc.aio.AbortError():  # the latter has been answered
                pass
            case asyncio.CancelledError() if self._call.cut_short is not None:
                await self._call.fail(self._call.cut_short)
            case Exception():
                await self._answer(error)

    async def _answer(self, error: Exception) -> NoReturn:
        told = _domain_error_in(error)
        try:
            await self._call.fail(
                told or InternalError(f"internal error; the log has request id {self._call.request_id}")
            )
        except BaseException as end:
            client_is_gone = isinstance(error, grpc.aio.BaseError) and isinstance(end, asyncio.CancelledError)
            if (told is None or isinstance(told, InternalError)) and not client_is_gone:
                log.exception("internal error", exc_info=error)
            raise


def _domain_error_in(error: Exception) -> FanfoldError | None:
    """`error` itself, or the first of a task group's errors, provided that all of them are domain errors."""
    if isinstance(error, FanfoldError):
        return error
    if isinstance(error, ExceptionGroup):
        found = [_domain_error_in(part) for part in error.exceptions]
        return found[0] if None not in found else None
    return None
