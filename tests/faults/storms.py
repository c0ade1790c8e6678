"""Nodes as a user runs them, behind proxies, and a schedule of what befalls them, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import psutil
import yaml

from fanfold.background import background
from fanfold.cli.child import Child
from faults.checker import Span
from support.mesh import ANY_PORT, until
from support.proxy import Proxy, proxied

HERE = Path(__file__).parent
NODES = 3
WITHIN = 5.0
"""Seconds from the beginning of a run in which faults begin."""

STOP_GRACE = 0.5
DRAIN_GRACE = 1.0
SILENCE_LIMIT = 2.0
"""Together with what it takes to kill, less than lease and grace: a runtime that is frozen cannot end a lease."""

END_SECONDS = 15.0
"""Longest time that a node which was killed or drained may take to be gone."""


class Kind(StrEnum):
    """What may befall a node."""

    KILL_SUPERVISOR = "supervisor killed"
    KILL_RUNTIME = "runtime killed"
    FREEZE_RUNTIME = "runtime frozen"
    FREEZE_NODE = "all processes frozen"
    CUT = "connections cut"
    HOLD_UP = "partitioned"
    DRAIN = "drained"


FREEZES = {Kind.FREEZE_RUNTIME, Kind.FREEZE_NODE}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that befalls a node: `at` seconds after the beginning, for `seconds` or until it is started again."""

    at: float
    node: int
    kind: Kind
    seconds: float


def schedule(draw: random.Random) -> list[Fault]:
    """Three to eight faults. Some frozen nodes lose their connections too, so that they are missed at once."""
    faults = []
    for _ in range(draw.randint(3, 8)):
        fault = Fault(draw.uniform(0.2, WITHIN), draw.randrange(NODES), draw.choice(list(Kind)), draw.uniform(0.5, 5))
        faults.append(fault)
        if fault.kind in FREEZES and draw.random() < 0.5:
            faults.append(replace(fault, at=fault.at + 0.1, kind=Kind.CUT))
    return faults


