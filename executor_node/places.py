"""The folders that a node works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from executor_node.config import ExecutorNodeConfig
from fanfold.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are."""

    workspace: Path
    """What steps see."""
    agents: Path | None = None
    """Where modules of Python agents are looked for, besides what is installed."""
    scratch: Path | None = None
    """Where steps get copies and worktrees of the workspace; None is the folder for temporary files."""


def places_of(config: ExecutorNodeConfig) -> Places:
    """The folders that a configuration names.

    Raises:
        InvalidArgument: one of them is no folder.
    """
    scratch = config.agents.scratch
    return Places(
        workspace=_folder("workspace", config.workspace),
        agents=config.agents.directory,
        scratch=None if scratch is None else _folder("agents.scratch", scratch),
    )


def _folder(field: str, path: Path) -> Path:
    folder = path.resolve()
    if not folder.is_dir():
        raise InvalidArgument.of_field(field, f"must be a folder; {folder} is none")
    return folder
