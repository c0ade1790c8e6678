"""Which node takes a step, and what steps that none takes are told (C3, C6, C10, F21)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import CapturingLogger, capture_logs

from coordinator.placement import nodes as placement
from coordinator.placement.node import KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.placement.quota import QuotaWait
from coordinator.scope import Scope
from fanfold.errors import Unavailable
from fanfold.model.node import Agent, AgentKind, HeldBack, Isolation, Node, NodesChanged, NodeState, NodeStatus
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, StepOutcome, StepPolicy
from fanfold.ports import ExecutionStart, LinkListener, Rejection, RejectionReason

PATIENCE = Patience(agent_unknown=0.1, unplaceable=0.2)
FAR = Patience(agent_unknown=0.1, unplaceable=30.0)
"""Bounds that a test cannot take for one another."""

SCOPE = Scope(run_id="run-1", owner="o", progress=False)


class SilentLink:
    def start(self, start: ExecutionStart) -> None: ...
    def cancel(self, execution_id: str, reason: str, delay: float = 0.0) -> bool:
        return True

    def adopt(self, run_id: str, epoch: int) -> None: ...
    def acknowledge(self, execution_id: str) -> None: ...

    def want(self, execution_id: str) -> None: ...
    def unsent(self) -> list[str]:
        return []

    def finish(self) -> None: ...


class Fleet:
    """Nodes that answer as the test says; implements NodeDialer."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.listeners: dict[str, LinkListener] = {}
        self.dialled: Counter[str] = Counter()
        self.odd = ""
        """The address of a node whose welcome cannot be handled."""
        self._ends: dict[str, asyncio.Future[None]] = {}

    async def hold_link(self, address: str, listener: LinkListener) -> None:
        self.dialled[address] += 1
        if address not in self.nodes:
            raise Unavailable("nobody there")
        self._ends[address] = asyncio.get_running_loop().create_future()
        listener.welcomed(self.nodes[address], SilentLink(), frozenset())
        if address == self.odd:
            raise RuntimeError("what nobody foresaw")
        self.listeners[address] = listener
        await self._ends[address]

    def status(self, address: str, **changes: int | bool | tuple[HeldBack, ...]) -> None:
        self.listeners[address].status_changed(NodeStatus(**{"max_concurrent_steps": 4, **changes}))  # type: ignore[arg-type]

    def lose(self, address: str) -> None:
        del self.nodes[address]
        self._ends[address].set_exception(Unavailable("it is gone"))


def node(name: str, *agents: str, hint: int = 2, most: int = 4, labels: dict[str, str] | None = None) -> Node:
    offered = tuple(
        Agent(name=agent, description="d", kind=AgentKind.PYTHON, isolation=Isolation.SHARED) for agent in agents
    )
    status = NodeStatus(concurrency_hint=hint, max_concurrent_steps=most)
    return Node(name=name, boot_id=f"boot of {name}", agents=offered, labels=labels or {}, status=status)


def step(agent: str = "a", **labels: str) -> AgentStepSpec:
    return AgentStepSpec(task_id="t", agent=agent, description="d", prompt="p", policy=StepPolicy(node_labels=labels))


@asynccontextmanager
async def placing(*members: Node, patience: Patience = PATIENCE) -> AsyncIterator[tuple[Fleet, Nodes, PlacementQueue]]:
    fleet = Fleet()
    async with Nodes(fleet, redial_delay=0.05) as nodes:
        queue = PlacementQueue(nodes, patience)
        for member in members:
            fleet.nodes[member.name] = member
            nodes.want(member.name)
        await until(lambda: all(known.standing.state is NodeState.READY for known in nodes))
        yield fleet, nodes, queue


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def taken(queue: PlacementQueue, spec: AgentStepSpec) -> KnownNode:
    place = await asyncio.wait_for(queue.acquire(spec, SCOPE), 5)
    assert isinstance(place, KnownNode)
    return place


