"""Runs that a coordinator has claimed and cannot go on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from coordinator.config import Limits
from coordinator.journal.journal import ANY, Append, Claim, Entry, Held, Holder, KeptRun, NewRun, PayloadGone, Retention
from coordinator.journal.memory import MemoryJournal
from coordinator.runs.checks import RequestChecks
from coordinator.runs.durable import DurableRuns, Waits
from coordinator.runs.holding import Holding
from coordinator.runs.journaled import JournaledRun
from coordinator.runs.leases import Times
from coordinator.scope import Scope
from fanfold.background import background
from fanfold.model.run import EventDetail, Run, RunEnded, RunKind, RunStarted, RunState, StepCounts
from fanfold.schema import SchemaValidator
from fanfold.wire.run import event_from_bytes, event_to_bytes

RUN = Run(
    run_id="run-1",
    kind=RunKind.PARALLEL,
    state=RunState.PENDING,
    workflow_id="audit",
    owner="alice",
    steps=StepCounts(total=3),
    created_at=datetime.now(UTC),
)


@pytest.mark.contract("C28", "C42", "F3")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("what it was asked for cannot be read"), "the coordinator cannot carry it out"),
        (PayloadGone("a payload of run run-1 is lost"), "a payload of run run-1 is lost"),
    ],
)
async def test_the_end_of_a_run_that_cannot_be_gone_on_with_is_told_with_its_reason(
    error: Exception, reason: str
) -> None:
    journal = MemoryJournal()
    await journal.accept(NewRun(run=RUN), Holder(name="gone", address="gone:1"), 60.0)
    started = RunStarted(sequence=1, time=datetime.now(UTC), run_id="run-1", total_steps=3)
    counts = StepCounts(total=3, running=2, succeeded=1)
    await journal.append(Append(run_id="run-1", epoch=1, entries=[Entry(1, event_to_bytes(started))], steps=counts))
    await journal.let_go("run-1", 1)

    async def resume(_kept: KeptRun) -> JournaledRun:
        raise error

    @asynccontextmanager
    async def adopt(_kept: KeptRun, _scope: Scope) -> AsyncIterator[None]:
        yield

    async with (
        asyncio.timeout(20),
        SchemaValidator() as validator,
        Holding(journal, "c2", Times(claim=0.05), Retention()) as holding,
    ):
        checks = RequestChecks(validator, Limits())
        runs = DurableRuns(holding, lambda _scope: pytest.fail("nothing is to be run"), adopt, checks, Waits())
        async with background(holding.keep(resume)):
            while not (kept := await journal.find("run-1")) or kept.run.state is not RunState.FAILED:
                await asyncio.sleep(0.01)
        reader = await runs.reader("run-1", 2, EventDetail.OUTCOMES)
        [data] = await reader.read()
        assert not await reader.read()
    assert kept.run.reason.startswith(reason)
    ended = event_from_bytes(data)
    assert isinstance(ended, RunEnded)
    assert (ended.sequence, ended.error, ended.run.state) == (2, kept.run.reason, RunState.FAILED)
    assert ended.run.steps == StepCounts(total=3, succeeded=1)


@pytest.mark.contract("C18", "F5")
async def test_leases_are_renewed_while_runs_that_nobody_carries_out_are_let_go() -> None:
    renewals = 0
    is_over = asyncio.Event()

    class Slow(MemoryJournal):
        async def let_go(self, run_id: str, epoch: int) -> None:
            await is_over.wait()

        async def renew(self, holder: Holder, lease: float) -> Sequence[Held]:
            nonlocal renewals
            renewals += 1
            return await super().renew(holder, lease)

    async def resume(_kept: KeptRun) -> JournaledRun:
        raise AssertionError("nobody lets a run go")

    journal = Slow()
    async with asyncio.timeout(20), Holding(journal, "c1", Times(renewal=0.05), Retention()) as holding:
        await holding.begin("c1:1")
        await holding.accept(NewRun(run=RUN))  # and its caller is gone
        async with background(holding.keep(resume)):
            while renewals < 5:
                await asyncio.sleep(0.01)
        kept = await journal.find("run-1")
        assert kept is not None
        assert kept.holder.name == "c1", "it is not let go yet"
        is_over.set()


@pytest.mark.contract("C19")
async def test_a_run_whose_claim_took_most_of_its_lease_is_held_all_the_same() -> None:
    class Slow(MemoryJournal):
        async def claim(self, holder: Holder, lease: float, limit: int = 100, wanted: Claim = ANY) -> Sequence[KeptRun]:
            await asyncio.sleep(0.8 * lease)
            return await super().claim(holder, lease, limit, wanted)

    may_write: list[bool] = []

    async def resume(kept: KeptRun) -> JournaledRun:
        may_write.append(holding.may_write(kept.run.run_id))
        raise PayloadGone("that is all")

    journal = Slow()
    await journal.accept(NewRun(run=RUN), Holder(name="gone", address="gone:1"), 60.0)
    await journal.let_go("run-1", 1)
    times = Times(lease=1.0, renewal=0.1, margin=0.3, claim=0.05)
    async with (
        asyncio.timeout(20),
        Holding(journal, "c2", times, Retention()) as holding,
        background(holding.keep(resume)),
    ):
        while not (kept := await journal.find("run-1")) or kept.run.state is not RunState.FAILED:
            await asyncio.sleep(0.01)
    assert may_write == [True]
    assert kept.epoch == 2
