"""Coding agents of the command line: what they are told, and what their recorded output means.

The recordings are what the programs wrote to a local server of models, without ids and times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import Access, Preset
from executor_node.agents.command.failures import failure_of
from executor_node.agents.command.presets import CODING_AGENTS
from executor_node.agents.command.readers import Lines
from executor_node.agents.command.report import Report
from executor_node.told import Progress, Result
from fanfold.model.node import AgentKind
from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    SourceAnchor,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)

RECORDINGS = Path(__file__).parent / "recordings"
NAMES = {
    Preset.CLAUDE_CODE: "claude",
    Preset.CODEX: "codex",
    Preset.GEMINI: "gemini",
    Preset.OPENCODE: "opencode",
}
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="Do it.", max_steps=7)


def agent(preset: Preset, **fields: object) -> AgentDefinition:
    definition = AgentDefinition(name="a", description="d", kind=AgentKind.COMMAND, preset=preset)
    return replace(definition, **fields)  # type: ignore[arg-type]


def played(preset: Preset, recording: str | Iterable[object]) -> tuple[Result, list[Progress]]:
    """What comes of an output, which is read in pieces of odd sizes."""
    if isinstance(recording, str):
        data = (RECORDINGS / f"{NAMES[preset]}-{recording}.jsonl").read_bytes()
    else:
        data = "".join(json.dumps(line) + "\n" for line in recording).encode()
    told: list[Progress] = []
    report = Report(told.append, Path("/ws"), max_bytes=1000)
    lines = Lines(report, CODING_AGENTS[preset].form(report).take, 1_000_000)
    for start in range(0, len(data), 333):
        assert lines.add(data[start : start + 333])
    return lines.result(), told


def tools(told: list[Progress]) -> list[ToolFinished]:
    return [each for each in told if isinstance(each, ToolFinished)]


@pytest.mark.contract("C11")
@pytest.mark.parametrize("preset", Preset)
def test_text_and_usage_are_told_as_they_come_and_the_last_message_is_the_output(preset: Preset) -> None:
    result, told = played(preset, "answers")
    assert result.failure is None
    assert result.output == "The word is mandarin."
    assert (result.usage.input_tokens, result.usage.output_tokens) == (303, 33)
    assert result.usage.requests == (1 if preset is Preset.CODEX else 2)
    text = "".join(each.text for each in told if isinstance(each, TextWritten))
    assert text.replace("\n", "") == "Let me look.The word is mandarin."
    turns = [each for each in told if isinstance(each, TurnFinished)]
    assert turns[-1].usage == result.usage
    assert [each.turn for each in turns] == list(range(1, len(turns) + 1))


@pytest.mark.parametrize(
    ("preset", "session"),
    [
        (Preset.CLAUDE_CODE, "ac0cf5ce-fcea-46fe-a8fc-5c05e58da375"),
        (Preset.CODEX, "01a22b39-98d4-7a01-a2e0-22fa19297658"),
        (Preset.GEMINI, "545d0d69-b040-4368-ab30-97f2f984ec11"),
        (Preset.OPENCODE, "ses_dd4c56bafffeYsypqkZUf6mZWM"),
    ],
)
def test_the_session_is_the_programs_own(preset: Preset, session: str) -> None:
    assert played(preset, "answers")[0].session_id == session


@pytest.mark.contract("C4")
@pytest.mark.parametrize(
    ("preset", "name", "detail"),
    [
        (Preset.CLAUDE_CODE, "Read", "/ws/note.txt"),
        (Preset.GEMINI, "read_file", "/ws/note.txt"),
        (Preset.OPENCODE, "read", "note.txt"),
    ],
)
def test_a_file_that_was_read_is_a_source(preset: Preset, name: str, detail: str) -> None:
    result, told = played(preset, "answers")
    assert tools(told) == [ToolFinished(name=name, success=True, detail=detail)]
    assert result.source_anchors == (SourceAnchor(tool=name, url_or_path="note.txt"),)
    result, _ = played(preset, "lines")
    assert result.source_anchors == (SourceAnchor(tool=name, url_or_path="long.txt", lines="10-14"),)


@pytest.mark.contract("C4")
@pytest.mark.parametrize("preset", Preset)
def test_a_tool_that_failed_is_told_as_such_and_is_no_source(preset: Preset) -> None:
    result, told = played(preset, "missing")
    assert [each.success for each in tools(told)] == [False]
    assert result.failure is None
    assert result.output == "It failed."
    assert result.source_anchors == ()


def test_commands_of_codex_are_told() -> None:
    _, told = played(Preset.CODEX, "answers")
    assert tools(told) == [ToolFinished(name="shell", success=True, detail="/bin/bash -lc 'cat note.txt'")]


@pytest.mark.contract("C3", "F8")
@pytest.mark.parametrize("preset", [Preset.CLAUDE_CODE, Preset.CODEX, Preset.OPENCODE])
def test_a_quota_that_is_gone_has_its_code(preset: Preset) -> None:
    failure = played(preset, "quota")[0].failure
    assert failure is not None
    assert failure.code is FailureCode.QUOTA_EXHAUSTED
    assert not failure.retryable


@pytest.mark.contract("C3")
@pytest.mark.parametrize("preset", Preset)
def test_a_wrong_key_is_a_failure_that_no_retry_mends(preset: Preset) -> None:
    failure = played(preset, "credentials")[0].failure
    assert failure is not None
    assert failure.code is FailureCode.AGENT_FAILED
    assert failure.message.startswith("the provider refused the credentials: ")
    assert not failure.retryable


def test_structured_output_of_claude_code_is_the_structured_value() -> None:
    result, _ = played(Preset.CLAUDE_CODE, "structured")
    assert result.structured_json is not None
    assert json.loads(result.structured_json) == {"a": "x"}


def test_claude_code_that_has_taken_all_its_turns_has_failed() -> None:
    failure = played(Preset.CLAUDE_CODE, "turns")[0].failure
    assert failure is not None
    assert failure.message == "it has taken all the turns it may: Reached maximum number of turns (1)"


def test_what_children_of_claude_code_write_is_not_the_answer_but_costs() -> None:
    def event(child: str | None, **fields: object) -> dict[str, object]:
        return {"type": "stream_event", "event": fields, "parent_tool_use_id": child}

    def text(child: str | None, said: str) -> list[dict[str, object]]:
        usage = {"input_tokens": 5, "cache_read_input_tokens": 20}
        return [
            event(child, type="message_start", message={"usage": usage}),
            event(child, type="content_block_delta", delta={"type": "text_delta", "text": said}),
            event(child, type="message_delta", delta={}, usage={"output_tokens": 3}),
        ]

    result, told = played(Preset.CLAUDE_CODE, [*text(None, "Mine."), *text("toolu_1", "A child's.")])
    assert result.output == "Mine."
    assert [each.text for each in told if isinstance(each, TextWritten)] == ["Mine."]
    assert result.usage == Usage(input_tokens=50, output_tokens=6, requests=2)


def test_an_error_that_codex_got_over_is_none() -> None:
    passing = {"type": "error", "message": "stream disconnected - retrying 1/5"}
    done = {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}}
    assert played(Preset.CODEX, [passing, done])[0].failure is None
    failure = played(Preset.CODEX, [passing])[0].failure
    assert failure is not None
    assert failure.retryable


@pytest.mark.parametrize("preset", Preset)
def test_lines_that_make_no_sense_are_passed_over(preset: Preset) -> None:
    lines: list[object] = [
        None,
        [],
        "text",
        {"type": None},
        {"type": "result", "stats": 3, "modelUsage": [], "result": 5},
        {"type": "assistant", "message": {"content": [3, {"type": "tool_use", "id": 1}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "?"}]}},
        {"type": "stream_event", "event": {"type": "message_start", "message": 3}},
        {"type": "item.completed", "item": {"type": "file_change", "changes": [3]}},
        {"type": "turn.completed", "usage": {"input_tokens": "many"}},
        {"type": "tool_use", "part": {"tool": "read", "state": {"input": 3, "metadata": 3}}},
        {"type": "tool_use", "tool_id": "a", "tool_name": "read_file", "parameters": {"file_path": 5}},
        {"type": "tool_result", "tool_id": "a", "status": "success"},
        {"type": "step_finish", "part": {"tokens": {"input": -1, "cache": 5}}},
        {"type": "message", "role": "assistant", "content": {"not": "text"}},
    ]
    result, _ = played(preset, lines)
    assert result.output == ""
    assert result.source_anchors == ()


@pytest.mark.parametrize(
    ("preset", "access", "expected"),
    [
        (Preset.CLAUDE_CODE, Access.READ, "--permission-mode default"),
        (Preset.CLAUDE_CODE, Access.WRITE, "--permission-mode acceptEdits"),
        (Preset.CLAUDE_CODE, Access.FULL, "--permission-mode bypassPermissions"),
        (Preset.CODEX, Access.READ, "-s read-only"),
        (Preset.CODEX, Access.WRITE, "-s workspace-write"),
        (Preset.CODEX, Access.FULL, "-s danger-full-access"),
        (Preset.GEMINI, Access.READ, "--approval-mode default"),
        (Preset.GEMINI, Access.WRITE, "--approval-mode auto_edit"),
        (Preset.GEMINI, Access.FULL, "--approval-mode yolo"),
        (Preset.OPENCODE, Access.FULL, "--auto"),
    ],
)
def test_access_is_said_in_each_programs_words(preset: Preset, access: Access, expected: str) -> None:
    command = CODING_AGENTS[preset].command(agent(preset, access=access), SPEC)
    assert f" {expected} " in f" {' '.join(command)} "


def test_opencode_is_forbidden_what_it_would_allow_itself() -> None:
    known = CODING_AGENTS[Preset.OPENCODE]
    given = known.environment(agent(Preset.OPENCODE), {})
    assert json.loads(given["OPENCODE_PERMISSION"])["bash"] == "deny"
    assert "--auto" not in known.command(agent(Preset.OPENCODE), SPEC)
    assert "OPENCODE_PERMISSION" not in known.environment(agent(Preset.OPENCODE, access=Access.FULL), {})


@pytest.mark.parametrize("preset", Preset)
def test_program_model_instructions_and_schema_reach_it(preset: Preset) -> None:
    known = CODING_AGENTS[preset]
    assert known.command(agent(preset), SPEC)[0] == NAMES[preset]
    definition = agent(preset, command=("/opt/it", "-x"), model="some/model", instructions="Be brief.")
    spec = replace(SPEC, output_schema={"type": "object", "title": "Findings"})
    command, prompt = known.command(definition, spec), known.prompt(definition, spec)
    assert command[:2] == ["/opt/it", "-x"]
    assert "some/model" in command
    assert prompt.endswith("Do it.")
    for words in ("Be brief.", "Findings"):
        assert sum(words in each for each in (*command, prompt)) == 1


def test_claude_code_gets_the_schemas_that_it_takes_as_an_argument_and_others_in_words() -> None:
    known = CODING_AGENTS[Preset.CLAUDE_CODE]
    command = known.command(agent(Preset.CLAUDE_CODE), replace(SPEC, output_schema={"type": "array"}))
    assert "--json-schema" not in command
    assert '{"type": "array"}' in known.prompt(
        agent(Preset.CLAUDE_CODE), replace(SPEC, output_schema={"type": "array"})
    )
    assert command[command.index("--max-turns") + 1] == "7"


def test_a_coding_agent_sees_its_provider_and_what_is_named_and_nothing_else() -> None:
    node = {"HOME": "/h", "PATH": "/p", "ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "o", "EXTRA": "e", "SECRET": "s"}
    given = CODING_AGENTS[Preset.CLAUDE_CODE].environment(agent(Preset.CLAUDE_CODE, env=("EXTRA", "GONE")), node)
    assert given == {
        "HOME": "/h",
        "PATH": "/p",
        "ANTHROPIC_API_KEY": "k",
        "EXTRA": "e",
        "DISABLE_AUTOUPDATER": "1",
    }


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    ("message", "status", "code", "retryable"),
    [
        ("You've hit your usage limit. Try again at 3pm.", None, FailureCode.QUOTA_EXHAUSTED, False),
        ("Claude AI usage limit reached|1764500000", None, FailureCode.QUOTA_EXHAUSTED, False),
        ("You have exhausted your daily quota on this model.", 429, FailureCode.QUOTA_EXHAUSTED, False),
        ("Credit balance is too low", 400, FailureCode.QUOTA_EXHAUSTED, False),
        ("You exceeded your current quota. Please retry in 32.5s.", 429, FailureCode.AGENT_FAILED, True),
        ("This request would exceed your organization's rate limit", None, FailureCode.AGENT_FAILED, True),
        ("whatever", 429, FailureCode.AGENT_FAILED, True),
        ("Overloaded", 529, FailureCode.AGENT_FAILED, True),
        ("whatever", 503, FailureCode.AGENT_FAILED, True),
        ("write failed: Disk quota exceeded", None, FailureCode.AGENT_FAILED, False),
        ("the file has 500 lines, and 429 of them are wrong", None, FailureCode.AGENT_FAILED, False),
        ("unexpected status 503 Service Unavailable", None, FailureCode.AGENT_FAILED, True),
        ("API Error: 529", None, FailureCode.AGENT_FAILED, True),
        ("502 Bad Gateway", None, FailureCode.AGENT_FAILED, True),
        ("prompt is too long", 400, FailureCode.AGENT_FAILED, False),
        ("", None, FailureCode.AGENT_FAILED, False),
    ],
)
def test_errors_of_providers_are_told_apart(
    message: str, status: int | None, code: FailureCode, retryable: bool
) -> None:
    failure = failure_of(message, status)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert message in failure.message
