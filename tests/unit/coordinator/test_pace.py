"""Large endings are taken as fast as the run's caller reads, and cost nobody else a place meanwhile (F11, F22)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from coordinator.pace import CALLER_BEHIND, Pace
from coordinator.placement.adoption import Adoptions
from coordinator.placement.node import KnownNode, Leases
from coordinator.scope import Scope
from coordinator.waiting import Waiting
from fanfold.clients.link_parts import PROGRESS_WINDOW, ProgressCredit
from fanfold.errors import Unavailable
from fanfold.feed import MAX_WAITING, MAX_WEIGHT_WAITING, Feed
from fanfold.model.node import Agent, AgentKind, Isolation, Node, NodeStatus
from fanfold.model.step import AgentStepSpec, StepEnded, StepOutcome
from fanfold.ports import ExecutionStart, Rejection

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = AgentStepSpec(task_id="t", agent="a", description="d", prompt="p")
START = ExecutionStart(execution_id="e", run_id="r", epoch=1, spec=SPEC, progress=False)
DONE = StepOutcome(task_id="t", agent="a", success=True)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.contract("C42")
async def test_large_endings_are_taken_one_at_a_time_and_only_when_the_reader_is_not_behind() -> None:
    pace, waiting, feed = Pace(), Waiting(), Feed[str]()
    pace.follow(feed)
    taken: list[str] = []
    gate = asyncio.Event()

    async def take(name: str) -> None:
        with waiting.step():
            async with pace.turn(waiting):
                taken.append(name)
                feed.push(name, MAX_WEIGHT_WAITING + 1)
                await gate.wait()

    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(take(name))
        await turns()
        assert taken == ["a"], "the others wait for their turn"
        gate.set()
        await turns()
        assert taken == ["a"], "and for the reader"
        assert waiting.summary() == CALLER_BEHIND
        await feed.read()
        await turns()
        assert taken == ["a", "b"]
        await feed.read()
    assert taken == ["a", "b", "c"]


async def test_a_run_keeps_up_while_its_reader_is_near() -> None:
    pace, feed = Pace(), Feed[int]()
    assert pace.keeps_up()
    pace.follow(feed)
    for number in range(MAX_WAITING):
        feed.push(number)
    assert not pace.keeps_up()
    await feed.read()
    assert pace.keeps_up()


async def test_progress_has_credit_again_when_half_of_it_is_used_and_the_reader_keeps_up() -> None:
    given: list[tuple[str, int]] = []
    behind = {"slow"}
    credit = ProgressCredit(lambda execution_id: execution_id not in behind, lambda *one: given.append(one))
    asking = asyncio.create_task(credit.keep_asking())
    for _ in range(PROGRESS_WINDOW):
        credit.told("slow")
        credit.told("quick")
    half = PROGRESS_WINDOW // 2
    assert given == [("quick", half), ("quick", half)]
    await asyncio.sleep(0.3)
    assert len(given) == 2, "who is behind gets none"
    behind.clear()
    async with asyncio.timeout(5):
        while len(given) < 3:
            await asyncio.sleep(0.01)
    assert given[2] == ("slow", PROGRESS_WINDOW)
    asking.cancel()


class HandLink:
    """A link that keeps what it is asked for."""

    def __init__(self, *unsent: str) -> None:
        self.said: list[tuple[str, str]] = []
        self._unsent = list(unsent)

    def start(self, start: ExecutionStart) -> None:
        self.said.append(("start", start.execution_id))

    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        self.said.append(("cancel", execution_id))
        return True

    def want(self, execution_id: str) -> None:
        self.said.append(("want", execution_id))

    def unsent(self) -> list[str]:
        return self._unsent

    def acknowledge(self, execution_id: str) -> None:
        self.said.append(("acknowledge", execution_id))

    def adopt(self, run_id: str, epoch: int) -> None:
        self.said.append(("adopt", run_id))

    def finish(self) -> None: ...


def linked(link: HandLink, held: frozenset[str] = frozenset(), known: KnownNode | None = None) -> KnownNode:
    """A node that is ready over this link, again if it was known before."""
    known = known or KnownNode("x:1", lambda _known, _change: None, Leases(lease=60, certainty=60), Adoptions())
    agent = Agent(name="a", description="d", kind=AgentKind.PYTHON, isolation=Isolation.SHARED)
    node = Node(name="n", boot_id="b", agents=(agent,), status=NodeStatus(max_concurrent_steps=4))
    known.welcomed(node, link, held)
    return known


@pytest.mark.contract("F2")
async def test_an_ending_that_is_wanted_is_asked_for_again_over_the_next_link() -> None:
    first, second = HandLink(), HandLink()
    known = linked(first)
    execution = known.execute(START, lambda _event: None, Scope(run_id="r", owner="o", progress=False))
    known.execution_withheld("e", 10**6)
    assert await asyncio.wait_for(execution.wait(), 1) is None, "it has ended, but not come"
    known.want(execution)
    known.lost(Unavailable("gone"))
    linked(second, frozenset({"e"}), known)
    known.execution_withheld("e", 10**6)
    assert [first.said, second.said] == [[("start", "e"), ("want", "e")], [("want", "e")]]
    known.execution_event("e", StepEnded(task_id="t", time=NOW, outcome=DONE))
    assert await asyncio.wait_for(execution.wait(), 1) is DONE


async def test_an_ending_that_nobody_waits_for_any_more_is_dropped() -> None:
    link = HandLink()
    known = linked(link)
    execution = known.execute(START, lambda _event: None, Scope(run_id="r", owner="o", progress=False))
    known.execution_withheld("e", 10**6)
    known.cancel(execution, "enough")
    known.execution_withheld("e", 10**6)
    assert link.said == [("start", "e"), ("acknowledge", "e"), ("acknowledge", "e")]
    assert execution.ending is not None, "the one who cancels need not wait"


@pytest.mark.contract("C6", "F2")
async def test_a_step_that_had_not_wholly_left_when_its_link_ended_is_handed_back_at_once() -> None:
    known = linked(HandLink("e"))
    execution = known.execute(START, lambda _event: None, Scope(run_id="r", owner="o", progress=False))
    known.lost(Unavailable("gone"))
    assert isinstance(await asyncio.wait_for(execution.wait(), 1), Rejection)
