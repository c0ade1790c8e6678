"""Agents of kind llm against a real server that speaks as the providers do, in real workers."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from executor_node.agents import AgentDefinition
from executor_node.agents.llm.definition import McpServer, Tool
from fanfold.model.node import AgentKind, Isolation
from fanfold.model.step import FailureCode, SourceAnchor, StepPolicy, TextWritten, ToolFinished, TurnFinished, Usage
from integration import node_harness
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, find_processes, new_marker, running_node
from support import tool_server
from support.http_tool_server import http_tool_server
from support.providers import Provider, Reply, refusal, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


def llm_agent(name: str = "thinker", *, model: str = "openai:m", shared: bool = True, **keys: Any) -> AgentDefinition:
    return AgentDefinition(
        name=name,
        description="for tests",
        kind=AgentKind.LLM,
        isolation=Isolation.SHARED if shared else Isolation.PROCESS,
        model=model,
        instructions="You answer.",
        **keys,
    )


def node_with(workspace: Path, provider: Provider, *agents: AgentDefinition) -> Any:
    environment = CLEAN_ENVIRONMENT | provider.openai | provider.anthropic
    return running_node(workspace, *agents, environment=environment)


@pytest.mark.contract("C2", "C11")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("model", ["openai:m", "openai-responses:m", "anthropic:m"])
async def test_a_model_answers_with_progress_and_usage(tmp_path: Path, model: str, shared: bool) -> None:
    provider_of = running_provider(Reply(text="It is forty two", usage=(30, 7)))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent(model=model, shared=shared)) as node:
        life = node.start("thinker", "What is it?")
        outcome = await life.outcome()
        assert outcome.failure is None
        assert outcome.output == "It is forty two"
        assert outcome.usage == Usage(input_tokens=30, output_tokens=7, requests=1)
        assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)) == outcome.output
        assert [each for each in life.progress if isinstance(each, TurnFinished)] == [
            TurnFinished(turn=1, usage=outcome.usage)
        ]
    asked = str(provider.asked[0])
    assert "What is it?" in asked
    assert "You answer." in asked


ERRORS = {
    "quota": (refusal(429, "no money", code="insufficient_quota"), FailureCode.QUOTA_EXHAUSTED, False, 1),
    "rate": (refusal(429, "slower", code="rate_limit_exceeded", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "server": (refusal(500, "oops", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "overload": (refusal(529, "busy", retry_after="0"), FailureCode.AGENT_FAILED, True, 4),
    "key": (refusal(401, "who is sk-for-tests"), FailureCode.AGENT_FAILED, False, 1),
    "context": (refusal(400, "too long", code="context_length_exceeded"), FailureCode.AGENT_FAILED, False, 1),
    "broken": (Reply(text="It is", broken=True), FailureCode.AGENT_FAILED, True, 1),
    "empty": (Reply(text=" "), FailureCode.AGENT_FAILED, False, 1),
    "cut": (Reply(text="It is", cut=True), FailureCode.AGENT_FAILED, False, 1),
}
NO_CREDIT = refusal(402, "no money", kind="billing_error")
"""Anthropic's word for that the quota is gone."""

KINDS = {"openai": "/v1", "openai-responses": "/v1", "anthropic": ""}
"""Ways to ask a provider, and how the addresses of each end."""


@pytest.mark.contract("C2", "C3", "F9")
@pytest.mark.parametrize("kind", KINDS)
async def test_what_providers_refuse_has_its_code(tmp_path: Path, kind: str) -> None:
    """Each error comes from a provider of its own, or one would hold back the calls of another."""
    async with AsyncExitStack() as stack:
        keys = {"OPENAI_API_KEY": "sk-for-tests", "ANTHROPIC_API_KEY": "sk-for-tests"}
        environment, providers, agents = CLEAN_ENVIRONMENT | keys, {}, []
        for error, (reply, *_) in ERRORS.items():
            said = NO_CREDIT if (kind, error) == ("anthropic", "quota") else reply
            providers[error] = await stack.enter_async_context(running_provider(said))
            environment[error] = f"http://127.0.0.1:{providers[error].port}{KINDS[kind]}"
            agents.append(llm_agent(error, model=f"{kind}:m", base_url_env=error))
        node = await stack.enter_async_context(running_node(tmp_path, *agents, environment=environment))
        lives = {error: node.start(error) for error in ERRORS}
        for error, (_, code, retryable, calls) in ERRORS.items():
            failure = (await lives[error].outcome()).failure
            assert failure is not None
            assert (failure.code, failure.retryable) == (code, retryable), failure
            assert len(providers[error].asked) == calls, failure
            assert "sk-for-tests" not in failure.message
            assert ("who is ***" in failure.message) == (error == "key")


