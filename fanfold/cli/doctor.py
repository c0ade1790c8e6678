"""`fanfold doctor`: whether all that a mesh needs is there on this machine, and how the mesh fares (C30, C42)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import re
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from fanfold.cli.connection import REGISTRY_UNREACHABLE, connected, connected_jobs
from fanfold.cli.output import show_document, show_text
from fanfold.cli.printable import printable
from fanfold.errors import NO_CONNECTION, FanfoldError, Unavailable
from fanfold.model.node import Agent, NodeState, NodeView
from fanfold.rpc.addresses import parse_address, parse_addresses
from fanfold.rpc.loop import run as run_loop
from fanfold.sdk.mesh import Mesh
from fanfold.settings import client_settings
from fanfold.sql.health import write_and_read

OLDEST_PYTHON = (3, 11)
ANSWER_SECONDS = 10.0
"""Longest wait for a service of the mesh."""

_Answer = TypeVar("_Answer")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)(?:;(.*))?")


class State(StrEnum):
    """How it is with something."""

    GOOD = "good"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing. Only what is needed can be broken."""

    what: str
    state: State
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Where to look. Services that somebody has named are needed; those of the defaults may well be down."""

    server: str | None
    registry: str | None
    data_dir: Path


def examine(where: Looked, *, as_json: bool) -> bool:
    """Look at everything and print what was found. Whether nothing that is needed is broken."""
    findings = [*_python(), *_libraries(), *_stores(where.data_dir), *run_loop(_what_answers(where))]
    if as_json:
        show_document({"ok": _all_well(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        show_text(f"{finding.state:<8} {finding.what}: {printable(finding.words)}" for finding in findings)
    return _all_well(findings)


def _all_well(findings: list[Finding]) -> bool:
    return not any(finding.state is State.BROKEN for finding in findings)


# This machine.


def _python() -> Iterator[Finding]:
    words = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("python", State.GOOD if sys.version_info >= OLDEST_PYTHON else State.BROKEN, words)


def _libraries() -> Iterator[Finding]:
    """Those that the package needs, as far as this system has to have them."""
    wrong: list[str] = []
    right: list[str] = []
    for requirement in importlib.metadata.requires("fanfold") or ():
        match = _REQUIREMENT.fullmatch(requirement.replace(" ", ""))
        if match is None or (match[3] and "extra" in match[3]) or (match[3] and sys.platform in match[3]):
            continue
        name, least = match[1], match[2]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        (right if _numbers(version) >= _numbers(least) else wrong).append(f"{name} {version}")
    yield Finding("libraries", State.BROKEN if wrong else State.GOOD, ", ".join(wrong or right))
    try:
        yield Finding("models", State.GOOD, f"pydantic-ai {importlib.metadata.version('pydantic-ai-slim')}")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("models", State.WARNING, "agents of kind llm cannot run here: pip install 'fanfold[llm]'")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _stores(data_dir: Path) -> Iterator[Finding]:
    """Whether databases can be kept here; of a folder that is not there yet, where it is to be."""
    name, folder = f"SQLite {sqlite3.sqlite_version}", data_dir.resolve()
    try:
        while not folder.is_dir():
            folder = folder.parent
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            began = time.perf_counter()
            why = write_and_read(Path(trial, "try.db"))
            took = (time.perf_counter() - began) * 1000
    except OSError as error:
        why = error.strerror or str(error)
    words = f"{name} cannot write in {folder}: {why}" if why else f"{name} writes durably in {folder}: {took:.0f} ms"
    yield Finding("store", State.BROKEN if why else State.GOOD, words)


# What answers.


async def _what_answers(where: Looked) -> list[Finding]:
    found = [await _engine(), *await _mesh(where)]
    return [*found, await _registry(where)]


async def _engine() -> Finding:
    """Whether scripts can be run here, and what is between them and this machine."""
    # No other command needs the engine.
    from coordinator.scripts.engine.engine import EngineFailed, ScriptStart  # noqa: PLC0415
    from coordinator.scripts.engine.lockdown import SECCOMP, Limits  # noqa: PLC0415
    from coordinator.scripts.engine.quickjs import QuickJsEngine  # noqa: PLC0415

    async with QuickJsEngine(Limits(heap_bytes=64 * 2**20, cpu_seconds=30), spare=0) as engine:
        try:
            process = await engine.start(ScriptStart(source="return 1", args=None, seed=(0, 0, 0, 0), now=0))
            process.kill()
            await process.closed()
        except EngineFailed as error:
            return Finding("script engine", State.BROKEN, str(error))
        words = ", ".join(engine.protections)
        if SECCOMP in engine.protections:
            return Finding("script engine", State.GOOD, words)
        return Finding("script engine", State.WARNING, f"{words}; this system has no seccomp")


async def _mesh(where: Looked) -> list[Finding]:
    """Whether each coordinator answers, and what the first of those that do knows."""
    given = parse_addresses(where.server, field="--server") if where.server else client_settings().servers
    coordinators: list[Finding] = []
    known: list[Finding] = []
    for address in given:
        try:
            async with connected(address, reconnect_timeout=0) as mesh:
                nodes = await _soon(mesh.nodes())
                coordinators.append(Finding("coordinator", State.GOOD, f"answers at {address}"))
                known = known or [_nodes(nodes), _agents(await _soon(mesh.agents())), await _runs(mesh)]
        except FanfoldError as error:
            coordinators.append(_unreached("coordinator", address, error, is_needed=where.server is not None))
    return [*coordinators, *known]


def _nodes(nodes: Sequence[NodeView]) -> Finding:
    ready = sum(view.state is NodeState.READY for view in nodes)
    others = [f"{view.node.name or view.address} is {view.state}" for view in nodes if view.state != NodeState.READY]
    return Finding("nodes", State.GOOD if ready else State.BROKEN, ", ".join([f"{ready} ready", *others]))


def _agents(agents: Sequence[Agent]) -> Finding:
    names = ", ".join(agent.name for agent in agents)
    return Finding("agents", State.GOOD if agents else State.BROKEN, names or "no ready node offers any")


async def _runs(mesh: Mesh) -> Finding:
    """Whether the coordinator can look them up; without its journal it still knows nodes and agents."""
    try:
        await _soon(mesh.runs(limit=1))
    except FanfoldError as error:
        return Finding("runs", State.BROKEN, error.message)
    return Finding("runs", State.GOOD, "can be looked up")


async def _registry(where: Looked) -> Finding:
    named = where.registry
    address = str(parse_address(named, field="--registry")) if named else client_settings().registry
    try:
        async with connected_jobs(address) as jobs:
            await _soon(jobs.list(limit=1))
    except FanfoldError as error:
        return _unreached("job registry", address, error, is_needed=named is not None)
    return Finding("job registry", State.GOOD, f"answers at {address}")


async def _soon(answer: Awaitable[_Answer]) -> _Answer:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer
    except TimeoutError:
        raise Unavailable(f"no answer within {ANSWER_SECONDS:g} s") from None


def _unreached(what: str, address: str, error: FanfoldError, *, is_needed: bool) -> Finding:
    """A service that does not answer. One that nobody named may not have been started: then its port has to be free."""
    is_down = error.reason in {NO_CONNECTION, REGISTRY_UNREACHABLE}
    if is_down and not is_needed and _is_free(address):
        return Finding(what, State.WARNING, f"nothing runs at {address}; `fanfold up` starts it, and its port is free")
    return Finding(what, State.BROKEN, error.message.partition("\n")[0])


def _is_free(address: str) -> bool:
    where = parse_address(address, field="address")
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trying.bind((where.host, where.port))
        return True
    return False
