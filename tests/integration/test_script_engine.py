from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.scripts.engine import quickjs
from coordinator.scripts.engine.engine import EngineFailed, ScriptSyntaxError
from coordinator.scripts.engine.quickjs import QuickJsEngine
from support.mesh import DEADLINE, until
from support.promptness import once_within
from support.scripts import RUN, limits, result_of, start_of, talking

pytestmark = [pytest.mark.process, pytest.mark.contract("C30")]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[QuickJsEngine]:
    async with QuickJsEngine(limits(), spare=1) as running:
        yield running


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def is_running(pid: int) -> bool:
    try:
        return status_of(pid)["State"][0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_scripts_process_is_locked_down(engine: QuickJsEngine) -> None:
    async with talking(engine, "return 1") as talk:
        pid = talk.process.pid
        status = status_of(pid)
        assert status["Seccomp"] == "2"
        assert status["NoNewPrivs"] == "1"
        assert status["Threads"] == "1"
        assert status["CapEff"] == "0" * 16 or os.geteuid() != 0
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
        assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]
        hard = {line[:25].strip(): line[25:].split() for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
        assert hard["Max open files"][:2] == ["3", "3"]
        assert hard["Max file size"][:2] == ["0", "0"]
        assert hard["Max core file size"][:2] == ["0", "0"]
        assert hard["Max cpu time"][:2] == ["30", "30"]
        assert int(hard["Max address space"][0]) < 512 * 2**20
    assert set(engine.protections) >= {"seccomp", "resource limits", "no new privileges", "ends with its parent"}


NO_FILTER = """
from coordinator.scripts.engine import seccomp
def refuse():
    raise OSError(22, "no filters here")
seccomp.apply_filter = refuse
heap_bytes, cpu_seconds"""


@pytest.mark.contract("C30")
async def test_no_script_runs_where_the_filter_cannot_be_set_unless_that_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quickjs, "_PROGRAM", quickjs._PROGRAM.replace("\nheap_bytes, cpu_seconds", NO_FILTER))
    failed: list[str] = []
    async with QuickJsEngine(limits(), spare=1, on_failed=failed.append) as engine:
        with pytest.raises(EngineFailed, match="no filters here"):
            await engine.start(start_of("return 1"))
        assert "scripts.needs_seccomp" in failed[0], "it is told at the start"
    async with QuickJsEngine(limits(needs_seccomp=False), spare=0) as engine:
        done, _ = await result_of(engine, "return 1")
        assert done["value"] == 1
        assert "seccomp" not in engine.protections
        assert "resource limits" in engine.protections


@pytest.mark.contract("C30")
async def test_processes_are_kept_ready_and_replaced_as_they_are_taken_or_lost() -> None:
    async with QuickJsEngine(limits(), spare=3) as engine:
        await until(lambda: len(engine._idle) == 3, "three are ready")
        first = [process.pid for process in engine._idle]
        async with talking(engine, "return 1") as talk:
            assert talk.process.pid == first[0]
            await until(lambda: len(engine._idle) == 3, "the one that was taken is replaced")
            os.kill(first[1], signal.SIGKILL)
            await until(engine._idle[0].has_ended, "one of those is lost")
            async with talking(engine, "return 2") as other:
                assert other.process.pid != first[1]
        assert engine._zygote is not None
        engine._zygote.process.kill()
        await engine._zygote.process.wait()
        await until(lambda: all(process.has_ended() for process in engine._idle), "they have gone with it")
        done, _ = await result_of(engine, "return 3")
        assert done["value"] == 3, "a new zygote is started"
        await until(lambda: len(engine._idle) == 3, "and three are ready again")
        left = [process.pid for process in engine._idle]
    await until(lambda: not any(map(is_running, left)), "none is left behind")


@pytest.mark.contract("C30")
async def test_a_script_that_waits_for_a_process_as_the_zygote_dies_gets_one_of_the_next() -> None:
    async with QuickJsEngine(limits(), spare=0) as engine:
        assert (await result_of(engine, "return 1"))[0]["value"] == 1
        assert engine._zygote is not None
        zygote = engine._zygote.process
        zygote.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(result_of(engine, "return 2"))
        await until(lambda: bool(engine._waiting), "it waits")
        zygote.kill()
        async with asyncio.timeout(DEADLINE):
            assert (await waiting)[0]["value"] == 2


async def test_it_holds_nothing_of_the_coordinators_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TOKEN", "a secret")
    async with QuickJsEngine(limits(), spare=0) as engine, talking(engine, "return 1") as talk:
        environment = Path(f"/proc/{talk.process.pid}/environ").read_bytes()
        assert b"secret" not in environment
        assert set(environment.split(b"\0")) >= {b"TZ=UTC"}


async def test_a_syntax_error_names_the_scripts_own_line_and_column(engine: QuickJsEngine) -> None:
    with pytest.raises(ScriptSyntaxError, match="unexpected token") as refused:
        await engine.start(start_of("const a = 1;\n  const b = = 2;\n"))
    assert (refused.value.line, refused.value.column) == (2, 13)


@pytest.mark.parametrize(
    "text", ["});(async function(){", "}); agent('x'); (async () => {", "}{", "} function f() {", "}\n/x/\n{"]
)
async def test_a_text_that_leaves_its_function_is_no_script(engine: QuickJsEngine, text: str) -> None:
    with pytest.raises(ScriptSyntaxError):
        await engine.start(start_of(text))