@pytest.mark.contract("C10")
async def test_the_least_loaded_node_is_taken_by_what_it_wants() -> None:
    async with placing(node("small", "a", hint=1), node("large", "a", hint=3)) as (_, _, queue):
        places = [(await taken(queue, step())).address for _ in range(4)]
    assert sorted(places) == ["large", "large", "large", "small"]


async def test_load_counts_what_others_run_there() -> None:
    async with placing(node("busy", "a"), node("idle", "a")) as (fleet, _, queue):
        fleet.status("busy", concurrency_hint=2, running_steps=3)
        places = [(await taken(queue, step())).address for _ in range(3)]
    assert places == ["idle", "idle", "idle"]


LIMITED = (HeldBack(agent="a", waiting_on="the rate limit of openai"),)
EXHAUSTED = (HeldBack(agent="a", waiting_on="the quota of openai", quota=True),)


@pytest.mark.contract("F8", "F9")
@pytest.mark.parametrize("held_back", [LIMITED, EXHAUSTED])
async def test_nodes_whose_provider_holds_the_agent_back_are_taken_last(held_back: tuple[HeldBack, ...]) -> None:
    async with placing(node("held", "a", "b"), node("busy", "a", "b", most=2)) as (fleet, _, queue):
        fleet.status("held", held_back=held_back)
        fleet.status("busy", running_steps=1, max_concurrent_steps=3)
        places = [(await taken(queue, step())).address for _ in range(3)]
        assert places == ["busy", "busy", "held"]
        fleet.status("held")
        assert (await taken(queue, step("b"))).address == "held"


@pytest.mark.contract("F8", "C42")
async def test_a_step_waits_for_a_quota_as_long_as_it_is_to_and_says_so() -> None:
    scope = Scope(run_id="run-1", owner="o", progress=False)
    async with placing(node("held", "a"), patience=replace(PATIENCE, quota=30.0)) as (fleet, _, queue):
        fleet.status("held", held_back=EXHAUSTED)
        waits = asyncio.create_task(queue.acquire(step(), scope))
        await until(lambda: scope.waiting.summary() == "a place: the quota of openai is exhausted")
        await asyncio.sleep(3 * PATIENCE.unplaceable)
        assert not waits.done()
        fleet.status("held")
        assert isinstance(await asyncio.wait_for(waits, 5), KnownNode)
    async with placing(node("held", "a"), patience=replace(PATIENCE, quota=0.3)) as (fleet, _, queue):
        fleet.status("held", held_back=EXHAUSTED)
        failure = await asyncio.wait_for(queue.acquire(step(), scope), 5)
        assert isinstance(failure, StepFailure)
        assert failure.code is FailureCode.QUOTA_EXHAUSTED


@pytest.mark.contract("F8", "F9")
async def test_after_a_step_that_found_no_quota_others_wait_for_the_nodes_word() -> None:
    """Programs say so, of whose quotas their node knows nothing."""
    scope = Scope(run_id="run-1", owner="o", progress=False)
    outcome = StepOutcome(
        task_id="t",
        session_id="s",
        agent="a",
        output="",
        success=False,
        failure=StepFailure(code=FailureCode.QUOTA_EXHAUSTED, message="none is left"),
    )
    async with placing(node("alone", "a", "b"), patience=replace(PATIENCE, quota=30.0)) as (fleet, _, queue):
        known = await taken(queue, step())
        quota = QuotaWait(30.0)
        assert (QuotaWait(0).is_due(outcome), quota.is_due(outcome)) == (False, True)
        pause = asyncio.create_task(quota.pause(outcome, known, scope))
        await until(lambda: scope.waiting.summary() == "a quota: none is left")
        await asyncio.wait_for(pause, 5)
        other = asyncio.create_task(queue.acquire(step(), SCOPE))
        assert await taken(queue, step("b")) is known, "what other agents ask is another quota"
        assert not other.done()
        fleet.status("alone")
        assert await asyncio.wait_for(other, 5) is known