@pytest.mark.contract("C13", "F10")
@pytest.mark.parametrize("reply", [Reply(text="It is " * 40, broken=True), Reply(text="It is " * 40, usage=(0, 0))])
async def test_what_a_provider_does_not_say_of_its_cost_is_counted_by_the_text(tmp_path: Path, reply: Reply) -> None:
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker")
    assert outcome.usage.requests == 1
    assert outcome.usage.input_tokens > 0
    assert outcome.usage.output_tokens == 60  # of 240 bytes


@pytest.mark.contract("F1")
async def test_a_cancelled_step_ends_its_call(tmp_path: Path) -> None:
    provider_of = running_provider(Reply(text="It is", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        life = node.start("thinker")
        await life.first_progress()
        assert provider.open == 1
        node.cancel(life)
        outcome = await life.outcome()
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.CANCELLED
        await eventually(lambda: provider.open == 0)


@pytest.mark.contract("C4", "C11")
async def test_tools_read_the_workspace_and_leave_anchors(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path.parent / "secret.txt").write_text("hidden")
    (tmp_path / "out").symlink_to(tmp_path.parent / "secret.txt")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read", {"path": "facts.txt", "first_line": 2, "lines": 2}),
        ("grep", {"pattern": "f.ur"}),
        ("glob", {"pattern": "*.txt"}),
        ("read", {"path": "out"}),
        ("read", {"path": "../secret.txt"}),
    ]
    replies = [*(Reply(tools=[call]) for call in calls), Reply(text="done")]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        life = node.start("thinker")
        outcome = await life.outcome()
        assert outcome.output == "done"
        assert outcome.usage == Usage(input_tokens=60, output_tokens=30, requests=6)
        finished = [each for each in life.progress if isinstance(each, ToolFinished)]
    assert [(each.name, each.success) for each in finished] == [
        ("read", True),
        ("grep", True),
        ("glob", True),
        ("read", False),
        ("read", False),
    ]
    assert outcome.source_anchors == (
        SourceAnchor(tool="read", url_or_path="facts.txt", lines="2-3"),
        SourceAnchor(tool="grep", url_or_path="facts.txt", lines="4"),
    )
    told = [message["content"] for message in provider.asked[-1]["messages"] if message["role"] == "tool"]
    assert told[0] == "2\ttwo\n3\tthree\n... 1 more lines"
    assert "facts.txt:4: four" in told[1]
    assert told[2] == "facts.txt"
    assert not any("hidden" in each for each in told)


@pytest.mark.contract("C20", "F14")
async def test_structured_output_is_repaired_twice_at_most(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        right = {"fine": 0, "mends": 1}.get(body["model"], 99)
        return Reply(text='```json\n{"answer": 42}\n```' if turn >= right else "It is 42.")

    agents = [llm_agent(name, model=f"openai:{name}") for name in ("fine", "mends", "stubborn")]
    async with running_provider(answer=answer) as provider, node_with(tmp_path, provider, *agents) as node:
        outcomes = [await node.run(agent.name, schema=SCHEMA) for agent in agents]
    assert [outcome.usage.requests for outcome in outcomes] == [1, 2, 3]
    assert [outcome.structured for outcome in outcomes] == [{"answer": 42}, {"answer": 42}, None]
    failure = outcomes[2].failure
    assert failure is not None
    assert failure.code is FailureCode.OUTPUT_INVALID
    assert outcomes[2].output.startswith("It is 42.\n[structured output failed: ")


@pytest.mark.contract("C20", "C24", "F8", "F14")
async def test_a_quota_that_is_gone_when_a_repair_is_asked_for_is_told_as_such_with_what_was_written(
    tmp_path: Path,
) -> None:
    replies = [Reply(text="It is 42."), refusal(429, "no money", code="insufficient_quota")]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker", schema=SCHEMA)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.output) == (FailureCode.QUOTA_EXHAUSTED, "It is 42.")
    assert "no money" in outcome.failure.message
    assert outcome.usage == Usage(input_tokens=10, output_tokens=5, requests=1)


@pytest.mark.contract("C13", "F10")
async def test_no_call_may_cost_more_than_is_left_of_the_cap(tmp_path: Path) -> None:
    replies = [Reply(tools=[("glob", {"pattern": "*"})], usage=(300, 100))]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcome = await node.run("thinker", policy=StepPolicy(max_tokens=1000))
        assert outcome.failure is not None
        assert outcome.failure.code is FailureCode.BUDGET_EXHAUSTED
        assert outcome.usage.tokens <= 1000
        most = [int(body["max_completion_tokens"]) for body in provider.asked]
        assert len(most) == 2
        assert 900 < most[0] < 1000
        assert 0 < most[1] <= 200


@pytest.mark.contract("F8")
async def test_after_the_quota_is_gone_no_step_starts(tmp_path: Path) -> None:
    reply = refusal(429, "no money", code="insufficient_quota")
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        outcomes = [await node.run("thinker") for _ in range(20)]
        assert all(each.failure and each.failure.code is FailureCode.QUOTA_EXHAUSTED for each in outcomes)
        assert len(provider.asked) == 1


@pytest.mark.contract("C4")
async def test_a_model_edits_files_where_it_may_and_nothing_else(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    (work / "code.py").write_text("one\ntwo\ntwo again\n")
    (work / "run.sh").write_text("echo one\n")
    (work / "run.sh").chmod(0o750)
    (tmp_path / "outside.txt").write_text("safe")
    (work / "out").symlink_to(tmp_path / "outside.txt")
    calls: dict[str, tuple[str, str, str]] = {
        "replaced at line 1": ("code.py", "one\n", "1\n\N{GRINNING FACE}\n"),
        "occurs 2 times in code.py, not once": ("code.py", "two", "2"),
        "occurs 0 times in run.sh, not once": ("run.sh", "three", "3"),
        "replaced at line 1 of run.sh": ("run.sh", "one", "1"),
        "created": ("new.txt", "", "fresh"),
        "the file is there already: run.sh": ("run.sh", "", "gone"),
        "no such file in the workspace: no/new.txt": ("no/new.txt", "", "fresh"),
        "outside the workspace: out": ("out", "safe", "lost"),
        "outside the workspace: ../outside.txt": ("../outside.txt", "safe", "lost"),
        "not to be written: .git/config": (".git/config", "", "[core]"),
    }
    replies = [Reply(tools=[("edit", {"path": path, "old": old, "new": new})]) for path, old, new in calls.values()]
    agent = llm_agent(tools=(Tool.EDIT,))
    async with (
        running_provider(*replies, Reply(text="done")) as provider,
        node_with(work, provider, agent) as node,
    ):
        outcome = await node.run("thinker")
    assert outcome.output == "done", outcome.failure
    told = [message["content"] for message in provider.asked[-1]["messages"] if message["role"] == "tool"]
    for expected, answer in zip(calls, told, strict=True):
        assert expected.removesuffix(" of run.sh") in answer
    assert (work / "code.py").read_text() == "1\n\N{GRINNING FACE}\ntwo\ntwo again\n"
    assert (work / "run.sh").read_text() == "echo 1\n"
    assert (work / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (work / "new.txt").read_text() == "fresh"
    assert (tmp_path / "outside.txt").read_text() == "safe"
    assert sorted(each.name for each in work.iterdir()) == [".git", "code.py", "new.txt", "out", "run.sh"]
    assert not list((work / ".git").iterdir())
    assert outcome.source_anchors == (
        SourceAnchor(tool="edit", url_or_path="code.py", lines="1-2"),
        SourceAnchor(tool="edit", url_or_path="run.sh", lines="1"),
        SourceAnchor(tool="edit", url_or_path="new.txt"),
    )


EVERY_PLANE = " ".join(chr(plane * 0x10000 + 0xA1) for plane in range(17)) + " \u0301 \U0001f468\u200d\U0001f469 \ufdd0"


@pytest.mark.contract("C5")
@pytest.mark.parametrize("model", [f"{kind}:m" for kind in KINDS])
async def test_every_plane_of_unicode_goes_through_prompt_stream_and_outcome(tmp_path: Path, model: str) -> None:
    reply = Reply(text=json.dumps({"said": EVERY_PLANE}, ensure_ascii=False))
    schema = {"type": "object", "properties": {"said": {"const": EVERY_PLANE}}}
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent(model=model)) as node:
        life = node.start("thinker", EVERY_PLANE, schema=schema)
        outcome = await life.outcome()
        assert outcome.structured == {"said": EVERY_PLANE}
        assert outcome.output == reply.text
        assert "".join(each.text for each in life.progress if isinstance(each, TextWritten)) == reply.text
    assert EVERY_PLANE in json.dumps(provider.asked[0], ensure_ascii=False)


@pytest.mark.parametrize(
    ("model", "complaint"),
    {
        "groq:m": "the provider groq needs `pip install 'pydantic-ai-slim[groq]'` on the node",
        "nobody:m": "the model nobody:m cannot be used: Unknown provider: nobody",
        "deepseek:m": "its provider has one address only; `openai` is asked at any",
        "openai-responses:m": "the node's environment has neither key nor address of the provider",
        "anthropic:m": "ANTHROPIC_API_KEY",
    }.items(),
)
async def test_a_model_that_cannot_be_used_fails_its_step_by_name(tmp_path: Path, model: str, complaint: str) -> None:
    environment = CLEAN_ENVIRONMENT | {"DEEPSEEK_BASE_URL": "http://127.0.0.1:1", "DEEPSEEK_API_KEY": "k"}
    async with running_node(tmp_path, llm_agent(model=model), environment=environment) as node:
        failure = (await node.run("thinker")).failure
    assert failure is not None
    assert (failure.code, failure.retryable) == (FailureCode.AGENT_FAILED, False)
    assert complaint in failure.message


async def test_tools_of_a_server_over_http(tmp_path: Path) -> None:
    agent = llm_agent(tools=(), mcp=(McpServer(name="maths", url="http://127.0.0.1:1/mcp", token_env="TOKEN"),))
    replies = [
        Reply(tools=[("maths_double", {"number": 21})]),
        Reply(tools=[("maths_double", {"number": "none"})]),
        Reply(text="done"),
    ]
    async with running_provider(*replies) as provider, http_tool_server(token="sesame") as server:
        agent = replace(agent, mcp=(replace(agent.mcp[0], url=server),))
        environment = CLEAN_ENVIRONMENT | provider.openai | {"TOKEN": "sesame"}
        async with running_node(tmp_path, agent, environment=environment) as node:
            life = node.start("thinker")
            outcome = await life.outcome()
        async with running_node(tmp_path, agent, environment=environment | {"TOKEN": "guess"}) as node:
            refused = (await node.run("thinker")).failure
    assert outcome.output == "done", outcome.failure
    told = [message["content"] for message in provider.asked[2]["messages"] if message["role"] == "tool"]
    assert told[0] == "42"
    finished = [(each.name, each.success) for each in life.progress if isinstance(each, ToolFinished)]
    assert finished == [("maths_double", True), ("maths_double", False)]
    assert refused is not None
    assert refused.message.startswith("a tool server cannot be used: ")
    assert "guess" not in refused.message
    assert len(provider.asked) == 3


async def test_tools_of_a_server_on_its_standard_streams(tmp_path: Path) -> None:
    server = McpServer(name="maths", command=(sys.executable, tool_server.__file__, new_marker()), env=("TOOL_KEY",))
    agent = llm_agent(shared=False, tools=(), mcp=(server,))
    replies = [Reply(tools=[("maths_double", {"number": 21})]), Reply(text="done")]
    async with running_provider(*replies) as provider:
        environment = CLEAN_ENVIRONMENT | provider.openai | {"TOOL_KEY": "k", "TOOL_OTHER": "o"}
        async with running_node(tmp_path, agent, environment=environment) as node:
            life = node.start("thinker")
            outcome = await life.outcome()
            assert outcome.output == "done", outcome.failure
            assert not find_processes(server.command[-1])
    (told,) = [message["content"] for message in provider.asked[-1]["messages"] if message["role"] == "tool"]
    assert told == "42 ['TOOL_KEY']"


async def test_what_a_tool_server_says_is_cut_and_its_death_is_told_to_the_model(tmp_path: Path) -> None:
    server = McpServer(name="maths", command=(sys.executable, tool_server.__file__))
    agent = llm_agent(shared=False, tools=(), mcp=(server,))
    replies = [*(Reply(tools=[("maths_double", {"number": number})]) for number in (0, 13)), Reply(text="done")]
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, agent) as node:
        outcome = await node.run("thinker")
        told = [message["content"] for message in provider.asked[1]["messages"] if message["role"] == "tool"]
    assert told[0].endswith("0\n... 9,967,232 more characters")
    assert len(told[0]) < 40_000
    assert outcome.output == "done", outcome.failure


@pytest.mark.contract("F11")
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m"])
async def test_an_answer_without_an_end_ends_its_step_when_it_is_too_large(tmp_path: Path, model: str) -> None:
    reply = Reply(text=" ".join(["x" * 200_000] * 8), hangs=True)
    agent = llm_agent(model=model)
    async with running_provider(reply) as provider, node_with(tmp_path, provider, agent) as node:
        outcome = await node.run("thinker")
        await eventually(lambda: provider.open == 0)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.PAYLOAD_TOO_LARGE
    assert outcome.output.startswith("x" * 200_000 + " x")
    assert len(outcome.output) <= 2**20


@pytest.mark.contract("C3")
@pytest.mark.parametrize("raw", ['{"choices": 5}', '{"choices": [{"delta": {"tool_calls": 7}}]}', "[1, 2]", "{oops"])
async def test_an_answer_that_makes_no_sense_is_the_providers_fault_and_not_a_crash(tmp_path: Path, raw: str) -> None:
    reply = Reply(raw=f"data: {raw}\n\ndata: [DONE]\n\n")
    async with running_provider(reply) as provider, node_with(tmp_path, provider, llm_agent()) as node:
        failure = (await node.run("thinker")).failure
    assert failure is not None
    assert failure.code is FailureCode.AGENT_FAILED


async def test_a_command_that_leaves_something_running_ends_when_its_shell_does(tmp_path: Path) -> None:
    marker = new_marker()
    commands = [f"sleep {marker} & echo begun", f"setsid sleep {marker} & echo fled", "printf late; exit 3"]
    replies = [*(Reply(tools=[("shell", {"command": each})]) for each in commands), Reply(text="done")]
    agent = llm_agent(shared=False, tools=(Tool.SHELL,))
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, agent) as node:
        outcome = await node.run("thinker", policy=StepPolicy(timeout=100))
        assert not find_processes(marker)
    assert outcome.output == "done", outcome.failure
    told = [message["content"] for message in provider.asked[-1]["messages"] if message["role"] == "tool"]
    assert told == ["exit code 0\nbegun\n", "exit code 0\nfled\n", "exit code 3\nlate"]


@pytest.mark.contract("F1")
async def test_a_command_of_a_cancelled_step_ends_with_it(tmp_path: Path) -> None:
    marker = new_marker()
    agent = llm_agent(shared=False, tools=(Tool.SHELL,))
    reply = Reply(tools=[("shell", {"command": f"setsid sleep {marker}"})])
    async with running_provider(reply) as provider, node_with(tmp_path, provider, agent) as node:
        life = node.start("thinker")
        await eventually(lambda: find_processes(marker), patience=90)
        node.cancel(life)
        failure = (await life.outcome()).failure
        assert failure is not None
        assert failure.code is FailureCode.CANCELLED
        assert not find_processes(marker)


@pytest.mark.contract("C4")
async def test_only_named_hosts_are_fetched_and_anchored_without_their_query(tmp_path: Path) -> None:
    packed = gzip.compress(gzip.compress(bytes(2**24)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        if path.startswith(b"/packed"):
            head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip, gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
            writer.write(head + packed)
        elif path.startswith(b"/moved"):
            writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://localhost:1/\r\ncontent-length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfacts")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    urls = [
        f"http://{host}/page?secret=1",
        f"http://{host}/moved",
        "http://localhost/page",
        "http://[",
        "http://127.0.0.1:1/",
        f"http://{host}/packed",
    ]
    replies = [*(Reply(tools=[("fetch", {"url": url})]) for url in urls), Reply(text="done")]
    agent = llm_agent(tools=(Tool.FETCH,), fetch_hosts=(host, "127.0.0.1:1"))
    async with running_provider(*replies) as provider, node_with(tmp_path, provider, agent) as node, server:
        outcome = await node.run("thinker")
    assert outcome.source_anchors == (SourceAnchor(tool="fetch", url_or_path=f"http://{host}/page"),)
    told = [message["content"] for message in provider.asked[-1]["messages"] if message["role"] == "tool"]
    assert told[:3] == ["facts", *['{"error":"the host localhost may not be asked"}'] * 2]
    assert [each.startswith('{"error":"cannot be fetched: ') for each in told[3:5]] == [True, True]
    assert "encoding" in told[5]
    assert outcome.output == "done"


async def test_a_tool_server_that_cannot_be_reached_is_a_failure_worth_another_attempt(tmp_path: Path) -> None:
    agent = llm_agent(tools=(), mcp=(McpServer(name="maths", url="http://127.0.0.1:1/mcp"),))
    async with running_provider(Reply(text="done")) as provider, node_with(tmp_path, provider, agent) as node:
        failure = (await node.run("thinker")).failure
    assert failure is not None
    assert (failure.code, failure.retryable) == (FailureCode.AGENT_FAILED, True)
    assert failure.message.startswith("a tool server cannot be used: ")
    assert not provider.asked


@pytest.mark.contract("C6", "F4")
async def test_a_model_that_falls_silent_stalls_and_a_slow_one_does_not(tmp_path: Path) -> None:
    """The agent's file says how long it may be silent. Each word is progress; a stream that stays open is none."""
    warm = Reply(text="warm")
    slow = Reply(text=" ".join(["word"] * 10), pace=0.6)
    agents = llm_agent(), llm_agent("watched", no_progress_timeout=3.0)
    provider_of = running_provider(warm, slow, Reply(text="It is", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, *agents) as node:
        await node.run("thinker")  # the import of pydantic-ai is silent too
        slow_one = await node.run("watched")
        silent = await node.run("watched")
        patient = node.start("watched", policy=StepPolicy(no_progress_timeout=60.0))
        await eventually(lambda: len(provider.asked) == 4)
        assert slow_one.failure is None
        assert slow_one.ended_at is not None
        assert slow_one.started_at is not None
        assert (slow_one.ended_at - slow_one.started_at).total_seconds() > 3.0
        assert silent.failure is not None
        assert (silent.failure.code, silent.failure.message) == (FailureCode.STALLED, "no progress for 3 seconds")
        await asyncio.sleep(3.3)
        assert not patient.has_ended  # what the step says counts more than the file


@pytest.mark.contract("C6", "F4", "F9")
async def test_a_step_that_its_provider_holds_back_is_not_silent(tmp_path: Path) -> None:
    limited = refusal(429, "slower", code="rate_limit_exceeded", retry_after="5")
    provider_of = running_provider(Reply(text="warm"), limited, Reply(text="done"))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        await node.run("thinker")  # the import of pydantic-ai is silent
        outcome = await node.run("thinker", policy=StepPolicy(no_progress_timeout=3.0))
    assert outcome.output == "done", outcome.failure
    assert provider.times[2] - provider.times[1] >= 4.9


@pytest.mark.contract("F1", "F8")
async def test_a_cancelled_step_that_was_to_try_a_quota_leaves_that_to_another(tmp_path: Path) -> None:
    gone = refusal(429, "no money", code="insufficient_quota")
    provider_of = running_provider(gone, Reply(mute=True), Reply(text="done"))
    async with provider_of as provider:
        environment = CLEAN_ENVIRONMENT | provider.openai
        async with running_node(tmp_path, llm_agent(), environment=environment, quota_pause=1.0) as node:
            await node.run("thinker")
            (held_back,) = node.executions.status().held_back
            assert (held_back.agent, held_back.waiting_on) == ("thinker", "the quota of openai")
            await eventually(lambda: not any(each.quota for each in node.executions.status().held_back))
            trying = node.start("thinker")
            await eventually(lambda: len(provider.asked) == 2)
            waiting = node.start("thinker")
            await asyncio.sleep(1.0)
            assert len(provider.asked) == 2
            node.cancel(trying)
            assert (await waiting.outcome()).output == "done"
            assert node.executions.status().held_back == ()


async def test_fifty_steps_at_once_fit_into_half_a_gigabyte(tmp_path: Path) -> None:
    """They share a worker. Memory that processes have in common is counted once (PSS)."""
    provider_of = running_provider(Reply(text="It is forty two", hangs=True))
    async with provider_of as provider, node_with(tmp_path, provider, llm_agent()) as node:
        lives = [node.start("thinker") for _ in range(50)]
        await eventually(lambda: provider.open == 50, patience=90)
        used = sum(psutil.Process(pid).memory_full_info().pss for pid in node.processes)
        assert used < 500 * 2**20
        for life in lives:
            node.cancel(life)
        assert [(await life.outcome()).output for life in lives] == [""] * 50
        await eventually(lambda: provider.open == 0)


async def test_a_node_stops_at_once_though_a_provider_wants_a_long_pause(tmp_path: Path) -> None:
    reply = refusal(429, "slower", retry_after="120")
    async with running_provider(reply) as provider:
        async with node_with(tmp_path, provider, llm_agent()) as node:
            life = node.start("thinker")
            await eventually(lambda: provider.asked, patience=90)
            await asyncio.sleep(0.3)  # it asks for another turn, and waits
            assert not life.has_ended
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 10
        assert len(provider.asked) == 1
