"""Tools of llm agents: the workspace, commands, hosts and servers of tools."""

from __future__ import annotations

import asyncio
import gzip
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor_node.agents.llm.definition import McpServer, Tool
from fanfold.model.step import FailureCode, SourceAnchor, StepPolicy, ToolFinished, Usage
from integration import node_harness
from integration.llm_nodes import llm_agent, node_with
from integration.node_harness import CLEAN_ENVIRONMENT, eventually, find_processes, new_marker, running_node
from support import tool_server
from support.http_tool_server import http_tool_server
from support.providers import Reply, running_provider

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's first step imports pydantic-ai, which takes long on a busy machine."""
    monkeypatch.setattr(node_harness, "PATIENCE", 90.0)


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
