"""The coding agents themselves, as presets run them: an answer with a tool call, and a cancel in mid-run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clis.programs import MODELS, TOOLS, answers, command_of, home_for, model_server, server_program
from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access, Preset
from fanfold.model.node import AgentKind
from fanfold.model.step import FailureCode, SourceAnchor, TextWritten, ToolFinished
from integration.node_harness import eventually, find_processes, new_marker, running_node

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

PATIENCE = 90.0
"""Seconds that one of them may take, on a machine that is busy; it takes one to ten."""


@pytest.fixture
def installed(pytestconfig: pytest.Config) -> Path:
    return Path(pytestconfig.getoption("--clis"))


def agent_of(preset: Preset, installed: Path, *, access: Access) -> AgentDefinition:
    command = command_of(preset, installed)
    if not server_program(installed).exists():
        pytest.skip("the package of the server of models could not be installed")
    if command is None:
        pytest.skip(f"the package of {preset} could not be installed")
    return AgentDefinition(
        name="coder",
        description="for tests",
        kind=AgentKind.COMMAND,
        preset=preset,
        command=command,
        access=access,
        model=MODELS[preset],
        env=("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "IS_SANDBOX", "OPENCODE_DISABLE_MODELS_FETCH"),
    )


@pytest.mark.contract("C4", "C11")
@pytest.mark.parametrize("preset", Preset)
async def test_a_coding_agent_answers_with_what_a_tool_has_read(
    preset: Preset, installed: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "note.txt").write_text("the word is mandarin\n")
    tools, is_shell = TOOLS[preset], preset is Preset.CODEX
    argument = "cat note.txt" if is_shell else str(workspace / "note.txt")
    said = answers(preset, "find-the-word", tools.read, {tools.read_path: argument}, "It is mandarin.")
    agent = agent_of(preset, installed, access=Access.FULL if is_shell else Access.READ)
    async with model_server(installed, tmp_path / "answers", said) as server:
        environment = home_for(preset, tmp_path / "home", server)
        async with running_node(workspace, agent, environment=environment) as node:
            life = node.start("coder", "find-the-word, please")
            await eventually(lambda: life.has_ended, patience=PATIENCE)
            outcome = await life.outcome()
            assert not node.processes
    assert outcome.failure is None
    assert outcome.output == "It is mandarin."
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (300, 30)
    assert len(outcome.agent_session_id) >= len("ses_") + 20
    finished = [each for each in life.progress if isinstance(each, ToolFinished)]
    assert [each.success for each in finished] == [True]
    assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)).strip() == "It is mandarin."
    if not is_shell:
        assert outcome.source_anchors == (SourceAnchor(tool=tools.read, url_or_path="note.txt"),)


@pytest.mark.contract("F1", "F17", "F24")
@pytest.mark.parametrize("preset", Preset)
async def test_a_coding_agent_that_is_cancelled_in_mid_run_leaves_no_process(
    preset: Preset, installed: Path, tmp_path: Path
) -> None:
    marker, workspace = new_marker(), tmp_path / "workspace"
    workspace.mkdir()
    tools = TOOLS[preset]
    # Some of them refuse to run `sleep`.
    waiting = f"{sys.executable} -c 'import time; time.sleep(7200)' {marker}"
    said = answers(preset, "wait-for-it", tools.shell, {tools.shell_command: waiting}, "Never said.")
    agent = agent_of(preset, installed, access=Access.FULL)
    async with model_server(installed, tmp_path / "answers", said) as server:
        environment = home_for(preset, tmp_path / "home", server)
        async with running_node(workspace, agent, environment=environment) as node:
            life = node.start("coder", "wait-for-it, please")
            await eventually(lambda: life.has_ended or find_processes(marker), patience=PATIENCE)
            assert not life.has_ended, life.events[-1]
            node.cancel(life)
            outcome = await life.outcome()
            assert not find_processes(marker)
            assert not node.processes
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CANCELLED
