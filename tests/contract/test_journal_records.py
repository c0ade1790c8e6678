"""Records of steps in every journal: the last one of a key holds (C7)."""

from __future__ import annotations

import pytest

from coordinator.journal.journal import Journal
from fanfold.errors import Aborted
from fanfold.model.run import RunState
from support.journals import ALICE, HERE, LONG, OVER, append, ending, new_run, record


@pytest.mark.contract("C16")
async def test_of_records_with_one_key_the_last_one_holds(journal: Journal) -> None:
    await journal.accept(new_run("r1", workflow_id="w"), HERE, LONG)
    await journal.append(append("r1", records=[record("a"), record("b", b"1"), record("b", b"2")]))
    await journal.append(append("r1", records=[record("c"), record("a", b"3", "g" * 64)]))
    await journal.append(ending("r1", state=RunState.CANCELLED))
    await journal.accept(new_run("r2", workflow_id="w"), HERE, LONG)
    await journal.append(append("r2", records=[record("d"), record("b", b"4")]))
    kept = {it.key: it for it in await journal.records(ALICE, "w")}
    assert kept == {
        "a": record("a", b"3", "g" * 64),
        "b": record("b", b"4"),
        "c": record("c"),
        "d": record("d"),
    }
    assert list(await journal.records(ALICE, "other")) == []
    assert list(await journal.records("bob", "w")) == []


@pytest.mark.contract("C16")
async def test_records_are_forgotten_with_the_end_that_says_so_and_no_others(journal: Journal) -> None:
    for name in ("r1", "r2", "r3"):
        await journal.accept(new_run(name, workflow_id=name), HERE, LONG)
        await journal.append(append(name, records=[record("a")]))
    await journal.append(ending("r1", records=[record("b")], forget_records=True))
    await journal.append(ending("r2", records=[record("b")]))
    assert list(await journal.records(ALICE, "r1")) == []
    assert {it.key for it in await journal.records(ALICE, "r2")} == {"a", "b"}
    assert {it.key for it in await journal.records(ALICE, "r3")} == {"a"}


@pytest.mark.contract("C7", "C19")
async def test_records_that_are_put_replace_those_that_were_there(journal: Journal) -> None:
    await journal.put_records(ALICE, "w", [record("a"), record("b", b"b")])
    await journal.put_records("bob", "w", [record("other")])
    assert {it.key: it.data for it in await journal.records(ALICE, "w")} == {"a": b"outcome", "b": b"b"}
    await journal.put_records(ALICE, "w", [record("c")])
    assert list(await journal.records(ALICE, "w")) == [record("c")]
    await journal.put_records(ALICE, "w", [])
    assert list(await journal.records(ALICE, "w")) == []
    assert list(await journal.records("bob", "w")) == [record("other")]


@pytest.mark.contract("C18")
async def test_records_are_not_put_under_a_run_that_has_not_ended(journal: Journal) -> None:
    await journal.accept(new_run("r", workflow_id="w"), HERE, OVER)
    await journal.append(append("r", records=[record("a")]))
    with pytest.raises(Aborted) as refused:
        await journal.put_records(ALICE, "w", [record("b")])
    assert refused.value.reason == "WORKFLOW_HELD"
    assert list(await journal.records(ALICE, "w")) == [record("a")]
    await journal.append(ending("r"))
    await journal.put_records(ALICE, "w", [record("b")])
    assert list(await journal.records(ALICE, "w")) == [record("b")]
