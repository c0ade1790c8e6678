"""One incoming call, as the chassis knows it."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import uuid4

import grpc.aio

from fanfold.errors import FanfoldError
from fanfold.rpc.status import code_of, to_status, to_trailers

REQUEST_ID_KEY = "x-request-id"
UNKNOWN = "unknown"

_MADE_IDS = map(f"{uuid4().hex[:16]}-{{}}".format, itertools.count(1))
_WELL_FORMED_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_current: ContextVar[Call] = ContextVar("fanfold_call")


@dataclass(frozen=True, slots=True)
class Method:
    """A method by its path (`/package.Service/Name`), and as metrics label it: unknown ones share one label."""

    path: str
    service: str = UNKNOWN
    name: str = UNKNOWN

    @classmethod
    def of_path(cls, path: str) -> Method:
        """A method that exists."""
        _, service, name = path.split("/")
        return cls(path, service, name)


@dataclass(slots=True, eq=False)
class Call:
    """A call while it runs. `started_at` is on the monotonic clock; `cut_short` says that the server stops it."""

    method: Method
    request_id: str
    peer: str
    context: grpc.aio.ServicerContext[Any, Any]
    started_at: float = field(default_factory=time.monotonic)
    cut_short: bool = False

    async def fail(self, error: FanfoldError) -> NoReturn:
        """Answer the call with `error`. Raises what ends the call within gRPC."""
        status = to_status(error)
        trailers = (*to_trailers(status), (REQUEST_ID_KEY, self.request_id))
        try:
            await self.context.abort(code_of(error), status.message, trailers)
        except grpc.aio.InternalError as gone:  # gRPC has ended the call before
            raise asyncio.CancelledError from gone


def begin_call(method: Method, context: grpc.aio.ServicerContext[Any, Any]) -> Call:
    """The call that starts now, made the current one of this task.

    A request id that the client gave is told back at the end; one that is made here is told with errors only, as the
    trailer would cost every call some 8% of its time.
    """
    given = _given_request_id(context.invocation_metadata() or ())
    if given:
        context.set_trailing_metadata(((REQUEST_ID_KEY, given),))
    call = Call(method, given or next(_MADE_IDS), context.peer(), context)
    _current.set(call)  # each call has a task of its own, and so a context of its own
    return call


def current_call() -> Call:
    """The call that the running task serves. Raises LookupError outside of calls."""
    return _current.get()


def call_fields() -> dict[str, str]:
    """What log lines tell of the current call; nothing outside of calls."""
    call = _current.get(None)
    return {} if call is None else {"request_id": call.request_id, "method": call.method.path}


def _given_request_id(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == REQUEST_ID_KEY and isinstance(value, str) and _WELL_FORMED_ID.fullmatch(value):
            return value
    return None
