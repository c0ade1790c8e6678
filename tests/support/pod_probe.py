"""Asks services on this host what the cluster would, over and over: each line that comes is a list of probes, as JSON.

Prints the answers in order: true where a probe passes. `{"metrics": port}` asks for what is told there, which is text.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]


def answer_to(probe: dict[str, Any]) -> bool | str:
    """Whether a probe passes."""
    match probe:
        case {"grpc": {"port": port, "service": service}}:
            return _serves(port, service)
        case {"httpGet": {"port": port, "path": path}}:
            return _read(port, path) is not None
    return _read(probe["metrics"], "/metrics") or ""


def _serves(port: int, service: str) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _read(port: int, path: str) -> str | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except (urllib.error.URLError, OSError):  # an error of HTTP is one of these
        return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([answer_to(probe) for probe in json.loads(line)]), flush=True)
