"""The clock of a node's steps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from executor_node.clock import TurnClock


async def test_all_that_happens_in_one_turn_happens_at_the_same_time() -> None:
    clock = TurnClock()
    first = clock.now()
    while datetime.now(UTC) == first:
        pass
    assert clock.now() is first


async def test_the_next_turn_but_one_has_a_time_of_its_own() -> None:
    clock = TurnClock()
    before = clock.now()
    while datetime.now(UTC) == before:
        pass
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    now = datetime.now(UTC)
    assert before < clock.now()
    assert clock.now() >= now


async def test_its_time_is_right_after_a_long_pause() -> None:
    clock = TurnClock()
    clock.now()
    await asyncio.sleep(0.05)
    before = datetime.now(UTC)
    assert before <= clock.now() <= datetime.now(UTC)
