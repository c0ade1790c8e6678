"""The metrics that all services have: build, calls, authentication, certificates, and the process itself."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib.metadata import version

import grpc
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fanfold.families import numbers, spreads
from fanfold.measures import LASTING, Spreads, Tally, counter, gauge, histogram
from fanfold.rpc.auth.settings import ClientSettings, TlsSettings
from fanfold.rpc.call import Method
from fanfold.rpc.files import Watched
from fanfold.rpc.pem import first_expiry

_METHOD = {"grpc_service": "the service's own, `unknown`", "grpc_method": "its methods, `unknown`"}

BUILD_INFO = gauge("fanfold_build_info", "Always 1; its labels tell what runs.", version="fanfold's", python="Python's")
RPC_HANDLED = counter("fanfold_rpc_handled_total", "Calls that ended, by status code.", **_METHOD, code="those of gRPC")
RPC_SECONDS = histogram(
    "fanfold_rpc_duration_seconds", LASTING, "How long calls lasted, streams to their end.", **_METHOD
)
RPC_IN_FLIGHT = gauge("fanfold_rpc_in_flight", "Calls that run now.", **_METHOD)
AUTHENTICATION_FAILURES = counter(
    "fanfold_authentication_failures_total",
    "Calls that were refused because nobody who is known makes them (unauthenticated) or because of the caller's roles"
    " (forbidden), and calls that were ended because what they had shown was valid no more (expired, revoked).",
    reason=("unauthenticated", "forbidden", "expired", "revoked"),
)
CERTIFICATE_EXPIRY = gauge(
    "fanfold_certificate_expiry_timestamp_seconds",
    "When the first of the certificates in a file expires, in seconds since 1970.",
    use="`server`, `client_ca` (settings `tls`), `client`, `server_ca` (settings `client`); those that are set",
)

PROCESS = (
    gauge("process_resident_memory_bytes", "Memory of the service's process, without its children."),
    gauge("process_virtual_memory_bytes", "Its virtual memory."),
    counter("process_cpu_seconds_total", "Its CPU time, without its children."),
    gauge("process_start_time_seconds", "When it started, in seconds since 1970."),
    gauge("process_open_fds", "File descriptors that it has open."),
    gauge("process_max_fds", "File descriptors that it may have open."),
)


class RpcMetrics(Collector):
    """How many calls, how long, how they ended. Labels are bounded: all unknown methods share "unknown"."""

    def __init__(self, registry: CollectorRegistry, refused: Tally) -> None:
        self._refused = refused
        self._handled, self._in_flight = Tally(), Tally()
        self._seconds = Spreads(RPC_SECONDS.buckets)
        registry.register(self)

    def began(self, method: Method) -> None:
        """A call began."""
        self._in_flight[method.service, method.name] += 1

    def ended(self, method: Method, code: grpc.StatusCode, seconds: float) -> None:
        """A call ended with `code` after `seconds`."""
        self._in_flight[method.service, method.name] -= 1
        self._handled[method.service, method.name, code.name] += 1
        self._seconds[method.service, method.name].add(seconds)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        yield numbers(RPC_HANDLED, self._handled)
        yield spreads(RPC_SECONDS, self._seconds)
        yield numbers(RPC_IN_FLIGHT, self._in_flight)
        yield numbers(AUTHENTICATION_FAILURES, self._refused)


class ServiceCollector(Collector):
    """Tells what runs, and when the certificates expire that the settings name.

    Raises:
        InvalidArgument: there are none in one of the files.
    """

    def __init__(self, tls: TlsSettings, client: ClientSettings, registry: CollectorRegistry) -> None:
        files = {
            "server": ("tls.certificate", tls.certificate),
            "client_ca": ("tls.client_ca", tls.client_ca),
            "client": ("client.certificate", client.certificate),
            "server_ca": ("client.ca", client.ca),
        }
        self._build = (version("fanfold"), platform.python_version())
        self._expiries = {
            use: Watched([path], first_expiry, field=field) for use, (field, path) in files.items() if path is not None
        }
        registry.register(self)
        ProcessCollector(registry=registry)

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        yield numbers(BUILD_INFO, {self._build: 1})
        yield numbers(CERTIFICATE_EXPIRY, {(use,): expiry.fresh() for use, expiry in self._expiries.items()})
