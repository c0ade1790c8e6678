"""Addresses of services: `host:port` or `[::1]:port`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from fanfold.errors import FailedPrecondition, InvalidArgument

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535

_NAME_AND_PORT = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?):([0-9]{1,5})")
_IPV6_AND_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\]:([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service listens. `host` is a name, an IPv4 or an IPv6 address, the latter without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, field: str = "address", any_port: bool = False) -> Address:
    """The address that `text` names. `any_port` allows port 0, with which a server takes any free one.

    Raises:
        InvalidArgument: it is no `host:port` or `[IPv6]:port`; names `field` and what is wrong.
    """
    if text.startswith(("unix:", "/", "@")):
        raise InvalidArgument.of_field(field, "must be host:port; unix sockets are not supported")
    match = _NAME_AND_PORT.fullmatch(text) or _IPV6_AND_PORT.fullmatch(text)
    if match is None or (text.startswith("[") and not _is_ip(match[1])):
        raise InvalidArgument.of_field(field, "must be host:port, or [IPv6 address]:port")
    least = 0 if any_port else 1
    if not least <= int(match[2]) <= MAX_PORT:
        raise InvalidArgument.of_field(field, f"must have a port from {least} to {MAX_PORT}")
    return Address(match[1], int(match[2]))


def parse_addresses(text: str, *, field: str) -> tuple[str, ...]:
    """The addresses in a text that has commas between them. Raises InvalidArgument as `parse_address`."""
    return tuple(str(parse_address(part.strip(), field=field)) for part in text.split(","))


def address_in_use(address: Address) -> FailedPrecondition:
    """What to raise where something listens already."""
    return FailedPrecondition(f"cannot listen on {address}; is something else there?", reason="ADDRESS_IN_USE")


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine is at `host`, or hears what is said to it."""
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_every_one(host: str) -> bool:
    """Whether who listens at `host` listens at every address of its machine, so that others cannot reach it by that."""
    return _is_ip(host) and ipaddress.ip_address(host).is_unspecified


def bindable(host: str, *, anywhere: bool) -> str:
    """What to bind for `host`.

    Raises:
        FailedPrecondition: it is not loopback, where that is needed: unless `anywhere`, callers are not known (C40).
    """
    if host == "localhost":  # whatever the resolver makes of it
        return LOOPBACK
    if anywhere or is_loopback(host):
        return host
    raise FailedPrecondition(
        f"will not listen on {host or 'all addresses'}: no way to authenticate callers is configured (auth),"
        " so only loopback addresses (127.0.0.1, ::1, localhost) are allowed",
        reason="NOT_LOOPBACK",
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
