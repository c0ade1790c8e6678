"""Services as a user runs them, each with its wire, and what befalls their processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from fanfold.background import background
from fanfold.cli.child import Child
from fanfold.cli.serve import CLI
from fanfold.cli.service_settings import COORDINATOR, EXECUTOR_NODE
from fanfold.errors import FailedPrecondition
from faults.subjects import Family, Kind, Span, Subject
from faults.wires import Wire
from support.mesh import ANY_PORT, DEADLINE, until

HERE = Path(__file__).parent

STOP_GRACE = 0.4
DRAIN_GRACE = 1.0
SILENCE_LIMIT = 1.2
LEASES = {"lease": 1.0, "lease_grace": 1.0, "lease_margin": 0.5, "silence": 2.0, "redial_delay": 0.2}
"""A runtime that is frozen cannot end a lease, so the silence limit, and what it takes to kill, are less than lease and
grace. Nodes speak once a second, which is why `silence` is not as short as the rest."""
JOURNAL = {"lease": 1.5, "renewal": 0.3, "lease_margin": 0.4, "claim": 0.1, "outage": 3.0, "caller_grace": 60.0}
LONG_LEASES = {**LEASES, "lease": 2.25}
"""Of nodes whose coordinators take over from one another: four fifths of it outlast the lease of a run."""
PATIENCE = {"retry_first": 0.05, "retry_most": 0.2, "unplaceable": 30}

RESET_AFTER = 0.1
"""Seconds from a freeze until connections are reset."""

END_SECONDS = 15.0
"""Longest time that a service which was killed or drained may take to be gone."""

WITH_US = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""What has a service killed when the test is: it may be frozen then, and would stay so."""


class Service(Subject):
    """A service's processes, which are started again whenever they ended, and its wire."""

    command: str

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any], wire: Wire | None = None) -> None:
        super().__init__(name)
        self.wire = wire
        self._settings = folder / f"{name}.yaml"
        self._log = folder / f"{name}.log"
        where = {"listen": wire.listen if wire else ANY_PORT, "metrics_listen": ANY_PORT}
        self._settings.write_text(yaml.safe_dump({**settings, **where, "exit_with_parent": True}))
        self._child: Child | None = None
        self._process: psutil.Process | None = None
        self._lives = 0
        self._pause = 0.0

    @property
    def address(self) -> str:
        """Where it is reached."""
        assert self._child is not None
        return self.wire.address if self.wire else self._child.address

    async def start(self) -> None:
        """Start it and wait until it serves."""
        words = [*CLI, "serve", self.command, "--config", str(self._settings), "--print-ready"]
        pipe = asyncio.subprocess.PIPE
        with self._log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                *WITH_US,
                *(self.wire.enter if self.wire else ()),
                *words,
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                start_new_session=True,
            )
        self._process = psutil.Process(process.pid)
        self._child = Child(self.name, process, self._log)
        await self._child.wait_until_ready()
        if self.wire:
            self.wire.leads_to(self._child.address)
        self._lives += 1

    async def keep_up(self) -> None:
        """Start it again whenever it ended, however it did, as those do who run services."""
        while True:
            assert self._child is not None
            await asyncio.wait([self._child.ended])
            await asyncio.sleep(self._pause)
            try:
                await self.start()
            except FailedPrecondition as error:  # what it needs is not there at the moment
                self.tell(f"could not start: {error.message}")
            else:
                self.tell("was started again")

    async def stop(self) -> None:
        """Have it drain, and wait until it is gone."""
        if self._child is not None:
            await self._child.stop(END_SECONDS)

    def log_lines(self) -> list[str]:
        """What all of its lives have logged."""
        return self._log.read_text(errors="replace").splitlines()

    def own_processes(self) -> dict[str, psutil.Process]:
        """The processes that are the service itself, by what they are; none while it is down."""
        is_up = self._child is not None and self._child.address
        return {self.name: self._process} if is_up and self._process else {}

    def footprint(self) -> dict[str, int]:
        """What it takes of the machine, by what it is; nothing while it is down."""
        footprint: dict[str, int] = {}
        with suppress(psutil.Error):
            assert self._process is not None
            for role, process in self.own_processes().items():
                footprint[f"{self.name}: open files of {role}"] = process.num_fds()
            footprint[f"{self.name}: processes"] = len(self._process.children(recursive=True))
        return footprint

    def surprises(self) -> list[str]:
        """Errors that it has logged with a trace, because nobody had thought of them."""
        return [f"{self.name}: {line}" for line in self.log_lines() if "Traceback (most recent call last)" in line]

    async def end(self, role: str, number: signal.Signals, seconds: float) -> Span:
        """End it by a signal to one of its processes, and wait until it is back, which takes a part of the seconds.

        Returns the time from the signal until it was gone.
        """
        assert self._child is not None
        process, lives = (await self._up())[role], self._lives
        self._pause = seconds / 4
        began = time.monotonic()
        _signal([process], number)
        await asyncio.wait([self._child.ended], timeout=END_SECONDS)
        ended = time.monotonic()
        await until(lambda: self._lives > lives, f"{self.name} ended and is back")
        return Span(self.name, began, ended)

    async def freeze(self, only: str, seconds: float) -> Span:
        """Stop one of its processes, or with `""` all, and wake them up.

        Returns the time in which none of them was awake.
        """
        up = await self._up()
        frozen = [up[only]] if only else list(up.values())
        try:
            _signal(frozen, signal.SIGSTOP)  # before what is below them is looked for, so that they start nothing more
            if not only:
                frozen += [process for process in _below(frozen[0]) if process not in frozen]
                _signal(frozen, signal.SIGSTOP)
            began = time.monotonic()
            await asyncio.sleep(seconds)
        finally:
            # When exactly each of them woke up is not known, only that it was after this.
            woken = time.monotonic()
            _signal(frozen, signal.SIGCONT)
        return Span(self.name, began, woken)

    async def _up(self) -> dict[str, psutil.Process]:
        async with asyncio.timeout(DEADLINE):
            while not (up := self.own_processes()):
                await asyncio.sleep(0.01)
        return up


