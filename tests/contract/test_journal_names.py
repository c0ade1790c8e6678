"""The names of coordinators in every journal: one life has each, until it is over (C19)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordinator.journal.journal import Holder, Journal, NameTaken
from support.journals import HERE, KEEP_ALL, LONG, OVER, THERE, new_run

TWIN = replace(HERE, address="127.0.0.1:7402", life="another")


@pytest.mark.contract("C18", "F5")
async def test_a_name_belongs_to_one_life_of_a_coordinator_until_it_is_over_or_dropped(journal: Journal) -> None:
    assert await journal.take_name(HERE, LONG) is None
    assert await journal.take_name(HERE, LONG) is None, "it is its own"
    assert await journal.take_name(THERE, LONG) is None, "this is another name"
    first = await journal.take_name(TWIN, LONG)
    assert first is not None
    assert (first.life, first.address) == (HERE.life, HERE.address)
    assert await journal.take_name(TWIN, LONG) == first
    await journal.drop_name(TWIN)
    assert await journal.take_name(TWIN, LONG) == first, "it was not its to drop"
    await journal.renew(HERE, LONG)
    renewed = await journal.take_name(TWIN, LONG)
    assert renewed is not None
    assert renewed.until > first.until
    await journal.drop_name(HERE)
    assert await journal.take_name(TWIN, OVER) is None
    assert await journal.take_name(HERE, LONG) is None, "the lease of the other was over"


@pytest.mark.contract("C19", "F5")
async def test_the_next_life_of_a_coordinator_at_the_same_address_has_its_name_at_once(journal: Journal) -> None:
    again = replace(HERE, life="again")
    await journal.take_name(HERE, LONG)
    assert await journal.take_name(again, LONG) is None
    with pytest.raises(NameTaken):
        await journal.renew(HERE, LONG)
    assert list(await journal.renew(again, LONG)) == []
    nowhere = [Holder(name="nowhere", address="", life=life) for life in ("one", "other")]
    assert await journal.take_name(nowhere[0], LONG) is None
    assert await journal.take_name(nowhere[1], LONG) is not None, "no address is not the same one"


@pytest.mark.contract("C18", "F5")
async def test_runs_are_not_renewed_for_a_life_that_does_not_have_their_holders_name(journal: Journal) -> None:
    await journal.accept(new_run("r"), HERE, 10.0)
    await journal.renew(HERE, 10.0)
    with pytest.raises(NameTaken, match=HERE.address):
        await journal.renew(TWIN, LONG)
    kept = await journal.find("r")
    assert kept is not None
    assert kept.lease_left <= 10.0, "it was renewed all the same"
    await journal.drop_name(HERE)
    assert [it.run_id for it in await journal.renew(TWIN, LONG)] == ["r"]
    with pytest.raises(NameTaken, match=TWIN.address):
        await journal.renew(HERE, LONG)


@pytest.mark.contract("C18", "F5")
async def test_of_many_lives_that_want_a_name_at_once_one_has_it(journal: Journal) -> None:
    lives = [replace(HERE, address=f"n:{number}", life=f"life {number}") for number in range(8)]
    taken = await asyncio.gather(*(journal.take_name(life, LONG) for life in lives))
    (first,) = [life.life for life, namesake in zip(lives, taken, strict=True) if namesake is None]
    assert {namesake.life for namesake in taken if namesake is not None} == {first}


@pytest.mark.contract("C39")
async def test_a_name_that_nobody_has_any_more_is_forgotten(journal: Journal) -> None:
    await journal.take_name(HERE, LONG)
    await journal.take_name(THERE, OVER)
    await journal.sweep(KEEP_ALL)
    namesake = await journal.take_name(TWIN, LONG)
    assert namesake is not None
    assert namesake.life == HERE.life
    assert list(await journal.renew(THERE, LONG)) == [], "who was only late has its name again"
