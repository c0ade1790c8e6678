"""How a script is getting on: a tree of phases and agents, live on a terminal, else a line for each event."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from fanfold.cli.output import lasted, tell
from fanfold.cli.printable import first_line, printable
from fanfold.model.script import ScriptEvent, ScriptEventKind, ScriptMeta
from fanfold.model.step import StepOutcome
from fanfold.sdk.workflow import WorkflowRun

LIVE_INTERVAL = 0.1

MAX_AGENTS_SHOWN = 12
"""Agents of one phase that are shown while it runs; those that failed or run come first."""

MAX_LOGS_SHOWN = 5


@dataclass(slots=True)
class _Agent:
    label: str
    began: datetime
    ended: datetime | None = None
    outcome: StepOutcome | None = None

    def words(self) -> Text:
        if self.outcome is None or self.ended is None:
            return Text(f"● {self.label}  {lasted(datetime.now(UTC) - self.began)}", style="cyan")
        if self.outcome.failure is not None:
            failure = self.outcome.failure
            return Text(f"✗ {self.label}  {failure.code}: {printable(first_line(failure.message))}", style="red")
        return Text(f"✓ {self.label}  {lasted(self.ended - self.began)}", style="green")


@dataclass(slots=True)
class ScriptTree:
    """What a script has told so far."""

    meta: ScriptMeta
    began: datetime | None = None
    ended: datetime | None = None
    phases: dict[str, dict[int, _Agent]] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)

    def note(self, event: ScriptEvent) -> None:
        """Take in what happened."""
        match event.kind:
            case ScriptEventKind.PHASE:
                self.phases.setdefault(event.phase, {})
            case ScriptEventKind.LOG:
                self.logs.append(event.message)
            case ScriptEventKind.AGENT_START:
                agents = self.phases.setdefault(event.phase, {})
                agents[event.call] = _Agent(printable(event.label), event.time)
            case ScriptEventKind.AGENT_END:
                agent = self.phases[event.phase][event.call]
                agent.outcome, agent.ended = event.outcome, event.time
            case ScriptEventKind.START:
                self.began = event.time
            case ScriptEventKind.END:
                self.ended = event.time

    def picture(self, *, whole: bool = False) -> RenderableType:
        """All of it as a tree; if not `whole`, only as much of each phase as a screen has room for."""
        took = (self.ended or datetime.now(UTC)) - self.began if self.began else None
        root = Tree(Text(f"{self.meta.name}  {lasted(took)}", style="bold"))
        for title, agents in self.phases.items():
            done = sum(agent.outcome is not None for agent in agents.values())
            heading = Text(f"{printable(title)}  {done} of {len(agents)}" if title else f"{done} of {len(agents)}")
            branch = root.add(heading) if title or len(self.phases) > 1 else root
            shown = sorted(agents.values(), key=_urgency) if not whole else list(agents.values())
            for agent in shown if whole else shown[:MAX_AGENTS_SHOWN]:
                branch.add(agent.words())
            if not whole and len(shown) > MAX_AGENTS_SHOWN:
                branch.add(Text(f"and {len(shown) - MAX_AGENTS_SHOWN:,} more", style="dim"))
        logs = self.logs if whole else self.logs[-MAX_LOGS_SHOWN:]
        return Group(root, *(Text(f"  {printable(line)}", style="dim", no_wrap=not whole) for line in logs))


def _urgency(agent: _Agent) -> int:
    if agent.outcome is None:
        return 0
    return 2 if agent.outcome.success else 1


@asynccontextmanager
async def shown(run: WorkflowRun) -> AsyncIterator[None]:
    """Show on standard error how a script is getting on, while the block lasts."""
    follow = _live if sys.stderr.isatty() else _lines
    following = asyncio.create_task(follow(run))
    try:
        yield
        await following  # all that was told is shown
    finally:
        following.cancel()
        await asyncio.wait([following])


async def show_tree(run: WorkflowRun) -> None:
    """Show on standard error the whole tree of a script that has ended."""
    tree = ScriptTree(run.meta)
    async with aclosing(run.events()) as events:
        async for event in events:
            tree.note(event)
    Console(file=sys.stderr).print(tree.picture(whole=True))


async def _live(run: WorkflowRun) -> None:
    tree = ScriptTree(run.meta)
    with Live(tree.picture(), console=Console(file=sys.stderr), auto_refresh=False) as live:

        async def refresh() -> None:
            while True:
                await asyncio.sleep(LIVE_INTERVAL)
                live.update(tree.picture(), refresh=True)

        refreshing = asyncio.create_task(refresh())
        try:
            async with aclosing(run.events()) as events:
                async for event in events:
                    tree.note(event)
        finally:
            refreshing.cancel()
            live.update(tree.picture(whole=True), refresh=True)


async def _lines(run: WorkflowRun) -> None:
    phase = ""
    async with aclosing(run.events()) as events:
        async for event in events:
            if event.phase and event.phase != phase:
                phase = event.phase
                tell(printable(phase))
            line = line_of(event)
            if line:
                tell(line)


def line_of(event: ScriptEvent) -> str:
    """The event as a line for logs, below the title of its phase; nothing for what needs no line of its own."""
    label = printable(event.label)
    match event.kind:
        case ScriptEventKind.LOG:
            return f"  | {printable(event.message)}"
        case ScriptEventKind.AGENT_START:
            return f"  ● {label}"
        case ScriptEventKind.AGENT_END:
            failure = event.outcome.failure if event.outcome else None
            if failure is None:
                return f"  ✓ {label}"
            return f"  ✗ {label}: {failure.code}: {printable(first_line(failure.message))}"
        case _:
            return ""
