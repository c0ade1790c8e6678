"""What the page of operations shows to back a mesh up, and to restore it, is run here as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml

from support.earlier import KINDS
from support.job_stores import postgres_store, sqlite_store
from support.journals import postgres_journal, sqlite_journal
from support.kept import check_journal, check_store, fill_journal, fill_store
from support.postgres import Server

PAGE = Path(__file__).parent.parent.parent / "docs" / "operations.md"
DEADLINE = 60.0

pytestmark = pytest.mark.process


def blocks(section: str, language: str) -> list[str]:
    """The fenced blocks of a language below a heading."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(commands: str, folder: Path, **environment: str) -> None:
    """Run commands of the page, each of which must succeed."""
    path = f"{sysconfig.get_path('scripts')}:{environment.pop('BINARIES', '')}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-ec", commands],
        cwd=folder,
        env={**os.environ, **environment, "PATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"


@pytest.mark.contract("C19")
async def test_a_mesh_on_sqlite_is_backed_up_and_restored_as_the_page_says(tmp_path: Path) -> None:
    back_up, restore, *_ = blocks("Backup and restore", "sh")
    data = tmp_path / "data"
    data.mkdir()
    async with sqlite_journal(data) as journal, sqlite_store(data) as store:
        await fill_journal(journal)
        await fill_store(store)
        run(back_up, tmp_path)  # while they are in use
        await check_journal(journal)  # which goes on with them
        await check_store(store)
    (data / "journal.db").write_bytes(b"what was lost")
    run(restore, tmp_path)
    async with sqlite_journal(data) as journal, sqlite_store(data) as store:
        await check_journal(journal)
        await check_store(store)


@pytest.mark.contract("C19")
async def test_a_mesh_on_postgresql_is_set_up_backed_up_and_restored_as_the_page_says(
    tmp_path: Path, postgres: Server
) -> None:
    (set_up,) = blocks("PostgreSQL", "sh")
    install, *set_up_commands = set_up.splitlines()
    assert install.startswith("pip install")
    *_, dump, restore = blocks("Backup and restore", "sh")
    where = postgres.command_environment()
    try:
        run("\n".join(set_up_commands), tmp_path, **where)
        url = postgres.url("fanfold", "fanfold")
        async with postgres_journal(url) as journal, postgres_store(url) as store:
            await fill_journal(journal)
            await fill_store(store)
            run(dump, tmp_path, **where)
            await check_journal(journal)
            await check_store(store)
        run(restore, tmp_path, **where)
        restored = postgres.url("fanfold_restored", "fanfold")
        async with postgres_journal(restored) as journal, postgres_store(restored) as store:
            await check_journal(journal)
            await check_store(store)
    finally:
        for name in ("fanfold", "fanfold_restored"):
            postgres.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        postgres.execute("DROP ROLE IF EXISTS fanfold")


def test_the_page_dumps_every_schema_that_services_make() -> None:
    text = "".join(blocks("Backup and restore", "sh"))
    for kind in KINDS:
        assert f"--schema=fanfold_{kind.contents.name.replace(' ', '_')} " in text
    for part in blocks("PostgreSQL", "yaml"):
        assert yaml.safe_load(part).keys() <= {"journal", "store"}
