"""`Mesh`: the mesh from asyncio."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from fanfold.clients.coordinator import CoordinatorClient
from fanfold.errors import Unavailable
from fanfold.model.node import Agent, NodeState, NodeView
from fanfold.model.run import EventDetail, ParallelResult, RunEnded, RunStarted, RunStepEvent, WaitingChanged
from fanfold.model.step import AgentStepSpec, StepEnded, StepEvent, StepOutcome
from fanfold.model.validation import parse_request_id, parse_spec, parse_specs, require_json_schemas
from fanfold.settings import client_settings

Spec = AgentStepSpec | Mapping[str, Any]
OnStepEvent = Callable[[StepEvent], None]


class Mesh:
    """A mesh, by its coordinator: `async with Mesh() as mesh: ...`.

    `server` is the coordinator's host:port; without it FANFOLD_SERVER says, or 127.0.0.1:7400.
    Every method raises a `fanfold.errors.FanfoldError`: Unavailable when the mesh cannot be reached.
    """

    def __init__(self, server: str | None = None) -> None:
        self._client = CoordinatorClient(server or client_settings().server)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    def parallel(
        self, specs: Sequence[Spec], *, on_event: OnStepEvent | None = None, request_id: str = ""
    ) -> ParallelRun:
        """A fan-out with a barrier (C12): `result = await mesh.parallel([...])`, outcomes in the order of `specs`.

        It starts when it is awaited or iterated: `async for event in run` gives the steps' events as they happen, and
        `run.result` is there after the last. `on_event`, a plain function, gets the same events; what it raises cancels
        the run and is raised. Cancelling it has the mesh stop its steps; `run.outcomes` keeps what had ended by then.

        Raises (when it starts):
            InvalidArgument: a spec is wrong, or a task id is given twice; nothing was started.
        """
        _refuse_async(on_event)
        return ParallelRun(self._client, specs, on_event, parse_request_id(request_id))

    async def execute(self, spec: Spec, *, on_event: OnStepEvent | None = None, request_id: str = "") -> StepOutcome:
        """Run one step. A step that goes wrong is an outcome with `success` false (C9).

        Raises:
            InvalidArgument: the spec is wrong; nothing was started.
        """
        _refuse_async(on_event)
        detail = EventDetail.OUTCOMES if on_event is None else EventDetail.PROGRESS
        parsed = parse_spec(spec)
        require_json_schemas([parsed], path="step")
        events = self._client.execute_step(parsed, detail=detail, request_id=parse_request_id(request_id))
        async with aclosing(events):
            async for event in events:
                if on_event is not None:
                    on_event(event)
                if isinstance(event, StepEnded):
                    return event.outcome
        raise Unavailable("the coordinator ended the call without an outcome")

    async def nodes(self) -> list[NodeView]:
        """The nodes that the coordinator knows."""
        return await self._client.list_nodes()

    async def agents(self) -> list[Agent]:
        """The agents that ready nodes offer, by name, each once."""
        agents: dict[str, Agent] = {}
        for view in await self.nodes():
            if view.state is NodeState.READY:
                for agent in view.node.agents:
                    agents.setdefault(agent.name, agent)
        return sorted(agents.values(), key=lambda agent: agent.name)


class ParallelRun:
    """A fan-out to be awaited or iterated. It runs once: awaiting it again gives the result that is there."""

    def __init__(
        self,
        client: CoordinatorClient,
        specs: Sequence[Spec],
        on_event: OnStepEvent | None,
        request_id: str,
    ) -> None:
        self._client = client
        self._specs = specs
        self._on_event = on_event
        self._request_id = request_id
        self._begun = False
        self._outcomes: list[StepOutcome | None] = []
        self._result: ParallelResult | None = None
        self.run_id = ""
        """The run's id, once it has started."""
        self.waiting_on = ""
        """What the run waits on while nothing moves, in words (C42)."""

    @property
    def result(self) -> ParallelResult:
        """The result. Raises RuntimeError before the last event."""
        if self._result is None:
            raise RuntimeError("the run has not ended; await it or iterate to its end first")
        return self._result

    @property
    def outcomes(self) -> tuple[StepOutcome | None, ...]:
        """What has come so far, in the order of the steps; None for steps that have not ended.

        It stays readable when the run is cancelled or the mesh is lost, so that finished work is not.
        """
        return tuple(self._outcomes)

    def __await__(self) -> Generator[Any, None, ParallelResult]:
        return self._run_to_end().__await__()

    async def __aiter__(self) -> AsyncIterator[StepEvent]:
        async with aclosing(self._events(EventDetail.PROGRESS)) as events:
            async for event in events:
                yield event

    async def _run_to_end(self) -> ParallelResult:
        if self._result is None:
            detail = EventDetail.OUTCOMES if self._on_event is None else EventDetail.PROGRESS
            async with aclosing(self._events(detail)) as events:
                async for _ in events:
                    pass
        return self.result

    async def _events(self, detail: EventDetail) -> AsyncGenerator[StepEvent, None]:
        if self._begun:
            raise RuntimeError("the run has begun already; a second one needs a second call of `parallel`")
        specs = parse_specs(self._specs)
        require_json_schemas(specs)
        self._begun = True
        self._outcomes = [None] * len(specs)
        run_events = self._client.parallel(specs, detail=detail, request_id=self._request_id)
        async with aclosing(run_events):
            async for run_event in run_events:
                if isinstance(run_event, RunStepEvent):
                    event = run_event.event
                    if isinstance(event, StepEnded):
                        self._outcomes[run_event.index] = event.outcome
                    if self._on_event is not None:
                        self._on_event(event)
                    yield event
                elif isinstance(run_event, RunEnded):
                    self._result = _result_of(self._outcomes, run_event)
                elif isinstance(run_event, WaitingChanged):
                    self.waiting_on = run_event.waiting_on
                elif isinstance(run_event, RunStarted):
                    self.run_id = run_event.run_id
        if self._result is None:
            raise Unavailable("the coordinator ended the call before the run had ended")


def _result_of(outcomes: Sequence[StepOutcome | None], ended: RunEnded) -> ParallelResult:
    if ended.error:
        raise Unavailable(f"the run could not go on: {ended.error}")
    missing = outcomes.count(None)
    if missing:
        raise Unavailable(f"the coordinator ended the run without {missing} of {len(outcomes)} outcomes")
    return ParallelResult([outcome for outcome in outcomes if outcome is not None], ended.run.budget)


def _refuse_async(on_event: OnStepEvent | None) -> None:
    if inspect.iscoroutinefunction(on_event):
        raise TypeError("on_event must be a plain function; iterate over the run with `async for` to await things")
