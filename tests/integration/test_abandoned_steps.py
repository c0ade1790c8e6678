"""Steps that nobody goes on with are gone before they can be started elsewhere (C19)."""

from __future__ import annotations

import asyncio

import pytest

from support.adopted import CERTAINTY, LEASE, Machine, Two, held_by, settled_once
from support.mesh import until

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]


@pytest.mark.contract("F3")
async def test_a_node_that_cannot_be_reached_holds_nothing_when_its_lease_is_over(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    for each in two:
        each.proxy.hold_up()
        each.proxy.cut()
    await until(lambda: not heir.coordinator.node.is_linked(), "the link breaks")
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = asyncio.ensure_future(heir.adopt())
    await asyncio.sleep(0.1)
    assert heir.scope.waiting.summary() == "node node-1, which may hold steps of the run"
    assert await waiting == {}
    assert loop.time() - began >= CERTAINTY
    assert not machine.is_alive(0), "nothing of it may run when it is started elsewhere"
    await former.give_up()


async def test_a_node_that_was_started_anew_holds_nothing(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    two[1].proxy.hold_up()
    two[1].proxy.cut()
    adopting = asyncio.ensure_future(heir.adopt(timeout=60))
    await former.give_up()
    await machine.boot()
    two[1].proxy.retarget(machine.address)
    two[1].proxy.heal()
    assert await asyncio.wait_for(adopting, 30) == {}
    assert not machine.is_alive(0)


@pytest.mark.contract("F1", "F2")
async def test_a_run_that_nobody_goes_on_with_is_stopped_when_a_lease_has_passed(machine: Machine, two: Two) -> None:
    former = held_by(two[0], 1)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await former.give_up()
    assert former.coordinator.node.standing.in_flight == 0
    await until(lambda: not machine.is_alive(0), "it is stopped, though its coordinator is still linked")
    assert loop.time() - began >= LEASE


async def test_a_run_that_is_given_up_while_its_link_is_down_is_stopped_when_a_lease_has_passed(
    machine: Machine, two: Two
) -> None:
    former = held_by(two[0], 1)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    two[0].proxy.hold_up()
    two[0].proxy.cut()
    node = two[0].node
    await until(lambda: not node.is_linked(), "the link breaks")
    await former.give_up()
    await asyncio.sleep(LEASE / 2)
    two[0].proxy.heal()
    await until(lambda: not machine.is_alive(0), "it is stopped", CERTAINTY + 5)


async def test_what_its_former_holder_had_stopped_is_begun_anew_at_no_cost(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    node = two[0].node
    await former.give_up()
    await until(lambda: not machine.is_alive(0), "it is stopped as nobody has adopted it")
    await until(lambda: not node.holds_executions(), "its coordinator has heard so")
    assert await heir.adopt() == {}
    machine.open_gate()
    outcome = await heir.outcome(max_attempts=1)
    assert (outcome.success, outcome.attempts) == (True, 1)


@pytest.mark.contract("F1")
async def test_an_adopted_step_is_cancelled_with_its_run(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    former.begin()
    await until(lambda: len(machine.lives()) == 1, "it runs")
    await former.give_up()
    await heir.adopt()
    step = heir.begin()
    await until(lambda: bool(heir.heard), "it is waited for")
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(step, 20)
    assert not machine.is_alive(0)
    await settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}
