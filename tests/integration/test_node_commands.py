"""Command agents: what they get, what they may write, and what their end means."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.command.definition import EventRule, OutputForm, Preset, PromptBy
from executor_node.agents.command.invocation import MAX_ARGUMENT_BYTES
from fanfold.model.node import AgentKind
from fanfold.model.step import FailureCode, SourceAnchor, StepPolicy, TextWritten, ToolFinished, TurnFinished, Usage
from integration.node_harness import CLEAN_ENVIRONMENT, command_agent, find_processes, new_marker, running_node

pytestmark = pytest.mark.process


async def test_a_prompt_comes_as_the_last_argument_or_on_standard_input(tmp_path: Path) -> None:
    agents = (
        command_agent("echo", "echo", "-n", "you say:", prompt=PromptBy.ARGUMENT),
        command_agent("cat", "cat", prompt=PromptBy.STDIN),
    )
    async with running_node(tmp_path, *agents) as node:
        assert (await node.run("echo", "two words")).output == "you say: two words"
        long = "é" * 500_000
        assert (await node.run("cat", long)).output == long


async def test_a_command_without_a_prompt_on_standard_input_finds_it_empty(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run("shell", "cat; echo end")).output == "end\n"


async def test_a_command_runs_in_the_workspace(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "pwd; echo written > file")
    assert outcome.output.strip() == str(tmp_path.resolve())
    assert (tmp_path / "file").read_text() == "written\n"


@pytest.mark.contract("C2")
async def test_a_quiet_command_that_exits_0_is_a_success(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "true")
    assert outcome.success
    assert outcome.failure is None
    assert outcome.output == ""
    assert (outcome.attempts, outcome.node, outcome.agent, outcome.task_id) == (1, "node-under-test", "shell", "task-0")
    assert outcome.session_id
    assert outcome.started_at is not None
    assert outcome.ended_at is not None
    assert outcome.started_at <= outcome.ended_at
    assert outcome.started_at.tzinfo is not None


@pytest.mark.contract("C2", "C3")
async def test_an_exit_code_is_a_failure_that_tells_what_went_wrong_and_keeps_the_output(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "echo so far; echo no such luck >&2; exit 3")
    assert not outcome.success
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    assert outcome.failure.message == "exit code 3: no such luck"
    assert not outcome.failure.retryable
    assert outcome.output == "so far\n"


@pytest.mark.contract("C3")
async def test_a_command_that_a_signal_kills_has_crashed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "echo oh >&2; kill -SEGV $$")
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.CRASHED
    assert outcome.failure.message == "killed by SIGSEGV: oh"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "cannot start no-such-program"),
        ([__file__], "Permission denied"),
        (["/bin/echo", "\0"], "null byte"),
    ],
)
async def test_a_program_that_cannot_be_started_is_told(tmp_path: Path, command: list[str], message: str) -> None:
    async with running_node(tmp_path, command_agent("broken", *command)) as node:
        outcome = await node.run("broken")
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    assert message in outcome.failure.message


async def test_a_prompt_too_long_for_an_argument_is_told(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "#" * (MAX_ARGUMENT_BYTES + 1))
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
        assert (await node.run("shell", "#" * MAX_ARGUMENT_BYTES)).success


@pytest.mark.contract("C3")
async def test_a_prompt_that_no_argument_can_hold_is_refused_before_anything_starts(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "touch ran\0")
        assert not node.processes
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.AGENT_FAILED
    assert "NUL" in outcome.failure.message
    assert not (tmp_path / "ran").exists()


@pytest.mark.contract("F11")
@pytest.mark.parametrize("form", OutputForm)
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"\xff" * 900, id="invalid bytes"),
        pytest.param(b'{"result": [' + b"1e15," * 150 + b"0]}", id="numbers"),
    ],
)
async def test_output_that_grows_when_it_is_read_is_cut_to_the_limit(
    tmp_path: Path, line: bytes, form: OutputForm
) -> None:
    (tmp_path / "line").write_bytes(line + b"\n")
    agent = command_agent("grows", "/bin/cat", output=form)
    async with running_node(tmp_path, agent, output_bytes=1000) as node:
        outcome = await node.run("grows", "line")
    if b"result" in line and form is OutputForm.TEXT:
        assert outcome.success  # nobody reads it
    else:
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
        assert not outcome.failure.retryable
        assert 990 < len(outcome.output.encode()) <= 1000


async def test_a_command_sees_the_variables_that_its_file_names_and_no_others(tmp_path: Path) -> None:
    agent = command_agent("env", "/usr/bin/env", env=("WANTED", "MISSING"))
    environment = {"WANTED": "yes", "SECRET": "hunter2", "PATH": "/usr/bin"}
    async with running_node(tmp_path, agent, environment=environment) as node:
        outcome = await node.run("env", "-0")
    assert outcome.output.rstrip("\0").split("\0") == ["WANTED=yes"]


async def test_a_command_has_no_file_descriptors_but_the_three(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "ls /proc/$$/fd")
    assert outcome.output.split() == ["0", "1", "2"]


async def test_output_that_is_no_utf_8_is_told_with_replacements(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert (await node.run("shell", r"printf 'a\377b'")).output == "a\ufffdb"


async def test_text_is_told_as_it_is_written(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with running_node(tmp_path) as node:
        life = node.start("shell", f"echo first; until [ -e {gate} ]; do sleep 0.01; done; echo second")
        assert await life.first_progress() == TextWritten(text="first\n")
        gate.touch()
        assert (await life.outcome()).output == "first\nsecond\n"
    assert "".join(p.text for p in life.progress if isinstance(p, TextWritten)) == "first\nsecond\n"


@pytest.mark.contract("F15", "C3")
async def test_a_command_that_floods_its_output_is_ended_and_the_output_kept_up_to_the_limit(tmp_path: Path) -> None:
    marker = new_marker()
    agent = command_agent("flood", "sh", "-c", f"sleep {marker} & yes", env=("PATH",), max_output_bytes=100_001)
    async with running_node(tmp_path, agent) as node:
        life = node.start("flood")
        outcome = await life.outcome()
        assert not find_processes(marker)
        assert not node.processes
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
    assert not outcome.failure.retryable
    assert "100,001 bytes" in outcome.failure.message
    assert outcome.output == "y\n" * 50_000 + "y"
    assert len(life.progress) < 20


@pytest.mark.contract("F15")
async def test_the_limit_of_the_node_holds_for_agents_that_allow_themselves_more(tmp_path: Path) -> None:
    agent = command_agent("much", "head", "-c", "1001", "/dev/zero", env=("PATH",), max_output_bytes=5000)
    async with running_node(tmp_path, command_agent("enough", "head", "-c", "1000"), agent, output_bytes=1000) as node:
        outcome = await node.run("much", "/dev/null")
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
        assert len(outcome.output) == 1000
        assert (await node.run("enough", "/dev/zero")).output == "\0" * 1000


@pytest.mark.contract("F15")
@pytest.mark.contract("C2", "F12")
async def test_a_command_that_took_too_long_tells_what_it_had_to_complain_about(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "echo waiting for the lock >&2; sleep 60", policy=StepPolicy(timeout=3))
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.TIMED_OUT
    assert outcome.failure.message == "it took longer than 3 seconds; standard error: waiting for the lock"


async def test_a_flood_of_errors_is_read_and_forgotten(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        outcome = await node.run("shell", "head -c 3000000 /dev/zero | tr '\\0' e >&2; echo the end >&2; exit 1")
    assert outcome.failure is not None
    assert outcome.failure.message.endswith("eeethe end")
    assert len(outcome.failure.message) < 2100


JSON_LINES = r"""
import json
def say(**line): print(json.dumps(line), flush=True)
say(text="Once ")
print("a line that is no JSON")
say(tool="read", success=True, detail="a story", source="story.txt", lines="1-3")
say(tool="read", success=False, source="secret.txt")
say(turn=1, usage=dict(input_tokens=100, output_tokens=20, requests=1))
say(turn="last")
say(result=%s)
"""


@pytest.mark.contract("C4", "C11")
async def test_json_lines_tell_progress_sources_cost_and_the_result(tmp_path: Path) -> None:
    agent = command_agent("lines", sys.executable, "-c", output=OutputForm.JSON_LINES)
    async with running_node(tmp_path, agent) as node:
        life = node.start("lines", JSON_LINES % {"answer": 42}, schema={"required": ["answer"]})
        outcome = await life.outcome()
        assert outcome.failure is None
        assert json.loads(outcome.output) == outcome.structured == {"answer": 42}
        assert outcome.usage == Usage(input_tokens=100, output_tokens=20, requests=1)
        assert outcome.source_anchors == (SourceAnchor(tool="read", url_or_path="story.txt", lines="1-3"),)
        assert ToolFinished(name="read", success=True, detail="a story") in life.progress
        assert TurnFinished(turn=1, usage=outcome.usage) in life.progress
        assert (await node.run("lines", JSON_LINES % "'plain text'")).output == "plain text"


async def test_the_last_json_line_is_the_result_if_none_says_that_it_is(tmp_path: Path) -> None:
    agent = command_agent("lines", "printf", "%b", output=OutputForm.JSON_LINES, env=("PATH",))
    async with running_node(tmp_path, agent) as node:
        assert (await node.run("lines", r'{"a":1}\n\n{"a":2}\n{"text":"bye"}')).output == '{"a": 2}'
        assert (await node.run("lines", "no JSON at all")).output == "no JSON at all"


@pytest.mark.contract("C1")
async def test_a_command_can_get_the_whole_spec_as_json(tmp_path: Path) -> None:
    async with running_node(tmp_path, command_agent("cat", "cat", prompt=PromptBy.JSON)) as node:
        outcome = await node.run("cat", "é\0", policy=StepPolicy(max_tokens=7), schema={"type": "object"})
    spec = json.loads(outcome.output)
    assert (spec["task_id"], spec["agent"], spec["prompt"], spec["max_steps"]) == ("task-0", "cat", "é\0", 50)
    assert (spec["output_schema"], spec["policy"]["max_tokens"]) == ({"type": "object"}, 7)
    assert outcome.structured == spec


async def test_one_json_value_is_the_result_or_says_where_it_is(tmp_path: Path) -> None:
    rule = EventRule(result="answer.text", session="id", input_tokens="cost.in", output_tokens="cost.out")
    agents = (
        command_agent("plain", "printf", "%s", output=OutputForm.JSON, env=("PATH",)),
        command_agent("mapped", "printf", "%s", output=OutputForm.JSON, env=("PATH",), events=(rule,)),
    )
    async with running_node(tmp_path, *agents) as node:
        plain = await node.run("plain", '{"a": [1]}', schema={"required": ["a"]})
        assert plain.structured == {"a": [1]}
        assert (await node.run("plain", "no JSON")).output == "no JSON"
        mapped = await node.run("mapped", '{"id": "s-1", "answer": {"text": "yes"}, "cost": {"in": 3, "out": 2}}')
    assert (mapped.output, mapped.agent_session_id) == ("yes", "s-1")
    assert mapped.usage == Usage(input_tokens=3, output_tokens=2)


@pytest.mark.contract("C4", "C11")
async def test_lines_of_any_form_are_read_as_the_agent_file_says(tmp_path: Path) -> None:
    rules = (
        EventRule(when={"type": "says", "final": False}, text="parts.0.text"),
        EventRule(when={"type": "used"}, tool="name", success="ok", detail="what", source="path", lines="lines"),
        EventRule(when={"type": "cost"}, input_tokens="in", output_tokens="out", adds=True),
        EventRule(when={"type": "end"}, result="value", session="session", error="problem"),
    )
    lines = [
        {"type": "says", "final": False, "parts": [{"text": "Hm."}]},
        {"type": "says", "final": 0, "parts": [{"text": "not told"}]},
        {"type": "used", "name": "read", "ok": True, "what": "w", "path": "a.txt", "lines": "2-3"},
        {"type": "used", "name": "read", "ok": False, "path": "b.txt"},
        {"type": "cost", "in": 10, "out": 1},
        {"type": "cost", "in": 20, "out": 2},
        {"type": "end", "value": {"x": 1}, "session": "s-2", "problem": None},
    ]
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    agent = command_agent("mapped", "/bin/cat", output=OutputForm.JSON_LINES, events=rules)
    async with running_node(tmp_path, agent) as node:
        life = node.start("mapped", "lines")
        outcome = await life.outcome()
        (tmp_path / "broken").write_text('{"type": "end", "problem": "it is late"}\n')
        broken = await node.run("mapped", "broken")
    assert (outcome.success, outcome.output, outcome.agent_session_id) == (True, '{"x": 1}', "s-2")
    assert outcome.usage == Usage(input_tokens=30, output_tokens=3, requests=2)
    assert outcome.source_anchors == (SourceAnchor(tool="read", url_or_path="a.txt", lines="2-3"),)
    assert [each for each in life.progress if isinstance(each, ToolFinished)] == [
        ToolFinished(name="read", success=True, detail="w"),
        ToolFinished(name="read", success=False),
    ]
    assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)) == "Hm."
    assert broken.failure is not None
    assert (broken.failure.code, broken.failure.message) == (FailureCode.AGENT_FAILED, "it is late")


@pytest.mark.contract("F11")
async def test_text_that_comes_in_pieces_is_too_large_and_not_cut_when_it_is(tmp_path: Path) -> None:
    rules = (EventRule(text="say"),)
    agent = command_agent("says", "/bin/cat", output=OutputForm.JSON_LINES, events=rules, max_output_bytes=100)
    (tmp_path / "lines").write_text(json.dumps({"say": "x" * 50}) + "\n" + json.dumps({"say": "y" * 50}) + "\n")
    (tmp_path / "more").write_text((tmp_path / "lines").read_text() + '{"say": "z"}\n')
    async with running_node(tmp_path, agent) as node:
        fits = await node.run("says", "lines")
        more = await node.run("says", "more")
    assert (fits.success, fits.output) == (True, "x" * 50 + "y" * 50)
    assert more.failure is not None
    assert more.failure.code is FailureCode.PAYLOAD_TOO_LARGE
    assert more.output == fits.output


@pytest.mark.contract("C2")
@pytest.mark.parametrize("preset", [Preset.GEMINI, Preset.OPENCODE, Preset.CODEX, Preset.CLAUDE_CODE])
async def test_what_a_coding_agent_writes_besides_is_told_and_no_answer(tmp_path: Path, preset: Preset) -> None:
    says = ("/bin/sh", "-c", "cat > prompt; echo An update is there.")
    agent = replace(command_agent("coder", *says), preset=preset)
    async with running_node(tmp_path, agent) as node:
        life = node.start("coder", "Do it.")
        outcome = await life.outcome()
    assert "Do it." in (tmp_path / "prompt").read_text()
    assert outcome.output == ""
    assert outcome.failure is not None
    assert outcome.failure.message == "it has ended without an answer"
    assert [each.text for each in life.progress if isinstance(each, TextWritten)] == ["An update is there.\n"]


async def test_what_a_failure_tells_has_no_secrets_that_the_command_was_given(tmp_path: Path) -> None:
    agent = command_agent("leaks", "/bin/sh", "-c", 'echo "bad key $MY_API_KEY" >&2; exit 1', env=("MY_API_KEY",))
    async with running_node(tmp_path, agent, environment={"MY_API_KEY": "sk-123456"}) as node:
        outcome = await node.run("leaks")
    assert outcome.failure is not None
    assert outcome.failure.message == "exit code 1: bad key ***"


@pytest.mark.parametrize(
    "script",
    [
        # 2,048 bytes of standard error are told: these cut the secret in its middle.
        'printf "%s" "$MY_API_KEY"; head -c 2038 /dev/zero | tr "\\0" x',
        'echo "$MY_API_KEY"; head -c 2030 /dev/zero | tr "\\0" x; echo',
    ],
)
async def test_not_even_a_piece_of_a_secret_is_told_where_a_text_is_cut(tmp_path: Path, script: str) -> None:
    agent = command_agent("leaks", "/bin/sh", "-c", f"{{ {script}; }} >&2; exit 1", env=("MY_API_KEY", "PATH"))
    environment = CLEAN_ENVIRONMENT | {"MY_API_KEY": "sk-12345678-abcdefghij"}
    async with running_node(tmp_path, agent, environment=environment) as node:
        outcome = await node.run("leaks")
    assert outcome.failure is not None
    assert outcome.failure.message.startswith("exit code 1: ***")
    assert "abcdefghij"[-6:] not in outcome.failure.message


async def test_a_long_complaint_of_a_coding_agent_is_cut_without_a_piece_of_a_secret(tmp_path: Path) -> None:
    line = {"type": "error", "message": "x" * 2040 + "sk-12345678-abcdefghij"}
    agent = AgentDefinition(
        name="codex",
        description="for tests",
        kind=AgentKind.COMMAND,
        preset=Preset.CODEX,
        command=("/bin/sh", "-c", f"printf '%s\\n' '{json.dumps(line)}'"),
    )
    environment = CLEAN_ENVIRONMENT | {"OPENAI_API_KEY": "sk-12345678-abcdefghij"}
    async with running_node(tmp_path, agent, environment=environment) as node:
        outcome = await node.run("codex")
    assert outcome.failure is not None
    assert outcome.failure.message == "x" * 2040 + "***"
