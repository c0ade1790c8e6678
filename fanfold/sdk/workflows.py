"""Workflow scripts as they are asked for: with a caller, or as jobs (C21, C31)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from fanfold.clients.coordinator import Terms
from fanfold.model.script import Script, ScriptMeta
from fanfold.model.validation import parse_budget, parse_request_id
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.runs import RunMethods
from fanfold.sdk.started import StartedWorkflow
from fanfold.sdk.terms import journaled_terms
from fanfold.sdk.workflow import WorkflowRun, checked_meta, renamed


class WorkflowMethods(RunMethods):
    """The part of `Mesh` that is about workflow scripts."""

    jobs: Jobs

    def workflow(  # noqa: PLR0913 - what C21 lists
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
    ) -> WorkflowRun:
        """A workflow script, to be entered: `async with mesh.workflow(...) as run: result = await run.result()` (C21).

        `script` is JavaScript, `meta` says what it is: `name` in kebab-case and `description`, perhaps `when_to_use`
        and `phases`. `args` is any JSON value. `parent` is the session that the run belongs to, a path within the
        caller's principal or, beginning with "./", below it; without it the run has one of its own.
        `run.events()` tells what happens, `run.cancel()` stops it, and the end of the block waits until all of it is
        gone. An error in the script is a result; what is wrong with the request is raised when the block is entered.

        With a `workflow_id` it is recorded and outlives its coordinator: another one executes the script again, gives
        it the answers that it had, and runs only what is new (C29). A later call with the workflow id, also with
        another script, answers calls that have succeeded before, by prompt and options, from their records.

        Raises:
            InvalidArgument: names everything in `meta` and `args` that is wrong.
        """
        asked = _script(script, meta, args, parent, provider, max_total_agents)
        if not workflow_id:
            terms = Terms(request_id=parse_request_id(request_id), budget_tokens=parse_budget(budget_tokens))
            return WorkflowRun(self._servers, asked, terms)
        terms = journaled_terms(workflow_id, budget_tokens, request_id)
        return WorkflowRun(self._servers, asked, terms, reconnect_timeout=self._reconnect_timeout)

    async def start_workflow(  # noqa: PLR0913 - what C21 lists
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
    ) -> StartedWorkflow:
        """Start a workflow script that goes on without this program: a job of kind `workflow` (C31).

        `run = await mesh.start_workflow(...)`; then `run.id` is the job's id, and `await run.result()` waits for what
        comes of it, as does whoever asks later, with `mesh.started_workflow`. It cannot be lost once this returns. What
        is given is as in `workflow`, and the same `request_id` gives the same run.

        Raises:
            InvalidArgument: names everything that is wrong; nothing was started.
            FailedPrecondition: the mesh has no journal or no job registry.
            ResourceExhausted: the registry, or the coordinator, has reached a limit; names it.
            Unavailable: the mesh or its registry cannot be reached; nothing was started, or, when that is not known,
                asking again with the same `request_id` gives the run that was.
        """
        asked = _script(script, meta, args, parent, provider, max_total_agents)
        terms = journaled_terms(workflow_id, budget_tokens, request_id, needs_workflow=False)
        with renamed():
            run = await self._servers.ask(lambda client: client.start_script(asked, terms))
        return StartedWorkflow(self, self.jobs, run)

    async def started_workflow(self, run_id: str) -> StartedWorkflow:
        """A script that was started as a job, by its run's id. Raises NotFound."""
        return StartedWorkflow(self, self.jobs, await self.run(run_id))


def _script(
    source: str,
    meta: ScriptMeta | Mapping[str, Any],
    args: Any,
    parent: str,
    provider: str,
    max_total_agents: int | None,
) -> Script:
    return Script(
        source=source,
        meta=checked_meta(meta, args),
        args=args,
        parent=parent or f"./sdk-{uuid.uuid4().hex[:12]}",
        provider=provider,
        max_total_agents=max_total_agents,
    )
