"""A node of its own: supervisor, runtime and agents live and die as they should, and no secret gets to an agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor_node.supervisor import linux
from executor_node.supervisor.liveness import SILENCE_LIMIT
from integration.node_harness import CLEAN_ENVIRONMENT, HERE, PATIENCE, eventually, find_processes, is_alive, new_marker
from support.promptness import once_within

pytestmark = pytest.mark.process

SECRET = "hunter2-and-the-rest"
EXIT_CODE = 5


class RunningProgram:
    """The program `node_runtime`, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.runtime = 0

    async def hear(self, key: str) -> Any:
        """What it says next under this key."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := await self.process.stdout.readline():
                said = json.loads(line)
                if key in said:
                    return said
        raise AssertionError(f"it ended without saying {key}")

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()

    async def last_words(self) -> str:
        """The last line that it has written where people read, once it has ended."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            return (await self.process.stderr.read()).decode().rstrip("\n").rpartition("\n")[2]


@asynccontextmanager
async def running(workspace: Path, *steps: str, silence_limit: float = SILENCE_LIMIT) -> AsyncIterator[RunningProgram]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "integration.node_runtime",
        "enter",
        str(workspace),
        *steps,
        env=CLEAN_ENVIRONMENT | {"SECRET": SECRET, "PYTHONPATH": str(HERE.parent), "SILENCE_LIMIT": str(silence_limit)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
    )
    program = RunningProgram(process)
    try:
        said = await program.hear("runtime")
        assert said["supervisor"] == process.pid
        assert said["secret"] == SECRET
        program.runtime = said["runtime"]
        yield program
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def daemons(marker: str) -> tuple[str, ...]:
    """Steps that leave daemons and go on."""
    return ("shell", f"(setsid setsid sleep {marker} &) ; sleep {marker}", "leaves_daemons_and_waits", marker)


async def all_daemons_run(marker: str) -> None:
    await eventually(lambda: len(find_processes(marker)) >= 6)


async def test_no_agent_finds_a_secret_of_the_runtime(tmp_path: Path) -> None:
    look = "env; cat /proc/self/environ /proc/$PPID/environ; cat /proc/$(awk '{print $4}' /proc/$PPID/stat)/environ"
    async with running(tmp_path, "environment", "-", "shell", look) as program:
        outcomes: dict[str, Any] = {}
        while len(outcomes) < 2:
            said = await program.hear("outcome")
            outcomes[said["outcome"]["agent"]] = said["outcome"]
        for pid in (program.runtime, program.process.pid):
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert b"C.UTF-8" in Path(f"/proc/{pid}/environ").read_bytes()
    found = json.loads(outcomes["environment"]["output"])
    assert set(found) == {"os.environ", "self", "launcher", "supervisor"}
    for environment in (*found.values(), outcomes["shell"]["output"]):
        assert "PATH" in environment
        assert SECRET not in environment


