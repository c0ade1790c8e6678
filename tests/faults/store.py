"""The file in which coordinators keep their runs, and how it is taken away from them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from subprocess import PIPE

from faults.subjects import Family, Kind, Subject

_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
sys.stdin.read()
"""

_REMOVE = """
import fcntl, os, sys, time
while not os.path.exists(sys.argv[1] + "-shm"):
    time.sleep(0.01)
file = os.open(sys.argv[1] + "-shm", os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, 8, 120)
print(flush=True)
sys.stdin.read()
"""
"""Takes all of SQLite's own locks on its log, those of readers too: bytes 120 to 127, as its file format says."""


class Store(Subject):
    """A journal's file. What keeps it from others does so in a process of its own, and ends with the test."""

    def __init__(self, path: Path) -> None:
        super().__init__("store")
        self.path = path

    def kinds(self) -> Mapping[str, Kind]:
        return {
            "locked": Kind(Family.OUTAGE, partial(self._keep_away, _LOCK)),
            "out of reach": Kind(Family.OUTAGE, partial(self._keep_away, _REMOVE)),
        }

    async def _keep_away(self, script: str, seconds: float) -> None:
        """Let nobody write for so many seconds, or nobody read either."""
        keeper = await asyncio.create_subprocess_exec(
            sys.executable, "-IS", "-c", script, str(self.path), stdin=PIPE, stdout=PIPE
        )
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        try:
            assert await keeper.stdout.readline(), "the store was taken"
            self.tell("is taken")
            await asyncio.sleep(seconds)
        finally:
            keeper.stdin.close()
            await keeper.wait()
