"""Nodes as a user runs them, behind proxies, and a schedule of what befalls them, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
import yaml

from fanfold.cli.child import Child
from faults.checker import Span
from support.mesh import ANY_PORT
from support.proxy import Proxy, proxied

HERE = Path(__file__).parent
NODES = 3
WITHIN = 5.0
"""Seconds from the beginning of a run in which faults begin."""

STOP_GRACE = 0.5
DRAIN_GRACE = 1.0
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


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that befalls a node: `at` seconds after the beginning, for `seconds` or until it is started again."""

    at: float
    node: int
    kind: Kind
    seconds: float


def schedule(seed: random.Random) -> list[Fault]:
    """Three to eight faults."""
    return sorted(
        (
            Fault(
                at=seed.uniform(0.2, WITHIN),
                node=seed.randrange(NODES),
                kind=seed.choice(list(Kind)),
                seconds=seed.uniform(0.5, 5),
            )
            for _ in range(seed.randint(3, 8))
        ),
        key=lambda fault: fault.at,
    )


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
            "exit_with_parent": True,
        }
        self._settings.write_text(yaml.safe_dump(settings), "utf-8")

    async def start(self) -> str:
        """Start it and wait until it serves; returns where."""
        log = self._settings.with_suffix(".log")
        child = await Child.start(self.name, ["executor-node", "--config", str(self._settings)], log=log)
        self._child = child
        await child.wait_until_ready()
        return child.address

    async def stop(self) -> None:
        """Have it drain, and wait until it is gone."""
        if self._child is not None:
            await self._child.stop(END_SECONDS)

    async def suffer(self, fault: Fault) -> None:
        """Let a fault happen, and everything be well again after it."""
        async with self._wire if fault.kind in {Kind.CUT, Kind.HOLD_UP} else self._processes:
            with self._telling(fault):
                await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.KILL_SUPERVISOR:
                self._supervisor().kill()
                await self._start_again(fault.seconds)
            case Kind.KILL_RUNTIME:
                self._runtime().kill()
                await self._start_again(fault.seconds)
            case Kind.FREEZE_RUNTIME:
                await self._freeze([self._runtime()], fault.seconds)
            case Kind.FREEZE_NODE:
                supervisor = self._supervisor()
                supervisor.suspend()  # first, so that it starts nothing more
                self._runtime().suspend()
                await self._freeze([supervisor, *supervisor.children(recursive=True)], fault.seconds)
            case Kind.CUT:
                self.proxy.cut()
            case Kind.HOLD_UP:
                self.proxy.hold_up()
                await asyncio.sleep(fault.seconds)
                self.proxy.heal()
            case Kind.DRAIN:
                began = time.monotonic()
                self._supervisor().terminate()
                await self._until_gone()
                self.drains.append(Span(self.name, began, time.monotonic()))
                await self._start_again(fault.seconds)

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

    async def _start_again(self, pause: float) -> None:
        await self._until_gone()
        await asyncio.sleep(pause / 4)
        self.proxy.retarget(await self.start())

    async def _until_gone(self) -> None:
        assert self._child is not None
        async with asyncio.timeout(END_SECONDS):
            await asyncio.wait([self._child.ended])

    def _supervisor(self) -> psutil.Process:
        (supervisor,) = [one for one in psutil.Process().children() if str(self._settings) in one.cmdline()]
        return supervisor

    def _runtime(self) -> psutil.Process:
        # Launchers are forks of the supervisor and look like it.
        (runtime,) = [one for one in self._supervisor().children() if _is_runtime(one)]
        return runtime

    @contextmanager
    def _telling(self, fault: Fault) -> Iterator[None]:
        began = time.monotonic()
        self.told.append((began, f"{began:.3f}: {self.name} {fault.kind}, {fault.seconds:.2f} s"))
        yield
        ended = time.monotonic()
        self.told.append((ended, f"{ended:.3f}: {self.name} is well again ({fault.kind})"))


def _is_runtime(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.cmdline()[3:4] == ["fanfold.cli"]
    return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


async def let_loose(faults: list[Fault], nodes: list[StormyNode], is_over: Callable[[], bool]) -> None:
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
        yield nodes