@pytest.mark.contract("C6")
async def test_labels_must_match() -> None:
    async with placing(node("plain", "a"), node("gpu", "a", labels={"gpu": "yes"})) as (_, _, queue):
        assert (await taken(queue, step(gpu="yes"))).address == "gpu"
        assert (await taken(queue, step())).address == "plain"


@pytest.mark.contract("C10", "F24")
async def test_a_step_waits_for_a_full_node_and_gets_the_place_that_is_given_back() -> None:
    async with placing(node("only", "a", most=1)) as (_, _, queue):
        first = await taken(queue, step())
        second = asyncio.create_task(taken(queue, step()))
        third = asyncio.create_task(taken(queue, step()))
        await asyncio.sleep(3 * PATIENCE.unplaceable)  # longer than any bound: full is not unplaceable
        assert not second.done()
        queue.release(first)
        await asyncio.wait_for(second, 1)
        assert not third.done()
        queue.release(first)
        await asyncio.wait_for(third, 1)


async def test_a_place_is_not_lost_when_the_step_that_waited_for_it_is_cancelled() -> None:
    async with placing(node("only", "a", most=1)) as (_, _, queue):
        held = await taken(queue, step())
        waiting = asyncio.create_task(queue.acquire(step(), SCOPE))
        await asyncio.sleep(0)
        queue.release(held)  # hands the place over ...
        waiting.cancel()  # ... to a step that is cancelled before it wakes
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await taken(queue, step())).address == "only"


@pytest.mark.contract("C10")
async def test_a_node_that_says_full_is_left_alone_for_as_long_as_it_says() -> None:
    async with placing(node("only", "a")) as (_, nodes, queue):
        known = next(iter(nodes))
        known.execution_rejected("x", Rejection(reason=RejectionReason.FULL, retry_delay=0.3))
        queue.retry_when_not_full(known)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await taken(queue, step())
        assert 0.25 <= loop.time() - began < 2


@pytest.mark.contract("C3", "F21")
async def test_an_agent_nobody_ever_offered_is_unknown_after_the_short_bound() -> None:
    async with placing(node("secretly-named", "a")) as (_, _, queue):
        failure = await asyncio.wait_for(queue.acquire(step("reveiw"), SCOPE), 5)
    assert isinstance(failure, StepFailure)
    assert failure.code is FailureCode.AGENT_UNKNOWN
    assert failure.message == "no node has ever offered an agent 'reveiw'; waited 0.1 s"
    assert not failure.retryable


async def test_who_mistypes_an_agent_is_told_the_nearest_one() -> None:
    async with placing(node("secretly-named", "review")) as (_, _, queue):
        failure = await asyncio.wait_for(queue.acquire(step("reveiw"), SCOPE), 5)
    assert isinstance(failure, StepFailure)
    expected = "no node has ever offered an agent 'reveiw' (did you mean 'review'?); waited 0.1 s"
    assert failure.message == expected


@pytest.mark.contract("C3")
async def test_the_short_bound_does_not_hold_while_a_wanted_node_was_never_reached() -> None:
    async with placing(node("there", "a")) as (_, nodes, queue):
        nodes.want("away")
        failure = await asyncio.wait_for(queue.acquire(step("b"), SCOPE), 5)
        assert isinstance(failure, StepFailure)
        assert failure.code is FailureCode.AGENT_UNKNOWN
        assert failure.message == "no node has ever offered an agent 'b'; waited 0.2 s"


@pytest.mark.contract("C3")
async def test_a_node_that_is_reached_late_may_still_offer_the_agent() -> None:
    async with placing(node("there", "a"), patience=FAR) as (fleet, nodes, queue):
        nodes.want("away")
        waiting = asyncio.create_task(taken(queue, step("b")))
        await asyncio.sleep(2 * FAR.agent_unknown)
        assert not waiting.done()
        fleet.nodes["away"] = node("away", "b")
        assert (await waiting).address == "away"


