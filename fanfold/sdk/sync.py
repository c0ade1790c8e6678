"""`SyncMesh`: the mesh from ordinary code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fanfold.model.checkpoint import WorkflowCheckpoint
from fanfold.model.node import Agent, NodeView
from fanfold.model.pipeline import STAGE_TIMEOUT, Stage
from fanfold.model.run import EventDetail, ParallelResult, PipelineResult, Run, RunEvent, RunState
from fanfold.model.step import StepOutcome
from fanfold.rpc.credentials import Tls
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.parallel import OnStepEvent, Spec
from fanfold.sdk.pipeline import OnPipelineEvent
from fanfold.sdk.run import STOP_SECONDS
from fanfold.sdk.runs import DISPOSE_SECONDS, RECONNECT_TIMEOUT
from fanfold.sdk.sync_jobs import MeshClosed, SyncJobs, SyncStartedRun, stepped
from fanfold.sdk.sync_workflows import SyncWorkflowMethods

Result = TypeVar("Result")


class SyncMesh(SyncWorkflowMethods):
    """As `Mesh`, with methods that block: `with SyncMesh() as mesh: ...`.

    It has an event loop in a thread of its own, so it works in scripts, notebooks and threads alike. Events are told
    from that thread. Ctrl-C in a method cancels what it runs, waits until the mesh has stopped it, and is raised.
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
        def make() -> Mesh:
            return Mesh(
                server,
                registry=registry,
                token=token,
                token_file=token_file,
                tls=tls,
                reconnect_timeout=reconnect_timeout,
            )

        self._make = make
        self._mesh: Mesh | None = None

    def __enter__(self) -> Self:
        if self._mesh is not None:
            raise RuntimeError("it is entered already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fanfold", daemon=True)
        self._thread.start()
        try:
            self._mesh = self._wait(self._open())
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._opened.__aexit__(None, None, None))
        self._mesh = None
        self._end_loop()

    def parallel(
        self,
        specs: Sequence[Spec],
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelResult:
        """Run a fan-out with a barrier (C12). Raises as `Mesh.parallel`."""

        async def run() -> ParallelResult:
            return await self._opened.parallel(
                specs, budget_tokens=budget_tokens, on_event=on_event, request_id=request_id
            )

        return self._wait(run())

    def parallel_resumable(
        self,
        specs: Sequence[Spec],
        workflow_id: str,
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelResult:
        """Run a fan-out whose successful steps are recorded and never run again (C16).

        Raises as `Mesh.parallel_resumable`.
        """

        async def run() -> ParallelResult:
            return await self._opened.parallel_resumable(
                specs, workflow_id, budget_tokens=budget_tokens, on_event=on_event, request_id=request_id
            )

        return self._wait(run())

    def start(
        self,
        specs: Sequence[Spec],
        *,
        workflow_id: str = "",
        budget_tokens: int | None = None,
        request_id: str = "",
    ) -> SyncStartedRun:
        """Start a fan-out that goes on without this program (C31). Raises as `Mesh.start`."""
        starting = self._opened.start(
            specs, workflow_id=workflow_id, budget_tokens=budget_tokens, request_id=request_id
        )
        return SyncStartedRun(self._wait(starting), self._wait)

    def started(self, run_id: str) -> SyncStartedRun:
        """A run that was started before. Raises NotFound."""
        return SyncStartedRun(self._wait(self._opened.started(run_id)), self._wait)

    @property
    def jobs(self) -> SyncJobs:
        """The jobs of the job registry."""
        return SyncJobs(self._opened.jobs, self._wait)

    def resume(
        self,
        workflow_id: str,
        *,
        budget_tokens: int | None = None,
        on_event: OnStepEvent | None = None,
        request_id: str = "",
    ) -> ParallelResult:
        """Run what a workflow's last fan-out was asked for and has no record. Raises as `Mesh.resume`."""

        async def run() -> ParallelResult:
            return await self._opened.resume(
                workflow_id, budget_tokens=budget_tokens, on_event=on_event, request_id=request_id
            )

        return self._wait(run())

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
    ) -> PipelineResult:
        """Run items through stages, each on its own (C14); resumable with a workflow id. Raises as `Mesh.pipeline`."""

        async def run() -> PipelineResult:
            return await self._opened.pipeline(
                items,
                stages,
                stage_timeout=stage_timeout,
                workflow_id=workflow_id,
                budget_tokens=budget_tokens,
                on_event=on_event,
                request_id=request_id,
            )

        return self._wait(run())

    def execute(self, spec: Spec, *, on_event: OnStepEvent | None = None, request_id: str = "") -> StepOutcome:
        """Run one step. Raises as `Mesh.execute`."""
        return self._wait(self._opened.execute(spec, on_event=on_event, request_id=request_id))

    def nodes(self) -> list[NodeView]:
        """The nodes that the coordinator knows."""
        return self._wait(self._opened.nodes())

    def agents(self) -> list[Agent]:
        """The agents that ready nodes offer."""
        return self._wait(self._opened.agents())

    @property
    def server(self) -> str:
        """The coordinator that is asked, as host:port."""
        return self._opened.server

    def runs(
        self, *, workflow_id: str = "", states: Collection[RunState | str] = (), limit: int | None = None
    ) -> list[Run]:
        """Runs, newest first."""
        return self._wait(self._opened.runs(workflow_id=workflow_id, states=states, limit=limit))

    def run(self, run_id: str) -> Run:
        """A run as it is. Raises NotFound."""
        return self._wait(self._opened.run(run_id))

    def cancel(self, run_id: str, reason: str = "") -> Run:
        """Ask a run to stop. Raises NotFound."""
        return self._wait(self._opened.cancel(run_id, reason))

    def dispose(self, run_id: str, *, timeout: float = DISPOSE_SECONDS) -> Run:
        """Have a run gone. Raises as `Mesh.dispose`."""
        return self._wait(self._opened.dispose(run_id, timeout=timeout))

    def watch(
        self, run_id: str, *, from_sequence: int = 0, detail: EventDetail = EventDetail.PROGRESS
    ) -> Iterator[RunEvent]:
        """A run's events, until it has ended. Raises as `Mesh.watch`."""
        return stepped(self._wait, self._opened.watch(run_id, from_sequence=from_sequence, detail=detail))

    def checkpoint(self, workflow_id: str) -> WorkflowCheckpoint:
        """What is recorded of a workflow. Raises as `Mesh.checkpoint`."""
        return self._wait(self._opened.checkpoint(workflow_id))

    def put_checkpoint(self, checkpoint: WorkflowCheckpoint) -> int:
        """Have a checkpoint kept. Raises as `Mesh.put_checkpoint`."""
        return self._wait(self._opened.put_checkpoint(checkpoint))

    @property
    def _opened(self) -> Mesh:
        if self._mesh is None:
            raise RuntimeError("use it as `with SyncMesh() as mesh:`")
        return self._mesh

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> Mesh:
        return await self._make().__aenter__()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._loop.is_closed():
            work.close()
            raise MeshClosed("the mesh is closed; use it within its `with` block")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a SyncMesh cannot be called from its own on_event; collect there and call afterwards")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(future.cancel)
            asyncio.run_coroutine_threadsafe(_settle(), self._loop).result()
            raise


async def _settle() -> None:
    """Wait until everything that was cancelled on this loop has told the mesh so."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=STOP_SECONDS + 1) if others else None