@pytest.mark.contract("F17")
@pytest.mark.parametrize(
    ("number", "named"), [(signal.SIGKILL, "SIGKILL, "), (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3};")]
)
async def test_when_the_runtime_is_killed_everything_is_gone(tmp_path: Path, number: int, named: str) -> None:
    marker = new_marker()
    async with running(tmp_path, *daemons(marker), "waits-shared", "-") as program:
        await all_daemons_run(marker)
        os.kill(program.runtime, number)
        assert await program.exit_code() == 1
        assert not find_processes(marker)
        assert (await program.last_words()).startswith(f"Error: the node's runtime was killed by {named}")


@pytest.mark.contract("F17")
async def test_when_the_supervisor_is_killed_everything_is_gone(tmp_path: Path) -> None:
    marker = new_marker()
    async with running(tmp_path, *daemons(marker), "waits-shared", "-") as program:
        await all_daemons_run(marker)
        family = linux.descendants_of(program.process.pid)
        program.process.kill()
        assert await program.exit_code() == -signal.SIGKILL
        await eventually(lambda: not find_processes(marker))
        await eventually(lambda: not any(map(is_alive, family)))


@pytest.mark.contract("C43", "F17")
async def test_a_signal_lets_the_runtime_drain_and_its_exit_code_is_the_nodes(tmp_path: Path) -> None:
    marker = new_marker()
    async with running(tmp_path, *daemons(marker), "shell", "sleep 0.5; echo finished") as program:
        await all_daemons_run(marker)
        program.process.send_signal(signal.SIGINT)
        assert (await program.hear("signal"))["signal"] == "SIGTERM"
        outcomes = [(await program.hear("outcome"))["outcome"] for _ in range(3)]
        await program.hear("drained")
        assert await program.exit_code() == EXIT_CODE
        assert not find_processes(marker)
    assert outcomes[0]["output"] == "finished\n"
    assert [o["failure"]["code"] for o in outcomes[1:]] == ["NODE_LOST", "NODE_LOST"]


@pytest.mark.contract("F17")
async def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    marker = new_marker()
    async with running(tmp_path, *daemons(marker)) as program:
        await all_daemons_run(marker)
        program.process.send_signal(signal.SIGTERM)
        await program.hear("signal")
        program.process.send_signal(signal.SIGTERM)
        assert await program.exit_code() == 1
        assert not find_processes(marker)
        assert "was killed" not in await program.last_words(), "whoever sent it knows"


@pytest.mark.contract("F2", "F5", "C19")
async def test_when_the_runtime_stands_still_everything_is_gone_before_anybody_takes_it_for_dead(
    tmp_path: Path,
) -> None:
    async def stopped() -> float:
        marker = new_marker()
        async with running(tmp_path, *daemons(marker), silence_limit=2.0) as program:
            await all_daemons_run(marker)
            await asyncio.sleep(2.2)  # it is not for having been started long ago
            assert len(find_processes(marker)) >= 6
            stopped_at = time.monotonic()
            os.kill(program.runtime, signal.SIGSTOP)
            assert await program.exit_code() == 1
            took = time.monotonic() - stopped_at
            assert not find_processes(marker)
            words = "Error: the node's runtime was silent for longer than its silence_limit; "
            assert (await program.last_words()).startswith(words)
            assert not is_alive(program.runtime)
        assert took > 1
        return took

    await once_within(4.0, stopped)


@pytest.mark.contract("F2", "F5", "C19")
@pytest.mark.parametrize("first", ["runtime", "supervisor"])
async def test_a_node_that_stood_still_as_a_whole_is_gone_when_it_goes_on(tmp_path: Path, first: str) -> None:
    marker = new_marker()
    async with running(tmp_path, *daemons(marker), silence_limit=2.0) as program:
        await all_daemons_run(marker)
        family = [program.process.pid, *linux.descendants_of(program.process.pid)]
        for pid in family:
            linux.send(pid, signal.SIGSTOP)
        await asyncio.sleep(2.2)
        awake = program.runtime if first == "runtime" else program.process.pid
        os.kill(awake, signal.SIGCONT)
        await asyncio.sleep(0.6)  # long enough for a runtime that goes on to ping
        for pid in family:
            linux.send(pid, signal.SIGCONT)
        assert await program.exit_code() == 1
        assert not find_processes(marker)
        assert not any(map(is_alive, family))


def has_been_woken(pid: int) -> bool:
    """Whether this child was stopped and has gone on, since this was last true."""
    return os.waitid(os.P_PID, pid, os.WCONTINUED | os.WNOHANG) is not None


async def test_a_supervisor_that_is_stopped_is_woken_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path, "shell", "sleep 2; echo finished", silence_limit=4.0) as program:
        await program.hear("event")
        for _ in range(2):
            program.process.send_signal(signal.SIGSTOP)
            await eventually(partial(has_been_woken, program.process.pid))
        assert (await program.hear("outcome"))["outcome"]["output"] == "finished\n"
        program.process.send_signal(signal.SIGTERM)
        await program.hear("drained")
        assert await program.exit_code() == EXIT_CODE


async def test_a_runtime_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    enter = (
        "from executor_node.supervisor.inheritance import exec_supervised;"
        "exec_supervised(['/no/such/runtime'], {}, {'PATH': '/usr/bin'})"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", enter, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 127
    assert errors == b"cannot start /no/such/runtime: No such file or directory\n"


async def test_a_runtime_that_has_ended_before_it_is_watched_is_told() -> None:
    watch = (
        "import os, sys\n"
        "from executor_node.supervisor import protocol\n"
        "from executor_node.supervisor.supervisor import Supervisor\n"
        "control, end = protocol.control_pair()\n"
        "runtime = os.fork()\n"
        "if runtime == 0:\n"
        "    os._exit(127)\n"
        "end.close()\n"
        "os.waitid(os.P_PID, runtime, os.WEXITED | os.WNOWAIT)\n"
        "sys.exit(Supervisor(control, sys.exit, runtime=runtime).run())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", watch)
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 127
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
