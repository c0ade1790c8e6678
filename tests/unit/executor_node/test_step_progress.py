"""Progress: joined and thinned, in order, and never kept back for long."""

from __future__ import annotations

import asyncio

import pytest

from executor_node.progress import MAX_EVENTS_A_WINDOW, WINDOW_SECONDS, ProgressTeller
from executor_node.told import MAX_TEXT, Progress
from fanfold.model.step import TextWritten, ToolFinished


def texts(told: list[Progress]) -> list[str]:
    return [progress.text for progress in told if isinstance(progress, TextWritten)]


async def test_the_first_text_is_told_at_once_and_the_rest_together_soon() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    for text in "abcd":
        teller.add(TextWritten(text=text))
    assert texts(told) == ["a"]
    async with asyncio.timeout(5):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    assert texts(told) == ["a", "bcd"]


async def test_other_events_come_after_the_text_that_was_written_before() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    tool = ToolFinished(name="grep", success=True)
    for progress in (TextWritten(text="a"), TextWritten(text="b"), tool, TextWritten(text="c")):
        teller.add(progress)
    teller.close()
    assert told == [TextWritten(text="a"), TextWritten(text="b"), tool, TextWritten(text="c")]


@pytest.mark.contract("F15")
async def test_a_flood_is_thinned() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    for number in range(10_000):
        teller.add(TextWritten(text=f"{number:09} "))
        teller.add(ToolFinished(name="tool", success=True))
    teller.close()
    assert len(told) < 500  # ten thousand take less than four windows
    assert max(map(len, texts(told))) <= MAX_TEXT
    assert texts(told)[-1].endswith(f"{9999:09} ")


async def test_a_new_window_lets_events_through_again() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    for _ in range(MAX_EVENTS_A_WINDOW * 2):
        teller.add(ToolFinished(name="early", success=True))
    early = len(told)
    await asyncio.sleep(WINDOW_SECONDS * 1.2)
    teller.add(ToolFinished(name="late", success=True))
    assert early <= MAX_EVENTS_A_WINDOW * 2
    assert told[-1] == ToolFinished(name="late", success=True)


@pytest.mark.contract("C11")
async def test_text_that_streams_steadily_does_not_keep_other_events_from_being_told() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    tools = [ToolFinished(name=f"tool {number}", success=True) for number in range(200)]
    for tool in tools:
        teller.add(TextWritten(text="a"))
        teller.add(tool)
        await asyncio.sleep(0.005)
    teller.close()
    assert [progress for progress in told if isinstance(progress, ToolFinished)] == tools
    assert "".join(texts(told)) == "a" * 200


async def test_a_flood_amid_steady_text_is_forgotten_in_the_next_window() -> None:
    told: list[Progress] = []
    teller = ProgressTeller(told.append)
    teller.add(TextWritten(text="a"))
    for _ in range(MAX_EVENTS_A_WINDOW * 2):
        teller.add(ToolFinished(name="early", success=True))
    teller.add(TextWritten(text="b"))
    async with asyncio.timeout(5):
        while "b" not in texts(told):
            await asyncio.sleep(0.001)
    # Now we are within the window that the timer opened.
    teller.add(TextWritten(text="c"))
    assert texts(told) == ["a", "b"]
    teller.add(ToolFinished(name="late", success=True))
    assert told[-2:] == [TextWritten(text="c"), ToolFinished(name="late", success=True)]


async def test_one_long_text_is_cut() -> None:
    told: list[Progress] = []
    ProgressTeller(told.append).add(TextWritten(text="a" + "b" * MAX_TEXT))
    assert texts(told) == ["b" * MAX_TEXT]