@pytest.mark.contract("C3")
async def test_a_node_that_is_reached_and_lacks_the_agent_brings_the_short_bound_back() -> None:
    async with placing(node("there", "a"), patience=FAR) as (fleet, nodes, queue):
        nodes.want("away")
        waiting = asyncio.create_task(queue.acquire(step("b"), SCOPE))
        await asyncio.sleep(0)
        fleet.nodes["away"] = node("away", "c")
        failure = await asyncio.wait_for(waiting, 5)
        assert isinstance(failure, StepFailure)
        assert failure.message == "no node has ever offered an agent 'b'; waited 0.1 s"


@pytest.mark.contract("C3", "F21")
async def test_labels_no_live_node_carries_make_a_step_unplaceable_and_tell_nothing_of_the_fleet() -> None:
    async with placing(node("secretly-named", "a", "other-agent", labels={"zone": "b"})) as (_, _, queue):
        failure = await asyncio.wait_for(queue.acquire(step(zone="a"), SCOPE), 5)
    assert isinstance(failure, StepFailure)
    assert failure.code is FailureCode.UNPLACEABLE
    assert failure.message == "no live node that offers agent 'a' carries the labels zone=a; waited 0.2 s"
    assert failure.retryable


@pytest.mark.contract("C3", "F3", "F21")
async def test_a_step_that_waited_for_a_full_node_is_told_when_that_node_is_gone_for_good() -> None:
    async with placing(node("only", "a", most=1)) as (fleet, _, queue):
        await taken(queue, step())
        waiting = asyncio.create_task(queue.acquire(step(), SCOPE))
        await asyncio.sleep(2 * PATIENCE.unplaceable)
        loop = asyncio.get_running_loop()
        fleet.lose("only")
        began = loop.time()
        failure = await asyncio.wait_for(waiting, 5)
        # The bound counts from when the step became hopeless, not from when it began to wait.
        assert loop.time() - began >= 0.9 * PATIENCE.unplaceable
    assert isinstance(failure, StepFailure)
    assert failure.code is FailureCode.UNPLACEABLE
    assert failure.message == "no live node offers agent 'a'; waited 0.2 s"


@pytest.mark.contract("C10")
async def test_a_node_that_joins_takes_what_waits_and_counts_into_the_hint() -> None:
    async with placing() as (fleet, nodes, queue):
        waiting = asyncio.create_task(taken(queue, step()))
        await asyncio.sleep(0)
        assert nodes.hint() == 0
        fleet.nodes["late"] = node("late", "a", hint=7)
        nodes.want("late")
        assert (await waiting).address == "late"
        assert nodes.hint() == 7
        fleet.status("late", concurrency_hint=7, draining=True)
        assert nodes.hint() == 0


async def test_two_addresses_of_one_node_make_one_node() -> None:
    async with placing(node("only", "a", hint=3)) as (fleet, nodes, _):
        fleet.nodes["alias"] = fleet.nodes["only"]
        nodes.want("alias")
        await until(lambda: any("already linked" in known.standing.waiting_on for known in nodes))
        assert nodes.hint() == 3


async def next_change(changes: AsyncGenerator[NodesChanged, None]) -> NodesChanged:
    return await asyncio.wait_for(anext(changes), 5)


@pytest.mark.parametrize("name", ["same:1", "called-otherwise"])
async def test_a_node_nobody_wants_any_more_is_forgotten_by_its_name_once_its_link_is_down(name: str) -> None:
    async with placing() as (fleet, nodes, _):
        fleet.nodes["same:1"] = node(name, "a")
        nodes.want("same:1")
        await until(lambda: [known.standing.state for known in nodes] == [NodeState.READY])
        async with aclosing(nodes.watch()) as changes:
            assert [(view.address, view.node.name) for view in (await next_change(changes)).nodes] == [("same:1", name)]
            nodes.unwant("same:1")
            assert [known.address for known in nodes] == ["same:1"]
            fleet.lose("same:1")
            await until(lambda: not list(nodes))
            forgotten: tuple[str, ...] = ()
            while not forgotten:
                forgotten = (await next_change(changes)).forgotten
            assert forgotten == (name,)


