"""PostgreSQL as the database of a service: opening, schemas, several processes at once, and what outages do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from pydantic import ValidationError
from sqlalchemy import MetaData, inspect
from sqlalchemy.exc import OperationalError

import coordinator.journal.migrations
import coordinator.journal.sql.schema
import coordinator.journal.sql.tables
import job_registry.store.migrations
import job_registry.store.sql.schema
import job_registry.store.sql.tables
from coordinator.config import JournalSettings
from coordinator.journal.journal import Holder, Journal, JournalFailed, KeptRun
from coordinator.journal.opening import open_journal
from coordinator.journal.sql.schema import JOURNAL
from fanfold.background import background
from fanfold.errors import Aborted, FailedPrecondition
from fanfold.sql.access import Access
from fanfold.sql.database import Contents
from fanfold.sql.metrics import DatabaseCounts
from fanfold.sql.opening import open_database
from fanfold.sql.postgres import postgres_database
from fanfold.sql.settings import DatabaseSettings
from fanfold.sql.writer import Operation, Transaction
from job_registry.store.sql import notices
from job_registry.store.sql.schema import STORE
from job_registry.store.store import JobStore, StoreFailed
from support.job_stores import STOP, add, keep_output, moved, output_write, postgres_store
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
    eventually,
    new_run,
    postgres_journal,
    record,
)
from support.mesh import until
from support.postgres import GUARDED, Server, execute, running_server


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with postgres.database() as its_url:
        yield its_url


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Journal, Journal]]:
    """The journals of two coordinators."""
    async with postgres_journal(url) as one, postgres_journal(url) as other:
        yield one, other


# Opening.


@pytest.mark.parametrize(
    ("contents", "steps", "schema", "metadata"),
    [
        (
            JOURNAL,
            coordinator.journal.migrations,
            coordinator.journal.sql.schema.SCHEMA,
            coordinator.journal.sql.tables.metadata,
        ),
        (
            STORE,
            job_registry.store.migrations,
            job_registry.store.sql.schema.SCHEMA,
            job_registry.store.sql.tables.metadata,
        ),
    ],
    ids=["journal", "job store"],
)
def test_migrations_make_the_tables_that_the_code_knows(
    postgres: Server, url: str, contents: Contents, steps: ModuleType, schema: str, metadata: MetaData
) -> None:
    migrated = open_database(DatabaseSettings(url=url), contents, steps, schema)
    with postgres.database() as elsewhere:
        made = postgres_database(elsewhere, contents)
        with made.writer.begin() as connection:
            metadata.create_all(connection)
        with migrated.reader.begin() as one, made.reader.begin() as other:
            assert compare_metadata(MigrationContext.configure(one), metadata) == []
            indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = ANY (%s)"
            names = (list(metadata.tables),)
            assert {*one.exec_driver_sql(indexes, names)} == {*other.exec_driver_sql(indexes, names)}
            for table in metadata.sorted_tables:
                assert _collations(inspect(one).get_columns(table.name)) == _collations(
                    inspect(other).get_columns(table.name)
                )
        made.close()
    migrated.close()


def _collations(columns: object) -> list[tuple[str, object]]:
    assert isinstance(columns, list)
    return sorted((column["name"], getattr(column["type"], "collation", None)) for column in columns)


async def test_a_journal_and_a_job_store_share_a_database(url: str) -> None:
    async with postgres_journal(url) as journal, postgres_store(url) as store:
        await journal.accept(new_run("r"), HERE, LONG)
        assert (await add(store)).number == 1
        assert await journal.find("r") is not None


async def test_journals_that_open_a_new_database_at_the_same_time_make_it_once(url: str) -> None:
    async with AsyncExitStack() as stack:
        opened = await asyncio.gather(*(stack.enter_async_context(postgres_journal(url)) for _ in range(4)))
        await opened[0].accept(new_run("r"), HERE, LONG)
        assert all([await journal.find("r") for journal in opened])


async def test_a_database_of_a_newer_release_is_refused(url: str) -> None:
    async with postgres_journal(url):
        pass
    execute(url, "UPDATE fanfold_journal.alembic_version SET version_num = '9999'")
    with pytest.raises(FailedPrecondition, match=r"newer release \(schema 9999"):
        async with postgres_journal(url):
            pass


async def test_a_migration_that_fails_changes_nothing(url: str) -> None:
    execute(url, "CREATE SCHEMA fanfold_journal CREATE TABLE event_segments (x int)")
    with pytest.raises(FailedPrecondition, match='"event_segments" already exists'):
        async with postgres_journal(url):
            pass
    tables = execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'fanfold_journal'")
    assert tables == [("event_segments",)]


async def test_the_password_comes_from_its_file_and_is_in_no_message(postgres: Server, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    with postgres.named_database() as name, postgres.guarded(name) as password:
        settings = {"url": postgres.url(name, GUARDED), "password_file": str(secret)}
        secret.write_text(f"{password}\n")
        async with open_journal(JournalSettings.model_validate(settings)) as journal:
            assert journal is not None
            await journal.accept(new_run("r"), HERE, LONG)
        secret.write_text("another secret\n")
        with pytest.raises(FailedPrecondition, match="password authentication failed") as refused:
            async with open_journal(JournalSettings.model_validate(settings)):
                pass
        assert "another secret" not in refused.value.message
        secret.unlink()
        with pytest.raises(FailedPrecondition, match="No such file"):
            async with open_journal(JournalSettings.model_validate(settings)):
                pass


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"url": "postgresql://me:secret@db/fanfold"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?password=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?sslpassword=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?oauth_client_secret=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?scram_client_key=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db/fanfold?PASSWORD=secret"}, "must not contain the password"),
        ({"url": "postgresql://me@db:secret/fanfold"}, "url must be like postgresql://"),
        ({"url": "postgresql://me@db1:5432,db2:5432/fanfold"}, "with one host and port"),
        ({"url": "mysql://me@db/fanfold"}, "must begin with postgresql://"),
        ({"url": "db.example.com"}, "must be like"),
        ({"url": "postgresql://db/fanfold", "path": "journal.db"}, "exclude one another"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        DatabaseSettings.model_validate(settings)


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"the journal postgresql:.* cannot be opened: OperationalError"):
        async with postgres_journal(f"postgresql://postgres@/x?host={tmp_path}"):
            pass


# Several coordinators.


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


# Several registries.


async def test_what_one_registry_does_the_others_hear_also_after_they_were_cut_off(url: str) -> None:
    async with postgres_store(url) as one, postgres_store(url) as other:
        heard = Heard()
        async with background(other.listen(heard)):
            await until(lambda: heard.anything > 0, "it listens")
            job = await add(one, sources=["out"])
            await until(lambda: heard.changes > 0, "it hears of the job")
            await keep_output(one, output_write(job, (0, b"x")))
            await until(lambda: heard.output == [job.number], "it hears of the output")
            before = heard.anything
            cut_all(url)
            await until(lambda: heard.anything >= before + 2, "it has looked, and listens again")
            heard.changes = 0
            await eventually(partial(moves, one, job.number), "the job is moved")
            await until(lambda: heard.changes > 0, "it hears of that")


async def test_a_notice_of_very_many_jobs_is_one_of_any(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MOST_NUMBERS", 3)
    async with postgres_store(url) as one, postgres_store(url) as other:
        jobs = [await add(one, sources=["out"]) for _ in range(4)]
        heard = Heard()
        async with background(other.listen(heard)):
            await until(lambda: heard.anything > 0, "it listens")
            before = heard.anything
            await keep_output(one, *(output_write(job, (0, b"x")) for job in jobs))
            await until(lambda: heard.anything > before, "it hears of that")
            assert heard.output == []
            await keep_output(one, *(output_write(job, (1, b"x")) for job in jobs[:3]))
            await until(lambda: heard.output == [1, 2, 3], "it hears which jobs these are")


class Heard:
    """Counts what is heard."""

    def __init__(self) -> None:
        self.changes = self.anything = 0
        self.output: list[int] = []

    def on_changes(self) -> None:
        self.changes += 1

    def on_output(self, numbers: Collection[int]) -> None:
        self.output += numbers

    def on_anything(self) -> None:
        self.anything += 1


async def moves(store: JobStore, number: int) -> bool:
    """Whether a job could be moved."""
    with suppress(StoreFailed):
        await moved(store, number, STOP)
        return True
    return False


@pytest.mark.process
async def test_a_registry_of_the_former_release_is_waited_for_before_the_tables_are_for_several(url: str) -> None:
    open_database(DatabaseSettings(url=url), STORE, job_registry.store.migrations, "0001").close()
    former = postgres_database(url, STORE)
    with former.writer.connect() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_lock(hashtext(current_setting('search_path')), 1)")
        connection.commit()
        with pytest.raises(FailedPrecondition, match="another process has it"):
            async with postgres_store(url):
                pass
        connection.invalidate()
    former.close()
    async with postgres_store(url) as store:
        assert (await add(store)).hold == 1


async def test_registries_know_which_of_them_are_there(url: str) -> None:
    async with postgres_store(url) as one, postgres_store(url) as other:
        assert await one.renew("a", 60.0) == ["a"]
        assert sorted(await other.renew("b", 60.0)) == ["a", "b"]
        assert sorted(await one.renew("a", 0.0)) == ["a", "b"]
        assert await other.renew("b", 60.0) == ["b"]


# What PostgreSQL cannot keep, and what happens to its connections.


def cut_all(url: str) -> None:
    """End all connections to a database but the one that does it, and wait until they have ended."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid != pg_backend_pid()",
    )


