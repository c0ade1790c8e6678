"""`Mesh`: the mesh from asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fanfold.clients.coordinator import CoordinatorClient, Terms
from fanfold.errors import Unavailable
from fanfold.model.node import Agent, NodeState, NodeView
from fanfold.model.pipeline import STAGE_TIMEOUT, Stage
from fanfold.model.run import EventDetail
from fanfold.model.step import StepEnded, StepOutcome
from fanfold.model.validation import (
    parse_budget,
    parse_request_id,
    parse_spec,
    require_json_schema,
)
from fanfold.rpc.credentials import Tls
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.parallel import OnStepEvent, ParallelRun, Spec
from fanfold.sdk.pipeline import OnPipelineEvent, PipelinePlan, PipelineRun
from fanfold.sdk.run import refuse_async
from fanfold.sdk.runs import RECONNECT_TIMEOUT
from fanfold.sdk.servers import Servers, credentials_of, seconds_of
from fanfold.sdk.starts import StartMethods
from fanfold.sdk.terms import journaled_terms
from fanfold.sdk.workflows import WorkflowMethods


class Mesh(StartMethods, WorkflowMethods):
    """A mesh, by its coordinators: `async with Mesh() as mesh: ...`.

    `server` is the coordinator's host:port, or several with commas between or as a list: when one cannot be reached the
    next is asked. Without it FANFOLD_SERVER says, or 127.0.0.1:7400. `registry` is that of the job registry, which
    `jobs` asks; without it FANFOLD_REGISTRY says, or 127.0.0.1:7401. `reconnect_timeout` is for how many seconds a mesh
    that was lost is looked for, where a run can be gone on with.
    The mesh is shown the `token`, or what is in `token_file`, so that it knows who calls. `tls` is how TLS is spoken,
    as `Tls(ca=...)`, perhaps with a client certificate, or True. Without these FANFOLD_TOKEN and the like say.
    Every method raises a `fanfold.errors.FanfoldError`: Unavailable when the mesh cannot be reached.
    """

    def __init__(
        self,
        server: str | Sequence[str] | None = None,
        *,
        registry: str | None = None,
        token: str | None = None,
        token_file: Path | None = None,
        tls: Tls | bool | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        credentials = credentials_of(token, token_file=token_file, tls=tls)
        self._servers = Servers(server, credentials)
        self._reconnect_timeout = seconds_of(reconnect_timeout)
        self.jobs = Jobs(registry, reconnect_timeout=self._reconnect_timeout, credentials=credentials)
        """The jobs of the job registry: detached runs, and whatever else others have registered there."""

    async def __aenter__(self) -> Self:
        await self._servers.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.jobs.__aexit__(kind, error, trace)
        await self._servers.__aexit__(kind, error, trace)

    @property
    def server(self) -> str:
        """The coordinator that is asked, as host:port."""
        return self._servers.current.server

    def parallel(
        self,
        specs: Sequence[Spec],
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelRun:
        """A fan-out with a barrier (C12): `result = await mesh.parallel([...])`, outcomes in the order of `specs`.

        It starts when it is awaited or iterated: `async for event in run` gives the steps' events as they happen, and
        `run.result` is there after the last. `on_event`, a plain function, gets the same events; what it raises cancels
        the run and is raised. Cancelling it has the mesh stop its steps, and waits until they are gone; `run.outcomes`
        keeps what had ended by then. With `budget_tokens` the steps spend no more than that (C13).

        Raises (when it starts):
            InvalidArgument: a spec is wrong, or a task id is given twice; nothing was started.
            Cancelled: somebody else has cancelled the run.
        """
        terms = Terms(request_id=parse_request_id(request_id), budget_tokens=parse_budget(budget_tokens))
        return ParallelRun(self._servers, specs, on_event, terms)

    def parallel_resumable(
        self,
        specs: Sequence[Spec],
        workflow_id: str,
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelRun:
        """A fan-out as `parallel`, whose successful steps are recorded under `workflow_id` and never run again (C16).

        It outlives the coordinator: when that is lost, drains or hands over, the same run is gone on with, through any
        server, without a gap and without telling anything twice. A later call with the workflow id, also from another
        process, runs what has no record: new, changed and failed steps. When all have succeeded the records are gone.
        With the `request_id` of an earlier call (`run.request_id`) it takes up that call's run.

        Raises (when it starts), besides what `parallel` raises:
            Aborted: another request holds the workflow, or another call with the same request id has taken it over.
            FailedPrecondition: the mesh has no journal (C17).
            Unavailable: no coordinator could be reached at first, or later none for `reconnect_timeout` seconds.
        """
        terms = journaled_terms(workflow_id, budget_tokens, request_id)
        return ParallelRun(self._servers, specs, on_event, terms, reconnect_timeout=self._reconnect_timeout)

    def resume(
        self,
        workflow_id: str,
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelRun:
        """As `parallel_resumable` with the steps that the workflow's last fan-out was asked for.

        Raises (when it starts), besides:
            NotFound: no fan-out of that workflow is kept.
        """
        terms = journaled_terms(workflow_id, budget_tokens, request_id)
        timeout = self._reconnect_timeout
        return ParallelRun(self._servers, [], on_event, terms, as_before=True, reconnect_timeout=timeout)

    def pipeline(
        self,
        items: Sequence[Any],
        stages: Sequence[Stage],
        *,
        stage_timeout: float = STAGE_TIMEOUT,
        workflow_id: str = "",
        budget_tokens: int | None = None,
        on_event: OnPipelineEvent | None = None,
        request_id: str = "",
    ) -> PipelineRun:
        """Items through stages, each on its own (C14): `result = await mesh.pipeline(items, [survey, review])`.

        A stage is a plain function that gives an item's next step, or None to end the item's chain. It is called in a
        thread with a StageContext, as soon as the item is there: `ctx.item`, `ctx.previous` (the outcome of the stage
        before), `ctx.index`, `ctx.stage`, also as `ctx["previous"]`. A stage that raises, gives what is no step, or has
        not returned within `stage_timeout` seconds ends its item's chain alone (C15). The result has each item's last
        outcome, in the order of `items`.

        It starts, is awaited, iterated and cancelled as `parallel` is; with a `workflow_id` it is recorded and outlives
        the coordinator as `parallel_resumable` does. A resume asks every stage again, and runs only the steps whose
        record does not match any more. Its events are `RunStepEvent`, which has item and stage of a step's event, and
        `StageFailed`.

        Raises:
            TypeError: a stage is no plain function.
            InvalidArgument: there is no stage, or the timeout is none; or, when it starts, an item is no JSON value.
        """
        if workflow_id:
            terms, patience = journaled_terms(workflow_id, budget_tokens, request_id), self._reconnect_timeout
        else:
            terms, patience = (
                Terms(request_id=parse_request_id(request_id), budget_tokens=parse_budget(budget_tokens)),
                0.0,
            )
        plan = PipelinePlan(items=items, stages=stages, stage_timeout=stage_timeout)
        return PipelineRun(self._servers, plan, on_event, terms, reconnect_timeout=patience)

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
