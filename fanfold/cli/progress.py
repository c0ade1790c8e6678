"""How a fan-out is getting on: live on a terminal, else a line now and then."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fanfold.cli.outcomes import spent_of
from fanfold.cli.output import lasted, tell
from fanfold.cli.printable import first_line, printable
from fanfold.model.run import Budget
from fanfold.model.step import (
    AttemptStarted,
    Progress,
    StepEnded,
    StepEvent,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
)

LIVE_INTERVAL = 0.1
LINE_INTERVAL = 10.0
"""Seconds between two looks at what is new."""

_MAX_STEPS_SHOWN = 8
_BAR_WIDTH = 24


class _Running:
    """A step that runs."""

    __slots__ = ("detail", "node", "since")

    def __init__(self, node: str) -> None:
        self.node = node
        self.since = time.monotonic()
        self.detail = ""


class Tally:
    """Where the steps of one fan-out are, by their events."""

    def __init__(
        self,
        total: int,
        *,
        waiting_on: Callable[[], str] = str,
        budget: Callable[[], Budget | None] = lambda: None,
        recalled: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.total = total
        self.waiting_on = waiting_on
        """What all of them wait on, in words, while nothing moves (C42)."""
        self.budget = budget
        """What may be spent, and what was, if there is a budget (C13)."""
        self.recalled = recalled
        """Those that were answered from their records, and not run again (C16)."""
        self.succeeded = 0
        self.failed = 0
        self.running: dict[str, _Running] = {}
        self.began = time.monotonic()

    @property
    def ended(self) -> int:
        """How many steps have ended."""
        return self.succeeded + self.failed

    def note(self, event: StepEvent) -> None:
        """Take in what happened to a step."""
        match event:
            case StepStarted():
                self.running[event.task_id] = _Running(event.node)
            case StepProgressed(progress=progress) if event.task_id in self.running:
                step = self.running[event.task_id]
                step.detail = _detail(progress)
                if isinstance(progress, AttemptStarted):
                    step.node = progress.node
            case StepEnded():
                self.running.pop(event.task_id, None)
                if event.outcome.success:
                    self.succeeded += 1
                else:
                    self.failed += 1


class _Display(Protocol):
    interval: float

    def refresh(self) -> None: ...
    def close(self) -> None: ...


@asynccontextmanager
async def shown(tally: Tally) -> AsyncIterator[None]:
    """Show on standard error how the fan-out is getting on, while the block lasts."""
    display: _Display = _LiveDisplay(tally) if sys.stderr.isatty() else _Lines(tally)

    async def follow() -> None:
        while True:
            await asyncio.sleep(display.interval)
            display.refresh()

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        display.close()


class _Lines:
    """A line when something has changed, but not often: for logs."""

    interval = LINE_INTERVAL

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._told = ""

    def refresh(self) -> None:
        line = _counts(self._tally)
        if line != self._told:
            tell(line)
            self._told = line

    def close(self) -> None:
        pass


class _LiveDisplay:
    """A bar and the steps that have been running longest, gone when all is done."""

    interval = LIVE_INTERVAL

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._live = Live(self._picture(), console=Console(file=sys.stderr), auto_refresh=False, transient=True)
        self._live.start(refresh=True)

    def refresh(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _picture(self) -> RenderableType:
        tally = self._tally
        heading = Table.grid(padding=(0, 2, 0, 0))
        heading.add_row(
            ProgressBar(total=max(1, tally.total), completed=tally.ended, width=_BAR_WIDTH, complete_style="green"),
            _cut(_counts(tally)),
            _cut(_since(tally.began)),
        )
        steps = Table.grid(padding=(0, 2, 0, 0))
        for task_id in list(tally.running)[:_MAX_STEPS_SHOWN]:
            step = tally.running[task_id]
            steps.add_row(_cut(f"  {task_id}"), _cut(step.node), _cut(_since(step.since)), _cut(step.detail, "dim"))
        hidden = len(tally.running) - _MAX_STEPS_SHOWN
        more = [Text(f"  and {hidden:,} more", style="dim")] if hidden > 0 else []
        return Group(heading, steps, *more)


def _cut(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _counts(tally: Tally) -> str:
    recalled = len(tally.recalled())
    recorded = f" ({recalled:,} recorded before)" if recalled else ""
    failed = f", {tally.failed:,} failed" if tally.failed else ""
    waiting = tally.total - tally.ended - len(tally.running)
    waits = f", {waiting:,} waiting" if waiting else ""
    budget = tally.budget()
    spent = f"; {spent_of(budget)}" if budget else ""
    reason = tally.waiting_on()
    because = f"; waiting for {reason}" if reason else ""
    return (
        f"{tally.ended:,} of {tally.total:,} done{recorded}{failed}, {len(tally.running):,} running"
        f"{waits}{spent}{because}"
    )


def _since(moment: float) -> str:
    return lasted(timedelta(seconds=round(time.monotonic() - moment, 1)))


def _detail(progress: Progress) -> str:
    match progress:
        case ToolFinished():
            text = f"{progress.name}: {progress.detail}" if progress.detail else progress.name
            return text if progress.success else f"{text} (failed)"
        case TurnFinished():
            return f"turn {progress.turn}"
        case TextWritten():
            return printable(first_line(progress.text))
        case AttemptStarted():
            return f"attempt {progress.attempt}: {progress.cause.message}"
