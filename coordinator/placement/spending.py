"""What the steps of one run set aside of its budget, and what they are charged, over the mesh (C13)."""

from __future__ import annotations

from coordinator.budget import Reservation
from coordinator.combinators.runner import StepKey
from coordinator.placement.execution import Ending
from coordinator.placement.nodes import Nodes
from coordinator.placement.queue import PlacementQueue
from coordinator.scope import Scope
from fanfold.model.step import AgentStepSpec, StepFailure, StepOutcome
from fanfold.ports import Rejection


class Spending:
    """Gives each attempt of the run its reservation. Without a budget nothing is set aside, and nothing is refused."""

    def __init__(self, nodes: Nodes, queue: PlacementQueue, scope: Scope) -> None:
        self._nodes = nodes
        self._queue = queue
        self._scope = scope
        self.unlimited = Reservation() if scope.budget is None else None
        """The reservation of every attempt of a run without a budget; None if it has one."""

    async def reserve(self, spec: AgentStepSpec) -> Reservation | StepFailure:
        """Set aside what an attempt may spend, before it looks for a place: a step that waits for tokens holds none."""
        budget = self._scope.budget
        if budget is None:
            return Reservation()
        uses_model = self._nodes.uses_model(spec.agent)
        if uses_model is None:
            # No node has told of the agent yet. One that has a place for it, which is not needed so soon, has.
            node = await self._queue.acquire(spec, self._scope)
            if isinstance(node, StepFailure):
                return node
            self._queue.release(node)
            uses_model = node.standing.uses_model(spec.agent) is not False
        return await budget.reserve(spec, self._scope.waiting, uses_model=uses_model)

    def needs(self, spec: AgentStepSpec) -> int:
        """What a former holder of the run has set aside for an attempt of the step."""
        budget = self._scope.budget
        if budget is None:
            return 0
        return budget.needs(spec, uses_model=self._nodes.uses_model(spec.agent) is not False)

    def adopt(self, key: StepKey, spec: AgentStepSpec) -> Reservation:
        """What a former holder has set aside for an attempt that goes on."""
        budget = self._scope.budget
        return Reservation() if budget is None else budget.inherited(key.name, self.needs(spec))

    def lose(self, key: StepKey, spec: AgentStepSpec) -> None:
        """Charge an attempt that a former holder has begun, and of which nothing will be heard."""
        with self.adopt(key, spec) as reservation:
            reservation.ended(None)

    def charge(self, reservation: Reservation, ending: Ending | None) -> None:
        """Have the attempt's cost charged, as far as it is known. What goes on elsewhere is charged there."""
        if self._scope.budget is None:
            return
        if self._scope.hold.is_given_up:
            reservation.cost = 0
        elif isinstance(ending, Rejection):
            reservation.cost = ending.usage.tokens
        else:
            reservation.ended(ending if isinstance(ending, StepOutcome) else None)
