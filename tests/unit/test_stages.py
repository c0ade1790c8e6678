"""Stages are called in threads, each within its time, and one that hangs hangs nobody else (C15, F4)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from fanfold import stages
from fanfold.model.pipeline import MAX_STAGE_ERROR, StageContext, StageFailure
from fanfold.model.step import AgentStepSpec
from fanfold.stages import MAX_CALLS, StageCalls

SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")

pytestmark = pytest.mark.contract("C15")


def context(index: int = 0) -> StageContext:
    return StageContext(item=None, previous=None, index=index, stage=0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_slow_stage_does_not_block_the_loop() -> None:
    release = threading.Event()

    def slow(_ctx: StageContext) -> AgentStepSpec:
        assert release.wait(5)
        return SPEC

    with StageCalls([slow]) as calls:
        answer = calls.begin(context())
        await asyncio.sleep(0.02)  # the loop runs
        assert not answer.done()
        release.set()
        assert await answer == SPEC


async def test_no_more_calls_than_agreed_are_made_at_once_and_threads_are_used_again() -> None:
    lock, now, most = threading.Lock(), 0, 0
    threads: set[int] = set()

    def count(_ctx: StageContext) -> None:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
            threads.add(threading.get_ident())
        time.sleep(0.002)
        with lock:
            now -= 1

    with StageCalls([count]) as calls:
        answers = await asyncio.gather(*(calls.begin(context(index)) for index in range(400)))
    assert answers == [None] * 400
    assert 1 < most <= MAX_CALLS
    assert len(threads) <= MAX_CALLS


@pytest.mark.contract("F4")
async def test_calls_that_hang_keep_no_other_from_being_made() -> None:
    release = threading.Event()

    def hangs(ctx: StageContext) -> AgentStepSpec:
        if ctx.index < 2 * MAX_CALLS:
            assert release.wait(10)
        return SPEC

    with StageCalls([hangs], timeout=0.2) as calls:
        hung = [calls.begin(context(index)) for index in range(2 * MAX_CALLS)]
        last = calls.begin(context(2 * MAX_CALLS))
        async with asyncio.timeout(5):
            assert await last == SPEC
            failures = await asyncio.gather(*hung, return_exceptions=True)
        assert [str(failure) for failure in failures] == ["the stage did not answer within 0.2 s"] * len(hung)
        release.set()  # what comes now comes too late, and does no harm
        assert await calls.begin(context(2 * MAX_CALLS)) == SPEC


async def test_when_too_many_hang_no_more_are_called_until_some_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_STUCK", 2)
    release = threading.Event()
    called = 0

    def hangs(_ctx: StageContext) -> AgentStepSpec:
        nonlocal called
        called += 1
        assert release.wait(10)
        return SPEC

    with StageCalls([hangs], timeout=0.1) as calls:
        await asyncio.gather(calls.begin(context()), calls.begin(context()), return_exceptions=True)
        with pytest.raises(StageFailure, match="the stage was not called: 2 calls before have not returned"):
            await calls.begin(context())
        assert called == 2
        release.set()
        async with asyncio.timeout(5):
            while True:
                try:
                    assert await calls.begin(context()) == SPEC
                    break
                except StageFailure:
                    await asyncio.sleep(0.005)


async def test_an_answer_that_nobody_waits_for_is_not_called_for() -> None:
    release = threading.Event()
    called: list[int] = []

    def hangs(ctx: StageContext) -> None:
        called.append(ctx.index)
        assert release.wait(5)

    with StageCalls([hangs]) as calls:
        answers = [calls.begin(context(index)) for index in range(MAX_CALLS + 2)]
        await until(lambda: len(called) == MAX_CALLS)
        answers[MAX_CALLS].cancel()
        release.set()
        assert await answers[MAX_CALLS + 1] is None
    assert sorted(called) == [*range(MAX_CALLS), MAX_CALLS + 1]


async def test_at_the_end_nobody_is_waited_for_and_no_thread_stays() -> None:
    before = set(threading.enumerate())
    release = threading.Event()

    def hangs(_ctx: StageContext) -> None:
        release.wait(5)

    with StageCalls([hangs]) as calls:
        answers = [calls.begin(context(index)) for index in range(MAX_CALLS + 1)]
        await asyncio.sleep(0)
    assert all(answer.cancelled() for answer in answers)
    release.set()
    await until(lambda: not set(threading.enumerate()) - before)


async def test_the_callers_context_variables_are_seen() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("mine")
    seen: list[str] = []
    with StageCalls([lambda _ctx: seen.append(variable.get())]) as calls:
        await calls.begin(context())
    assert seen == ["mine"]


async def test_an_error_is_told_whatever_it_is_but_not_at_any_length() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def raises(ctx: StageContext) -> None:
        raise [Mute(), KeyError(), ValueError("x" * 10_000)][ctx.index]

    with StageCalls([raises]) as calls:
        for index, told in [(0, "the stage raised Mute"), (1, "the stage raised KeyError")]:
            with pytest.raises(StageFailure) as caught:
                await calls.begin(context(index))
            assert caught.value.error == told
        with pytest.raises(StageFailure) as caught:
            await calls.begin(context(2))
    assert len(caught.value.error) == MAX_STAGE_ERROR
    assert caught.value.error.endswith("x…")


@pytest.mark.contract("F4")
def test_a_stage_that_never_returns_keeps_no_process_from_ending() -> None:
    code = """
import asyncio, threading
from fanfold.model.pipeline import StageContext
from fanfold.stages import StageCalls

async def main():
    with StageCalls([lambda ctx: threading.Event().wait()], timeout=0.1) as calls:
        try:
            await calls.begin(StageContext(None, None, 0, 0))
        except Exception as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout, done.stderr) == ("the stage did not answer within 0.1 s\n", "")


def test_a_call_that_outlives_its_loop_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    release, returned = threading.Event(), threading.Event()

    def hangs(_ctx: StageContext) -> None:
        release.wait(5)
        returned.set()

    async def leave() -> None:
        with StageCalls([hangs]) as calls:
            calls.begin(context())
            await asyncio.sleep(0)

    before = set(threading.enumerate())
    asyncio.run(leave())
    release.set()
    assert returned.wait(5)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    assert complaints == []
