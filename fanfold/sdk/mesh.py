"""`Mesh`: the mesh from asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from fanfold.clients.coordinator import CoordinatorClient, Terms
from fanfold.errors import Unavailable
from fanfold.model.node import Agent, NodeState, NodeView
from fanfold.model.run import EventDetail
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.model.validation import parse_request_id, parse_spec, require_json_schema
from fanfold.sdk.parallel import OnStepEvent, ParallelRun, Spec
from fanfold.sdk.run import refuse_async
from fanfold.sdk.servers import Servers


class Mesh:
    """A mesh, by its coordinator: `async with Mesh() as mesh: ...`.

    `server` is the coordinator's host:port, or several with commas between or as a list: when one cannot be reached the
    next is asked. Without it FANFOLD_SERVER says, or 127.0.0.1:7400.
    Every method raises a `fanfold.errors.FanfoldError`: Unavailable when the mesh cannot be reached.
    """

    def __init__(self, server: str | Sequence[str] | None = None) -> None:
        self._servers = Servers(server)

    async def __aenter__(self) -> Self:
        await self._servers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._servers.__aexit__(kind, error, trace)

    @property
    def server(self) -> str:
        """The coordinator that is asked, as host:port."""
        return self._servers.current.server

    def parallel(
        self, specs: Sequence[Spec], *, on_event: OnStepEvent | None = None, request_id: str = ""
    ) -> ParallelRun:
        """A fan-out with a barrier (C12): `result = await mesh.parallel([...])`, outcomes in the order of `specs`.

        It starts when it is awaited or iterated: `async for event in run` gives the steps' events as they happen, and
        `run.result` is there after the last. `on_event`, a plain function, gets the same events; what it raises cancels
        the run and is raised. Cancelling it has the mesh stop its steps, and waits until they are gone; `run.outcomes`
        keeps what had ended by then.

        Raises (when it starts):
            InvalidArgument: a spec is wrong, or a task id is given twice; nothing was started.
        """
        return ParallelRun(self._servers, specs, on_event, Terms(request_id=parse_request_id(request_id)))

    async def execute(self, spec: Spec, *, on_event: OnStepEvent | None = None, request_id: str = "") -> StepOutcome:
        """Run one step. A step that goes wrong is an outcome with `success` false (C9).

        Raises:
            InvalidArgument: the spec is wrong; nothing was started.
        """
        refuse_async(on_event)
        detail = EventDetail.OUTCOMES if on_event is None else EventDetail.PROGRESS
        parsed = parse_spec(spec)
        require_json_schema(parsed.output_schema, path="step.output_schema")
        asked_as = parse_request_id(request_id)

        async def run(client: CoordinatorClient) -> StepOutcome:
            events = client.execute_step(parsed, detail=detail, request_id=asked_as)
            async with aclosing(events):
                async for event in events:
                    if on_event is not None:
                        on_event(event)
                    if isinstance(event, StepEnded):
                        return event.outcome
            raise Unavailable("the coordinator ended the call without an outcome")

        return await self._servers.ask(run, repeatable=False)

    async def nodes(self) -> list[NodeView]:
        """The nodes that the coordinator knows."""
        return await self._servers.ask(CoordinatorClient.list_nodes)

    async def agents(self) -> list[Agent]:
        """The agents that ready nodes offer, by name, each once."""
        agents: dict[str, Agent] = {}
        for view in await self.nodes():
            if view.state is NodeState.READY:
                for agent in view.node.agents:
                    agents.setdefault(agent.name, agent)
        return sorted(agents.values(), key=lambda agent: agent.name)
