"""Runs that a coordinator loses, claims back, or cannot go on with (C17 to C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from coordinator.combinators.runner import StepKey
from coordinator.journal.journal import Holder, JournalFailed, KeptRun, NewRun
from coordinator.scope import Scope
from fanfold.errors import Unavailable
from fanfold.model.run import RunEvent, RunState
from fanfold.model.step import AgentStepSpec, StepOutcome
from fanfold.ports import OnStepEvent
from fanfold.schema import SchemaValidator
from fanfold.wire.request import specs_to_bytes
from support.durable import DEADLINE, TIMES, Coordinator, World, decoded, events_of, opening, outputs, read_into, specs
from support.journals import new_run
from support.mesh import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        validator = await stack.enter_async_context(SchemaValidator())
        async with asyncio.timeout(DEADLINE):
            yield World(validator, stack)


async def run_held_by(coordinator: Coordinator) -> KeptRun:
    [run] = coordinator.runs.holding
    kept = await coordinator.runs.journal.find(run.scope.run_id)
    assert kept is not None
    return kept


@pytest.mark.contract("C18", "C19")
async def test_a_run_that_its_own_coordinator_has_lost_and_claims_back_is_held_at_once(world: World) -> None:
    one = await world.coordinator("one")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await source.read()
        await until(lambda: world.agents.calls["a"] == 1, "it runs")
        kept = await run_held_by(one)
        await world.shared.let_go(kept.run.run_id, kept.epoch)
        with pytest.raises(Unavailable):
            await read_into([], source)
    await until(lambda: [run.kept.epoch for run in one.runs.holding] == [2], "it is held again")
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await until(lambda: world.agents.calls["a"] == 2, "it runs again")
        assert one.runs.holding.may_write(kept.run.run_id)
        world.agents.gate.set()
        told: list[RunEvent] = []
        await read_into(told, source)
    assert outputs(told) == {0: "did a"}


@pytest.mark.contract("C18", "C19")
async def test_a_run_that_takes_long_to_read_is_held_meanwhile(world: World) -> None:
    one, two = await world.coordinator("one"), await world.coordinator("two")

    two.journal.request_takes = TIMES.lease
    async with one.runs.parallel(opening("r1"), specs("a", agent="wait")) as source:
        await source.read()
        run_id = (await run_held_by(one)).run.run_id
        await one.runs.holding.hand_over()
    await until(lambda: bool([*two.runs.holding]), "the other has read it")
    assert two.runs.holding.may_write(run_id)
    world.agents.gate.set()
    assert outputs(await events_of(two, opening("r1"), specs("a", agent="wait"))) == {0: "did a"}
    kept = await world.shared.find(run_id)
    assert kept is not None
    assert kept.epoch == 2, "it was claimed once"


@pytest.mark.contract("C19")
async def test_a_run_in_a_form_that_only_a_newer_release_knows_is_let_go_once_and_left_to_others(world: World) -> None:
    newer = specs_to_bytes(specs("a")) + b"\xf2\x3f\x03new"  # field 1022, length-delimited
    run = replace(new_run("run-1").run, workflow_id="audit", owner="alice")
    await world.shared.accept(NewRun(run=run, request=newer), Holder(name="newer", address="newer"), 0.0)
    one = await world.coordinator("one")
    await until(lambda: "run-1" in one.runs.holding.others, "it is left to others")
    await asyncio.sleep(5 * TIMES.claim)
    kept = await world.shared.find("run-1")
    assert kept is not None
    assert (kept.epoch, kept.run.state, kept.holder.name) == (2, RunState.PENDING, "")
    assert not world.agents.calls


class CutWhileRunning:
    """A runner whose step t1 finds the journal gone; it notes whether the run was given up when t0 was cancelled."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._runs = asyncio.Event()
        self.was_given_up: bool | None = None

    def concurrency_hint(self) -> int:
        return 2

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        if key.name == "t1":
            await self._runs.wait()
            raise JournalFailed
        self._runs.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_given_up = self._scope.hold.is_given_up
            raise
        raise AssertionError("unreachable")


@pytest.mark.contract("C17", "C19")
async def test_steps_that_run_are_left_to_the_next_holder_when_another_finds_the_journal_gone(world: World) -> None:
    runners: list[CutWhileRunning] = []

    def runner(scope: Scope) -> CutWhileRunning:
        runners.append(CutWhileRunning(scope))
        return runners[-1]

    one = await world.coordinator("one", runner)
    async with one.runs.parallel(opening("r1"), specs("a", "b")) as source:
        with pytest.raises(Unavailable):
            await read_into([], source)
    assert runners[0].was_given_up is True
    kept = await world.shared.find_workflow("alice", "audit")
    assert kept is not None
    told = decoded([entry.data for entry in await world.shared.entries(kept.run.run_id, 1)])
    assert outputs(told) == {}, "the journal's failure is no step's"
