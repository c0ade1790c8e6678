"""What methods are called with."""

from __future__ import annotations

from typing import Any

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
