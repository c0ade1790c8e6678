"""Whatever happens to a script and whenever, each agent that was told to start is told to end, once (C28)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from coordinator.scripts.engine.quickjs import QuickJsEngine
from fanfold.model.script import StopReason
from support.scripts import limits
from support.sessions import Player, begun

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

CALLS = [
    "await agent('x')",
    "await agent('WAIT 0.01')",
    "agent('WAIT 0.02')",
    "agent('HANG')",
    "await agent('FAIL CRASHED')",
    "await agent('RAISE it')",
    "await parallel([() => agent('a'), () => agent('WAIT 0.01'), () => { throw 1 }])",
    "await pipeline([1, 2, 3], (x) => agent(`${x}`), (y) => agent('WAIT 0.005'))",
    "await agent('JSON x', {schema: {type: 'object'}})",
]
ENDS = [
    "return 1",
    "throw new Error('x')",
    "agent(1)",
    "await agent('x', {shema: 1})",
    "await agent('x', {schema: {type: 'no'}})",
    "await agent('FAIL QUOTA_EXHAUSTED')",
    "while (true) {}",
    "await new Promise(() => {})",
    "return 1n",
    "(function f() { f() })()",
    "const a = []; for (;;) a.push(new Array(1e4).fill(1))",
    "for (;;) agent('HANG')",
    "await agent('HANG')",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[QuickJsEngine]:
    async with QuickJsEngine(limits(heap_bytes=24 * 2**20), spare=2) as running:
        yield running


@pytest.mark.contract("C28", "C27")
@pytest.mark.parametrize("seed", range(60))
async def test_each_agent_that_starts_ends_once_whatever_happens(engine: QuickJsEngine, seed: int) -> None:
    chance = random.Random(seed)
    script = ";\n".join([*chance.choices(CALLS, k=chance.randrange(6)), chance.choice(ENDS)])
    player = Player(hint=chance.choice([1, 3, 20]))
    deed, moment = chance.choice(["nothing", "cancel", "kill"]), chance.random() * 0.1
    async with begun(engine, script, player, turn_seconds=0.4, max_total_agents=30) as (task, heard):
        await asyncio.wait([task], timeout=moment if deed != "nothing" else 1.0)
        if deed == "kill" and not task.done():
            with suppress(ProcessLookupError):
                os.kill(heard.pid, signal.SIGKILL)
            await asyncio.wait([task], timeout=1.0)
        task.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None, script
    assert heard.results, "also a run that was cancelled before its first line has a result"
    heard.check_lives()
    assert player.running == 0
    assert heard.result.agents_started >= sum(1 for _ in {call.number for call, _ in heard.steps})


@pytest.mark.contract("C30")
async def test_a_process_that_is_killed_ends_its_run_as_an_error(engine: QuickJsEngine) -> None:
    async with begun(engine, "await agent('HANG')") as (task, heard):
        while not heard.steps:
            await asyncio.sleep(0.005)
        os.kill(heard.pid, signal.SIGKILL)
        await asyncio.wait([task], timeout=10)
    assert heard.result.stop_reason is StopReason.ERROR
    assert "process ended" in heard.result.error
