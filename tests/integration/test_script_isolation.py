"""Scripts that try to get out: each ends its own run alone (C30)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.scripts.engine import seccomp
from coordinator.scripts.engine.engine import ScriptSyntaxError
from coordinator.scripts.engine.quickjs import QuickJsEngine
from fanfold.model.script import StopReason
from support.escapes import Escape, escapes
from support.scripts import Talk, limits, talking
from support.sessions import carried_out

pytestmark = [pytest.mark.process, pytest.mark.contract("C30")]

CASES = list(escapes())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[QuickJsEngine]:
    async with QuickJsEngine(limits(heap_bytes=24 * 2**20, cpu_seconds=10), spare=2) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sibling(engine: QuickJsEngine) -> AsyncIterator[Talk]:
    """A script that goes on beside all the others."""
    async with talking(engine, "for (let i = 0; ; i++) await agent(`${i}`)") as talk:
        await talk.run()
        yield talk


def test_there_are_at_least_two_hundred() -> None:
    assert len({case.script for case in CASES}) >= 200


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=[f"{case.kind}-{number}" for number, case in enumerate(CASES)])
async def test_a_hostile_script_ends_its_own_run_alone(engine: QuickJsEngine, sibling: Talk, case: Escape) -> None:
    try:
        result, _ = await carried_out(engine, case.script, turn_seconds=0.4, max_total_agents=50)
    except ScriptSyntaxError:
        assert case.becomes == "syntax" or case.kind in {"constructor", "import", "tampering"}, case.script
    else:
        assert case.becomes != "syntax", case.script
        assert result.stop_reason in {StopReason.COMPLETED, StopReason.ERROR}
        assert result.value != "ESCAPED"
        if case.becomes == "error":
            assert result.stop_reason is StopReason.ERROR, result
    call = await sibling.heard("call")
    await sibling.answer(call, None)


LOCKED = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from coordinator.scripts.engine.lockdown import Limits, lock_down
{before}
lock_down(Limits(heap_bytes=64 * 2**20, cpu_seconds=10), os.getppid())
libc = ctypes.CDLL(None, use_errno=True)
{then}
os.write(1, b"went on")
os._exit(0)
"""

FORBIDDEN = {
    "a socket": "libc.socket(2, 1, 0)",
    "a local socket": "libc.socket(1, 1, 0)",
    "a connection": "libc.connect(0, None, 0)",
    "another process": "os.fork()",
    "a program": "os.execv('/bin/true', ['true'])",
    "a signal": "libc.kill(1, 0)",
    "tracing": "libc.ptrace(16, 1, 0, 0)",
    "a pipe": "libc.pipe(ctypes.create_string_buffer(8))",
    "a directory": "libc.chdir(b'/')",
    "a deletion": "libc.unlink(b'/tmp/none')",
    "a mount": "libc.mount(None, None, None, 0, None)",
    "another user": "libc.setuid(0)",
    "another filter": "libc.prctl(22, 1, 0, 0, 0)",
    "memory that can be executed": "libc.mmap(None, 4096, 7, 0x22, -1, 0)",
    "memory that becomes executable": "libc.mprotect(ctypes.c_void_p(address), 4096, 5)",
    "a file in memory": "libc.mmap(None, 4096, 1, 2, 0, 0)",
    "what another descriptor says": "libc.read(3, ctypes.create_string_buffer(8), 8)",
    "a word on another descriptor": "libc.write(2, b'x', 1)",
    "a file that is in memory only": "libc.memfd_create(b'x', 0)",
    "io_uring": "libc.syscall(425, 8, None)",
    "the memory of another process": "libc.syscall(310, 1, None, 0, None, 0, 0)",
    "a call of the old kind": "libc.syscall(0x40000000 + 1, 1, b'x', 1)",
}


def locked(then: str) -> subprocess.CompletedProcess[str]:
    before = (
        "libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p; address = libc.mmap(None, 4096, 3, 0x22, -1, 0)"
    )
    program = LOCKED.format(before=before, then=then)
    project = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", program, project]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


needs_seccomp = pytest.mark.skipif(not seccomp.is_known_machine(), reason="there is no filter for this machine")


@needs_seccomp
@pytest.mark.parametrize("call", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_process_that_was_taken_over_is_killed_at_what_it_may_not_do(call: str) -> None:
    done = locked(call)
    assert done.returncode == -signal.SIGSYS, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""


@needs_seccomp
@pytest.mark.parametrize("path", ["/etc/passwd", "/proc/self/environ", "/dev/null", "."])
def test_it_can_open_no_file(path: str) -> None:
    done = locked(f"assert libc.open({os.fsencode(path)!r}, 0) == -1 and ctypes.get_errno() == 13")
    assert (done.returncode, done.stdout) == (0, "went on")


@needs_seccomp
def test_what_an_interpreter_needs_is_left_to_it() -> None:
    work = "x = [bytes(10**6) for _ in range(20)]; del x; import time; time.time(); time.monotonic(); os.urandom(8)"
    done = locked(work.replace("import time; ", "").replace("time.time(); time.monotonic(); ", ""))
    assert (done.returncode, done.stdout) == (0, "went on"), done.stderr


def test_there_is_a_filter_for_each_machine() -> None:
    for machine in ("x86_64", "aarch64"):
        assert len(seccomp.program(machine)) % 8 == 0
