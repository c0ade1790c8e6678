"""A service of an embedded mesh: one process after another, all of them at the same addresses."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fanfold.backoff import full_jitter
from fanfold.cli.child import Child
from fanfold.errors import FanfoldError

MAX_RESTARTS = 5
RESTARTS_SECONDS = 60.0
"""A service that dies is started again, but not more than so often in that time."""

FIRST_PAUSE = 0.2
MOST_PAUSE = 5.0
"""Seconds: bounds of the ceiling below which each pause before a further restart is random; the first is at once."""

_LEFTOVERS_SECONDS = 5.0
"""What is left of a service that was killed may hold its port a little longer."""


class Service:
    """What `fanfold serve <kind>` makes of `settings`, which are written to a file of its name in `data_dir`.

    Its log is beside that file.
    """

    def __init__(self, kind: str, name: str, settings: Mapping[str, Any], data_dir: Path) -> None:
        self.name = name
        self._kind = kind
        self._settings = settings
        self._file = data_dir / f"{name}.yaml"
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """The process that it is at present."""
        assert self._child is not None
        return self._child

    async def start(self) -> None:
        """Start it, with a new log."""
        self._file.with_suffix(".log").write_bytes(b"")
        await self._begin()

    async def wait_until_ready(self) -> None:
        """Return when it serves. Raises FailedPrecondition, with the end of its log, when it never will."""
        await self.child.wait_until_ready()
        # Where it is now is where it is to be found whenever it is started again.
        self._settings = {
            **self._settings,
            "listen": self.child.address,
            "metrics_listen": self.child.metrics,
        }

    async def keep_up(self, told: Callable[[str], None]) -> Child:
        """Start it again whenever it ends by itself, and tell it.

        Returns the process that was one too many.
        """
        deaths: deque[float] = deque(maxlen=MAX_RESTARTS)
        while True:
            dead = self.child
            await asyncio.wait([dead.ended])
            now = time.monotonic()
            if len(deaths) == MAX_RESTARTS and now - deaths[0] < RESTARTS_SECONDS:
                return dead
            told(f"{dead.end()}; starting it again")
            recent = sum(now - at < RESTARTS_SECONDS for at in deaths)
            deaths.append(now)
            if recent:
                await asyncio.sleep(full_jitter(recent, first=FIRST_PAUSE, most=MOST_PAUSE))
            await dead.wait_until_gone(_LEFTOVERS_SECONDS)
            await self._begin()
            with suppress(FanfoldError):  # the next turn tells how it ended
                await self.wait_until_ready()

    async def _begin(self) -> None:
        self._file.write_text(yaml.safe_dump(dict(self._settings), sort_keys=False), "utf-8")
        arguments = [self._kind, "--config", str(self._file)]
        self._child = await Child.start(self.name, arguments, log=self._file.with_suffix(".log"))
