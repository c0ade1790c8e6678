"""An executor node as it describes itself, and as a coordinator sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class AgentKind(StrEnum):
    """How an agent runs."""

    PYTHON = "python"
    COMMAND = "command"
    LLM = "llm"


class Isolation(StrEnum):
    """How an agent's steps are kept apart: one process tree a step, or a worker that steps share."""

    PROCESS = "process"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent as a node offers it."""

    name: str
    description: str
    kind: AgentKind
    isolation: Isolation
    uses_model: bool = False
    output_schema_json: str = ""
    """JSON Schema of what its steps end with that name none of their own; empty if they end with text."""

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """That schema; None also for what is none, whatever runs on the node."""
        with suppress(ValueError):
            if isinstance(schema := json.loads(self.output_schema_json or "null"), dict):
                return schema
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The files that a node's steps see. `source` is "directory" or "git"."""

    source: str = "directory"
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """An agent whose steps do not get on at the moment because of its model's provider (F8, F9).

    `waiting_on` says in words on what they wait. With `quota`, steps that begin now end QUOTA_EXHAUSTED instead.
    """

    agent: str
    waiting_on: str
    quota: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How a node fares (C10).

    `coordinators` have work there, whoever is told this included; 0 if the node does not say.
    """

    concurrency_hint: int = 0
    max_concurrent_steps: int = 0
    running_steps: int = 0
    draining: bool = False
    coordinators: int = 0
    held_back: tuple[HeldBack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node's own description. `boot_id` names one life of its runtime."""

    name: str
    boot_id: str = ""
    agents: tuple[Agent, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    workspace: Workspace = Workspace()
    status: NodeStatus = NodeStatus()
    version: str = ""


class NodeState(StrEnum):
    """Whether steps can be placed on a node."""

    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the coordinator sees it. `waiting_on` says why it is not ready."""

    node: Node
    address: str
    state: NodeState
    steps_in_flight: int = 0
    waiting_on: str = ""
    state_changed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesChanged:
    """Nodes that are new or changed, and names of those that were forgotten."""

    nodes: tuple[NodeView, ...] = ()
    forgotten: tuple[str, ...] = ()
