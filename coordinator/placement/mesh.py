"""The executor that places steps on the mesh's nodes: what combinators are given in production."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from coordinator.life import StepLife, failed
from coordinator.placement.node import Ending, KnownNode, Lost
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import PlacementQueue
from fanfold.model.step import AgentStepSpec, FailureCode, StepFailure, StepOutcome
from fanfold.ports import ExecutionStart, OnStepEvent, Rejection, RejectionReason
from fanfold.schema import SchemaValidator
from fanfold.schema.structured import structured_value

FIRST_EPOCH = 1


class Mesh:
    """The mesh as a place to run steps; `executor` gives each run its own view of it.

    `cancel_wait` in seconds bounds how long a cancelled step is waited for; it covers a node's own grace.
    """

    def __init__(
        self, nodes: Nodes, queue: PlacementQueue, validator: SchemaValidator, *, cancel_wait: float = 9.0
    ) -> None:
        self.nodes = nodes
        self.queue = queue
        self.validator = validator
        self.cancel_wait = cancel_wait

    def executor(self, run_id: str, progress: bool) -> MeshExecutor:
        """The AgentExecutor of one run; `progress` says whether anybody wants to hear of it."""
        return MeshExecutor(self, run_id, progress)


class MeshExecutor:
    """Implements `AgentExecutor` for one run over the mesh."""

    def __init__(self, mesh: Mesh, run_id: str, progress: bool) -> None:
        self._mesh = mesh
        self._run_id = run_id
        self._progress = progress

    def concurrency_hint(self) -> int:
        """Sum of the live nodes' hints; moves as nodes come and go (C10)."""
        return self._mesh.nodes.hint()

    async def execute_step(self, spec: AgentStepSpec, on_event: OnStepEvent | None = None) -> StepOutcome:
        """Run one step on whichever node takes it (AgentExecutor)."""
        life = StepLife(spec, on_event)
        while True:
            node = await self._mesh.queue.acquire(spec)
            if isinstance(node, StepFailure):
                return life.end(replace(failed(spec, node.code, node.message), failure=node))
            try:
                ending = await self._attempt(node, spec, life)
            finally:
                self._mesh.queue.release(node)
            if isinstance(ending, Rejection):
                # A full or draining node is never the step's failure (C10): it is placed again.
                if ending.reason is RejectionReason.STALE_EPOCH:
                    return life.end(failed(spec, FailureCode.INTERNAL, "the run has moved to another coordinator"))
                if ending.reason is RejectionReason.FULL:
                    self._mesh.queue.retry_when_not_full(node)
                continue
            return life.end(await self._accept(spec, ending))

    async def _attempt(self, node: KnownNode, spec: AgentStepSpec, life: StepLife) -> Ending:
        start = ExecutionStart(
            execution_id=f"{self._run_id}/{spec.task_id}/1",
            run_id=self._run_id,
            epoch=FIRST_EPOCH,
            spec=spec,
            progress=self._progress,
        )
        execution = node.execute(start, life.tell)
        try:
            return await execution.wait()
        except asyncio.CancelledError:
            node.cancel(execution, "the run was cancelled")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._mesh.cancel_wait):
                    await execution.wait()
            raise

    async def _accept(self, spec: AgentStepSpec, ending: StepOutcome | Lost) -> StepOutcome:
        if isinstance(ending, Lost):
            message = f"node {ending.node} was lost while the step ran there"
            lost = failed(spec, FailureCode.NODE_LOST, message, retryable=True)
            lost = replace(lost, attempts=1, node=ending.node)
            if ending.started is None:
                return lost
            return replace(lost, session_id=ending.started.session_id, started_at=ending.started.time)
        ending = _consistent(ending, spec)
        if spec.output_schema is None or not ending.success:
            return ending
        structured = await structured_value(self._mesh.validator, spec.output_schema, ending.structured)
        if structured.failure is None:
            return ending
        return replace(
            ending,
            success=False,
            structured=None,
            output=structured.annotate(ending.output),
            failure=structured.failure,
        )


def _consistent(outcome: StepOutcome, spec: AgentStepSpec) -> StepOutcome:
    """What a node sent, made to say what outcomes promise whatever the node is (C2)."""
    if outcome.task_id != spec.task_id or outcome.agent != spec.agent:
        outcome = replace(outcome, task_id=spec.task_id, agent=spec.agent)
    if outcome.success is (outcome.failure is None):
        return outcome
    if outcome.success:
        return replace(outcome, failure=None)
    return replace(outcome, failure=StepFailure(code=FailureCode.INTERNAL, message="the node does not say why"))
