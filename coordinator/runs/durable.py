"""Journaled runs: accepted once, found again by any coordinator, gone on with after a crash (C16 to C19)."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from coordinator.combinators.runner import StepRunner
from coordinator.journal.journal import KeptRun, NewRun
from coordinator.runs.history import History, history_of
from coordinator.runs.holding import Holding
from coordinator.runs.journaled import JournaledRun, Tenure
from coordinator.runs.log import ends_run
from coordinator.runs.opening import Opening
from coordinator.runs.reader import KeptReader, LiveReader
from coordinator.runs.work import ParallelWork, Work
from coordinator.scope import Hold, Receipts, Scope
from fanfold.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from fanfold.model.checkpoint import fingerprint
from fanfold.model.run import Budget, EventDetail, Run, RunKind, RunState, StepCounts
from fanfold.model.step import AgentStepSpec
from fanfold.wire.request import specs_from_bytes, specs_to_bytes

_CHUNK = 500
"""Steps looked at before others get their turn."""

_LOOK_SECONDS = 0.1
"""Pause before a run that nobody holds at the moment is looked for again."""

Reader = LiveReader | KeptReader

RunnerFactory = Callable[[Scope], StepRunner]
"""Gives what runs the steps of a run."""

Adopted = Callable[[KeptRun, Scope], AbstractAsyncContextManager[None]]
"""Takes over what former holders of the run have left on nodes, into the scope; nothing else is there in the block."""


class HeldElsewhere(Exception):
    """Another coordinator holds the run, and can be reached at `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """In seconds: how long an attached run waits for its caller, and a call for a run that is being taken over."""

    caller: float = 30.0
    take_over: float = 20.0


class DurableRuns:
    """Accepts journaled runs, and gives their callers and watchers their events."""

    def __init__(self, holding: Holding, runners: RunnerFactory, adopted: Adopted, waits: Waits) -> None:
        self.holding = holding
        self.journal = holding.journal
        self._runners = runners
        self._adopted = adopted
        self._waits = waits

    @asynccontextmanager
    async def parallel(self, opening: Opening, specs: Sequence[AgentStepSpec]) -> AsyncIterator[Reader]:
        """The events of a resumable fan-out, while the block lasts. The run does not end with it.

        Raises:
            HeldElsewhere: another coordinator holds the run of this request.
            InvalidArgument: the request id was used for another request.
            Aborted: another request holds the workflow (C18).
            JournalFailed: the journal cannot be written; nothing was started.
        """
        new = await self._new_run(opening, RunKind.PARALLEL, specs)
        kept = await self.holding.accept(new)
        if kept.run.run_id == new.run.run_id:
            self.holding.start(self._run_of(kept, ParallelWork(specs), History()))
        elif kept.request_digest != new.request_digest:
            raise InvalidArgument.of_field("open.request_id", "was used for another request")
        async with self._reading(kept.run.run_id, opening) as reader:
            yield reader

    async def specs_as_before(self, owner: str, workflow_id: str) -> Sequence[AgentStepSpec]:
        """The steps that the workflow's last run was asked for. Raises NotFound if there is none."""
        kept = await self.journal.find_workflow(owner, workflow_id)
        if kept is None or kept.run.kind is not RunKind.PARALLEL:
            raise NotFound(f"no fan-out of a workflow {workflow_id!r} is kept")
        return specs_from_bytes(await self.journal.request(kept.run.run_id))

    @asynccontextmanager
    async def _reading(self, run_id: str, opening: Opening) -> AsyncIterator[Reader]:
        found = await self.locate(run_id)
        first = opening.from_sequence if opening.from_run in {"", run_id} else 0
        reader = self._reader_of(found, first, opening.detail)
        if isinstance(found, JournaledRun) and found.presence and isinstance(reader, LiveReader):
            with found.presence.of(reader):
                yield reader
        else:
            yield reader

    async def reader(self, run_id: str, first: int, detail: EventDetail) -> Reader:
        """A reader of a run's events, for somebody on whom the run does not depend. Raises as `locate`."""
        return self._reader_of(await self.locate(run_id), first, detail)

    def _reader_of(self, found: JournaledRun | KeptRun, first: int, detail: EventDetail) -> Reader:
        if isinstance(found, JournaledRun):
            return found.reader(first, detail)
        return KeptReader(self.journal, found, first, detail)

    async def locate(self, run_id: str) -> JournaledRun | KeptRun:
        """A run where it is held, or as it ended; one that nobody holds at the moment is waited for.

        Raises:
            HeldElsewhere: another coordinator holds it.
            NotFound: there is no such run.
            Unavailable: nobody has taken it over in time.
        """
        try:
            async with asyncio.timeout(self._waits.take_over):
                while True:
                    if (live := self.holding.get(run_id)) is not None:
                        return live
                    kept = await self.journal.find(run_id)
                    if kept is None:
                        raise NotFound("no such run")
                    if ends_run(kept.run.state):
                        return kept
                    if kept.lease_left > 0 and kept.holder.address != self.holding.address:
                        raise HeldElsewhere(kept.holder.address)
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise Unavailable("no coordinator has taken the run over yet", retry_delay=1.0) from None

    async def resume(self, kept: KeptRun) -> JournaledRun:
        """A run that was claimed, ready to go on."""
        work = await self._work_of(kept)
        history = await history_of(self.journal, kept, keep_last=kept.run.kind is RunKind.PIPELINE)
        return self._run_of(kept, work, history)

    async def _work_of(self, kept: KeptRun) -> Work:
        if kept.run.kind is RunKind.PARALLEL:
            return ParallelWork(specs_from_bytes(await self.journal.request(kept.run.run_id)))
        raise FailedPrecondition(f"this release cannot go on with a run of kind {kept.run.kind}")

    def _run_of(self, kept: KeptRun, work: Work, history: History) -> JournaledRun:
        run_id, epoch = kept.run.run_id, kept.epoch

        def may_write() -> bool:
            return self.holding.may_write(run_id)

        async def use_node(node: str) -> None:
            if node not in kept.nodes:
                await self.journal.use_node(run_id, epoch, node)

        scope = Scope(
            run_id=run_id,
            owner=kept.run.owner,
            progress=True,
            epoch=epoch,
            hold=Hold(may_write),
            use_node=use_node,
            receipts=Receipts(),
        )
        tenure = Tenure(
            journal=self.journal,
            may_write=may_write,
            adopted=lambda: self._adopted(kept, scope),
            caller_grace=self._waits.caller,
        )
        return JournaledRun(kept, work, history, scope, self._runners(scope), tenure)

    async def _new_run(self, opening: Opening, kind: RunKind, specs: Sequence[AgentStepSpec]) -> NewRun:
        """The request as it is kept; looked at in pieces, so that a large one does not hold everybody up."""
        digest = hashlib.sha256(f"{kind}/{opening.workflow_id}/{opening.budget_tokens}".encode())
        parts: list[bytes] = []
        for first in range(0, len(specs), _CHUNK):
            chunk = specs[first : first + _CHUNK]
            for spec in chunk:
                digest.update(f"/{len(spec.task_id)}/{spec.task_id}/{fingerprint(spec)}".encode())
            parts.append(specs_to_bytes(chunk))
            await asyncio.sleep(0)
        budget = opening.budget_tokens
        run = Run(
            run_id=f"run-{uuid.uuid4().hex}",
            kind=kind,
            state=RunState.PENDING,
            workflow_id=opening.workflow_id,
            owner=opening.owner,
            steps=StepCounts(total=len(specs)),
            budget=None if budget is None else Budget(limit=budget),
            created_at=datetime.now(UTC),
        )
        return NewRun(
            run=run, request_id=opening.request_id, request_digest=digest.hexdigest(), request=b"".join(parts)
        )
