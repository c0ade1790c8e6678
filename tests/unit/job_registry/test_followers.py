"""Who follows output gets all of it, whichever registry its producer has come to meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from fanfold.model.job import JobState
from job_registry.reading import Reading
from job_registry.store.memory import MemoryJobStore
from support.job_words import ALICE, Producing, jobs_in
from support.mesh import DEADLINE, until
from support.produced import kept


@pytest.mark.contract("C37", "F16")
async def test_a_job_that_comes_elsewhere_and_settles_there_unseen_is_followed_to_its_end() -> None:
    store = MemoryJobStore()
    async with jobs_in(store) as one, jobs_in(store) as other:
        before = Producing(one)
        job = await before.register()
        got: list[bytes] = []

        async def follow() -> None:
            async for piece in Reading(one).output(ALICE, job.id, "out", 0, follow=True):
                got.append(piece.data)

        before.write(b"first, ")
        await until(lambda: one.output.received == 7, "it is taken")
        await one.output.keep()
        following = asyncio.create_task(follow())
        await until(lambda: got == [b"first, "], "it is followed")
        await before.leave()
        after = Producing(other)
        await after.reattach(job.id)
        after.write(b"second", 7)
        assert (await after.settle()).state is JobState.COMPLETED
        assert not following.done()
        assert (await kept(one, job.id)).state is JobState.COMPLETED
        async with asyncio.timeout(DEADLINE):
            await following
        assert got == [b"first, ", b"second"]
        assert one.output.held == 0
