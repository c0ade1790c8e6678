"""Executions that a run's former holder has left on nodes: how the next one takes them over (C19)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.placement.execution import Execution, ExecutionName
from coordinator.scope import Scope
from coordinator.waiting import WaitsOn
from fanfold.errors import Aborted
from fanfold.model.step import FailureCode, StepOutcome
from fanfold.ports import RunAdopted

if TYPE_CHECKING:
    from coordinator.placement.nodes import Nodes


@dataclass(frozen=True, slots=True)
class AdoptedExecution:
    """An execution that this coordinator has not started and now holds.

    It runs, or, if `has_ended`, its ending is kept on its node, and comes soon or is known.
    """

    execution: Execution
    name: ExecutionName
    has_ended: bool

    def is_of_use(self) -> bool:
        """Whether its step can go on with it. One that was cancelled while its run was not has no outcome."""
        ending = self.execution.ending
        return ending is None or (isinstance(ending, StepOutcome) and not was_cancelled(ending))

    @property
    def cost(self) -> int:
        """The tokens that it has spent, as far as that is known."""
        ending = self.execution.ending
        return ending.usage.tokens if isinstance(ending, StepOutcome) else 0

    def discard(self) -> None:
        """Its step does not ask for it: stop it, and have the node keep nothing of it."""
        self.execution.node.cancel(self.execution, "its step has no need of it any more")

    def leave(self) -> None:
        """The run is given up: the next holder may go on with it."""
        self.execution.node.leave(self.execution)


async def adopt_run(nodes: Nodes, scope: Scope, node_names: Iterable[str], timeout: float) -> None:
    """Take over what the nodes hold of a run, into `scope.adopted`. Until this returns, nothing of it may be started.

    Of several executions of a step, one that has succeeded is taken before others, else the latest; the others are
    stopped. `timeout` in seconds is as for `Nodes.adopt`.

    Raises:
        Aborted: a node knows a newer epoch of the run; it is not ours any more (F5).
    """
    found: list[AdoptedExecution] = []

    async def ask(node_name: str) -> None:
        with scope.waiting.on(WaitsOn.NODE, f"node {node_name}, which may hold steps of the run"):
            held = await nodes.adopt(scope.run_id, scope.epoch, node_name, timeout)
        if held is None:
            scope.lost_nodes.add(node_name)
        else:
            found.extend(held)

    try:
        await _all(ask(node_name) for node_name in node_names)
        for each in found:
            if each.has_ended:
                await each.execution.wait()
    except BaseException as error:
        if isinstance(error, Aborted):
            scope.hold.give_up()  # what other nodes have handed over is the newer holder's
        _part_with(found, scope)
        raise
    _choose(found, scope)


def _choose(found: Iterable[AdoptedExecution], scope: Scope) -> None:
    """Have one execution for each step. What one has spent that is of no use is charged here, for nobody else will."""
    for each in sorted(found, key=_worth):
        former = scope.adopted.pop(each.name.key, None)
        if former is not None:
            former.discard()
        if each.is_of_use():
            scope.adopted[each.name.key] = each
        else:
            if scope.budget is not None:
                scope.budget.charge(each.cost)
            each.discard()


@asynccontextmanager
async def adopted(
    nodes: Nodes, scope: Scope, node_names: Iterable[str], *, timeout: float, stop_wait: float
) -> AsyncIterator[None]:
    """What the nodes hold of a run is in `scope.adopted` while the block lasts; what is left of it then is stopped.

    `timeout` and `stop_wait` in seconds are those of `adopt_run` and `part_with_rest`.

    Raises:
        Aborted: as `adopt_run`.
    """
    await adopt_run(nodes, scope, node_names, timeout)
    try:
        yield
    finally:
        await part_with_rest(scope, stop_wait)


async def part_with_rest(scope: Scope, timeout: float) -> None:
    """Stop what was adopted and not asked for, and wait at most `timeout` seconds until it is gone.

    If the run is given up it is left to the next holder, and not waited for.
    """
    rest = list(scope.adopted.values())
    scope.adopted.clear()
    _part_with(rest, scope)
    if not scope.hold.is_given_up:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for each in rest:
                    await each.execution.wait()


def was_cancelled(outcome: StepOutcome) -> bool:
    """Whether somebody had it stopped."""
    return outcome.failure is not None and outcome.failure.code is FailureCode.CANCELLED


async def _all(questions: Iterable[Coroutine[None, None, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for question in questions:
                tasks.create_task(question)
    except* Aborted as refused:
        raise refused.exceptions[0] from None


def _part_with(found: Iterable[AdoptedExecution], scope: Scope) -> None:
    if scope.hold.is_given_up:
        _leave(found)
    else:
        for each in found:
            each.discard()


def _worth(adopted: AdoptedExecution) -> tuple[bool, bool, ExecutionName]:
    ending = adopted.execution.ending
    # What is withheld as it is large is likely to be worth having.
    has_outcome = adopted.execution.is_withheld or (isinstance(ending, StepOutcome) and ending.success)
    return adopted.is_of_use(), has_outcome, adopted.name


def _leave(held: Iterable[AdoptedExecution]) -> None:
    for each in held:
        each.leave()


class Adoption:
    """Asks one node what it holds of a run, until it has answered or nothing of the run can run there any more."""

    def __init__(self, run_id: str, epoch: int) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self._answer: asyncio.Future[list[AdoptedExecution] | None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    def expect_within(self, seconds: float) -> None:
        """The node may hold something of the run for so many seconds from now, whatever was said of it before."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._timer is not None:
            until = max(until, self._timer.when())
            self._timer.cancel()
        self._timer = loop.call_at(until, self._give_up)

    def _give_up(self) -> None:
        self.answered(None)

    def answered(self, held: list[AdoptedExecution] | None) -> None:
        """What the node holds is known, or, if None, it holds nothing, and what it held is not known.

        If nobody waits for it any more, it is left to whoever adopts the run next.
        """
        if not self._answer.done():
            self._answer.set_result(held)
        else:
            _leave(held or [])

    def refused(self) -> None:
        """The node knows a newer epoch."""
        if not self._answer.done():
            self._answer.set_exception(Aborted("the run has moved to another coordinator", reason="RUN_MOVED"))

    async def wait(self) -> list[AdoptedExecution] | None:
        """What the node holds; None if what it held is gone. Raises Aborted if the run is not ours any more."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            if not self._answer.cancelled() and not self._answer.exception():  # it came in the very same moment
                _leave(self._answer.result() or [])
            raise

    def close(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Adoptions:
    """What nodes, by their names, are to be asked and have not answered yet."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, Adoption]] = {}

    def add(self, node_name: str, adoption: Adoption) -> None:
        """Something is to be asked; it takes the place of what was asked of the same run."""
        self._pending.setdefault(node_name, {})[adoption.run_id] = adoption

    def discard(self, node_name: str, adoption: Adoption) -> None:
        """It need not be asked any more."""
        of_node = self._pending.get(node_name, {})
        if of_node.get(adoption.run_id) is adoption:
            del of_node[adoption.run_id]
            if not of_node:
                del self._pending[node_name]

    def of(self, node_name: str) -> Collection[Adoption]:
        """What the node is to be asked."""
        return self._pending.get(node_name, {}).values()

    def take(self, node_name: str, adopted: RunAdopted) -> Adoption | None:
        """The question to which this is the answer."""
        adoption = self._pending.get(node_name, {}).get(adopted.run_id)
        if adoption is None or adoption.epoch != adopted.epoch:
            return None
        self.discard(node_name, adoption)
        return adoption