async def test_a_watcher_hears_of_every_state_without_asking() -> None:
    async with placing(node("only", "a")) as (fleet, nodes, _), aclosing(nodes.watch()) as changes:
        await next_change(changes)
        fleet.status("only", draining=True)
        assert [view.state for view in (await next_change(changes)).nodes] == [NodeState.DRAINING]


async def test_a_watcher_is_not_told_again_what_has_not_changed() -> None:
    members = [node("quiet", "a", hint=2), node("busy", "a", hint=2)]
    async with placing(*members) as (fleet, nodes, _), aclosing(nodes.watch()) as changes:
        assert [view.address for view in (await next_change(changes)).nodes] == ["busy", "quiet"]
        news = asyncio.create_task(anext(changes))
        for _ in range(3):
            fleet.status("quiet", concurrency_hint=2)  # as a node says about once a second
            fleet.status("busy", concurrency_hint=2)
            await asyncio.sleep(0.01)
        assert not news.done()
        fleet.status("quiet", concurrency_hint=2)
        fleet.status("busy", concurrency_hint=2, running_steps=1)
        change = await asyncio.wait_for(news, 5)
        assert [(view.address, view.node.status.running_steps) for view in change.nodes] == [("busy", 1)]
        assert change.forgotten == ()


async def test_one_nodes_oddity_leaves_the_links_of_the_others_alone() -> None:
    async with placing(node("sound", "a")) as (fleet, nodes, queue):
        link_of_the_sound_one = fleet.listeners["sound"]
        fleet.odd = "odd"
        fleet.nodes["odd"] = node("odd", "a", hint=7)
        with capture_logs() as lines:
            nodes.want("odd")
            await until(lambda: fleet.dialled["odd"] >= 3)  # it is dialled again, as any other
        assert any(line["event"] == "link failed" and line["address"] == "odd" for line in lines)
        (odd,) = [view for view in nodes.views() if view.address == "odd"]
        assert odd.state is not NodeState.READY
        assert odd.waiting_on == "its link failed; the coordinator's log says why"
        assert nodes.hint() == 2
        assert fleet.listeners["sound"] is link_of_the_sound_one
        assert fleet.dialled["sound"] == 1
        assert (await taken(queue, step())).address == "sound"
        fleet.odd = ""
        await until(lambda: nodes.hint() == 9)


@pytest.mark.contract("F3")
async def test_a_node_that_goes_without_a_word_is_lost_and_one_that_drains_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CapturingLogger()
    monkeypatch.setattr(placement, "_log", log)  # whatever level other tests have had set
    async with placing(node("sudden", "a"), node("drained", "a")) as (fleet, nodes, _):
        fleet.status("drained", draining=True)
        fleet.lose("drained")
        fleet.lose("sudden")
        await until(lambda: all(not known.is_linked() for known in nodes))
        assert nodes.lost == 1
        told = {(call.args[0], call.method_name, call.kwargs["node"]) for call in log.calls if "node" in call.kwargs}
        assert {("node gone", "info", "drained"), ("node lost", "warning", "sudden")} <= told
        assert not {("node lost", "warning", "drained"), ("node gone", "info", "sudden")} & told


async def test_how_long_steps_wait_for_a_place_is_counted_by_what_came_of_it() -> None:
    async with placing(node("only", "a", most=1)) as (_, _, queue):
        place = await taken(queue, step())
        waiting = asyncio.create_task(queue.acquire(step(), SCOPE))
        await until(lambda: queue.waiting == 1)
        await asyncio.sleep(0.05)
        queue.release(place)
        await waiting
        assert isinstance(await queue.acquire(step("b"), SCOPE), StepFailure)
        placed, refused = queue.waits["placed",], queue.waits["refused",]
        assert (sum(placed.counts), sum(refused.counts)) == (2, 1)
        assert placed.counts[0] == 1, "the first one did not wait"
        assert placed.total >= 0.05
        assert refused.total >= PATIENCE.agent_unknown
        assert queue.waiting == 0
