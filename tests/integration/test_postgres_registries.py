"""Several registries whose jobs are in one database of PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial

import pytest

import job_registry.store.migrations
import job_registry.store.sql.schema
import job_registry.store.sql.tables
from fanfold.background import background
from fanfold.errors import FailedPrecondition
from fanfold.sql.opening import open_database
from fanfold.sql.postgres import postgres_database
from fanfold.sql.settings import DatabaseSettings
from job_registry.store.sql import notices
from job_registry.store.sql.schema import STORE
from job_registry.store.store import JobStore, StoreFailed
from support.job_stores import STOP, add, keep_output, moved, output_write, postgres_store
from support.journals import (
    eventually,
)
from support.mesh import until
from support.postgres import cut_all


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
