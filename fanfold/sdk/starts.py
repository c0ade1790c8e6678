"""What is started as a job and goes on without the program that asked for it (C31)."""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.model.validation import parse_specs, require_json_schemas
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.parallel import Spec
from fanfold.sdk.runs import RunMethods
from fanfold.sdk.started import StartedRun
from fanfold.sdk.terms import journaled_terms


class StartMethods(RunMethods):
    """The part of `Mesh` that is about detached fan-outs."""

    jobs: Jobs

    async def start(
        self,
        specs: Sequence[Spec],
        *,
        workflow_id: str = "",
        budget_tokens: int | None = None,
        request_id: str = "",
    ) -> StartedRun:
        """Start a fan-out that goes on without this program: it is a job, and cannot be lost once this returns (C31).

        `run = await mesh.start([...])`; then `run.id` is the job's id, and `await run.result()` waits for its outcomes,
        as does whoever asks later, with `mesh.started` or with `mesh.jobs`. With a `workflow_id` it is recorded as
        `parallel_resumable` is. The same `request_id` gives the same run.

        Raises:
            InvalidArgument: a spec is wrong, or a task id is given twice; nothing was started.
            FailedPrecondition: the mesh has no journal or no job registry.
            ResourceExhausted: the registry has reached a limit; names it.
            Unavailable: the mesh or its registry cannot be reached; nothing was started, or, when that is not known,
                asking again with the same `request_id` gives the run that was.
        """
        parsed = parse_specs(specs)
        require_json_schemas(parsed)
        terms = journaled_terms(workflow_id, budget_tokens, request_id, needs_workflow=False)
        return StartedRun(self, await self._servers.ask(lambda client: client.start_run(parsed, terms)))

    async def started(self, run_id: str) -> StartedRun:
        """A fan-out that goes on, or has ended, by its run's id. Raises NotFound."""
        return StartedRun(self, await self.run(run_id))
