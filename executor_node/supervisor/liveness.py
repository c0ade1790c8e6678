"""Whether the supervisor is alive, as its runtime sees it: it is asked again and again, woken, and at last given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from executor_node.supervisor import protocol

SILENCE_LIMIT = 10.0
"""Seconds of silence, of the supervisor or of the runtime, after which the other one ends the node."""

_LONGEST_INTERVAL = 1.0
_PINGS_A_LIMIT = 10


@dataclass(frozen=True, slots=True)
class Measures:
    """How to reach the supervisor: `ping` it, `wake` it if it was stopped, `give_up` when all that was in vain."""

    ping: Callable[[protocol.Packet], None]
    wake: Callable[[], None]
    give_up: Callable[[], None]


async def watch(measures: Measures, heard: asyncio.Event, *, silence_limit: float) -> None:
    """Ping the supervisor until it is given up.

    Silence is counted in pings and not by a clock: a runtime that was stopped itself accuses nobody.

    Args:
        measures: how to reach it.
        heard: is set whenever it says something.
        silence_limit: seconds without an answer after which it is given up; from half of them on it is woken. Also how
            long the supervisor bears with us when we say nothing.
    """
    interval = min(_LONGEST_INTERVAL, silence_limit / _PINGS_A_LIMIT)
    most = round(silence_limit / interval)
    unanswered = 0
    while unanswered < most:
        now = protocol.boot_time()
        measures.ping({"do": "ping", "at": now, "until": now + silence_limit})
        await asyncio.sleep(interval)
        unanswered = 0 if heard.is_set() else unanswered + 1
        heard.clear()
        if unanswered >= most // 2:  # each time, because it may be stopped again before it has answered
            measures.wake()
    measures.give_up()
