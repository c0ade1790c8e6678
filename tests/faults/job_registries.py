"""Job registries to which faults happen: one with a file, or several with a PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fanfold.cli.service_settings import JOB_REGISTRY
from faults.databases import databases
from faults.services import DRAIN_GRACE, Service, kept_up
from faults.store import Store
from faults.subjects import Family, Kind, Subject
from faults.wires import Wire, wired
from support.proxy import proxied

LEASE = 1.5
REGISTRY_NAMES = ["left", "right"]


class Registry(Service):
    """A job registry."""

    command = JOB_REGISTRY

    def __init__(self, folder: Path, wire: Wire, store: Mapping[str, Any], grace: float) -> None:
        settings = {
            "store": {**store, "lease": LEASE},
            "producers": {"grace": grace, "stop_deadline": grace},
            "output": {"write_interval": 0.1},
            "drain_grace": DRAIN_GRACE,
        }
        super().__init__(wire.service, folder, settings, wire)

    def kinds(self) -> Mapping[str, Kind]:
        return {
            "killed": Kind(Family.KILL, partial(self._end, signal.SIGKILL)),
            "drained": Kind(Family.KILL, partial(self._end, signal.SIGTERM)),
            "frozen": Kind(Family.FREEZE, self._freeze),
        }

    async def _end(self, number: signal.Signals, seconds: float) -> None:
        await self.end(self.name, number, seconds)

    async def _freeze(self, seconds: float) -> None:
        await self.freeze("", seconds)


@dataclass(frozen=True, slots=True)
class StormyRegistries:
    """Registries on one store. Behind `address` is whichever takes a connection, and the next one for the next."""

    address: str
    registries: Sequence[Registry]
    subjects: Sequence[Subject]
    """They, their wires, their store, and the ways there."""

    @property
    def addresses(self) -> dict[str, str]:
        """Where each of them is reached by itself, and where any of them is."""
        return {"any": self.address} | {one.name: one.address for one in self.registries}


@asynccontextmanager
async def one_registry(folder: Path, grace: float, *, proxies: bool = False) -> AsyncIterator[StormyRegistries]:
    """A registry with a file that is up; producers may be away, and take to stop, for the grace."""
    file = folder / "jobs.db"
    async with _up(folder, {"registry": {"path": str(file)}}, [Store(file)], grace, proxies=proxies) as stormy:
        yield stormy


@asynccontextmanager
async def two_registries(folder: Path, grace: float, *, proxies: bool = False) -> AsyncIterator[StormyRegistries]:
    """Registries that are up with a PostgreSQL of their own, to which each has a way of its own."""
    async with databases(REGISTRY_NAMES) as (stores, urls):
        kept = {name: {"url": url} for name, url in urls.items()}
        async with _up(folder, kept, stores, grace, proxies=proxies) as stormy:
            yield stormy


@asynccontextmanager
async def _up(
    folder: Path, kept: Mapping[str, Mapping[str, Any]], stores: Sequence[Subject], grace: float, *, proxies: bool
) -> AsyncIterator[StormyRegistries]:
    async with AsyncExitStack() as stack:
        wires = await stack.enter_async_context(wired(list(kept), proxies=proxies))
        registries = [Registry(folder, wire, kept[wire.service], grace) for wire in wires]
        await stack.enter_async_context(kept_up(registries))
        door = await stack.enter_async_context(proxied(*(one.address for one in registries)))
        yield StormyRegistries(door.address, registries, [*registries, *wires, *stores])
