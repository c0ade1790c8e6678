"""The wires to services: real ones between network namespaces where these can be made, else TCP proxies."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from faults.subjects import Family, Kind, Subject
from support.mesh import ANY_PORT
from support.network import Host, can_lose, network, why_not
from support.proxy import Proxy, proxied

PORT = 7410
LOSS_PERCENT = 30
NOBODY = "127.0.0.1:1"


class Wire(Subject):
    """The wire to a service. The service runs where `enter` leads, listens on `listen`, and is reached at `address`."""

    listen: str
    address: str
    enter: Sequence[str]

    def __init__(self, service: str) -> None:
        super().__init__(f"wire of {service}")
        self.service = service

    @abstractmethod
    def leads_to(self, address: str) -> None:
        """The service was started and listens there."""


class HostWire(Wire):
    """The wire of a host: a connection over it may be half open, one end closed or dead, and the other not told."""

    def __init__(self, service: str, host: Host) -> None:
        super().__init__(service)
        self.host = host
        self.listen = self.address = f"{host.address}:{PORT}"
        self.enter = host.enter

    def leads_to(self, address: str) -> None:
        assert address == self.address

    def kinds(self) -> Mapping[str, Kind]:
        kinds = {
            "reset": Kind(Family.CUT, self._reset),
            "unplugged": Kind(Family.CUT, self._unplug),
            "deaf": Kind(Family.CUT, self._deafen),
            "mute": Kind(Family.CUT, self._silence),
        }
        return kinds | ({"lossy": Kind(Family.CUT, self._lose)} if can_lose() else {})

    async def _reset(self, _seconds: float) -> None:
        await self.host.sever()

    async def _unplug(self, seconds: float) -> None:
        await _endure(self.host.unplugged(), seconds)

    async def _deafen(self, seconds: float) -> None:
        await _endure(self.host.deaf(), seconds)

    async def _silence(self, seconds: float) -> None:
        await _endure(self.host.mute(), seconds)

    async def _lose(self, seconds: float) -> None:
        await _endure(self.host.lossy(LOSS_PERCENT), seconds)


async def _endure(trouble: AbstractAsyncContextManager[None], seconds: float) -> None:
    async with trouble:
        await asyncio.sleep(seconds)


class ProxyWire(Wire):
    """A TCP proxy: both ends of it are always told the truth about their connections, and may only hear nothing."""

    enter = ()

    def __init__(self, service: str, proxy: Proxy) -> None:
        super().__init__(service)
        self._proxy = proxy
        self.listen = ANY_PORT
        self.address = proxy.address

    def leads_to(self, address: str) -> None:
        self._proxy.retarget(address)

    def kinds(self) -> Mapping[str, Kind]:
        return {"reset": Kind(Family.CUT, self._reset), "held up": Kind(Family.CUT, self._hold_up)}

    async def _reset(self, _seconds: float) -> None:
        self._proxy.cut()

    async def _hold_up(self, seconds: float) -> None:
        self._proxy.hold_up()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._proxy.heal()


@asynccontextmanager
async def wired(services: Sequence[str], *, proxies: bool = False) -> AsyncIterator[list[Wire]]:
    """A wire to each of the services, by their names; `proxies` has them be proxies whatever can be made."""
    async with AsyncExitStack() as stack:
        if proxies or why_not():
            yield [ProxyWire(name, await stack.enter_async_context(proxied(NOBODY))) for name in services]
        else:
            hosts = await stack.enter_async_context(network())
            yield [HostWire(name, await hosts.add_host()) for name in services]
