"""What a node offers: the agents of its files, read again when these change.

A folder that makes no sense is told in the log, and the agents stay as they were. Steps that run keep the definition
that they began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from executor_node.agents import AgentDefinition
from executor_node.agents.files import agent_files, load_agents
from executor_node.config import Agents
from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.node import Agent

LOOK_SECONDS = 1.0
"""How often somebody looks whether the files have changed. A change is read once a look finds nothing newer."""

_Looks = frozenset[tuple[str, int, int, int]]

log = structlog.get_logger(__name__)


class Offer:
    """The agents of a node, by name.

    Raises (on making one):
        InvalidArgument: naming file and line of everything that is wrong in any of the files.
    """

    def __init__(self, config: Agents) -> None:
        self._config = config
        self._looks = _looks_of(config.directory)
        self._take(self._load())

    async def keep_current(self, on_change: Callable[[], None]) -> None:
        """Look after the files without end, and call `on_change` after what has changed was read."""
        if self._config.directory is None:
            return
        seen = self._looks
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            looks = await asyncio.to_thread(_looks_of, self._config.directory)
            if looks == seen and looks != self._looks:  # nobody is in the midst of writing
                self._looks = looks
                await self._read_again(on_change)
            seen = looks

    async def _read_again(self, on_change: Callable[[], None]) -> None:
        try:
            agents = await asyncio.to_thread(self._load)
        except InvalidArgument as error:
            log.warning("agent files are wrong; the agents stay as they were", wrong=[*map(str, error.violations)])
            return
        if agents != self.agents:
            self._take(agents)
            log.info("agent files were read again", agents=sorted(agents))
            on_change()

    def _load(self) -> Mapping[str, AgentDefinition]:
        config = self._config
        return load_agents(config.directory, builtin=config.builtin, shell=config.shell, remark=_remark)

    def _take(self, agents: Mapping[str, AgentDefinition]) -> None:
        self.agents = agents
        self.described: tuple[Agent, ...] = tuple(agents[name].describe() for name in sorted(agents))
        """As the node tells of them."""


def _looks_of(directory: Path | None) -> _Looks:
    """What is different when a file is."""
    looks = set()
    with suppress(InvalidArgument):  # a folder that is gone for the moment has no files
        for path in agent_files(directory) if directory else ():
            with suppress(OSError):  # it is about to go
                state = path.stat()
                looks.add((path.name, state.st_ino, state.st_size, state.st_mtime_ns))
    return frozenset(looks)


def _remark(violation: FieldViolation) -> None:
    log.warning("of an agent file is left out", what=str(violation))
