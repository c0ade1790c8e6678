"""A mesh to which faults happen, and a schedule of them, drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fanfold import Mesh
from faults.databases import databases
from faults.services import LEASES, LONG_LEASES, STOP_GRACE, Coordinator, JournalingCoordinator, Node, Service, kept_up
from faults.store import Store
from faults.subjects import Family, Kind, Span, Subject, told_of
from faults.wires import Wire, wired
from support.mesh import until_ready

NODES = 3
NODE_NAMES = [f"node-{number}" for number in range(1, NODES + 1)]
COORDINATOR_NAMES = ["left", "right"]
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
    """Asks any coordinator that is there."""
    clients: Mapping[str, Mesh]
    """Each asks one coordinator, by its name."""
    coordinators: Sequence[Coordinator]
    nodes: Sequence[Node]
    wires: Sequence[Wire]
    stores: Sequence[Subject] = ()
    """Where runs are kept, and the ways there."""

    @property
    def services(self) -> list[Service]:
        return [*self.coordinators, *self.nodes]

    @property
    def subjects(self) -> list[Subject]:
        return [*self.services, *self.wires, *self.stores]

    @property
    def losses(self) -> list[Span]:
        """When something befell a node or its wire, by the node's name."""
        found = [span for node in self.nodes for span in node.suffered]
        for wire in self.wires:
            found += [replace(span, subject=wire.service) for span in wire.suffered]
        return found

    @property
    def expiries(self) -> list[Span]:
        """When the leases of what a coordinator has on nodes may have ended, because something befell it or its wire.

        It speaks five times a lease, so they end at most a fifth earlier than a lease after that.
        """
        names, lease = {one.name for one in self.coordinators}, LONG_LEASES["lease"]
        befallen = [span for one in self.coordinators for span in one.suffered]
        befallen += [span for wire in self.wires if wire.service in names for span in wire.suffered]
        return [Span(span.subject, span.began + 0.8 * lease, span.began + lease + STOP_GRACE) for span in befallen]

    def footprint(self) -> dict[str, int]:
        """What its services take of the machine."""
        return {what: much for service in self.services for what, much in service.footprint().items()}

    def told(self) -> str:
        """All that was done to it, in order."""
        return told_of(self.subjects)


def schedule(draw: random.Random, subjects: Sequence[Subject], others: Sequence[Subject] = ()) -> list[Fault]:
    """At least one fault of each family that befalls the subjects, and up to three more, of others too."""
    possible = _kinds_of(subjects)
    families = [family for family in Family if any(kind.family is family for _, _, kind in possible)]
    drawn = [draw.choice([each for each in possible if each[2].family is family]) for family in families]
    drawn += draw.choices([*possible, *_kinds_of(others)], k=draw.randint(0, 3))
    return [
        Fault(draw.uniform(0.2, WITHIN), subject.name, name, draw.uniform(*draw.choice([BRIEF, LONG])))
        for subject, name, _ in drawn
    ]


def _kinds_of(subjects: Sequence[Subject]) -> list[tuple[Subject, str, Kind]]:
    return [(subject, name, kind) for subject in subjects for name, kind in subject.kinds().items()]


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


async def abreast(seeds: Sequence[int], live_through: Callable[[Sequence[int]], Awaitable[None]]) -> None:
    """Have two meshes live through their shares of a batch at once."""
    shares = [share for share in (seeds[::2], seeds[1::2]) if share]
    ended = await asyncio.gather(*map(live_through, shares), return_exceptions=True)
    if failures := [each for each in ended if each is not None]:
        raise BaseExceptionGroup("storms", failures)


@asynccontextmanager
async def stormy_mesh(folder: Path, *, proxies: bool = False) -> AsyncIterator[StormyMesh]:
    """A mesh of one coordinator that is up; none of its processes is left afterwards."""
    async with AsyncExitStack() as stack:
        wires = await stack.enter_async_context(wired(NODE_NAMES, proxies=proxies))
        nodes = [Node(wire.service, folder, wire) for wire in wires]
        coordinators = [Coordinator(folder, {"static": [wire.address for wire in wires], **LEASES})]
        yield await _up(stack, coordinators, nodes, wires)


@asynccontextmanager
async def journaling_mesh(folder: Path, *, proxies: bool = False) -> AsyncIterator[StormyMesh]:
    """A mesh of coordinators with a journal that is up; none of its processes is left afterwards."""
    journal = folder / "journal.db"
    kept = {name: {"path": str(journal)} for name in COORDINATOR_NAMES}
    async with _journaling(folder, kept, [Store(journal)], proxies=proxies) as stormy:
        yield stormy


@asynccontextmanager
async def postgres_mesh(folder: Path, *, proxies: bool = False) -> AsyncIterator[StormyMesh]:
    """The same with the journal in a PostgreSQL of its own, to which each coordinator has a way of its own."""
    async with databases(COORDINATOR_NAMES) as (stores, urls):
        kept = {name: {"url": url} for name, url in urls.items()}
        async with _journaling(folder, kept, stores, proxies=proxies) as stormy:
            yield stormy


@asynccontextmanager
async def _journaling(
    folder: Path, kept: Mapping[str, Mapping[str, Any]], stores: Sequence[Subject], *, proxies: bool
) -> AsyncIterator[StormyMesh]:
    async with AsyncExitStack() as stack:
        wires = await stack.enter_async_context(wired([*NODE_NAMES, *COORDINATOR_NAMES], proxies=proxies))
        nodes = [Node(wire.service, folder, wire) for wire in wires[:NODES]]
        addresses = [wire.address for wire in wires[:NODES]]
        coordinators = [
            JournalingCoordinator(wire.service, folder, addresses, wire, kept[wire.service]) for wire in wires[NODES:]
        ]
        yield await _up(stack, coordinators, nodes, wires, stores)


async def _up(
    stack: AsyncExitStack,
    coordinators: Sequence[Coordinator],
    nodes: Sequence[Node],
    wires: Sequence[Wire],
    stores: Sequence[Subject] = (),
) -> StormyMesh:
    await stack.enter_async_context(kept_up([*coordinators, *nodes]))
    clients = {one.name: await stack.enter_async_context(Mesh(one.address)) for one in coordinators}
    client = await stack.enter_async_context(Mesh([one.address for one in coordinators], reconnect_timeout=60))
    for each in clients.values():
        await until_ready(each, len(nodes))
    return StormyMesh(client, clients, coordinators, nodes, wires, stores)