class StormyNode:
    """A node's processes, the proxy through which it is reached, and what was done to it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.freezes: list[Span] = []
        self.drains: list[Span] = []
        self.told: list[tuple[float, str]] = []
        """What was done, and when."""
        self.proxy: Proxy
        self._workspace = folder / name
        self._settings = folder / f"{name}.yaml"
        # What befalls its processes comes one after another, and so does what befalls its wire; one beside the other.
        self._processes = asyncio.Lock()
        self._wire = asyncio.Lock()
        self._child: Child | None = None
        self._lives = 0
        self._pause = 0.0

    def prepare(self) -> None:
        """Write its configuration; executions tell their node by the workspace's name."""
        self._workspace.mkdir()
        settings = {
            "name": self.name,
            "listen": ANY_PORT,
            "metrics_listen": ANY_PORT,
            "workspace": str(self._workspace),
            "agents": {"directory": str(HERE / "agents"), "shell": True},
            "capacity": {"concurrency_hint": 6},
            "step": {"stop_grace": STOP_GRACE},
            "drain_grace": DRAIN_GRACE,
            "silence_limit": SILENCE_LIMIT,
            "exit_with_parent": True,
        }
        self._settings.write_text(yaml.safe_dump(settings), "utf-8")

    async def start(self) -> str:
        """Start it and wait until it serves; returns where."""
        log = self._settings.with_suffix(".log")
        child = await Child.start(self.name, ["executor-node", "--config", str(self._settings)], log=log)
        self._child = child
        await child.wait_until_ready()
        self._lives += 1
        return child.address

    async def keep_up(self) -> None:
        """Start it again whenever it ended, however it did, as those do who run services."""
        while True:
            assert self._child is not None
            await asyncio.wait([self._child.ended])
            await asyncio.sleep(self._pause)
            self.proxy.retarget(await self.start())
            self.told.append((time.monotonic(), f"{time.monotonic():.3f}: {self.name} was started again"))

    async def stop(self) -> None:
        """Have it drain, and wait until it is gone."""
        if self._child is not None:
            await self._child.stop(END_SECONDS)

    async def suffer(self, fault: Fault) -> None:
        """Let a fault happen, and everything be well again after it."""
        if fault.kind in {Kind.CUT, Kind.HOLD_UP}:
            async with self._wire:
                with self._telling(fault):
                    await self._disturb_wire(fault)
        else:
            async with self._processes:
                await until(lambda: self._find_processes() is not None, f"{self.name} is up")
                with self._telling(fault):
                    await self._disturb_processes(fault)

    async def _disturb_wire(self, fault: Fault) -> None:
        if fault.kind is Kind.CUT:
            self.proxy.cut()
        else:
            self.proxy.hold_up()
            await asyncio.sleep(fault.seconds)
            self.proxy.heal()

    async def _disturb_processes(self, fault: Fault) -> None:
        found = self._find_processes()
        assert found is not None
        supervisor, runtime = found
        match fault.kind:
            case Kind.KILL_SUPERVISOR:
                await self._end(supervisor, signal.SIGKILL, pause=fault.seconds / 4)
            case Kind.KILL_RUNTIME:
                await self._end(runtime, signal.SIGKILL, pause=fault.seconds / 4)
            case Kind.DRAIN:
                await self._end(supervisor, signal.SIGTERM, pause=fault.seconds / 4)
            case Kind.FREEZE_RUNTIME:
                await self._freeze([runtime], fault.seconds)
            case Kind.FREEZE_NODE:
                _signal([supervisor, runtime], signal.SIGSTOP)  # first, so that they start nothing more
                await self._freeze([supervisor, *supervisor.children(recursive=True)], fault.seconds)

    async def _end(self, process: psutil.Process, number: signal.Signals, *, pause: float) -> None:
        """End it by a signal, and wait until it is back. With SIGTERM it drains."""
        assert self._child is not None
        began, lives, self._pause = time.monotonic(), self._lives, pause
        _signal([process], number)
        await asyncio.wait([self._child.ended], timeout=END_SECONDS)
        if number is signal.SIGTERM:
            self.drains.append(Span(self.name, began + DRAIN_GRACE, time.monotonic()))
        await until(lambda: self._lives > lives, f"{self.name} ended and is back")

    async def _freeze(self, processes: list[psutil.Process], seconds: float) -> None:
        began = time.monotonic()
        try:
            _signal(processes, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            # When exactly each of them woke up is not known, only that it was after this.
            woken = time.monotonic()
            _signal(processes, signal.SIGCONT)
            self.freezes.append(Span(self.name, began, woken))

    def _find_processes(self) -> tuple[psutil.Process, psutil.Process] | None:
        """Its supervisor and its runtime, if it is up."""
        if self._child is None or not self._child.address:
            return None
        with suppress(psutil.Error, ValueError):
            (supervisor,) = [one for one in psutil.Process().children() if str(self._settings) in one.cmdline()]
            # Launchers are forks of the supervisor and look like it.
            (runtime,) = [one for one in supervisor.children() if one.cmdline()[3:4] == ["fanfold.cli"]]
            return supervisor, runtime
        return None

    @contextmanager
    def _telling(self, fault: Fault) -> Iterator[None]:
        began = time.monotonic()
        self.told.append((began, f"{began:.3f}: {self.name} {fault.kind}, {fault.seconds:.2f} s"))
        yield
        ended = time.monotonic()
        self.told.append((ended, f"{ended:.3f}: {self.name} is well again ({fault.kind})"))


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


async def let_loose(faults: Sequence[Fault], nodes: Sequence[StormyNode], is_over: Callable[[], bool]) -> None:
    """Let faults happen at their times, as long as the run that they are to disturb is not over."""

    async def happen(fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if not is_over():
            await nodes[fault.node].suffer(fault)

    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(happen(fault))


@asynccontextmanager
async def stormy_nodes(folder: Path) -> AsyncIterator[list[StormyNode]]:
    """Nodes that are up and have their proxies; none of their processes is left afterwards."""
    nodes = [StormyNode(f"node-{number}", folder) for number in range(1, NODES + 1)]
    for node in nodes:
        node.prepare()
    async with AsyncExitStack() as stack:
        for node in nodes:
            stack.push_async_callback(node.stop)
        for node, address in zip(nodes, await asyncio.gather(*(node.start() for node in nodes)), strict=True):
            node.proxy = await stack.enter_async_context(proxied(address))
        await stack.enter_async_context(background(*(node.keep_up() for node in nodes)))
        yield nodes
