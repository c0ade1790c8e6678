"""What callers can ask for: runs and single steps, held for as long as their callers do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from coordinator.combinators.parallel import refuse_duplicates
from coordinator.runs.attached import AttachedRun, is_wanted
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.scope import Scope
from fanfold.errors import Aborted
from fanfold.feed import Feed, fed
from fanfold.model.run import RunEvent
from fanfold.model.step import AgentStepSpec, StepEvent
from fanfold.ports import AgentExecutor

ExecutorFactory = Callable[[Scope], AgentExecutor]
"""Gives the executor of a run."""


class Runs:
    """Starts attached runs and single steps, and holds them for as long as their callers do."""

    def __init__(self, executors: ExecutorFactory, checks: RequestChecks) -> None:
        self._executors = executors
        self._checks = checks
        self._held: dict[tuple[str, str], datetime] = {}

    @asynccontextmanager
    async def parallel(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[Feed[RunEvent]]:
        """A fan-out's events, while the block lasts; leaving it early cancels the run and waits until it is gone.

        Raises:
            InvalidArgument: a step is wrong, or a task id is given twice; nothing was started.
            Aborted: a call with the same request id is under way (C18).
        """
        await self._checks.check(specs, owner=opening.owner)
        refuse_duplicates(specs)
        with self._hold(opening):
            scope = opening.scope("run")
            feed: Feed[RunEvent] = Feed()
            account = AttachedRun(scope, opening.detail, len(specs), feed)
            async with fed(feed, account.keep(self._executors(scope), specs)):
                yield feed

    @asynccontextmanager
    async def step(self, opening: Opening, spec: AgentStepSpec) -> AsyncIterator[Feed[StepEvent]]:
        """One step's events, while the block lasts; leaving it early cancels the step and waits until it is gone.

        Raises:
            InvalidArgument: the step is wrong; nothing was started.
            Aborted: a call with the same request id is under way.
        """
        await self._checks.check([spec], owner=opening.owner, path="step")
        with self._hold(opening):
            executor = self._executors(opening.scope("step"))
            feed: Feed[StepEvent] = Feed()

            def tell(event: StepEvent) -> None:
                if is_wanted(event, opening.detail, feed):
                    feed.push(event)

            async def work() -> None:
                await executor.execute_step(spec, tell)

            async with fed(feed, work()):
                yield feed

    @contextmanager
    def _hold(self, opening: Opening) -> Iterator[None]:
        if not opening.request_id:
            yield
            return
        key = (opening.owner, opening.request_id)
        since = self._held.get(key)
        if since is not None:
            raise Aborted(
                f"a call with the request id {opening.request_id!r} is under way since {since:%Y-%m-%d %H:%M:%S} UTC",
                reason="REQUEST_UNDER_WAY",
            )
        self._held[key] = datetime.now(UTC)
        try:
            yield
        finally:
            del self._held[key]
