"""The executor that places steps on the mesh's nodes: what combinators are given in production."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from dataclasses import dataclass, replace

from coordinator.budget import Reservation
from coordinator.combinators.runner import StepKey, run_to_end
from coordinator.counts import StepCounts
from coordinator.life import failed, unplaced
from coordinator.placement.adoption import AdoptedExecution, was_cancelled
from coordinator.placement.attempt import Attempt, consistent
from coordinator.placement.execution import Ending, Execution, ExecutionName, Lost, work_of
from coordinator.placement.node import KnownNode
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import PlacementQueue
from coordinator.placement.quota import QuotaWait
from coordinator.placement.spending import Spending
from coordinator.scope import Scope
from coordinator.waiting import WaitsOn
from fanfold.backoff import full_jitter
from fanfold.errors import Aborted, Unavailable
from fanfold.model.step import (
    AgentStepSpec,
    FailureCode,
    StepFailure,
    StepOutcome,
)
from fanfold.ports import ExecutionStart, OnStepEvent, Rejection, RejectionReason
from fanfold.schema import SchemaValidator
from fanfold.schema.structured import structured_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Pauses before further attempts, in seconds: random below a ceiling that doubles from `first` to `most` (F9)."""

    first: float = 0.5
    most: float = 30.0


class Mesh:
    """The mesh as a place to run steps; `executor` gives each run its own view of it.

    `cancel_wait` in seconds bounds how long a cancelled step is waited for; it covers a node's own grace. What becomes
    of steps is counted in `counts`.
    """

    def __init__(
        self,
        nodes: Nodes,
        queue: PlacementQueue,
        validator: SchemaValidator,
        *,
        retries: Retries = Retries(),
        cancel_wait: float = 9.0,
        counts: StepCounts | None = None,
    ) -> None:
        self.nodes = nodes
        self.queue = queue
        self.validator = validator
        self.retries = retries
        self.cancel_wait = cancel_wait
        self.counts = counts or StepCounts()

    def executor(self, scope: Scope) -> MeshExecutor:
        """The AgentExecutor and StepRunner of one run."""
        return MeshExecutor(self, scope)


