"""One incoming call, as the chassis knows it."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import uuid4

import grpc.aio

from fanfold.errors import FanfoldError
from fanfold.model.principal import Principal
from fanfold.rpc.status import code_of, to_status, to_trailers

REQUEST_ID_KEY = "x-request-id"
UNKNOWN = "unknown"

NOBODY = Principal("", frozenset())
"""The principal of a call as long as it is not known, and where nobody asks."""

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
    """A call while it runs.

    `principal` is whose call it is, and `actor` who makes it, mostly the same one, which is so until `valid_until`, in
    seconds since 1970; `started_at` is on the monotonic clock; `cut_short` is what it is told when the server stops it.
    """

    method: Method
    request_id: str
    peer: str
    context: grpc.aio.ServicerContext[Any, Any]
    metadata: Mapping[str, str | bytes] = field(repr=False)  # it has secrets
    principal: Principal = NOBODY
    actor: Principal = NOBODY
    valid_until: float = math.inf
    started_at: float = field(default_factory=time.monotonic)
    cut_short: FanfoldError | None = None

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
    metadata = dict(context.invocation_metadata() or ())
    given = _given_request_id(metadata)
    if given:
        context.set_trailing_metadata(((REQUEST_ID_KEY, given),))
    call = Call(method, given or next(_MADE_IDS), context.peer(), context, metadata)
    _current.set(call)  # each call has a task of its own, and so a context of its own
    return call


def current_call() -> Call:
    """The call that the running task serves. Raises LookupError outside of calls."""
    return _current.get()


def current_principal() -> Principal:
    """Whose call the running task serves (C34). Raises LookupError outside of calls."""
    return _current.get().principal


def call_fields() -> dict[str, str]:
    """What log lines tell of the current call; nothing outside of calls."""
    call = _current.get(None)
    if call is None:
        return {}
    fields = {"request_id": call.request_id, "method": call.method.path}
    if call.principal is not NOBODY:
        fields["principal"] = call.principal.name
    if call.actor is not call.principal:
        fields["actor"] = call.actor.name
    return fields


def _given_request_id(metadata: Mapping[str, str | bytes]) -> str | None:
    value = metadata.get(REQUEST_ID_KEY)
    return value if isinstance(value, str) and _WELL_FORMED_ID.fullmatch(value) else None
