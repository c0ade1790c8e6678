"""What workflow scripts cost: engine and policy, over an executor that answers at once. `python -m bench.scripts`."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from coordinator.combinators.runner import runner_of
from coordinator.scripts.engine.engine import ScriptStart
from coordinator.scripts.engine.lockdown import Limits
from coordinator.scripts.engine.quickjs import QuickJsEngine
from coordinator.scripts.host.answers import Ended
from coordinator.scripts.host.calls import Call, CallTerms
from coordinator.scripts.host.limits import ScriptLimits
from coordinator.scripts.host.session import ScriptSession, Setting
from fanfold.model.script import ScriptResult
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepOutcome, StepStarted
from fanfold.ports import OnStepEvent
from fanfold.rpc.loop import run

RUNS = 300
CALLS = 5_000
REPLAYED = 10_000
LIMITS = Limits(heap_bytes=64 * 2**20, cpu_seconds=300)


class Executor:
    """Implements `AgentExecutor`: answers at once, or never while it is held."""

    def __init__(self) -> None:
        self.held: asyncio.Event | None = None
        self.asked = 0
        self.all_asked = asyncio.Event()

    def concurrency_hint(self) -> int:
        return 20_000

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        self.asked += 1
        if self.asked == RUNS:
            self.all_asked.set()
        if on_event is not None:
            on_event(StepStarted(task_id=spec.task_id, time=datetime.now(UTC)))
        if self.held is not None:
            await self.held.wait()
        return StepOutcome(task_id=spec.task_id, agent=spec.agent, success=True, output=spec.prompt)


class Listener:
    """Implements `Told`: notes when the first call was made and when all was settled."""

    def __init__(self) -> None:
        self.first_call = self.settled_at = 0.0
        self.result: ScriptResult | None = None
        self.ended: list[Ended] = []

    def made(self, calls: int) -> None:
        self.first_call = self.first_call or time.perf_counter()

    def step(self, call: Call, event: StepEvent) -> None:
        if isinstance(event, StepEnded):
            self.ended.append(Ended(call.number, event.outcome))

    def phase(self, title: str) -> None: ...

    def log(self, message: str) -> None: ...

    def settled(self, result: ScriptResult) -> None:
        self.settled_at, self.result = time.perf_counter(), result

    async def room(self) -> None: ...

    async def until_told(self) -> None: ...


async def session(
    engine: QuickJsEngine, executor: Executor, source: str, listener: Listener, replayed: Sequence[Ended] = ()
) -> tuple[ScriptSession, int]:
    process = await engine.start(ScriptStart(source=source, args=None, seed=(1, 2, 3, 4), now=0))

    async def check(_spec: AgentStepSpec) -> None: ...

    setting = Setting(
        runner=runner_of(executor),
        terms=CallTerms(parent="bench", default_agent="noop", node_labels={}),
        limits=ScriptLimits(max_total_agents=1_000_000, turn_seconds=60),
        check=check,
        replayed=replayed,
    )
    return ScriptSession(process, setting, listener), process.pid


async def first_call(engine: QuickJsEngine) -> float:
    """Seconds from the request to the first agent call, with a process that is ready."""
    await asyncio.sleep(0.05)  # for another process to be made ready
    listener, began = Listener(), time.perf_counter()
    script, _ = await session(engine, Executor(), "return await agent('x')", listener)
    await script.carry_out()
    return listener.first_call - began


async def throughput(engine: QuickJsEngine, source: str) -> float:
    """Calls a second."""
    listener = Listener()
    script, _ = await session(engine, Executor(), source, listener)
    began = time.perf_counter()
    await script.carry_out()
    assert listener.result is not None
    assert not listener.result.error, listener.result.error
    return CALLS / (time.perf_counter() - began)


async def replay(engine: QuickJsEngine) -> float:
    """Seconds to give a script of REPLAYED calls the answers that it had before."""
    source = f"for (let i = 0; i < {REPLAYED}; i++) await agent(`${{i}}`)"
    recorder = Listener()
    script, _ = await session(engine, Executor(), source, recorder)
    await script.carry_out()
    began = time.perf_counter()
    again, _ = await session(engine, Executor(), source, Listener(), recorder.ended)
    await again.carry_out()
    return time.perf_counter() - began


async def kill(engine: QuickJsEngine) -> tuple[float, float]:
    """Seconds from the cancellation of an endless loop to its result, and until its process is gone."""
    listener = Listener()
    script, _ = await session(engine, Executor(), "while (true) {}", listener)
    running = asyncio.create_task(script.carry_out())
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    running.cancel()
    await asyncio.wait([running])
    return listener.settled_at - began, time.perf_counter() - began


async def memory(engine: QuickJsEngine) -> tuple[float, float]:
    """MB of private memory of all scripts when RUNS of them wait for an agent, and the seconds that took."""
    executor = Executor()
    executor.held = asyncio.Event()
    began = time.perf_counter()
    started = [await session(engine, executor, "return await agent('x')", Listener()) for _ in range(RUNS)]
    running = [asyncio.create_task(script.carry_out()) for script, _ in started]
    await executor.all_asked.wait()
    took = time.perf_counter() - began
    private = sum(private_bytes(pid) for _, pid in started)
    executor.held.set()
    await asyncio.wait(running)
    return private / 2**20, took


def private_bytes(pid: int) -> int:
    fields = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in fields if words[0].startswith("Private"))


async def main() -> None:
    one_by_one = f"for (let i = 0; i < {CALLS}; i++) await agent('x')"
    all_at_once = f"await Promise.all(Array.from({{length: {CALLS}}}, (_, i) => agent(`${{i}}`)))"
    async with QuickJsEngine(LIMITS, spare=4) as engine:
        await first_call(engine)
        firsts = [await first_call(engine) for _ in range(20)]
        print(f"first agent call, warm engine        {statistics.median(firsts) * 1000:8.1f} ms")
        print(f"calls, one after the other           {await throughput(engine, one_by_one):8,.0f} /s")
        print(f"calls, {CALLS:,} outstanding           {await throughput(engine, all_at_once):8,.0f} /s")
        print(f"replay of {REPLAYED:,} calls               {await replay(engine):8.1f} s")
        settled, gone = await kill(engine)
        print(f"endless loop, cancelled to settled   {settled * 1000:8.1f} ms; process gone {gone * 1000:.1f} ms")
        megabytes, took = await memory(engine)
        print(f"{RUNS} runs at once, private memory    {megabytes:8.0f} MB, all begun in {took:.1f} s")


if __name__ == "__main__":
    run(main())
