"""What can be said against a node's settings without starting it: `fanfold serve executor-node --check-config`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from executor_node.agents.files import load_agents
from executor_node.config import ExecutorNodeConfig
from fanfold.errors import FieldViolation
from fanfold.rpc.addresses import parse_address
from fanfold.rpc.preflight import said_by, troubles_of_addresses, troubles_of_calling, troubles_of_serving, unreadable


def contradictions(config: ExecutorNodeConfig) -> Iterator[FieldViolation]:
    """Settings that are right each, and wrong together."""
    capacity, agents = config.capacity, config.agents
    if capacity.concurrency_hint > capacity.max_concurrent_steps:
        yield FieldViolation("capacity.concurrency_hint", "must not be more than capacity.max_concurrent_steps")
    if agents.directory is None and not agents.builtin and not agents.shell:
        yield FieldViolation("agents.directory", "is needed without the built-in agents: the node would offer none")


def troubles(config: ExecutorNodeConfig) -> Iterator[FieldViolation]:
    """What this machine lacks of what the settings name, addresses that are none, and faults of agent files."""
    yield from troubles_of_serving(config)
    yield from unreadable(config.traces, "traces")
    yield from troubles_of_addresses(config.announce_to, "announce_to")
    yield from troubles_of_calling(config.client, config.announce_to)
    if config.advertise:
        yield from said_by(partial(parse_address, config.advertise, field="advertise"), "advertise")
    yield from _troubles_of_folder(config.workspace, "workspace", os.R_OK | os.X_OK)
    if config.agents.scratch is not None:
        yield from _troubles_of_folder(config.agents.scratch, "agents.scratch", os.R_OK | os.W_OK | os.X_OK)
    agents = config.agents
    for wrong in said_by(
        lambda: load_agents(agents.directory, builtin=agents.builtin, shell=agents.shell), "agents.directory"
    ):
        yield FieldViolation("agents.directory", str(wrong))


def _troubles_of_folder(folder: Path, field: str, access: int) -> Iterator[FieldViolation]:
    if not folder.is_dir():
        yield FieldViolation(field, f"must be a folder; {folder.absolute()} is none")
    elif not os.access(folder, access):
        yield FieldViolation(field, f"{folder.absolute()} may not be {'written in' if access & os.W_OK else 'read'}")
