"""Events on their way to one reader (C11)."""

from __future__ import annotations

import asyncio

import pytest

from fanfold.feed import MAX_WAITING, Feed, fed


async def turn() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.contract("C11")
async def test_what_gathers_while_the_reader_is_busy_comes_in_order_and_at_once() -> None:
    feed: Feed[int] = Feed()
    for number in range(5):
        feed.push(number)
    assert await feed.read() == [0, 1, 2, 3, 4]
    reading = asyncio.create_task(feed.read())
    await turn()
    assert not reading.done()
    feed.push(5)
    feed.push(6)
    assert await asyncio.wait_for(reading, 1) == [5, 6]


@pytest.mark.contract("C11")
async def test_closing_ends_the_reading_after_all_that_was_pushed() -> None:
    feed: Feed[int] = Feed()
    feed.push(1)
    assert not feed.is_closed
    feed.close()
    assert feed.is_closed
    assert await feed.read() == [1]
    for _ in range(2):
        assert await asyncio.wait_for(feed.read(), 1) == []


async def test_closing_wakes_a_reader_that_waits() -> None:
    feed: Feed[int] = Feed()
    reading = asyncio.create_task(feed.read())
    await turn()
    feed.close()
    assert await asyncio.wait_for(reading, 1) == []


async def test_there_is_room_for_progress_up_to_the_bound_and_again_once_it_is_read() -> None:
    feed: Feed[int] = Feed()
    for number in range(MAX_WAITING - 1):
        feed.push(number)
    assert feed.has_room()
    feed.push(-1)
    assert not feed.has_room()
    feed.push(-2)  # what must be told always is
    assert (await feed.read())[-2:] == [-1, -2]
    assert feed.has_room()


async def test_the_first_events_count_as_delivered_when_the_reader_comes_back_for_more() -> None:
    feed: Feed[int] = Feed()
    delivered = asyncio.create_task(feed.first_delivered())
    feed.push(1)
    await turn()
    assert await feed.read() == [1]
    await turn()
    assert not delivered.done(), "it was read, which is not yet to have reached anybody"
    again = asyncio.create_task(feed.read())
    await asyncio.wait_for(delivered, 1)
    feed.close()
    assert await again == []


async def test_waiting_for_something_to_read_delivers_nothing() -> None:
    feed: Feed[int] = Feed()
    delivered = asyncio.create_task(feed.first_delivered())
    reading = asyncio.create_task(feed.read())
    await turn()
    feed.push(1)
    assert await reading == [1]
    await turn()
    assert not delivered.done()
    delivered.cancel()


async def test_a_feed_ends_with_its_work_and_an_early_leave_ends_the_work() -> None:
    feed: Feed[int] = Feed()

    async def count() -> None:
        feed.push(1)

    async with fed(feed, count()):
        assert await feed.read() == [1]
        assert await asyncio.wait_for(feed.read(), 1) == []

    is_gone = asyncio.Event()

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            is_gone.set()

    endless: Feed[int] = Feed()
    async with fed(endless, last()):
        await turn()
    assert is_gone.is_set()
    assert endless.is_closed


async def test_what_the_work_raises_is_raised_where_the_feed_is_read_after_all_that_came_before() -> None:
    feed: Feed[int] = Feed()

    async def break_off() -> None:
        feed.push(1)
        raise LookupError("it broke")

    async with fed(feed, break_off()):
        await asyncio.sleep(0.01)  # whoever hands on what it has read is not disturbed
        assert await feed.read() == [1]
        with pytest.raises(LookupError, match="it broke"):
            await feed.read()
    assert feed.is_closed


async def test_the_first_close_counts() -> None:
    feed: Feed[int] = Feed()
    feed.close()
    feed.close(LookupError("too late"))
    assert await feed.read() == []
