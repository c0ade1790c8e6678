"""Runs that move to another coordinator while their steps run on a node: they go on there (C19)."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.combinators.runner import StepKey
from coordinator.placement.adoption import part_with_rest
from fanfold.errors import Aborted
from fanfold.model.step import AgentStepSpec, StepEnded, StepPolicy, StepProgressed, StepStarted
from support.adopted import GRACE, LEASE, Machine, Two, coordinator, held_by, settled_once
from support.mesh import until

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]


@pytest.mark.contract("C11", "F2")
async def test_a_running_step_goes_on_under_its_next_holder(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    assert set(await heir.adopt()) == {"a"}
    assert heir.coordinator.node.standing.in_flight == 1
    outcome = heir.begin()
    await until(lambda: bool(heir.heard), "its start is told again")
    machine.open_gate()
    assert (await outcome).output == "done\n"
    assert (outcome.result().attempts, outcome.result().node) == (1, "node-1")
    assert [type(e) for e in heir.heard if not isinstance(e, StepProgressed)] == [StepStarted, StepEnded]
    assert outcome.result().session_id == next(e.session_id for e in former.heard if isinstance(e, StepStarted))
    assert len(machine.lives()) == 1
    assert heir.coordinator.node.standing.in_flight == 0
    assert heir.scope.adopted == {}


@pytest.mark.contract("F2")
async def test_a_running_step_goes_on_when_its_coordinator_is_suddenly_gone(machine: Machine) -> None:
    async with coordinator(machine, "second") as second:
        async with coordinator(machine, "first") as first:
            former = held_by(first, 1)
            former.begin()
            await until(lambda: len(machine.lives()) == 1, "it runs")
            first.proxy.hold_up()  # whatever it still says is not heard
            await former.give_up()
        heir = held_by(second, 2)
        await heir.adopt()
        machine.open_gate()
        assert (await heir.outcome()).success
    assert len(machine.lives()) == 1


@pytest.mark.contract("C6")
async def test_attempts_are_counted_on(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    spec = AgentStepSpec(
        task_id="a", agent="fails-first", description="d", prompt="1", policy=StepPolicy(max_attempts=2)
    )
    assert (await former.executor.run_step(StepKey.of_spec(0, spec), spec, None)).attempts == 2
    former.scope.hold.give_up()
    await heir.adopt()
    assert (await heir.executor.run_step(StepKey.of_spec(0, spec), spec, None)).attempts == 2


@pytest.mark.contract("F5")
async def test_a_holder_that_lost_its_run_starts_nothing_more(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    running = former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await heir.adopt()
    for outcome in (await asyncio.wait_for(running, 20), await former.outcome("b")):
        assert outcome.failure is not None
        assert outcome.failure.message == "the executor raised Aborted"  # which ends a run, and no step
    assert former.scope.hold.is_given_up
    assert len(machine.lives()) == 1
    assert machine.is_alive(0), "what its next holder has goes on"
    assert former.coordinator.node.standing.in_flight == 0
    with pytest.raises(Aborted, match="has moved"):
        await former.adopt()


@pytest.mark.contract("F2")
async def test_a_run_is_adopted_though_the_link_breaks_while_that_is_asked(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    two[1].proxy.hold_up()  # what is asked now gets nowhere
    adopting = asyncio.ensure_future(heir.adopt(timeout=0.5))
    await asyncio.sleep(0.1)
    two[1].proxy.cut()
    await asyncio.sleep(0.5)  # as the node may have heard it, the timeout alone does not say that nothing runs there
    assert not adopting.done()
    two[1].proxy.heal()
    assert set(await adopting) == {"a"}
    machine.open_gate()
    assert (await heir.outcome()).success
    assert len(machine.lives()) == 1


@pytest.mark.contract("F2")
async def test_an_adopted_step_outlives_its_new_holders_link(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    await heir.adopt()
    step = heir.begin()
    await two[1].break_link()
    machine.open_gate()
    assert (await asyncio.wait_for(step, 20)).attempts == 1
    assert len(machine.lives()) == 1


@pytest.mark.contract("F3")
async def test_an_adopted_step_whose_node_dies_is_tried_again(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    await heir.adopt()
    step = heir.begin()
    two[1].proxy.hold_up()
    two[1].proxy.cut()
    await machine.boot()
    machine.open_gate()
    two[1].proxy.retarget(machine.address)
    two[1].proxy.heal()
    outcome = await asyncio.wait_for(step, 30)
    assert (outcome.success, outcome.attempts) == (True, 2)
    assert len(machine.lives()) == 2


@pytest.mark.contract("C16")
async def test_a_step_that_is_not_what_it_was_is_begun_anew(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    assert set(await heir.adopt()) == {"a"}
    assert (await heir.outcome(prompt="echo something else")).output == "something else\n"
    await until(lambda: not machine.is_alive(0), "what was begun before is stopped")
    heir.settle()
    await settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}


@pytest.mark.contract("F1")
async def test_what_is_adopted_and_not_asked_for_is_stopped_and_forgotten(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin("runs")
    await until(lambda: len(machine.lives()) == 1, "it runs")
    assert (await former.outcome("ended", "true")).success
    await former.give_up()
    assert set(await heir.adopt()) == {"runs", "ended"}
    await part_with_rest(heir.scope, 20)
    assert not machine.is_alive(0)
    assert heir.coordinator.node.standing.in_flight == 0
    await settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}


async def test_what_is_adopted_and_not_asked_for_goes_on_if_the_run_moves_again(machine: Machine, two: Two) -> None:
    former, heir, last = held_by(two[0], 1), held_by(two[1], 2), held_by(two[0], 3)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    await heir.adopt()
    heir.scope.hold.give_up()
    await part_with_rest(heir.scope, 20)
    await last.adopt()
    machine.open_gate()
    assert (await last.outcome()).success
    assert len(machine.lives()) == 1


async def test_a_coordinator_may_get_its_own_run_back(machine: Machine, two: Two) -> None:
    former, again = held_by(two[0], 1), held_by(two[0], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    await again.adopt()
    assert again.coordinator.node.standing.in_flight == 1
    step = again.begin()
    await asyncio.sleep(LEASE + GRACE)  # beyond the time after which it would be stopped
    machine.open_gate()
    assert (await asyncio.wait_for(step, 20)).success
    assert len(machine.lives()) == 1
    assert again.coordinator.node.standing.in_flight == 0
