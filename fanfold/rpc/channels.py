"""Channels to services."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from fanfold.rpc.addresses import parse_address
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials
from fanfold.rpc.identified import IdentifiedChannel
from fanfold.rpc.showing import Showing

MAX_RESPONSE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """How soon a dead connection is noticed: a ping after `interval` quiet seconds, given up after `timeout` more.

    Servers close connections that ping more often than every 5 s.
    """

    interval: float = 10.0
    timeout: float = 5.0


DEFAULT_KEEPALIVE = Keepalive()


def open_channel(
    address: str,
    *,
    keepalive: Keepalive = DEFAULT_KEEPALIVE,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    field: str = "address",
    credentials: Credentials = NO_CREDENTIALS,
) -> grpc.aio.Channel:
    """A channel to the service at `address`. It connects when first used, and again whenever it has to.

    Each channel has a connection of its own. Close it, or use it as an async context manager.

    Raises:
        InvalidArgument: `address` is none; names `field`. Or a file of the credentials makes no sense.
        FailedPrecondition: a token would be sent to another machine in the clear.
    """
    at = parse_address(address, field=field)
    target = f"dns:///{at}"  # The scheme is told, or a host that is called like one ("ipv4") would be taken for it.
    options = _options(keepalive, max_response_bytes, credentials)
    if credentials == NO_CREDENTIALS:
        return grpc.aio.insecure_channel(target, options)

    def connect(shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if shown is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, shown, options)

    return IdentifiedChannel(Showing(credentials, at), connect)


def _options(keepalive: Keepalive, max_response_bytes: int, credentials: Credentials) -> list[tuple[str, int | str]]:
    server_name = credentials.tls.server_name if credentials.tls else ""
    return [
        ("grpc.keepalive_time_ms", round(keepalive.interval * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.timeout * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.max_receive_message_length", max_response_bytes),
        ("grpc.max_send_message_length", -1),  # the server's limit is the one that counts
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.use_local_subchannel_pool", 1),
        *([("grpc.ssl_target_name_override", server_name)] if server_name else []),
    ]
