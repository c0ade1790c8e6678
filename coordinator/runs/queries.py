"""Runs as their owners see them: looked up, listed, watched and cancelled (C27, C28, C33)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from coordinator.journal.journal import JournalFailed, KeptRun, RunFilter
from coordinator.runs.journaled import THE_REGISTRY
from coordinator.runs.log import ends_run
from coordinator.runs.reader import KeptReader, LiveReader
from coordinator.runs.runs import Runs
from fanfold.errors import FailedPrecondition, NotFound, PermissionDenied
from fanfold.model.principal import Principal
from fanfold.model.run import EventDetail, Run, RunState

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class RunQueries:
    """Answers about runs, to principals. To those who may not see it a run does not exist (C33)."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def get(self, principal: Principal, run_id: str) -> Run:
        """A run as it is. Raises NotFound."""
        run = await self._find(principal, run_id)
        return run if isinstance(run, Run) else self._view(run)

    async def list_runs(self, wanted: RunFilter) -> Sequence[Run]:
        """Runs by filter, newest first."""
        runs = [
            run.view() for run in self._runs.attached.values() if wanted.covers(run.owner) and _fits(run.view(), wanted)
        ]
        if self._runs.has_journal:
            kept = await self._runs.durable.journal.list_runs(wanted)
            runs += [self._view(each) for each in kept]
        return sorted(runs, key=order_of, reverse=True)[: wanted.limit]

    async def watch(
        self, principal: Principal, run_id: str, first: int, detail: EventDetail
    ) -> LiveReader | KeptReader:
        """A reader of a run's events from number `first` on; 0 means the first that is kept.

        Raises:
            NotFound: there is no such run.
            FailedPrecondition: its events are not kept.
            HeldElsewhere: another coordinator holds it.
        """
        if isinstance(await self._find(principal, run_id), Run):
            raise FailedPrecondition("the run keeps no events, as it has no workflow id", reason="NOT_JOURNALED")
        return await self._runs.durable.reader(run_id, first, detail)

    async def cancel(self, principal: Principal, run_id: str, reason: str) -> Run:
        """Have a run cancelled, which is durable then; gives it as it is now.

        Raises:
            NotFound: there is no such run.
            PermissionDenied: the principal sees it, but does not control it.
            HeldElsewhere: another coordinator holds it, and will hear of it; sooner, if it is told.
        """
        found = await self._find(principal, run_id)
        if not principal.controls(found.owner if isinstance(found, Run) else found.run.owner):
            raise PermissionDenied(f"{principal.name} may see the run, but not stop it", reason="NOT_OWNER")
        if isinstance(found, Run):
            if (attached := self._runs.attached.get(run_id)) is not None:
                attached.cancel(reason)
            return found
        if ends_run(found.run.state):
            return found.run
        await self._runs.durable.journal.ask_to_cancel(run_id, reason)
        live = self._runs.durable.holding.get(run_id)
        if live is not None:
            live.cancel(reason)
            return live.view()
        self._runs.durable.refuse_elsewhere(found)
        return self._view(found)

    async def _find(self, principal: Principal, run_id: str) -> Run | KeptRun:
        attached = self._runs.attached.get(run_id)
        run = self._runs.ended.get(run_id) if attached is None else attached.view()
        if run is not None and principal.sees(run.owner):
            return run
        kept = await self._kept(run_id) if self._runs.has_journal else None
        if kept is None or not principal.sees(kept.run.owner):
            raise NotFound("no such run")
        return kept

    async def _kept(self, run_id: str) -> KeptRun | None:
        """A run as it is kept. One that is held here is known while the journal cannot be read, too (C42)."""
        try:
            return await self._runs.durable.journal.find(run_id)
        except JournalFailed:
            live = self._runs.durable.holding.get(run_id)
            if live is None:
                raise
            return live.kept

    def _view(self, kept: KeptRun) -> Run:
        if ends_run(kept.run.state):
            return kept.run
        live = self._runs.durable.holding.get(kept.run.run_id)
        if live is not None:
            return live.view()
        if kept.lease_left <= 0:
            return replace(kept.run, waiting_on="a coordinator to take it over")
        if kept.run.state is RunState.PENDING and not kept.run.attached:
            return replace(kept.run, waiting_on=THE_REGISTRY)
        return kept.run


def order_of(run: Run) -> tuple[datetime, str]:
    """What runs are listed by."""
    return run.created_at or _LONG_AGO, run.run_id


def _fits(run: Run, wanted: RunFilter) -> bool:
    return (
        (not wanted.states or run.state in wanted.states)
        and (not wanted.workflow_id or run.workflow_id == wanted.workflow_id)
        and (wanted.before is None or order_of(run) < wanted.before)
    )
