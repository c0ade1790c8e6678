"""What a service lets whom call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from grpc_health.v1 import health  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from fanfold.model.principal import Role

Policy: TypeAlias = Mapping[str, frozenset[Role]]
"""The methods of a service by name, and the roles of which one is needed to call it. What it does not name, nobody may
call."""

OPEN_SERVICES = frozenset({health.SERVICE_NAME})
"""Whoever can connect may ask these: an orchestrator asks for health and has no identity."""

SERVICES_FOR_ALL = frozenset({reflection.SERVICE_NAME})
"""These need no role, but somebody who is known."""
