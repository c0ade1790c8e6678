"""What a mesh must come to when a storm is over: nothing in flight, no process left, no more of the machine taken."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psutil

from fanfold import Mesh
from faults.load import Load, open_files
from faults.storms import StormyMesh
from support.mesh import until, until_ready

SPARE_FILES = 4
"""Open files by which a process may differ, for what gRPC keeps for later."""

SPARE_JOURNAL_FILES = 16
"""Those that a journal opens as many reads come at once, and keeps: its log and itself for each connection."""


async def until_calm(stormy: StormyMesh, load: Load) -> None:
    """Wait until every coordinator has all nodes again and nothing in flight, and no process of the steps is left."""
    for client in stormy.clients.values():
        await until_ready(client, len(stormy.nodes))
        await _until_quiet(client)
    await until(lambda: not load.processes(), "no process of a command is left")
    await until(lambda: not load.survivors(shared=False), "no process of an execution is left")


async def _until_quiet(mesh: Mesh) -> None:
    """Wait until nothing is in flight, by the coordinator's count and by every node's own."""
    async with asyncio.timeout(20):
        while any(view.steps_in_flight or view.node.status.running_steps for view in await mesh.nodes()):
            await asyncio.sleep(0.02)


async def until_as_before(stormy: StormyMesh, before: dict[str, int]) -> None:
    """Wait until every service takes as much of the machine as it did."""
    coordinators = {one.name for one in stormy.coordinators} if stormy.stores else set()

    def spare(what: str) -> int:
        if "files" not in what:
            return 0
        return SPARE_JOURNAL_FILES if what.partition(":")[0] in coordinators else SPARE_FILES

    def takes_no_more() -> bool:
        now = stormy.footprint()
        return now.keys() == before.keys() and all(now[what] <= before[what] + spare(what) for what in before)

    await until(takes_no_more, "every service takes as much as before")


def surprises(stormy: StormyMesh) -> list[str]:
    """Errors that services have logged with a trace, because nobody had thought of them."""
    return [surprise for service in stormy.services for surprise in service.surprises()]


async def until_nothing_survives(load: Load) -> None:
    """Wait until the processes that steps shared are gone, too."""
    await until(lambda: not load.survivors(shared=True), "no process that steps shared is left")


@asynccontextmanager
async def leaving_nothing() -> AsyncIterator[None]:
    """Wait at the end until the test has no more files and processes than at the beginning, and no network device.

    Network namespaces last as long as the processes that hold them.
    """
    files, children = open_files(), _children()
    yield
    await until(lambda: open_files() <= files + SPARE_FILES, "the test has no more files open than before")
    await until(lambda: _children() <= children, "the test has no more processes than before")
    await until(lambda: not _devices(), "the test has no network device")


def _children() -> int:
    return len(psutil.Process().children(recursive=True))


def _devices() -> list[str]:
    return [name for _, name in socket.if_nameindex() if name.startswith(f"ff{os.getpid()}x")]


@contextmanager
def noting(stormy: StormyMesh, what: str) -> Iterator[None]:
    """Add to a failure what it takes to reproduce it, what was done, and how the mesh is now."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{what}\nwhat was done:\n{stormy.told()}\nwhat it takes: {stormy.footprint()}")
        raise
