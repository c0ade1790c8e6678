"""Turns in a folder that several nodes use."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

from executor_node.agents.command.turns import turn_in
from support.mesh import DEADLINE


async def test_one_at_a_time_has_the_folder(tmp_path: Path) -> None:
    inside = most = 0

    async def enter() -> None:
        nonlocal inside, most
        async with turn_in(tmp_path, DEADLINE):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.02)
            inside -= 1

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(enter() for _ in range(5)))
    assert most == 1


@pytest.mark.process
async def test_the_turn_of_a_killed_process_is_over(tmp_path: Path) -> None:
    holding = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", holding, str(tmp_path), stdin=pipe, stdout=pipe)
    try:
        assert other.stdout is not None
        assert await other.stdout.readline() == b"\n"

        async def enter() -> None:
            async with turn_in(tmp_path, 2 * DEADLINE):
                pass

        entering = asyncio.create_task(enter())
        await asyncio.sleep(0.1)
        assert not entering.done()
        other.kill()
        async with asyncio.timeout(DEADLINE):
            await entering
    finally:
        if other.returncode is None:
            other.kill()
        await other.wait()


async def test_nobody_waits_for_ever_nor_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    locked = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        began = time.monotonic()
        async with asyncio.timeout(DEADLINE), turn_in(tmp_path, 0.2):
            assert time.monotonic() - began >= 0.2
    finally:
        os.close(locked)
    async with asyncio.timeout(DEADLINE), turn_in(tmp_path / "gone", 2 * DEADLINE):
        pass
