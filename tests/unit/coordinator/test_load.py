"""A pipeline's answered steps are held within a bound, and it asks no further while many bytes are (C39)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.runs.load import Load
from fanfold.model.pipeline import StageFailure

pytestmark = pytest.mark.contract("C39")


async def test_there_is_room_until_an_eighth_is_held_and_again_when_it_is_not() -> None:
    load = Load(800)
    load.put(1, 60)
    load.put(2, 40)
    await asyncio.wait_for(load.room(), 1)
    load.put(3, 1)
    waiting = asyncio.create_task(load.room())
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    load.drop(2)
    await asyncio.wait_for(waiting, 1)


async def test_what_would_be_too_much_is_the_stages_failure_and_is_not_held() -> None:
    load = Load(800)
    load.put(1, 700)
    with pytest.raises(StageFailure, match=r"step: must be at most 800 bytes together .* \(limits\.run_bytes\)"):
        load.put(2, 101)
    load.put(3, 100)
    load.drop(2)
    load.drop(1)
    await asyncio.wait_for(load.room(), 1)


async def test_a_single_step_is_never_too_much() -> None:
    load = Load(10)
    load.put(1, 11)
    load.drop(1)
    load.drop(1)
    await asyncio.wait_for(load.room(), 1)
