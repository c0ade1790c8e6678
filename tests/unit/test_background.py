"""Tasks that a block owns: none outlives it, and each error is raised once and as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from fanfold.background import background
from support.silence import nothing_logged_as_error


class Work:
    """Runs until it is cancelled, and takes a turn of the loop to clean up."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.is_gone = False

    async def run(self) -> None:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.is_gone = True


async def test_works_are_cancelled_and_waited_for_at_the_end_of_the_block() -> None:
    works = [Work(), Work()]
    async with background(*(work.run() for work in works)):
        for work in works:
            await work.running.wait()
    assert all(work.is_gone for work in works)


async def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    work = Work()

    async def block() -> None:
        async with background(work.run()):
            await work.running.wait()
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await block()
    assert work.is_gone


async def test_a_work_that_fails_cancels_the_block_and_its_siblings() -> None:
    async def fail() -> None:
        raise OSError("broken")

    sibling = Work()
    with pytest.raises(ExceptionGroup) as caught:
        async with background(sibling.run(), fail()):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
    assert [str(error) for error in caught.value.exceptions] == ["broken"]
    assert sibling.is_gone


async def test_a_cancelled_block_is_cancelled_and_nothing_else() -> None:
    work = Work()

    async def block() -> None:
        async with background(work.run()):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await work.running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.is_gone


@pytest.mark.contract("F1")
async def test_a_generator_that_is_closed_within_the_block_ends_without_a_word() -> None:
    work = Work()

    async def numbers() -> AsyncGenerator[int, None]:
        async with background(work.run()):
            await work.running.wait()
            for number in range(10):
                yield number

    with nothing_logged_as_error():
        generator = numbers()
        assert await anext(generator) == 0
        await generator.aclose()  # as gRPC closes a servicer's generator that is in mid-write
        assert work.is_gone