async def test_words_with_a_nul_are_kept_with_its_symbol(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        await journal.append(append("r", waiting_on="a\0b"))
        kept = await journal.find("r")
        assert kept is not None
        assert kept.run.waiting_on == "a\N{SYMBOL FOR NULL}b"


@pytest.mark.contract("C19")
async def test_what_a_frozen_process_has_locked_is_free_again_after_a_while(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        frozen = postgres_database(url, JOURNAL)
        with frozen.writer.connect() as connection:
            connection.exec_driver_sql("SELECT 1 FROM runs FOR UPDATE")

            async def writes() -> bool:
                try:
                    await journal.append(append("r", events(1, 1)))
                except JournalFailed:  # it waited for as long as it may
                    return False
                return True

            await eventually(writes, "the run's row is free", 60.0)
            connection.invalidate()
        frozen.close()


async def test_connections_that_are_cut_are_made_anew(url: str) -> None:
    async with postgres_journal(url) as journal:
        await journal.accept(new_run("r"), HERE, LONG)
        cut_all(url)

        async def writes() -> bool:
            try:
                await journal.append(append("r", events(1, 1)))
            except JournalFailed:
                return False
            return True

        assert await journal.find("r") is not None
        await eventually(writes, "the journal is written")
        assert await all_entries(journal, "r") == events(1, 1)


def test_a_connection_that_is_lost_is_an_error_for_whoever_used_it_and_no_trace_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = postgres_database(url, JOURNAL)
    with database.reader.connect() as connection:
        rows = connection.execution_options(stream_results=True).exec_driver_sql("SELECT generate_series(1, 100000)")
        assert rows.fetchone() == (1,)
        cut_all(url)
        rows.close()
        with pytest.raises(OperationalError):
            connection.commit()
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    database.close()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_connection_that_ended_while_nobody_used_it_fails_nothing(url: str) -> None:
    counts = DatabaseCounts()
    async with open_journal(JournalSettings(url=url), counts) as journal:
        assert journal is not None
        await journal.accept(new_run("r"), HERE, LONG)
        cut_all(url)
        await journal.append(append("r", events(1, 1)))
        assert await all_entries(journal, "r") == events(1, 1)
    assert counts.errors == 0


async def test_a_transaction_whose_connection_ends_is_an_error_and_not_repeated(url: str) -> None:
    began = 0

    def cut_off(transaction: Transaction) -> None:
        nonlocal began
        began += 1
        cut_all(url)
        transaction.connection.exec_driver_sql("SELECT 1")

    async with Access(postgres_database(url, JOURNAL)) as access:
        for _ in range(2):  # by a new connection, and by one that was used before
            with pytest.raises(JournalFailed):
                await access.write(cut_off)
            await access.write(lambda _: None)
    assert began == 2


@pytest.mark.process
@pytest.mark.contract("C17")
async def test_a_server_that_dies_is_an_error_and_what_was_acknowledged_is_there_again() -> None:
    with running_server() as server:
        async with postgres_journal(server.url("postgres")) as journal:
            await journal.accept(new_run("r"), HERE, LONG)
            await journal.append(append("r", events(1, 3)))
            server.stop()
            with pytest.raises(JournalFailed):
                await journal.append(append("r", events(4, 1)))
            with pytest.raises(JournalFailed):
                await journal.find("r")
            server.start()
            assert await all_entries(journal, "r") == events(1, 3)
            await journal.append(append("r", events(4, 1)))
            assert await all_entries(journal, "r") == events(1, 4)
