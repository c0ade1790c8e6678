"""Outcomes that a node keeps until they are durable, and hands to a run's next holder (C19)."""

from __future__ import annotations

import pytest

from coordinator.combinators.runner import StepKey
from fanfold.model.step import AgentStepSpec, FailureCode, StepPolicy
from support.adopted import Machine, Two, held_by, settled_once
from support.mesh import until

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]


async def test_an_outcome_that_was_not_recorded_is_taken_over(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    assert (await former.outcome()).success
    await settled_once(two[0])
    former.scope.hold.give_up()  # before its record was durable
    (adopted,) = (await heir.adopt()).values()
    assert adopted.has_ended
    assert heir.coordinator.node.standing.in_flight == 0, "what has ended takes no place"
    assert (await heir.outcome()).output == "done\n"
    assert len(machine.lives()) == 1
    heir.settle()
    await settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}, "the node need not keep it any more"


@pytest.mark.contract("F6")
async def test_an_outcome_is_kept_until_it_is_durable_however_often_the_link_breaks(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    await former.outcome()
    for _ in range(2):
        await two[0].break_link()
        await settled_once(two[0])  # it has told the ending again
    (adopted,) = (await heir.adopt()).values()
    assert adopted.has_ended


@pytest.mark.contract("F6")
async def test_an_outcome_that_is_durable_is_forgotten_also_when_the_link_breaks_meanwhile(
    machine: Machine, two: Two
) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    await former.outcome()
    node = two[0].node
    two[0].proxy.hold_up()
    two[0].proxy.cut()
    await until(lambda: not node.is_linked(), "the link breaks")
    former.settle()  # nobody is there to hear it
    two[0].proxy.heal()
    await until(two[0].is_linked, "it is back")
    await settled_once(two[0])
    assert await heir.adopt() == {}


async def test_outcomes_of_runs_without_a_journal_are_not_kept(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1, journaled=False), held_by(two[1], 2)
    machine.open_gate()
    await former.outcome()
    await settled_once(two[0])
    assert await heir.adopt() == {}


async def test_only_a_steps_last_attempt_is_kept(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    spec = AgentStepSpec(
        task_id="a", agent="fails-first", description="d", prompt="1", policy=StepPolicy(max_attempts=3)
    )
    outcome = await former.executor.run_step(StepKey.of_spec(0, spec), spec, None)
    assert outcome.attempts == 2
    await settled_once(two[0])
    (adopted,) = (await heir.adopt()).values()
    assert adopted.name.attempt == 2


async def test_of_two_executions_of_a_step_the_successful_one_counts(machine: Machine, two: Two) -> None:
    former, heir, last = held_by(two[0], 1), held_by(two[0], 2), held_by(two[1], 3)
    machine.open_gate()
    assert (await former.outcome(prompt="echo first")).success
    heir.begin(prompt="echo $$ >> lives; sleep 600")
    await until(lambda: len(machine.lives()) == 1, "another execution of the same step runs")
    await heir.give_up()
    (adopted,) = (await last.adopt()).values()
    assert adopted.name.epoch == 1
    assert (await last.outcome(prompt="echo first")).output == "first\n"
    await until(lambda: not machine.is_alive(0), "the other is stopped")


async def test_of_two_executions_of_a_step_that_have_not_succeeded_the_later_one_counts(
    machine: Machine, two: Two
) -> None:
    former, heir, last = held_by(two[0], 1), held_by(two[0], 2), held_by(two[1], 3)
    assert not (await former.outcome(prompt="exit 3")).success
    heir.begin()
    await until(lambda: len(machine.lives()) == 1, "another execution of the same step runs")
    await heir.give_up()
    (adopted,) = (await last.adopt()).values()
    assert (adopted.name.epoch, adopted.has_ended) == (2, False)
    last.settle()
    machine.open_gate()
    assert (await last.outcome()).output == "done\n"
    last.settle()
    await settled_once(two[1])
    assert await held_by(two[0], 4).adopt() == {}, "the other is kept by nobody"


async def test_an_adopted_output_is_checked_again(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    assert (await former.outcome(prompt="echo 1")).success
    former.scope.hold.give_up()
    await heir.adopt()
    spec = AgentStepSpec(task_id="a", agent="shell", description="d", prompt="echo 1", output_schema={"type": "string"})
    outcome = await heir.executor.run_step(StepKey.of_spec(0, spec), spec, None)
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.OUTPUT_INVALID


async def test_a_large_outcome_is_taken_over(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    size = 400_000
    prompt = f"echo $$ >> lives; head -c {size} /dev/zero | tr '\\0' x"
    assert len((await former.outcome(prompt=prompt)).output) == size
    former.scope.hold.give_up()
    (adopted,) = (await heir.adopt()).values()
    assert adopted.has_ended
    assert heir.coordinator.node.standing.in_flight == 0
    assert (await heir.outcome(prompt=prompt)).output == "x" * size
    heir.settle()
    await settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}
    assert len(machine.lives()) == 1
