"""What is told of a fan-out while it runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from fanfold.cli import progress
from fanfold.cli.progress import Tally, shown
from fanfold.model.run import Budget
from fanfold.model.step import (
    AttemptStarted,
    FailureCode,
    Progress,
    StepEnded,
    StepFailure,
    StepOutcome,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def started(task_id: str, node: str = "node-1") -> StepStarted:
    return StepStarted(task_id=task_id, time=NOW, node=node)


def progressed(task_id: str, what: Progress) -> StepProgressed:
    return StepProgressed(task_id=task_id, time=NOW, progress=what)


def ended(task_id: str, *, success: bool = True) -> StepEnded:
    return StepEnded(task_id=task_id, time=NOW, outcome=StepOutcome(task_id=task_id, agent="a", success=success))


def test_the_tally_follows_the_steps() -> None:
    tally = Tally(4)
    for event in (started("a"), started("b"), started("c"), ended("a"), ended("b", success=False)):
        tally.note(event)
    assert (tally.succeeded, tally.failed, tally.ended, list(tally.running)) == (1, 1, 2, ["c"])


@pytest.mark.parametrize(
    ("what", "detail"),
    [
        (ToolFinished(name="read", success=True, detail="README.md"), "read: README.md"),
        (ToolFinished(name="read", success=False), "read (failed)"),
        (TurnFinished(turn=3), "turn 3"),
        (TextWritten(text="\nHello\x1b[2J there\nmore"), "Hello there"),
    ],
)
def test_the_last_progress_of_a_step_is_kept(what: Progress, detail: str) -> None:
    tally = Tally(1)
    tally.note(started("a"))
    tally.note(progressed("a", what))
    assert tally.running["a"].detail == detail


def test_a_further_attempt_is_told_with_its_node_and_cause() -> None:
    tally = Tally(1)
    tally.note(started("a"))
    cause = StepFailure(code=FailureCode.NODE_LOST, message="node-1 is lost")
    tally.note(progressed("a", AttemptStarted(attempt=2, node="node-2", cause=cause)))
    assert (tally.running["a"].node, tally.running["a"].detail) == ("node-2", "attempt 2: node-1 is lost")


async def test_a_log_gets_a_line_only_when_something_has_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress._Lines, "interval", 0.01)
    tally = Tally(3)
    lines: list[str] = []

    async def until(count: int) -> None:
        async with asyncio.timeout(5):
            while len(lines) < count:
                await asyncio.sleep(0.01)
                lines.extend(capsys.readouterr().err.splitlines())

    async with shown(tally):
        tally.note(started("a"))
        await until(1)
        tally.note(ended("a", success=False))
        await until(2)
        await asyncio.sleep(0.05)
    lines.extend(capsys.readouterr().err.splitlines())
    assert lines == ["0 of 3 done, 1 running, 2 waiting", "1 of 3 done, 1 failed, 0 running, 2 waiting"]


@pytest.mark.contract("C13")
async def test_what_was_spent_is_told_while_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress._Lines, "interval", 0.01)
    budget = Budget(limit=50_000)
    async with asyncio.timeout(5), shown(Tally(2, budget=lambda: budget)):
        lines: list[str] = []
        while len(lines) < 2:
            await asyncio.sleep(0.01)
            lines += capsys.readouterr().err.splitlines()
            if lines:
                budget = Budget(limit=50_000, spent=1_234)
    assert lines == [
        "0 of 2 done, 0 running, 2 waiting; 0 of 50,000 tokens spent",
        "0 of 2 done, 0 running, 2 waiting; 1,234 of 50,000 tokens spent",
    ]


async def test_a_terminal_gets_a_picture_that_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    tally = Tally(12)
    async with shown(tally):
        for number in range(11):
            tally.note(started(f"step-{number}"))
        tally.note(ended("step-0"))
        await asyncio.sleep(progress.LIVE_INTERVAL * 3)
    text = capsys.readouterr().err
    assert "1 of 12 done, 10 running, 1 waiting" in text
    assert "step-8" in text
    assert "step-9" not in text
    assert "and 2 more" in text
    assert text.endswith("\x1b[?25h\r\x1b[1A\x1b[2K" + "\x1b[1A\x1b[2K" * 9)


@pytest.mark.contract("C16")
async def test_steps_that_were_recorded_before_are_counted_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress._Lines, "interval", 0.01)
    recalled = {"a", "b"}
    tally = Tally(4, recalled=lambda: recalled)
    for task_id in ("a", "b", "c"):
        tally.note(ended(task_id))
    told = ""
    async with asyncio.timeout(5), progress.shown(tally):
        while not told:
            await asyncio.sleep(0.01)
            told = capsys.readouterr().err
    assert told == "3 of 4 done (2 recorded before), 0 running, 1 waiting\n"
