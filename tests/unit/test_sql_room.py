from __future__ import annotations

import asyncio

import pytest

from fanfold.sql.room import Room


async def taking(room: Room, size: int) -> asyncio.Task[None]:
    """A task that takes, as far as it comes by itself."""
    task = asyncio.create_task(room.take(size))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_what_fits_is_taken_at_once_and_the_rest_waits_for_room() -> None:
    room = Room(10)
    assert (await taking(room, 6)).done()
    assert (await taking(room, 4)).done()
    waiting = await taking(room, 1)
    assert not waiting.done()
    room.give(4)
    await waiting
    assert not (await taking(room, 4)).done()


async def test_who_asks_first_is_served_first_even_if_another_one_would_fit() -> None:
    room = Room(10)
    await room.take(8)
    large, small = await taking(room, 9), await taking(room, 1)
    assert not large.done()
    assert not small.done()
    room.give(8)
    await asyncio.gather(large, small)


async def test_more_than_all_fits_when_there_is_nothing_else() -> None:
    room = Room(10)
    assert (await taking(room, 25)).done()
    waiting = await taking(room, 1)
    assert not waiting.done()
    room.give(25)
    await waiting


@pytest.mark.parametrize("granted", [False, True])
async def test_one_that_is_cancelled_holds_nothing_and_blocks_nobody(granted: bool) -> None:
    room = Room(10)
    await room.take(10)
    first, second = await taking(room, 10), await taking(room, 10)
    if granted:
        room.give(10)  # its turn has come, but it does not know yet
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    if not granted:
        assert not second.done()
        room.give(10)
    async with asyncio.timeout(5):
        await second
