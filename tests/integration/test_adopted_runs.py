"""A coordinator goes on with another one's run: it takes over what runs, and starts nothing twice (C19, F2, F5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.combinators.parallel import parallel
from coordinator.combinators.runner import StepKey, run_to_end
from coordinator.placement.adoption import AdoptedExecution, adopt_run, part_with_rest
from coordinator.placement.mesh import Mesh, MeshExecutor, Retries
from coordinator.placement.node import KnownNode, Leases
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import Patience, PlacementQueue
from coordinator.scope import Receipts, Scope
from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold.clients.node_link import GrpcNodeDialer
from fanfold.errors import Aborted
from fanfold.model.node import NodeState
from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    StepEnded,
    StepEvent,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
)
from fanfold.schema import SchemaValidator
from support.mesh import node_config, until
from support.proxy import Proxy, proxied

pytestmark = [pytest.mark.process, pytest.mark.contract("C19")]

LEASE, GRACE, MARGIN = 3.0, 1.5, 0.5
CERTAINTY = LEASE + GRACE + MARGIN
RUN = "run-1"


@dataclass
class Machine:
    """A node that a test can start anew, and its workspace."""

    workspace: Path
    stack: AsyncExitStack
    address: str = ""

    async def boot(self) -> None:
        """A life of the node, in place of the former one."""
        await self.stack.aclose()
        config = node_config(self.workspace, "node-1", "127.0.0.1:1", {"announce_to": []})
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        self.address = (await self.stack.enter_async_context(running_node(config, supervision, {}))).address

    def lives(self) -> list[str]:
        """The process ids of the executions that have begun."""
        file = self.workspace / "lives"
        written = file.read_text() if file.exists() else ""
        return written[: written.rfind("\n") + 1].split()

    def open_gate(self) -> None:
        """Let the executions end."""
        (self.workspace / "gate").touch()

    def is_alive(self, life: int) -> bool:
        return Path("/proc", self.lives()[life]).exists()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path, AsyncExitStack())
    await machine.boot()
    yield machine
    await machine.stack.aclose()


@dataclass
class Coordinator:
    """As much of a coordinator as places steps, and the proxy between it and the node."""

    mesh: Mesh
    proxy: Proxy

    @property
    def node(self) -> KnownNode:
        (node,) = self.mesh.nodes
        return node

    async def break_link(self) -> None:
        """Break the link, and wait until there is another."""
        before = self.node.view().state_changed_at
        self.proxy.cut()
        await until(lambda: self.is_linked() and self.node.view().state_changed_at != before, "there is a new link")

    def is_linked(self) -> bool:
        return any(node.standing.state is NodeState.READY for node in self.mesh.nodes)


@asynccontextmanager
async def coordinator(machine: Machine, name: str) -> AsyncIterator[Coordinator]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxied(machine.address))
        validator = await stack.enter_async_context(SchemaValidator())
        leases = Leases(lease=LEASE, certainty=CERTAINTY)
        dialer = GrpcNodeDialer(name, lease=LEASE, silence=2.5)
        nodes = await stack.enter_async_context(Nodes(dialer, redial_delay=0.2, leases=leases))
        nodes.want(proxy.address)
        queue = PlacementQueue(nodes, Patience(agent_unknown=30))
        mesh = Mesh(nodes, queue, validator, retries=Retries(first=0.02, most=0.05), cancel_wait=5)
        both = Coordinator(mesh, proxy)
        await until(both.is_linked, "the node is ready")
        yield both


@dataclass
class Holding:
    """A run as one coordinator holds it, and what it hears of its steps."""

    coordinator: Coordinator
    scope: Scope
    executor: MeshExecutor = field(init=False)
    heard: list[StepEvent] = field(default_factory=list)
    tasks: list[asyncio.Task[StepOutcome]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = self.coordinator.mesh.executor(self.scope)

    def begin(self, key: str = "a", prompt: str = "", max_attempts: int = 2) -> asyncio.Task[StepOutcome]:
        """Run a step that notes that it began, and ends when the gate is open, if its prompt does not say otherwise."""
        prompt = prompt or "echo $$ >> lives; until [ -e gate ]; do sleep 0.02; done; echo done"
        policy = StepPolicy(max_attempts=max_attempts)
        spec = AgentStepSpec(task_id=key, agent="shell", description="d", prompt=prompt, policy=policy)
        run = run_to_end(self.executor, StepKey.of_spec(0, spec), spec, self.heard.append)
        self.tasks.append(asyncio.ensure_future(run))
        return self.tasks[-1]

    async def outcome(self, key: str = "a", prompt: str = "", max_attempts: int = 2) -> StepOutcome:
        return await asyncio.wait_for(self.begin(key, prompt, max_attempts), 30)

    async def adopt(self, timeout: float = CERTAINTY) -> dict[str, AdoptedExecution]:
        await asyncio.wait_for(adopt_run(self.coordinator.mesh.nodes, self.scope, ["node-1"], timeout), 30)
        return self.scope.adopted

    async def give_up(self) -> None:
        """Stop holding the run, as a coordinator does that is about to stop or has lost it."""
        self.scope.hold.give_up()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    def settle(self, key: str = "a") -> None:
        assert self.scope.receipts is not None
        self.scope.receipts.settled(key)


def held_by(coordinator: Coordinator, epoch: int, *, journaled: bool = True) -> Holding:
    receipts = Receipts() if journaled else None
    return Holding(coordinator, Scope(run_id=RUN, owner="o", progress=True, epoch=epoch, receipts=receipts))


async def _settled_once(of: Coordinator) -> None:
    """Wait until the node has done all that it was asked for up to now."""
    marker = Scope(run_id="marker", owner="o", progress=False)
    spec = AgentStepSpec(task_id="m", agent="noop", description="d", prompt="p")
    await of.mesh.executor(marker).execute_step(spec)


@pytest.fixture
async def two(machine: Machine) -> AsyncIterator[tuple[Coordinator, Coordinator]]:
    async with coordinator(machine, "first") as first, coordinator(machine, "second") as second:
        yield first, second


Two = tuple[Coordinator, Coordinator]


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


async def test_an_outcome_that_was_not_recorded_is_taken_over(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    assert (await former.outcome()).success
    await _settled_once(two[0])
    former.scope.hold.give_up()  # before its record was durable
    (adopted,) = (await heir.adopt()).values()
    assert adopted.has_ended
    assert heir.coordinator.node.standing.in_flight == 0, "what has ended takes no place"
    assert (await heir.outcome()).output == "done\n"
    assert len(machine.lives()) == 1
    heir.settle()
    await _settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}, "the node need not keep it any more"


@pytest.mark.contract("F6")
async def test_an_outcome_is_kept_until_it_is_durable_however_often_the_link_breaks(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    await former.outcome()
    for _ in range(2):
        await two[0].break_link()
        await _settled_once(two[0])  # it has told the ending again
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
    await _settled_once(two[0])
    assert await heir.adopt() == {}


async def test_outcomes_of_runs_without_a_journal_are_not_kept(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1, journaled=False), held_by(two[1], 2)
    machine.open_gate()
    await former.outcome()
    await _settled_once(two[0])
    assert await heir.adopt() == {}


async def test_only_a_steps_last_attempt_is_kept(machine: Machine, two: Two) -> None:
    former, heir = held_by(two[0], 1), held_by(two[1], 2)
    machine.open_gate()
    spec = AgentStepSpec(
        task_id="a", agent="fails-first", description="d", prompt="1", policy=StepPolicy(max_attempts=3)
    )
    outcome = await former.executor.run_step(StepKey.of_spec(0, spec), spec, None)
    assert outcome.attempts == 2
    await _settled_once(two[0])
    (adopted,) = (await heir.adopt()).values()
    assert adopted.name.attempt == 2


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
    assert LEASE <= loop.time() - began <= CERTAINTY + 2


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
    await _settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}


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
    await _settled_once(two[1])
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
    await _settled_once(two[1])
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
    await _settled_once(two[1])
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
    await _settled_once(two[1])
    assert await held_by(two[0], 3).adopt() == {}
    assert len(machine.lives()) == 1


@pytest.mark.contract("C10")
async def test_coordinators_share_a_nodes_hint(machine: Machine, two: Two) -> None:
    hint = two[0].mesh.nodes.hint()
    assert two[1].mesh.nodes.hint() == hint == 16
    first, second = held_by(two[0], 1), Holding(two[1], Scope(run_id="run-2", owner="o", progress=False))
    first.begin()
    await until(lambda: len(machine.lives()) == 1, "one of them has work")
    await until(lambda: two[1].mesh.nodes.hint() == 8, "the other counts with it")
    assert two[0].mesh.nodes.hint() == 16
    second.begin()
    await until(lambda: [each.mesh.nodes.hint() for each in two] == [8, 8], "both have work")
    machine.open_gate()
    await asyncio.gather(*first.tasks, *second.tasks)
    await until(lambda: [each.mesh.nodes.hint() for each in two] == [16, 16], "neither has")


@pytest.mark.contract("C45")
async def test_a_step_finds_a_place_on_a_node_that_another_coordinator_keeps_full(tmp_path: Path) -> None:
    settings = {"announce_to": [], "capacity": {"concurrency_hint": 2, "max_concurrent_steps": 2}}
    async with AsyncExitStack() as stack:
        config = node_config(tmp_path, "node-1", "127.0.0.1:1", settings)
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        node = await stack.enter_async_context(running_node(config, supervision, {}))
        machine = Machine(tmp_path, stack, node.address)
        greedy = await stack.enter_async_context(coordinator(machine, "greedy"))
        modest = await stack.enter_async_context(coordinator(machine, "modest"))
        specs = [AgentStepSpec(task_id=str(n), agent="shell", description="d", prompt="sleep 0.2") for n in range(1000)]
        many = asyncio.ensure_future(
            parallel(greedy.mesh.executor(Scope(run_id="r", owner="o", progress=False)), specs)
        )
        await until(lambda: greedy.node.standing.in_flight == 2, "the node is full")
        await until(lambda: modest.node.view().node.status.running_steps == 2, "and the other coordinator knows")
        for key in ("a", "b", "c"):
            assert (await held_by(modest, 1).outcome(key, "true")).success
        assert not many.done()
        many.cancel()
        with suppress(asyncio.CancelledError):
            await many
