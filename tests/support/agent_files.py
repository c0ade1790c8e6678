"""Agent files for tests, written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_node.agents.files import load_agent_file
from fanfold.errors import InvalidArgument

PYTHON = "name: reviewer\ndescription: Reviews.\nkind: python\nentry: team.review:review\n"
COMMAND = "name: git-log\ndescription: Logs.\nkind: command\ncommand: [git, log]\n"


def write(folder: Path, front: str, body: str = "Be kind.", name: str = "reviewer.md") -> Path:
    path = folder / name
    path.write_text(f"---\n{front.strip()}\n---\n{body}\n")
    return path


def complaints(path: Path) -> list[str]:
    with pytest.raises(InvalidArgument) as caught:
        load_agent_file(path)
    return [str(violation) for violation in caught.value.violations]


NOT_KEBAB = "`name` must be lower-case words joined by single hyphens"