class MeshExecutor:
    """Implements `AgentExecutor` and `StepRunner` for one run over the mesh."""

    def __init__(self, mesh: Mesh, scope: Scope) -> None:
        self._mesh = mesh
        self._scope = scope
        self._noted: set[str] = set()
        self._noting: dict[str, asyncio.Event] = {}
        self._spending = Spending(mesh.nodes, mesh.queue, scope)

    def needs(self, spec: AgentStepSpec) -> int:
        """What is set aside of the run's budget for an attempt of the step (Spender)."""
        return self._spending.needs(spec)

    def concurrency_hint(self) -> int:
        """Sum of the live nodes' hints; moves as nodes come and go (C10)."""
        return self._mesh.nodes.hint()

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step whose task id is unique in the run (AgentExecutor)."""
        return await run_to_end(self, StepKey.of_spec(0, spec), spec, on_event)

    async def run_step(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        """Run one step on whichever node takes it, again where its policy allows (StepRunner, C6)."""
        with self._scope.waiting.step():
            try:
                outcome = await self._run_attempts(key, spec, on_event)
            except (Aborted, Unavailable):
                raise  # the run goes on elsewhere, and the step with it
            except BaseException as error:
                if not self._scope.hold.is_given_up:
                    self._forget_endings(key.name)  # nobody will hear of the outcome
                    self._mesh.counts.note_raised(spec, error)
                raise
            self._mesh.counts.note_ended(outcome)
            return outcome

    async def _run_attempts(self, key: StepKey, spec: AgentStepSpec, on_event: OnStepEvent | None) -> StepOutcome:
        adopted = self._adopted(key, spec)
        if adopted is None and (key.position, key.stage) in self._scope.unaccounted:
            self._spending.lose(key, spec)
        attempt = Attempt(spec.task_id, adopted.name.attempt if adopted else 1, on_event)
        outcome = await self._go_on(adopted, key, spec, attempt) if adopted else None
        while True:
            if outcome is None:
                outcome = await self._run_attempt(key, spec, attempt)
            failure = outcome.failure
            if failure is None or not failure.retryable or attempt.number >= spec.policy.max_attempts:
                return attempt.in_all(outcome)
            if outcome.attempts == 0:
                return attempt.in_all(outcome)  # it could not be placed, however long it was tried
            self._forget_endings(key.name)
            self._mesh.counts.retries[failure.code.value,] += 1
            pause = full_jitter(attempt.number, first=self._mesh.retries.first, most=self._mesh.retries.most)
            with self._scope.waiting.on(WaitsOn.RETRY, "another attempt, after a pause"):
                await asyncio.sleep(pause)
            attempt, outcome = attempt.next(attempt.in_all(outcome)), None

    def _adopted(self, key: StepKey, spec: AgentStepSpec) -> AdoptedExecution | None:
        """What a former holder of the run has begun of the step, if it is still the same."""
        adopted = self._scope.adopted.pop(key.name, None)
        if adopted is not None and adopted.name.work != work_of(spec):
            adopted.discard()
            self._scope.unaccounted.add((key.position, key.stage))
            return None
        return adopted

    async def _go_on(
        self, adopted: AdoptedExecution, key: StepKey, spec: AgentStepSpec, attempt: Attempt
    ) -> StepOutcome | None:
        """An attempt that a former holder of the run has begun; None if nothing came of it, which costs no attempt."""
        execution = adopted.execution
        execution.attend(attempt.tell, self._scope)
        self._trace_adopted(key.name, execution, attempt.number, spec)
        with self._spending.adopt(key, spec) as reservation:
            await self._wait(execution, reservation)
            ending = execution.ending or await self._take_ending(execution, reservation)
            self._receive(key.name, execution, ending)
            if isinstance(ending, Rejection) or (isinstance(ending, StepOutcome) and was_cancelled(ending)):
                attempt.handed_back(ending.usage)
                self._forget_endings(key.name)
                return None
            outcome = await self._judged(spec, execution, ending, reservation)
        quota = QuotaWait(self._mesh.queue.patience.quota)
        if outcome.success or not quota.is_due(outcome):
            return outcome
        await self._wait_for_quota(quota, key, attempt, outcome, execution.node)
        return None

    async def _wait_for_quota(
        self, quota: QuotaWait, key: StepKey, attempt: Attempt, outcome: StepOutcome, node: KnownNode
    ) -> None:
        """Pause before the attempt is placed again, which it costs nothing.

        What it has spent is charged by now: a holder that takes the run over meanwhile is not to find it on the node,
        charge it again, and take it for the step's end (C13, F8).
        """
        attempt.handed_back(outcome.usage)
        self._forget_endings(key.name)
        await quota.pause(outcome, node, self._scope)

    def _trace_adopted(self, key: str, execution: Execution, number: int, spec: AgentStepSpec) -> None:
        traced = self._scope.trace.attempt(key, execution.execution_id, number, spec, execution.node.name)
        if traced is not None:
            traced.adopted()
            execution.trace_as(traced)

    async def _run_attempt(self, key: StepKey, spec: AgentStepSpec, attempt: Attempt) -> StepOutcome:
        """One attempt to its end. Nodes that do not take it, or hand it back, cost none (C10, C43)."""
        work = 0 if self._scope.receipts is None else work_of(spec)
        quota = QuotaWait(self._mesh.queue.patience.quota)
        for placement in itertools.count(1):
            reservation = self._spending.unlimited or await self._spending.reserve(spec)
            if isinstance(reservation, StepFailure):
                return unplaced(spec, reservation)
            with reservation:
                node = self._mesh.queue.take(spec) or await self._mesh.queue.acquire(spec, self._scope)
                if isinstance(node, StepFailure):
                    return unplaced(spec, node)
                name = ExecutionName(self._scope.epoch, attempt.number, placement, key.name, work)
                try:
                    if node.name not in self._noted or not self._scope.hold.is_certain():
                        await self._until_recorded(node)
                    execution = self._begin(node, name, spec, attempt, reservation)
                    await self._wait(execution, reservation)
                finally:
                    self._mesh.queue.release(node)
                ending = execution.ending or await self._take_ending(execution, reservation)
                self._receive(key.name, execution, ending)
                if not isinstance(ending, Rejection):
                    outcome = await self._judged(spec, execution, ending, reservation)
            if not isinstance(ending, Rejection):
                if outcome.success or not quota.is_due(outcome):
                    return outcome
                await self._wait_for_quota(quota, key, attempt, outcome, node)
                continue
            attempt.handed_back(ending.usage)
            if ending.reason is RejectionReason.STALE_EPOCH:
                return self._taken_over(spec)
            if ending.reason is RejectionReason.FULL:
                self._mesh.queue.retry_when_not_full(node)
        raise AssertionError("unreachable")

    def _taken_over(self, spec: AgentStepSpec) -> StepOutcome:
        """A node knows a newer epoch of the run. Raises Aborted if there can be one."""
        if self._scope.receipts is None:
            return failed(spec, FailureCode.INTERNAL, "the node takes the run for another coordinator's")
        self._scope.hold.give_up()  # what is on nodes is the newer holder's
        raise Aborted("the run has moved to another coordinator", reason="RUN_MOVED")

    async def _until_recorded(self, node: KnownNode) -> None:
        """Wait until the journal knows of the node, and says whose the run is (C42)."""
        with self._scope.waiting.on_journal():
            await self._note(node)
            await self._scope.hold.until_certain()

    async def _note(self, node: KnownNode) -> None:
        """Have it noted that the run's steps may be on this node, before any of them is (C19)."""
        while (name := node.name) not in self._noted:  # another node may answer there meanwhile
            if name in self._noting:
                await self._noting[name].wait()  # unlike a lock, this lets all who wait go on at once, in one frame
                continue
            noted = self._noting[name] = asyncio.Event()
            try:
                await self._scope.use_node(name)
                self._noted.add(name)
            finally:
                del self._noting[name]
                noted.set()

    def _begin(
        self, node: KnownNode, name: ExecutionName, spec: AgentStepSpec, attempt: Attempt, reservation: Reservation
    ) -> Execution:
        scope, execution_id = self._scope, name.id_in(self._scope.run_id)
        traced = scope.trace.attempt(name.key, execution_id, name.attempt, spec, node.name)
        start = ExecutionStart(
            execution_id=execution_id,
            run_id=scope.run_id,
            epoch=scope.epoch,
            spec=reservation.cap(spec),
            progress=scope.progress,
            trace=scope.trace.context if traced is None else traced.context,
        )
        return node.execute(start, attempt.tell, scope, traced)

    async def _wait(self, execution: Execution, reservation: Reservation) -> None:
        """Wait until an execution has left the node, or the node withholds its ending.

        Of a run that was given up nothing more is told: whoever holds it hears of the ending, and charges it. Told here
        it would be charged nowhere (C13). Raises Aborted then.
        """
        try:
            await execution.wait()
            self._scope.hold.require()
        except (asyncio.CancelledError, Aborted):
            self._part_with(execution)
            if not self._scope.hold.is_given_up:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._mesh.cancel_wait):
                        await execution.wait()
            raise
        finally:
            self._spending.charge(reservation, execution.ending)

    async def _take_ending(self, execution: Execution, reservation: Reservation) -> Ending:
        """Have a large ending come when the run's caller is ready for it; the step's place is another's meanwhile."""
        try:
            async with self._scope.pace.turn(self._scope.waiting):
                execution.node.want(execution)
                await execution.wait()
                self._scope.hold.require()
        except (asyncio.CancelledError, Aborted):
            self._part_with(execution)
            self._spending.charge(reservation, None)
            raise
        assert execution.ending is not None
        self._spending.charge(reservation, execution.ending)
        return execution.ending

    def _receive(self, key: str, execution: Execution, ending: Ending) -> None:
        """Its node keeps an outcome until it is durable, if it ever is to be."""
        self._mesh.counts.note_placement(ending)
        if self._scope.receipts is not None and isinstance(ending, StepOutcome):
            self._scope.receipts.add(key, execution.acknowledge)

    def _part_with(self, execution: Execution) -> None:
        if self._scope.hold.is_given_up:
            execution.node.leave(execution)
        else:
            execution.node.cancel(execution, "the run was cancelled")

    def _forget_endings(self, key: str) -> None:
        """Have nodes keep nothing of the step's attempts so far."""
        if self._scope.receipts is not None:
            self._scope.receipts.settled(key)

    async def _judged(
        self, spec: AgentStepSpec, execution: Execution, ending: StepOutcome | Lost, reservation: Reservation
    ) -> StepOutcome:
        """What the ending comes to: unsuccessful if its structured value is not what the step asks for (C20).

        It is charged afterwards, as it is told: whoever takes the run over meanwhile hears of it and charges it (C13).
        """
        outcome = _outcome_of(spec, execution.node.name, ending)
        if spec.output_schema is None or not outcome.success:
            return outcome
        try:
            structured = await structured_value(
                self._mesh.validator, spec.output_schema, outcome.structured, owner=self._scope.owner
            )
            self._scope.hold.require()
        finally:
            self._spending.charge(reservation, ending)
        if structured.failure is None:
            return outcome
        return replace(
            outcome,
            success=False,
            structured=None,
            output=structured.annotate(outcome.output),
            failure=structured.failure,
        )


def _outcome_of(spec: AgentStepSpec, node: str, ending: StepOutcome | Lost) -> StepOutcome:
    """What an attempt came to by its ending on a node."""
    if isinstance(ending, StepOutcome):
        return consistent(ending, spec, node)
    message = f"node {ending.node} was lost while the step ran there"
    lost = failed(spec, FailureCode.NODE_LOST, message, retryable=True)
    lost = replace(lost, attempts=1, node=ending.node)
    if ending.started is None:
        return lost
    return replace(lost, session_id=ending.started.session_id, started_at=ending.started.time)
