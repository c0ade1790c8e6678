"""Who calls."""

from __future__ import annotations

from typing import Any

import grpc.aio

ANONYMOUS = "anonymous"
"""The principal of every caller until callers can be authenticated; services listen on loopback only until then."""

Context = grpc.aio.ServicerContext[Any, Any]
