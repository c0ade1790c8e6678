"""Starts that wait a moment: told in time, once, in order, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from executor_node.starts import MOMENT_SECONDS, Starts
from fanfold.model.step import StepStarted

NOW = datetime(2026, 3, 4, tzinfo=UTC)


def started(task_id: str) -> StepStarted:
    return StepStarted(task_id=task_id, time=NOW)


async def all_told(told: list[str], *expected: str) -> None:
    async with asyncio.timeout(5):
        while len(told) < len(expected):
            await asyncio.sleep(0.01)
    await asyncio.sleep(3 * MOMENT_SECONDS)
    assert told == list(expected)


async def test_starts_are_told_in_a_moment_in_their_order() -> None:
    told: list[str] = []
    starts = Starts(lambda execution_id, event: told.append(f"{execution_id} {event.task_id}"))
    starts.add("e1", started("a"))
    starts.add("e2", started("b"))
    assert told == []
    await all_told(told, "e1 a", "e2 b")


async def test_a_start_whose_ending_came_before_is_not_told_and_keeps_no_other() -> None:
    told: list[str] = []
    starts = Starts(lambda execution_id, _event: told.append(execution_id))
    starts.add("over", started("a"))
    starts.add("running", started("b"))
    starts.drop("over")
    await all_told(told, "running")
    starts.add("later", started("c"))
    await all_told(told, "running", "later")


async def test_a_start_goes_ahead_of_what_else_is_told_and_comes_once() -> None:
    told: list[str] = []
    starts = Starts(lambda execution_id, _event: told.append(execution_id))
    starts.add("e1", started("a"))
    starts.tell("e1")
    starts.tell("e1")
    assert told == ["e1"]
    await all_told(told, "e1")


async def test_nothing_is_told_once_it_is_closed() -> None:
    told: list[str] = []
    starts = Starts(lambda execution_id, _event: told.append(execution_id))
    starts.add("e1", started("a"))
    starts.close()
    await all_told(told)
