"""Files of python and command agents: keys, defaults, texts (C39)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access, Keep, OutputForm, Preset, PromptBy, WorkspaceUse
from executor_node.agents.files import load_agent_file
from executor_node.agents.front_matter import MAX_AGENT_FILE_BYTES
from fanfold.model.node import Agent, AgentKind, Isolation
from support.agent_files import COMMAND, PYTHON, complaints, write

ALL_COMMAND_KEYS = """
prompt: argument
output: json-lines
env:
  - HOME
  - _X1
max_output_bytes: 10
timeout: 60
idempotent: true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `agents`, by its relative path as an operator would name it."""
    monkeypatch.chdir(tmp_path)
    folder = Path("agents")
    folder.mkdir()
    return folder


def test_a_python_agent_has_the_defaults(folder: Path) -> None:
    assert load_agent_file(write(folder, PYTHON)) == AgentDefinition(
        name="reviewer",
        description="Reviews.",
        kind=AgentKind.PYTHON,
        isolation=Isolation.PROCESS,
        idempotent=False,
        timeout=None,
        entry="team.review:review",
        instructions="Be kind.",
    )


def test_every_key_of_a_python_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, PYTHON + "isolation: shared\nidempotent: true\ntimeout: 1.5\n"))
    assert (agent.isolation, agent.idempotent, agent.timeout) == (Isolation.SHARED, True, 1.5)
    assert agent.describe() == Agent(
        name="reviewer", description="Reviews.", kind=AgentKind.PYTHON, isolation=Isolation.SHARED
    )


def test_every_key_of_a_command_agent(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND + ALL_COMMAND_KEYS))
    assert agent.command == ("git", "log")
    assert (agent.prompt, agent.output) == (PromptBy.ARGUMENT, OutputForm.JSON_LINES)
    assert agent.env == ("HOME", "_X1")
    assert (agent.max_output_bytes, agent.timeout, agent.idempotent) == (10, 60, True)


@pytest.mark.contract("C13")
@pytest.mark.parametrize("front", [PYTHON, COMMAND])
def test_an_agent_uses_no_model_unless_its_file_says_so(folder: Path, front: str) -> None:
    assert not load_agent_file(write(folder, front)).describe().uses_model
    assert load_agent_file(write(folder, front + "uses_model: true\n")).describe().uses_model
    assert not load_agent_file(write(folder, front + "uses_model: false\n")).describe().uses_model
    assert complaints(write(folder, front + "uses_model: 1\n")) == [
        "agents/reviewer.md:6: `uses_model` must be a valid boolean"
    ]


@pytest.mark.contract("C13", "C20")
def test_an_agent_whose_output_a_model_mends_uses_one(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND + "repair_model: openai:m\napi_key_env: KEY\n"))
    assert (agent.repair_model, agent.api_key_env) == ("openai:m", "KEY")
    assert agent.describe().uses_model


def test_a_command_agent_has_the_defaults(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND))
    assert (agent.prompt, agent.output, agent.env, agent.max_output_bytes) == (
        PromptBy.STDIN,
        OutputForm.TEXT,
        (),
        None,
    )


def test_the_body_is_kept_and_may_hold_fences(folder: Path) -> None:
    path = write(folder, PYTHON, "\n# Title\n\n---\n\nMore.\n\n")
    assert load_agent_file(path).instructions == "# Title\n\n---\n\nMore."


def test_windows_line_ends_and_a_byte_order_mark_are_read(folder: Path) -> None:
    path = write(folder, PYTHON, "One.\nTwo.")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    agent = load_agent_file(path)
    assert (agent.entry, agent.instructions) == ("team.review:review", "One.\nTwo.")
    path.write_bytes(path.read_bytes().replace(b"entry", b"entri"))
    assert complaints(path) == ["agents/reviewer.md:5: unknown key `entri` (did you mean `entry`?)"]


def test_a_definition_goes_through_pickle(folder: Path) -> None:
    agent = load_agent_file(write(folder, COMMAND))
    assert pickle.loads(pickle.dumps(agent)) == agent


def test_a_file_of_just_the_limit_is_read(folder: Path) -> None:
    path = write(folder, PYTHON, "")
    path.write_bytes(path.read_bytes().ljust(MAX_AGENT_FILE_BYTES, b"x"))
    assert load_agent_file(path).instructions.endswith("xxx")


def test_every_key_of_an_agent_with_a_preset(folder: Path) -> None:
    keys = "preset: gemini\naccess: write\nmodel: gemini-3-pro\nworkspace: worktree\nkeep: on-failure\n"
    agent = load_agent_file(write(folder, f"name: a\ndescription: d\nkind: command\n{keys}"))
    assert (agent.preset, agent.access, agent.model) == (Preset.GEMINI, Access.WRITE, "gemini-3-pro")
    assert (agent.workspace, agent.keep) == (WorkspaceUse.WORKTREE, Keep.ON_FAILURE)
    assert agent.describe().uses_model
