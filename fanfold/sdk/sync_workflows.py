"""Workflow scripts from ordinary code: the methods of `Mesh` about them, which block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fanfold.model.script import ScriptEvent, ScriptMeta, ScriptResult
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.run import refuse_async
from fanfold.sdk.sync_jobs import SyncStartedWorkflow

Result = TypeVar("Result")


class SyncWorkflowMethods(ABC):
    """The part of `SyncMesh` that is about workflow scripts."""

    def workflow(  # noqa: PLR0913 - those of `Mesh.workflow`, and who hears of it
        self,
        script: str,
        *,
        meta: ScriptMeta | Mapping[str, Any],
        args: Any = None,
        parent: str = "",
        provider: str = "",
        max_total_agents: int | None = None,
        budget_tokens: int | None = None,
        workflow_id: str = "",
        on_event: Callable[[ScriptEvent], None] | None = None,
        request_id: str = "",
    ) -> ScriptResult:
        """Carry out a workflow script (C21); `on_event` gets its events. Raises as `Mesh.workflow`."""
        refuse_async(on_event)

        async def run() -> ScriptResult:
            asked = self._opened.workflow(
                script,
                meta=meta,
                args=args,
                parent=parent,
                provider=provider,
                max_total_agents=max_total_agents,
                budget_tokens=budget_tokens,
                workflow_id=workflow_id,
                request_id=request_id,
            )
            async with asked as running:
                if on_event is not None:
                    async for event in running.events():
                        on_event(event)
                return await running.result()

        return self._wait(run())

    def start_workflow(  # noqa: PLR0913 - those of `Mesh.start_workflow`
        self,
        script: str,
        *,
        meta: ScriptMeta | Mapping[str, Any],
        args: Any = None,
        parent: str = "",
        provider: str = "",
        max_total_agents: int | None = None,
        budget_tokens: int | None = None,
        workflow_id: str = "",
        request_id: str = "",
    ) -> SyncStartedWorkflow:
        """Start a workflow script that goes on without this program (C31). Raises as `Mesh.start_workflow`."""
        starting = self._opened.start_workflow(
            script,
            meta=meta,
            args=args,
            parent=parent,
            provider=provider,
            max_total_agents=max_total_agents,
            budget_tokens=budget_tokens,
            workflow_id=workflow_id,
            request_id=request_id,
        )
        return SyncStartedWorkflow(self._wait(starting), self._wait)

    def started_workflow(self, run_id: str) -> SyncStartedWorkflow:
        """A script that was started as a job. Raises NotFound."""
        return SyncStartedWorkflow(self._wait(self._opened.started_workflow(run_id)), self._wait)

    @property
    @abstractmethod
    def _opened(self) -> Mesh: ...

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result: ...
