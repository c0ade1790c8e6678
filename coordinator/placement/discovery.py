"""Where nodes are found: a static list, DNS names that are resolved again and again, and announcements."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from coordinator.placement.nodes import Nodes
from fanfold.rpc.addresses import Address, parse_address

_log = logging.getLogger(__name__)


def follow_static(nodes: Nodes, addresses: Sequence[str]) -> None:
    """Want every address of the configuration, for good. Raises InvalidArgument for one that is none."""
    for index, address in enumerate(addresses):
        nodes.want(str(parse_address(address, field=f"nodes.static[{index}]")))


async def follow_dns(nodes: Nodes, name: Address, *, interval: float) -> None:
    """Want whatever `name` resolves to, asked again every `interval` seconds, until cancelled.

    A name that does not resolve leaves things as they are: DNS that is away must not make nodes go away.
    """
    wanted: set[str] = set()
    while True:
        try:
            found = await _resolve(name)
        except (OSError, UnicodeError) as error:  # the latter for labels that are too long or empty
            _log.warning("cannot resolve %s: %s", name, error)
        else:
            for address in found - wanted:
                nodes.want(address)
            for address in wanted - found:
                nodes.unwant(address)
            wanted = found
        await asyncio.sleep(interval)


@contextmanager
def announced(nodes: Nodes, address: str) -> Iterator[None]:
    """Want a node for as long as its announcement lasts."""
    nodes.want(address)
    try:
        yield
    finally:
        nodes.unwant(address)


async def _resolve(endpoint: Address) -> set[str]:
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return {str(Address(str(entry[4][0]), endpoint.port)) for entry in entries}
