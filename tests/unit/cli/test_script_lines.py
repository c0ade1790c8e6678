"""What is printed of a script that runs where there is no terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fanfold.cli.script_tree import shown
from fanfold.model.script import ScriptEvent, ScriptEventKind, ScriptMeta

NOW = datetime(2026, 1, 1, tzinfo=UTC)
META = ScriptMeta(name="review", description="Reviews.")


class Told:
    """A run that has told all that it will."""

    meta = META

    def __init__(self, *events: ScriptEvent) -> None:
        self._events = events

    async def events(self) -> AsyncIterator[ScriptEvent]:
        for event in self._events:
            yield event


def event(kind: ScriptEventKind, phase: str = "", **more: Any) -> ScriptEvent:
    return ScriptEvent(run_id="run-1", meta=META, sequence=0, time=NOW, kind=kind, phase=phase, **more)


async def test_the_title_of_a_phase_is_printed_when_another_one_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    phase, start, log = ScriptEventKind.PHASE, ScriptEventKind.AGENT_START, ScriptEventKind.LOG
    run: Any = Told(
        event(phase, "Read"),
        event(start, "Read", call=1, label="a"),
        event(phase, "Read"),
        event(log, message="half done"),
        event(start, "Read", call=2, label="b"),
        event(phase, "Verify"),
        event(start, "Read", call=3, label="c"),
    )
    async with shown(run):
        pass
    assert capsys.readouterr().err.splitlines() == [
        "Read",
        "  ● a",
        "  | half done",
        "  ● b",
        "Verify",
        "Read",
        "  ● c",
    ]
