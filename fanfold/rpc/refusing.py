"""Calls that are refused before they are read.

grpc.aio (1.85) tells a client whose message could not be written that something broke, and not what it was answered. So
a refusal waits until the client has said what it has to say, but not for long: anybody can call.
"""

from __future__ import annotations

import asyncio

import grpc.aio

from fanfold.errors import FanfoldError
from fanfold.rpc.call import Call

PAUSE_SECONDS = 0.3
"""A client that says nothing for so long waits for an answer."""

MOST_SECONDS = 2.0
MOST_MESSAGES = 1000


async def hear_out(call: Call) -> None:
    """Read what the client still sends, and forget it."""
    try:
        async with asyncio.timeout(MOST_SECONDS) as end:
            latest = end.when()
            for _ in range(MOST_MESSAGES):
                end.reschedule(min(latest or 0.0, asyncio.get_running_loop().time() + PAUSE_SECONDS))
                if await _next(call) is grpc.aio.EOF:
                    return
    except TimeoutError:
        return


async def _next(call: Call) -> object:
    try:
        return await call.context.read()
    except FanfoldError:  # what cannot be decoded is no matter either
        return None
    except grpc.aio.BaseError:  # the client is gone
        return grpc.aio.EOF
