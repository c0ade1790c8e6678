"""A mesh to which faults happen, and a schedule of them, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fanfold import Mesh
from fanfold.background import background
from faults.services import Coordinator, Node, Service
from faults.subjects import Family, Subject
from faults.wires import Wire, wired
from support.mesh import until_ready

NODES = 3
WITHIN = 2.5
"""Seconds from the beginning of a run in which faults begin."""

BRIEF, LONG = (0.1, 0.8), (0.8, 4.0)
"""Seconds that faults last, one half of them each: less than what silence ends anything, and up to more than lease,
grace and margin."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls whom: `at` seconds after the beginning, for `seconds`."""

    at: float
    subject: str
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StormyMesh:
    """A mesh, and all in it that faults befall."""

    client: Mesh
    coordinator: Coordinator
    nodes: list[Node]
    wires: list[Wire]

    @property
    def services(self) -> list[Service]:
        return [self.coordinator, *self.nodes]

    @property
    def subjects(self) -> list[Subject]:
        return [*self.services, *self.wires]

    def footprint(self) -> dict[str, int]:
        """What its services take of the machine."""
        return {what: much for service in self.services for what, much in service.footprint().items()}

    def told(self) -> str:
        """All that was done to it, in order."""
        return "\n".join(line for _, line in sorted(line for subject in self.subjects for line in subject.told))


def schedule(draw: random.Random, subjects: Sequence[Subject]) -> list[Fault]:
    """At least one fault of each family, and up to three more."""
    possible = [(subject, name, kind) for subject in subjects for name, kind in subject.kinds().items()]
    drawn = [draw.choice([each for each in possible if each[2].family is family]) for family in Family]
    drawn += draw.choices(possible, k=draw.randint(0, 3))
    return [
        Fault(draw.uniform(0.2, WITHIN), subject.name, name, draw.uniform(*draw.choice([BRIEF, LONG])))
        for subject, name, _ in drawn
    ]


async def let_loose(faults: Sequence[Fault], subjects: Sequence[Subject], is_over: Callable[[], bool]) -> None:
    """Let faults happen at their times, as long as the run that they are to disturb is not over."""
    by_name = {subject.name: subject for subject in subjects}

    async def happen(fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        if not is_over():
            await by_name[fault.subject].suffer(fault.kind, fault.seconds)

    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            tasks.create_task(happen(fault))


@asynccontextmanager
async def stormy_mesh(folder: Path, *, proxies: bool = False) -> AsyncIterator[StormyMesh]:
    """A mesh that is up; none of its processes is left afterwards."""
    names = [f"node-{number}" for number in range(1, NODES + 1)]
    async with AsyncExitStack() as stack:
        wires = await stack.enter_async_context(wired([f"wire of {name}" for name in names], proxies=proxies))
        nodes = [Node(name, folder, wire) for name, wire in zip(names, wires, strict=True)]
        coordinator = Coordinator(folder, [wire.address for wire in wires])
        services: list[Service] = [coordinator, *nodes]
        for service in services:
            stack.push_async_callback(service.stop)
        async with asyncio.TaskGroup() as tasks:
            for service in services:
                tasks.create_task(service.start())
        await stack.enter_async_context(background(*(service.keep_up() for service in services)))
        client = await stack.enter_async_context(Mesh(coordinator.address))
        await until_ready(client, len(nodes))
        yield StormyMesh(client, coordinator, nodes, wires)
