"""What contract suites run over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.journal.journal import Journal
from coordinator.journal.memory import MemoryJournal
from support.journals import postgres_journal, sqlite_journal
from support.postgres import Server


@pytest.fixture(params=["memory", "sqlite", "sqlite with all payloads in objects", "postgres"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        with server.database() as url:
            async with postgres_journal(url) as opened:
                yield opened
        return
    inline_bytes = 65_536 if request.param == "sqlite" else 0
    async with sqlite_journal(tmp_path, inline_bytes=inline_bytes) as opened:
        yield opened
