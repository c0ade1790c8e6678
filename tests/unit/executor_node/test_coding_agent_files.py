"""Agent files of coding agents, taken as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_node.agents.command.definition import Access, Preset
from executor_node.agents.files import load_agent_file, load_agents
from fanfold.model.node import AgentKind
from support.agent_files import NOT_KEBAB, complaints, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


CLAUDE_CODES = """
name: code-reviewer
description: |
  Reviews code.
  Use it after edits.
tools: Read, Grep, Edit
model: sonnet
color: blue
"""


OPENCODES = """
description: Plans.
mode: subagent
model: anthropic/claude-sonnet-5
tools:
  write: false
  bash: true
"""


def remarks(folder: Path) -> list[str]:
    told: list[str] = []
    load_agents(folder, remark=lambda violation: told.append(str(violation)))
    return told


def test_an_agent_file_of_claude_code_is_taken_as_it_is(folder: Path) -> None:
    path = write(folder, CLAUDE_CODES)
    agent = load_agent_file(path)
    assert (agent.name, agent.description) == ("code-reviewer", "Reviews code. Use it after edits.")
    assert (agent.kind, agent.preset, agent.model) == (AgentKind.COMMAND, Preset.CLAUDE_CODE, "sonnet")
    assert (agent.access, agent.instructions) == (Access.WRITE, "Be kind.")
    assert agent.describe().uses_model
    assert remarks(folder) == [
        "agents/reviewer.md:6: `tools` is taken as `access: write` only",
        "agents/reviewer.md:8: `color` is not supported for agents of claude-code, and left out",
    ]


def test_an_agent_file_of_opencode_has_the_name_of_its_file(folder: Path) -> None:
    agent = load_agent_file(write(folder, OPENCODES, name="My planner.md"))
    assert (agent.name, agent.preset, agent.access) == ("my-planner", Preset.OPENCODE, Access.READ)
    assert agent.model == "anthropic/claude-sonnet-5"
    assert "agents/My planner.md:3: `mode` is not supported for agents of opencode, and left out" in remarks(folder)


@pytest.mark.parametrize(
    ("mode", "access"), [("acceptEdits", Access.WRITE), ("bypassPermissions", Access.FULL), ("plan", Access.READ)]
)
def test_what_a_coding_agents_file_lets_it_do_is_taken_over(folder: Path, mode: str, access: Access) -> None:
    front = f"name: a\ndescription: d\nmodel: inherit\npermissionMode: {mode}\n"
    agent = load_agent_file(write(folder, front))
    assert (agent.access, agent.model) == (access, "")


def test_what_is_wrong_in_a_coding_agents_file_is_told_with_its_line(folder: Path) -> None:
    assert complaints(write(folder, "description: d\nname: Not Kebab\ncolor: red\n")) == [
        f"agents/reviewer.md:3: {NOT_KEBAB}"
    ]


def test_a_file_that_lacks_its_kind_is_not_taken_for_a_coding_agents(folder: Path) -> None:
    front = "name: a\ndescription: d\nmodel: openai:gpt-5\ntools: [read]\nmax_steps: 3\n"
    assert complaints(write(folder, front)) == ["agents/reviewer.md:1: `kind` is required"]
