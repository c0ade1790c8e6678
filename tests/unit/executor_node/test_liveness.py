"""How a runtime treats a supervisor that says nothing."""

from __future__ import annotations

import asyncio

import pytest

from executor_node.supervisor.liveness import Measures, watch

UNTIL_HALF = ["ping"] * 4
SILENT = [*UNTIL_HALF, *["ping", "wake"] * 6, "give up"]


@pytest.mark.contract("F2")
async def test_one_that_is_silent_is_woken_from_half_of_the_limit_on_and_then_given_up() -> None:
    taken: list[str] = []
    measures = Measures(lambda _: taken.append("ping"), lambda: taken.append("wake"), lambda: taken.append("give up"))
    await watch(measures, asyncio.Event(), silence_limit=0.1)
    assert taken == SILENT


@pytest.mark.contract("F2")
async def test_a_word_of_it_counts_for_all_that_was_asked_before() -> None:
    taken: list[str] = []
    heard = asyncio.Event()

    def wake() -> None:
        taken.append("wake")
        if taken.count("wake") == 1:
            heard.set()

    measures = Measures(lambda _: taken.append("ping"), wake, lambda: taken.append("give up"))
    await watch(measures, heard, silence_limit=0.1)
    assert taken == [*UNTIL_HALF, "ping", "wake", "ping", *SILENT]
