"""Names, help texts and labels of the RPC metrics."""

from __future__ import annotations

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fanfold.rpc.call import Method

HANDLED = "fanfold_rpc_handled_total"
SECONDS = "fanfold_rpc_seconds"
IN_FLIGHT = "fanfold_rpc_in_flight"

_METHOD = ("grpc_service", "grpc_method")
# From a call that only answers to a stream that lasts half an hour.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class RpcMetrics:
    """How many calls, how long, how they ended. Labels are bounded: all unknown methods share "unknown"."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._handled = Counter(HANDLED, "Calls that ended, by status code.", (*_METHOD, "code"), registry=registry)
        self._seconds = Histogram(
            SECONDS, "How long calls lasted, streams to their end.", _METHOD, registry=registry, buckets=_BUCKETS
        )
        self._in_flight = Gauge(IN_FLIGHT, "Calls that run now.", _METHOD, registry=registry)
        # To look labels up in the library costs as much as all the rest that surrounds a call.
        self._begun: dict[tuple[str, str], Gauge] = {}
        self._ended: dict[tuple[str, str, grpc.StatusCode], tuple[Gauge, Histogram, Counter]] = {}

    def began(self, method: Method) -> None:
        """A call began."""
        key = (method.service, method.name)
        if key not in self._begun:
            self._begun[key] = self._in_flight.labels(*key)
        self._begun[key].inc()

    def ended(self, method: Method, code: grpc.StatusCode, seconds: float) -> None:
        """A call ended with `code` after `seconds`."""
        key = (method.service, method.name, code)
        if key not in self._ended:
            self._ended[key] = (
                self._in_flight.labels(*key[:2]),
                self._seconds.labels(*key[:2]),
                self._handled.labels(*key[:2], code.name),
            )
        in_flight, lasted, handled = self._ended[key]
        in_flight.dec()
        lasted.observe(seconds)
        handled.inc()
