"""How a process hears of what others on its database change, so that it need not look again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog

from fanfold.backoff import full_jitter
from fanfold.errors import Unavailable
from fanfold.sql.database import Database

POLL_SECONDS = 2.0
"""Longest pause between two looks while the database cannot be listened to."""

_log = structlog.get_logger(__name__)


async def hear(database: Database, told: Callable[[str], None]) -> None:
    """Call `told` with each notice of processes on the database, for ever; with an empty one where some may be missed.

    That is so when listening begins, and again and again while it is not possible. Where a database carries no notices
    nothing is ever told.
    """
    if database.notices is None:
        await asyncio.get_running_loop().create_future()
        return
    failures = 0
    while True:
        try:
            async with aclosing(database.notices()) as notices:
                async for notice in notices:
                    failures = 0
                    told(notice)
        except Unavailable as error:
            failures += 1
            if failures == 1:
                _log.warning("others are not heard; what they change is looked for instead", why=error.message)
        await asyncio.sleep(full_jitter(failures + 1, first=POLL_SECONDS / 8, most=POLL_SECONDS))
        told("")
