"""Several coordinators whose journal is one database of PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from coordinator.journal.journal import Holder, Journal, JournalFailed, KeptRun
from coordinator.journal.sql.schema import JOURNAL
from fanfold.background import background
from fanfold.errors import Aborted
from fanfold.sql.access import Access
from fanfold.sql.postgres import postgres_database
from fanfold.sql.writer import Operation, Transaction
from support.journals import (
    ALICE,
    HERE,
    LONG,
    OVER,
    THERE,
    all_entries,
    append,
    ending,
    events,
    new_run,
    postgres_journal,
    record,
)
from support.mesh import until
from support.postgres import execute


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Journal, Journal]]:
    """The journals of two coordinators."""
    async with postgres_journal(url) as one, postgres_journal(url) as other:
        yield one, other


async def test_what_one_wrote_the_other_reads_and_goes_on_with(two: tuple[Journal, Journal]) -> None:
    one, other = two
    await one.accept(new_run("r", workflow_id="w"), HERE, LONG)
    await other.append(append("r", events(1, 3), records=[record("k")]))
    assert await all_entries(one, "r") == events(1, 3)
    assert [it.key for it in await one.records(ALICE, "w")] == ["k"]
    await one.append(ending("r", forget_records=True))
    assert await other.records(ALICE, "w") == []


@pytest.mark.contract("C18", "C19", "F5")
async def test_runs_that_nobody_holds_are_shared_by_those_that_claim_at_once(two: tuple[Journal, Journal]) -> None:
    one, other = two
    names = {f"r{number}" for number in range(40)}
    await asyncio.gather(*(one.accept(new_run(name), HERE, OVER) for name in names))

    async def claim_all(journal: Journal, holder: Holder) -> list[KeptRun]:
        claimed: list[KeptRun] = []
        while some := await journal.claim(holder, LONG, limit=3):
            claimed += some
        return claimed

    both = await asyncio.gather(claim_all(one, HERE), claim_all(other, THERE))
    claimed = [*both[0], *both[1]]
    assert sorted(kept.run.run_id for kept in claimed) == sorted(names)
    assert {kept.epoch for kept in claimed} == {2}


@pytest.mark.contract("C18")
async def test_a_workflow_that_is_begun_at_two_coordinators_at_once_is_held_by_one(
    two: tuple[Journal, Journal],
) -> None:
    one, other = two
    for number in range(10):
        workflow = f"w{number}"
        results = await asyncio.gather(
            one.accept(new_run(f"a{number}", workflow_id=workflow), HERE, LONG),
            other.accept(new_run(f"b{number}", workflow_id=workflow), THERE, LONG),
            return_exceptions=True,
        )
        assert [type(result) for result in results if isinstance(result, Exception)] == [Aborted]


@pytest.mark.contract("C18", "C44")
async def test_a_request_that_reaches_two_coordinators_at_once_has_one_run(two: tuple[Journal, Journal]) -> None:
    one, other = two
    for number in range(10):
        request_id = f"q{number}"
        first, second = await asyncio.gather(
            one.accept(new_run(f"a{number}", request_id=request_id), HERE, LONG),
            other.accept(new_run(f"b{number}", request_id=request_id), THERE, LONG),
        )
        assert first.run.run_id == second.run.run_id
        assert first.holder == second.holder


@pytest.mark.contract("C19", "F5")
async def test_of_two_that_append_to_one_run_at_once_each_number_is_written_once(two: tuple[Journal, Journal]) -> None:
    one, other = two
    await one.accept(new_run("r"), HERE, LONG)
    for number in range(1, 11):
        results = await asyncio.gather(
            one.append(append("r", events(number, 1, b"one"))),
            other.append(append("r", events(number, 1, b"other"))),
            return_exceptions=True,
        )
        assert not any(isinstance(result, JournalFailed) for result in results)
    assert [entry.sequence for entry in await all_entries(one, "r")] == list(range(1, 11))


async def test_transactions_that_wait_for_one_another_are_repeated(url: str) -> None:
    databases = [postgres_database(url, JOURNAL) for _ in range(2)]
    execute(url, "CREATE TABLE fanfold_journal.t (k, n) AS VALUES (1, 0), (2, 0)")
    met = threading.Barrier(2)

    def adds(first: int, second: int) -> Operation[None]:
        met_already: list[bool] = []

        def operation(transaction: Transaction) -> None:
            add_one = "UPDATE t SET n = n + 1 WHERE k = %s"
            transaction.connection.exec_driver_sql(add_one, (first,))
            if not met_already:
                met_already.append(True)
                met.wait(20.0)  # both have their first row, and want the other's
            transaction.connection.exec_driver_sql(add_one, (second,))

        return operation

    async with Access(databases[0]) as one, Access(databases[1]) as other:
        await asyncio.gather(one.write(adds(1, 2)), other.write(adds(2, 1)))
    assert execute(url, "SELECT n FROM fanfold_journal.t ORDER BY k") == [(2,), (2,)]


async def test_a_coordinator_hears_of_runs_that_are_let_go_and_of_those_to_be_cancelled(
    two: tuple[Journal, Journal],
) -> None:
    one, other = two
    heard: list[str] = []

    class Hearing:
        def on_let_go(self) -> None:
            heard.append("let go")

        def on_cancel(self) -> None:
            heard.append("cancel")

    await one.accept(new_run("r"), HERE, LONG)
    assert other.tells
    async with background(other.listen(Hearing())):
        await until(lambda: heard == ["let go", "cancel"], "it listens, and looks first")
        await one.ask_to_cancel("r", "enough")
        await until(lambda: heard[2:] == ["cancel"], "it hears that a run is to be cancelled")
        await one.let_go("r", 1)
        await until(lambda: heard[3:] == ["let go"], "it hears that a run was let go")
