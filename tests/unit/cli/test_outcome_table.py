"""Outcomes, nodes and agents as people and programs see them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from fanfold.cli.nodes import offers, waiting_on
from fanfold.cli.outcomes import View, outcome_table, show_outcomes, summary
from fanfold.cli.output import lasted
from fanfold.cli.printable import printable
from fanfold.cli.tables import GAP, Table, cell
from fanfold.model.node import Agent, AgentKind, HeldBack, Isolation, Node, NodeState, NodeStatus, NodeView
from fanfold.model.run import Budget
from fanfold.model.step import FailureCode, SourceAnchor, StepFailure, StepOutcome
from fanfold.model.validation import agent_to_json, node_view_to_json, outcome_from_json

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = StepOutcome(
    task_id="count",
    agent="wordcount",
    output="\n  300 words\nand more",
    success=True,
    node="node-1",
    started_at=BEGAN,
    ended_at=BEGAN + timedelta(seconds=1.234),
    source_anchors=(
        SourceAnchor(tool="read", url_or_path="README.md", lines="3-9"),
        SourceAnchor(tool="read", url_or_path="b.md"),
    ),
)
WHY = "no such file in the workspace: docs/a-file-with-quite-a-long-name-that-does-not-exist.md"
BAD = StepOutcome(
    task_id="read",
    agent="read",
    success=False,
    failure=StepFailure(code=FailureCode.AGENT_FAILED, message=WHY),
)


def drawn(outcomes: list[StepOutcome], width: int, *, anchors: bool = False) -> list[str]:
    lines = outcome_table(outcomes, anchors=anchors).lines(width)
    return [GAP.join(text for text, _ in line).rstrip() for line in lines]


def test_a_row_has_everything_about_its_outcome() -> None:
    header, good, bad = drawn([GOOD, BAD], 300, anchors=True)
    assert header.split() == ["TASK", "AGENT", "STATUS", "NODE", "TIME", "RESULT", "ANCHORS"]
    assert [part.strip() for part in good.split("  ") if part.strip()] == [
        *("count", "wordcount", "ok", "node-1", "1.23 s", "300 words (+1 line)", "README.md:3-9 +1")
    ]
    assert [part.strip() for part in bad.split("  ") if part.strip()] == [
        *("read", "read", "AGENT_FAILED", "-", "-", WHY, "-")
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_table_keeps_one_line_a_row_and_the_status_whole(width: int) -> None:
    long = StepOutcome(task_id="t" * 100, agent="noop", output="word " * 100, success=True)
    lines = drawn([long, BAD], width)
    assert len(lines) == 3
    assert all(cell_len(line) <= width for line in lines)
    assert all("…" in line for line in lines[1:])
    assert " AGENT_FAILED " in lines[2]


def test_failures_are_told_in_full_where_the_table_has_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fanfold.cli.outcomes.terminal_width", lambda: 80)
    show_outcomes([GOOD, *[BAD] * 23])
    lines = capsys.readouterr().out.splitlines()[25:]
    assert lines[0] == ""
    assert lines[1:21] == [f"read: AGENT_FAILED: {WHY}"] * 20
    assert lines[21:] == ["and 3 more failed"]
    show_outcomes([GOOD])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_piped_table_has_one_line_a_step_whatever_its_width(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    long = StepOutcome(task_id="t" * 256, agent="noop", output="word " * 30, success=True)
    show_outcomes([long, BAD])
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("t" * 256 + " ")
    assert lines[1].endswith("word " * 29 + "word")
    assert lines[2].endswith(WHY)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("one", "one"),
        ("one\n\n", "one"),
        ("\n one\n\ntwo\n", "one (+2 lines)"),
        ("word " * 60 + "\nx", ("word " * 60)[:200] + " (+1 line)"),
        ("", ""),
    ],
)
def test_the_table_says_how_much_more_there_is_than_it_shows(output: str, shown: str) -> None:
    _, row = drawn([StepOutcome(task_id="t", agent="a", output=output, success=True)], 400)
    assert row.removeprefix("t     a      ok      -        -").strip() == shown


def test_in_full_each_output_is_below_a_heading_and_fit_for_a_terminal(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    hostile = StepOutcome(task_id="x\x1b[2J", agent="a", output="def f():\n    \x1b[31mred\n\tx\r\n\n", success=True)
    show_outcomes([hostile, BAD], View(full=True))
    assert capsysbinary.readouterr().out.decode().splitlines()[3:] == [
        "",
        "== x: a, ok ==",
        "def f():",
        "    red",
        "        x",
        "",
        "== read: read, AGENT_FAILED ==",
        WHY,
    ]


def test_nothing_in_an_outcome_steers_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07[bold]red[/bold]\b\x9b31m\u202eevil\x00"
    outcome = StepOutcome(task_id=hostile, agent=hostile, output=hostile, success=True, node=hostile)
    _, row = drawn([outcome], 300)
    assert row.count("[bold]red[/bold] 31m evil") == 4
    assert all(character.isprintable() for character in row)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\tb\nc", "a b c"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("ends in \x1b", "ends in"),
        ("naïve ☃ 漢", "naïve ☃ 漢"),
    ],
)
def test_printable_text(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.004, "0.00 s"), (9.994, "9.99 s"), (12.34, "12.3 s"), (65, "1 min 05 s"), (7384, "2 h 03 min"), (-1, "0.00 s")],
)
def test_durations(seconds: float, told: str) -> None:
    assert lasted(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ([], "0 steps: 0 ok"),
        ([GOOD], "1 step: 1 ok"),
        ([GOOD, BAD, BAD], "3 steps: 1 ok, 2 failed (AGENT_FAILED)"),
    ],
)
def test_summary(outcomes: list[StepOutcome], told: str) -> None:
    assert summary(outcomes) == told


@pytest.mark.contract("C5", "C12")
@pytest.mark.parametrize("outcomes", [[], [GOOD], [GOOD, BAD]])
def test_json_has_every_outcome_in_order_and_whole(
    outcomes: list[StepOutcome], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    show_outcomes(outcomes, View(as_json=True))
    document = json.loads(capsysbinary.readouterr().out)
    assert list(document) == ["outcomes"]
    assert [outcome_from_json(form) for form in document["outcomes"]] == outcomes


@pytest.mark.contract("C13")
def test_a_budget_is_summed_up_in_words_and_in_json(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert summary([GOOD], Budget(limit=50_000, spent=1_200)) == "1 step: 1 ok; 1,200 of 50,000 tokens spent"
    refused = summary([GOOD, BAD], Budget(limit=10, spent=9, refused_steps=1))
    assert refused == "2 steps: 1 ok, 1 failed (AGENT_FAILED); 9 of 10 tokens spent, 1 step refused"
    show_outcomes([GOOD], View(as_json=True), Budget(limit=10, spent=9, refused_steps=1))
    document = json.loads(capsysbinary.readouterr().out)
    assert document["budget"] == {"limit": 10, "spent": 9, "refused_steps": 1}
    assert [form["task_id"] for form in document["outcomes"]] == ["count"]


def _view(name: str, state: NodeState, *agents: str) -> NodeView:
    offered = tuple(
        Agent(name=agent, description=f"from {name}", kind=AgentKind.PYTHON, isolation=Isolation.SHARED)
        for agent in agents
    )
    status = NodeStatus(concurrency_hint=16, max_concurrent_steps=64, running_steps=3)
    node = Node(name=name, agents=offered, labels={"zone": "a"}, status=status, boot_id="b1", version="1.2")
    return NodeView(node=node, address="127.0.0.1:1", state=state, steps_in_flight=2, state_changed_at=BEGAN)


def test_agents_are_counted_on_ready_nodes_only() -> None:
    views = [
        _view("one", NodeState.READY, "b", "a"),
        _view("two", NodeState.DRAINING, "a", "c"),
        _view("three", NodeState.READY, "b"),
    ]
    assert [(agent.name, agent.description, nodes) for agent, nodes in offers(views)] == [
        ("a", "from one", 1),
        ("b", "from one", 2),
    ]


@pytest.mark.contract("F8", "C42")
def test_a_node_waits_on_what_holds_its_agents_back() -> None:
    view = _view("one", NodeState.READY, "a", "b", "c")
    assert waiting_on(view) == ""
    quota, rate = "the quota of openai", "the rate limit of anthropic"
    held_back = tuple(
        HeldBack(agent=agent, waiting_on=why) for agent, why in {"a": quota, "b": rate, "c": quota}.items()
    )
    held = replace(view, node=replace(view.node, status=NodeStatus(held_back=held_back)))
    assert waiting_on(held) == "the quota of openai (a, c); the rate limit of anthropic (b)"
    assert waiting_on(replace(held, waiting_on="its link is being made")) == "its link is being made"


@pytest.mark.parametrize(
    ("text", "schema"), [("", None), ('{"type": "string"}', {"type": "string"}), ("[]", None), ("{", None)]
)
def test_an_agents_schema_in_json_is_an_object_or_null_whatever_a_node_says(text: str, schema: object) -> None:
    agent = Agent(name="a", description="d", kind=AgentKind.LLM, isolation=Isolation.SHARED, output_schema_json=text)
    assert agent_to_json(agent)["output_schema"] == schema


def test_a_node_in_json() -> None:
    form = json.loads(json.dumps(node_view_to_json(_view("one", NodeState.LOST, "a"))))
    assert form == {
        "node": {
            "name": "one",
            "boot_id": "b1",
            "agents": [
                {
                    "name": "a",
                    "description": "from one",
                    "kind": "python",
                    "isolation": "shared",
                    "uses_model": False,
                    "output_schema": None,
                }
            ],
            "labels": {"zone": "a"},
            "workspace": {"source": "directory", "revision": ""},
            "status": {
                "concurrency_hint": 16,
                "max_concurrent_steps": 64,
                "running_steps": 3,
                "draining": False,
                "coordinators": 0,
                "held_back": [],
            },
            "version": "1.2",
        },
        "address": "127.0.0.1:1",
        "state": "lost",
        "steps_in_flight": 2,
        "waiting_on": "",
        "state_changed_at": "2026-01-02T03:04:05Z",
    }


def test_wide_characters_are_counted_as_a_terminal_shows_them() -> None:
    table = Table("A", "B", right=["B"])
    table.add_row(cell("漢字" * 10), cell(1))
    table.add_row(cell("abc"), cell(234))
    assert ["|".join(text for text, _ in line) for line in table.lines(14)] == [
        "A        |  B",
        "漢字漢字…|  1",
        "abc      |234",
    ]


def test_a_large_table_is_drawn_quickly() -> None:
    table = Table("A", "B", "C", "D", "E", "F")
    for number in range(20_000):
        table.add_row(*(cell(f"{number} {column}") for column in range(6)))
    began = time.process_time()
    assert sum(1 for _ in table.lines(80)) == 20_001
    assert time.process_time() - began < 2
