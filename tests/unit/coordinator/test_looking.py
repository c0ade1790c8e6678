"""When a coordinator looks for runs that nobody holds: soon where it hears of them, else when a lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from coordinator.journal.journal import Journal
from coordinator.journal.memory import MemoryJournal
from coordinator.runs.looking import Looking
from support.journals import HERE, LONG, THERE, new_run
from support.mesh import DEADLINE


class Telling(MemoryJournal):
    """As if it told coordinators of one another."""

    @property
    def tells(self) -> bool:
        return True


def looking(journal: Journal, *, claim: float = 0.1, lease: float = LONG) -> Looking:
    return Looking(journal, claim=claim, lease=lease)


async def within_deadline(wait: Awaitable[None]) -> None:
    async with asyncio.timeout(DEADLINE):
        await wait


async def is_still_waiting(wait: Awaitable[None]) -> bool:
    """Whether it takes longer than many pauses between looks would."""
    try:
        async with asyncio.timeout(1.0):
            await wait
    except TimeoutError:
        return True
    return False


@pytest.mark.contract("C19", "F3")
async def test_it_waits_until_the_first_lease_is_over() -> None:
    journal = Telling()
    await journal.accept(new_run("long"), HERE, LONG)
    assert await is_still_waiting(looking(journal).until_claim([]))
    await journal.accept(new_run("short"), HERE, 0.5)
    await within_deadline(looking(journal).until_claim([]))
    assert [kept.run.run_id for kept in await journal.claim(THERE, LONG)] == ["short"]


@pytest.mark.contract("C19", "C43")
async def test_it_looks_as_soon_as_it_hears_of_a_run_that_was_let_go() -> None:
    its = looking(Telling())
    its.on_cancel()
    assert await is_still_waiting(its.until_claim([]))
    its.on_let_go()
    await within_deadline(its.until_claim([]))
    assert await is_still_waiting(its.until_claim([])), "what was heard of was looked for"


@pytest.mark.contract("C27")
async def test_it_renews_as_soon_as_it_hears_of_a_run_to_be_cancelled() -> None:
    its = looking(Telling())
    its.on_let_go()
    assert await is_still_waiting(its.until_renewal(LONG))
    its.on_cancel()
    await within_deadline(its.until_renewal(LONG))


async def test_it_looks_when_a_run_is_no_longer_left_to_others() -> None:
    its = looking(Telling())
    assert await is_still_waiting(its.until_claim([-3.0]))
    await within_deadline(its.until_claim([LONG, 0.2]))


async def test_where_nobody_tells_it_looks_again_and_again() -> None:
    for _ in range(3):
        await within_deadline(looking(MemoryJournal()).until_claim([]))
