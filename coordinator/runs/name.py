"""A coordinator's name in the journal: what its runs are held by, and so never two processes' at the same time (F5)."""

from __future__ import annotations

import asyncio

import structlog

from coordinator.journal.journal import Holder, Journal
from coordinator.runs.leases import Times
from fanfold.errors import FailedPrecondition

_log = structlog.get_logger(__name__)


async def take_name(journal: Journal, holder: Holder, times: Times) -> None:
    """Have the name, once it is certain that nobody else does.

    One that is started again at its address has it at once, one that moves to another when its lease is over.

    Raises:
        FailedPrecondition: a coordinator of this name is alive, as it has renewed it meanwhile.
        JournalFailed: the journal cannot be read or written.
    """
    first = namesake = await journal.take_name(holder, times.lease)
    if first is not None:
        _log.warning("waiting until it is certain that no other coordinator has this name", name=holder.name)
    while namesake is not None:
        if namesake != first:
            at = f" at {namesake.address}" if namesake.address else ""
            raise FailedPrecondition(
                f"name: the coordinator{at} is called {holder.name!r} too and works on the same journal;"
                " each needs a name of its own",
                reason="NAME_TAKEN",
            )
        await asyncio.sleep(times.claim)
        namesake = await journal.take_name(holder, times.lease)
