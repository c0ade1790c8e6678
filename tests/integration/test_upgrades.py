"""Releases that find what earlier or later ones have left in their databases (C7, C8)."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from fanfold.cli.serve import CLI
from fanfold.cli.service_settings import COORDINATOR, JOB_REGISTRY
from fanfold.sql import migration
from fanfold.sql.database import Database
from fanfold.sql.opening import open_database
from fanfold.sql.postgres import postgres_database
from fanfold.sql.settings import DatabaseSettings
from fanfold.sql.sqlite import sqlite_database
from support.coordinators import coordinators
from support.earlier import KINDS, Kind
from support.job_stores import postgres_store, sqlite_store
from support.journals import postgres_journal, sqlite_journal
from support.kept import check_journal, check_store, fill_journal, fill_store
from support.mesh import ANY_PORT
from support.postgres import Server, execute

JOURNALS, STORES = KINDS
EARLIER = [
    pytest.param(kind, schema, id=f"{kind.contents.name} {schema}") for kind in KINDS for schema in kind.earlier()
]
REPLICAS = 4

FILLS: dict[str, Callable[[Any], Awaitable[None]]] = {"journal": fill_journal, "job store": fill_store}
CHECKS: dict[str, Callable[[Any], Awaitable[None]]] = {"journal": check_journal, "job store": check_store}


class Place:
    """Where databases are: in files of a folder, or at an address of PostgreSQL."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url

    def settings(self, kind: Kind) -> DatabaseSettings:
        if self._url:
            return DatabaseSettings(url=self._url)
        return DatabaseSettings(path=str(self._folder / ("journal.db" if kind is JOURNALS else "jobs.db")))

    def database(self, kind: Kind) -> Database:
        """The database as it is, also if it is empty."""
        settings = self.settings(kind)
        if settings.url:
            return postgres_database(settings.url, kind.contents)
        return sqlite_database(Path(settings.path), kind.contents)

    def opened(self, kind: Kind) -> AbstractAsyncContextManager[Any]:
        """What is in the database, brought up to date."""
        if kind is JOURNALS:
            return postgres_journal(self._url) if self._url else sqlite_journal(self._folder)
        return postgres_store(self._url) if self._url else sqlite_store(self._folder)

    def left_by_a_release_of(self, kind: Kind, schema: str) -> None:
        """Put there what such a release has left."""
        database = self.database(kind)
        kind.make(database, schema)
        database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield Place(tmp_path, "")
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as url:
        yield Place(tmp_path, url)


@pytest.mark.contract("C7", "C8", "C16", "C31")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.contents.name)
async def test_what_is_kept_is_found_again_by_the_same_release(place: Place, kind: Kind) -> None:
    async with place.opened(kind) as kept:
        await FILLS[kind.contents.name](kept)
    async with place.opened(kind) as found:
        await CHECKS[kind.contents.name](found)


@pytest.mark.contract("C7", "C8", "C16", "C31")
@pytest.mark.parametrize(("kind", "schema"), [*EARLIER, *((kind, kind.latest) for kind in KINDS)])
async def test_what_a_release_of_any_schema_has_kept_is_found_again_and_gone_on_with(
    place: Place, kind: Kind, schema: str
) -> None:
    place.left_by_a_release_of(kind, schema)
    async with place.opened(kind) as found:
        await CHECKS[kind.contents.name](found)
    async with place.opened(kind):
        pass  # what was changed once is as it is to be


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.contents.name)
async def test_replicas_that_start_at_once_change_a_database_once(
    place: Place, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is an earlier release's, if there is an earlier schema, else empty."""
    for before in kind.earlier()[:1]:
        place.left_by_a_release_of(kind, before)
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr(migration, "_log", log)  # whatever level other tests have had set for this process
    opening = [asyncio.to_thread(_open, place, kind) for _ in range(REPLICAS)]
    for database in await asyncio.gather(*opening):
        database.close()
    told = Counter((*call.args, call.kwargs["now"]) for call in log.calls if "now" in call.kwargs)
    assert told == {(f"{kind.contents.name} migrated", kind.latest): 1}


def _open(place: Place, kind: Kind) -> Database:
    return open_database(place.settings(kind), kind.contents, kind.steps, kind.latest)


@pytest.mark.process
@pytest.mark.contract("C8", "C18")
async def test_coordinators_that_start_at_once_on_an_empty_database_make_it_once_and_share_it(
    tmp_path: Path, postgres: Server
) -> None:
    with postgres.database() as url:
        async with coordinators(tmp_path, 3, nodes=0, journal={"path": "", "url": url}) as up:
            logs = [child.log.read_text() for child in up.children]
            assert sum("journal migrated" in log for log in logs) == 1, logs


@pytest.mark.process
@pytest.mark.contract("C7", "C41")
@pytest.mark.parametrize(
    ("kind", "service", "section"), [(JOURNALS, COORDINATOR, "journal"), (STORES, JOB_REGISTRY, "store")]
)
def test_a_service_that_finds_a_newer_releases_database_says_so_and_does_not_start(
    postgres: Server, tmp_path: Path, kind: Kind, service: str, section: str
) -> None:
    with postgres.database() as url:
        _open(Place(tmp_path, url), kind).close()
        schema = f"fanfold_{kind.contents.name.replace(' ', '_')}"
        execute(url, f"UPDATE {schema}.alembic_version SET version_num = '9999'")
        file = tmp_path / "service.yaml"
        file.write_text(yaml.safe_dump({"listen": ANY_PORT, "metrics_listen": ANY_PORT, section: {"url": url}}))
        command = [*CLI, "serve", service, "--config", str(file), "--print-ready"]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert execute(url, f"SELECT version_num FROM {schema}.alembic_version") == [("9999",)]
    assert ended.returncode not in {0, -9}
    assert ended.stdout == "", "it said that it was ready"
    assert f"is of a newer release (schema 9999; this one knows {kind.latest})" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.contents.name)
def test_rows_of_every_schema_are_kept_for_these_tests(kind: Kind) -> None:
    missing = [schema for schema in (*kind.earlier(), kind.latest) if not kind.rows(schema).exists()]
    assert not missing, "python -m support.earlier writes those of the schema that is in use"