async def test_values_of_every_json_type_go_in_and_come_out(engine: QuickJsEngine) -> None:
    value = {"a": [1, -2.5, 1e300, True, False, None, "", "é😀\u0000\n", [], {}], "__proto__": {"b": 0}, "then": 1}
    done, _ = await result_of(engine, "return [args, await agent('x')]", lambda _call: value, args=value)
    assert done == {"t": "done", "kind": "value_ok", "value": [value, value]}


async def test_long_strings_that_were_put_together_come_whole(engine: QuickJsEngine) -> None:
    script = (
        "let s = ''; for (let i = 0; i < 50000; i++) s += 'x' + i % 10; const r = await agent(s); log(s); return r + s"
    )
    expected = "".join(f"x{i % 10}" for i in range(50_000))
    done, said = await result_of(engine, script)
    assert done["value"] == expected * 2
    assert next(frame for frame in said if frame["t"] == "call")["prompt"] == expected


async def test_time_and_chance_are_those_of_the_run_and_repeat(engine: QuickJsEngine) -> None:
    script = "const a = [Date.now(), Math.random(), Math.random(), new Date().toISOString(), Date().length]; return a"
    first, _ = await result_of(engine, script)
    again, _ = await result_of(engine, script)
    other, _ = await result_of(engine, script, seed=(5, 6, 7, 8))
    assert first == again
    assert first["value"][0] == RUN["now"]
    assert first["value"][3] == "2023-11-14T22:13:20.000Z"
    assert 0 < first["value"][1] < 1
    assert first["value"][1] != first["value"][2] != other["value"][2]


async def test_a_script_that_waits_for_nothing_is_told_as_stalled(engine: QuickJsEngine) -> None:
    done, _ = await result_of(engine, "await new Promise(() => {})")
    assert done["kind"] == "stalled"


@pytest.mark.contract("C27")
async def test_an_endless_loop_is_gone_within_a_tenth_of_a_second(engine: QuickJsEngine) -> None:
    async def killed() -> float:
        process = await engine.start(start_of("while (true) {}"))
        await process.deliver(RUN)
        await until(lambda: status_of(process.pid)["State"][0] == "R", "the loop runs")
        began = time.perf_counter()
        process.kill()
        await process.closed()
        took = time.perf_counter() - began
        assert not is_running(process.pid)
        return took

    await once_within(0.1, killed, tries=20)


async def test_no_process_outlives_its_engine() -> None:
    async with QuickJsEngine(limits(), spare=2) as engine:
        busy = await engine.start(start_of("while (true) {}"))
        await busy.deliver(RUN)
        held = await engine.start(start_of("return 1"))
        pids = [busy.pid, held.pid]
    await until(lambda: not any(map(is_running, pids)), "the processes are gone with the zygote")


async def test_a_zygote_that_dies_is_replaced(engine: QuickJsEngine) -> None:
    async with talking(engine, "return 1") as talk:
        zygote = int(status_of(talk.process.pid)["PPid"])
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: not is_running(talk.process.pid), "its children are gone")
        assert not await talk.process.receive()

    done, _ = await result_of(engine, "return 7")
    assert done["value"] == 7


async def test_a_full_heap_ends_the_script_and_nothing_else(engine: QuickJsEngine) -> None:
    async with talking(engine, "await agent('x'); return 'unharmed'") as sibling:
        await sibling.run()
        call = await sibling.heard("call")
        done, _ = await result_of(engine, "const a = []; for (;;) a.push(new Array(1000).fill(a.length))")
        assert "memory" in done["error"]
        await sibling.answer(call, None)
        assert (await sibling.heard("done"))["value"] == "unharmed"


async def test_ten_thousand_calls_can_be_outstanding(engine: QuickJsEngine) -> None:
    script = "const r = await Promise.all(Array.from({length: 10000}, (_, i) => agent(`${i}`))); return r.length"
    async with talking(engine, script) as talk:
        await talk.run()
        calls = [await talk.heard("call") for _ in range(10_000)]
        async with asyncio.TaskGroup() as answering:
            for call in reversed(calls):
                answering.create_task(talk.answer(call, call["prompt"]))
            assert (await talk.heard("done"))["value"] == 10_000


async def test_answers_that_are_written_while_the_script_writes_do_not_block_it(engine: QuickJsEngine) -> None:
    script = "const r = await Promise.all(Array.from({length: 3000}, () => agent('y'.repeat(5000)))); return r.length"
    done, _ = await result_of(engine, script, lambda call: call["prompt"])
    assert done["value"] == 3000


async def test_starts_that_are_given_up_confuse_no_others() -> None:
    async with QuickJsEngine(limits(), spare=0) as engine:
        for number in range(12):
            given_up = [asyncio.create_task(engine.start(start_of("return 0"))) for _ in range(3)]
            await asyncio.sleep(0.002 * number)
            for task in given_up:
                task.cancel()
            done, _ = await result_of(engine, f"return {number}")
            assert done["value"] == number
            for outcome in await asyncio.gather(*given_up, return_exceptions=True):
                if not isinstance(outcome, BaseException):
                    outcome.kill()
                    await outcome.closed()
