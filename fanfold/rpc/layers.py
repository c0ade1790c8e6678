"""What surrounds every call: observation outside, translation of errors within.

Written as classes, for the generators of contextlib would cost each call several times as much.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

import grpc.aio
import structlog

from fanfold.errors import FanfoldError, InternalError, Unavailable
from fanfold.rpc.call import Call
from fanfold.rpc.metrics import RpcMetrics

RETRY_ELSEWHERE_SECONDS = 1.0

log = structlog.get_logger(__name__)


def stopping() -> Unavailable:
    """What callers are told by a server that drains (C43)."""
    return Unavailable("the server is stopping", reason="DRAINING", retry_delay=RETRY_ELSEWHERE_SECONDS)


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
                return
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if self._call.cut_short and task is not None:
                    task.uncancel()
                    await self._call.fail(stopping())
            case grpc.aio.BaseError() if not isinstance(error, grpc.aio.UsageError):
                # The connection is gone, so nobody is there to answer.
                raise asyncio.CancelledError from error
            case Exception():
                await self._call.fail(_as_told(error, self._call))


def _as_told(error: Exception, call: Call) -> FanfoldError:
    told = _domain_error_in(error)
    if told is None or isinstance(told, InternalError):
        log.error("internal error", exc_info=error)
    return told or InternalError(f"internal error; the log has request id {call.request_id}")


def _domain_error_in(error: Exception) -> FanfoldError | None:
    """`error` itself, or the first of a task group's errors, provided that all of them are domain errors."""
    if isinstance(error, FanfoldError):
        return error
    if isinstance(error, ExceptionGroup):
        found = [_domain_error_in(part) for part in error.exceptions]
        return found[0] if None not in found else None
    return None