class Coordinator(Service):
    """A coordinator. Attached runs end with it, so it is not killed while they go on."""

    command = COORDINATOR

    def __init__(
        self, folder: Path, nodes: Mapping[str, Any], name: str = "coordinator", wire: Wire | None = None, **other: Any
    ) -> None:
        settings = {"name": name, "nodes": nodes, "placement": PATIENCE, "log_format": "json", **other}
        super().__init__(name, folder, settings, wire)

    def kinds(self) -> Mapping[str, Kind]:
        return {"frozen": Kind(Family.FREEZE, self._freeze)}

    async def _freeze(self, seconds: float) -> None:
        await self.freeze("", seconds)

    def claims(self) -> list[tuple[float, str]]:
        """When it took over which runs, by the machine's monotonic clock."""
        since = time.time() - time.monotonic()
        told = [json.loads(line) for line in self.log_lines() if '"run claimed"' in line]
        return [(datetime.fromisoformat(each["timestamp"]).timestamp() - since, each["run_id"]) for each in told]


class JournalingCoordinator(Coordinator):
    """A coordinator with a journal, from which another one takes its runs over."""

    def __init__(self, name: str, folder: Path, nodes: list[str], wire: Wire, journal: Mapping[str, Any]) -> None:
        super().__init__(
            folder,
            {"static": nodes, **LONG_LEASES},
            name,
            wire,
            advertise=wire.address,
            journal={**journal, **JOURNAL},
            drain_grace=DRAIN_GRACE,
        )

    def kinds(self) -> Mapping[str, Kind]:
        return {
            "killed": Kind(Family.KILL, partial(self._end, signal.SIGKILL)),
            "drained": Kind(Family.KILL, partial(self._end, signal.SIGTERM)),
            "frozen": Kind(Family.FREEZE, self._freeze),
        }

    async def _end(self, number: signal.Signals, seconds: float) -> None:
        await self.end(self.name, number, seconds)


class Node(Service):
    """An executor node; executions tell it by its workspace's name."""

    command = EXECUTOR_NODE

    def __init__(self, name: str, folder: Path, wire: Wire) -> None:
        workspace = folder / name
        workspace.mkdir()
        settings = {
            "name": name,
            "workspace": str(workspace),
            "agents": {"directory": str(HERE / "agents"), "shell": True},
            "capacity": {"concurrency_hint": 6},
            "step": {"stop_grace": STOP_GRACE},
            "drain_grace": DRAIN_GRACE,
            "silence_limit": SILENCE_LIMIT,
        }
        super().__init__(name, folder, settings, wire)
        self.freezes: list[Span] = []
        self.drains: list[Span] = []

    def kinds(self) -> Mapping[str, Kind]:
        return {
            "supervisor killed": Kind(Family.KILL, partial(self._kill, "supervisor")),
            "runtime killed": Kind(Family.KILL, partial(self._kill, "runtime")),
            "drained": Kind(Family.KILL, self._drain),
            "runtime frozen": Kind(Family.FREEZE, partial(self._freeze, "runtime")),
            "frozen": Kind(Family.FREEZE, partial(self._freeze, "")),
            "runtime frozen and reset": Kind(Family.FREEZE, partial(self._freeze_and_reset, "runtime")),
            "frozen and reset": Kind(Family.FREEZE, partial(self._freeze_and_reset, "")),
        }

    def own_processes(self) -> dict[str, psutil.Process]:
        with suppress(psutil.Error, ValueError):
            for supervisor in super().own_processes().values():
                # Launchers are forks of the supervisor and look like it.
                (runtime,) = [one for one in supervisor.children() if one.cmdline()[3:4] == ["fanfold.cli"]]
                return {"supervisor": supervisor, "runtime": runtime}
        return {}

    async def _kill(self, role: str, seconds: float) -> None:
        await self.end(role, signal.SIGKILL, seconds)

    async def _drain(self, seconds: float) -> None:
        asked = await self.end("supervisor", signal.SIGTERM, seconds)
        self.drains.append(replace(asked, began=asked.began + DRAIN_GRACE))
        self.tell(f"was asked to end at {asked.began:.3f}, and had ended at {asked.ended:.3f}")

    async def _freeze(self, only: str, seconds: float) -> None:
        self.freezes.append(await self.freeze(only, seconds))

    async def _freeze_and_reset(self, only: str, seconds: float) -> None:
        """A node that does not take new connections is missed at once."""
        assert self.wire is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._freeze(only, seconds))
            await asyncio.sleep(RESET_AFTER)
            await self.wire.suffer("reset", 0)


@asynccontextmanager
async def kept_up(services: Sequence[Service]) -> AsyncIterator[None]:
    """Services that are up, and are started again whenever they end; none of their processes is left afterwards."""
    async with AsyncExitStack() as stack:
        for service in services:
            stack.push_async_callback(service.stop)
        async with asyncio.TaskGroup() as tasks:
            for service in services:
                tasks.create_task(service.start())
        await stack.enter_async_context(background(*(service.keep_up() for service in services)))
        yield


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
