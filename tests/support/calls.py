"""A call without a connection, for tests that ask a servicer's methods directly."""

from __future__ import annotations

from typing import Any

from fanfold.model.principal import ANONYMOUS, Principal
from fanfold.rpc.call import Call, Method, begin_call


class _Context:
    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "test"


def call_of(principal: Principal = ANONYMOUS) -> Call:
    """Have the running task serve a call of `principal` from now on."""
    context: Any = _Context()
    call = begin_call(Method("/fanfold.Test/Call"), context)
    call.principal = call.actor = principal
    return call
