"""What runs are asked for, in the form in which it is kept: all that another coordinator needs to go on (C19)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from coordinator.journal.journal import NewRun
from coordinator.runs.checks import RequestChecks
from coordinator.runs.opening import Opening
from coordinator.runs.pipelines import PipelineRequest, PipelineWork
from coordinator.runs.questions import Questions
from coordinator.runs.scripts import ScriptRuns
from coordinator.runs.work import CannotGoOn, ParallelWork, Work
from coordinator.scope import Scope
from fanfold.model.run import Budget, Run, RunKind, RunState, StepCounts
from fanfold.model.script import Script
from fanfold.model.step import AgentStepSpec
from fanfold.wire.request import specs_from_bytes, specs_to_bytes
from fanfold.wire.script import script_from_bytes, script_to_bytes

WorkFactory = Callable[[Scope], Work]
"""Gives the work of a run, for the scope in which it is done."""

_CHUNK = 500
"""Steps looked at before others get their turn."""


async def new_fan_out(opening: Opening, specs: Sequence[AgentStepSpec]) -> NewRun:
    """A fan-out to be kept; looked at in pieces, so that a large one does not hold everybody up."""
    digest = _digest_of(opening, RunKind.PARALLEL)
    parts: list[bytes] = []
    for first in range(0, len(specs), _CHUNK):
        chunk = specs[first : first + _CHUNK]
        for spec in chunk:
            digest.update(_words_of(spec))
        parts.append(specs_to_bytes(chunk))
        await asyncio.sleep(0)
    run = _run_of(opening, RunKind.PARALLEL, len(specs))
    return NewRun(run=run, request_id=opening.request_id, request_digest=digest.hexdigest(), request=b"".join(parts))


def _words_of(spec: AgentStepSpec) -> bytes:
    """What tells a step from others: its task id, and what its fingerprint is of, which costs more to take."""
    schema = "" if spec.output_schema is None else json.dumps(spec.output_schema, sort_keys=True)
    sizes = f"{len(spec.task_id)}.{len(spec.agent)}.{len(spec.prompt)}.{spec.max_steps}"
    return f"/{sizes}/{spec.task_id}{spec.agent}{spec.prompt}{schema}".encode("utf-8", "surrogatepass")


def new_pipeline(opening: Opening, request: PipelineRequest) -> NewRun:
    """A pipeline to be kept. What only says how its caller likes to be asked makes no other request."""
    form = asdict(request)
    digest = _digest_of(opening, RunKind.PIPELINE)
    digest.update(json.dumps([request.stages, *request.item_hashes]).encode())
    run = _run_of(opening, RunKind.PIPELINE, 0)
    return NewRun(
        run=run,
        request_id=opening.request_id,
        request_digest=digest.hexdigest(),
        request=json.dumps(form).encode(),
    )


def new_script(opening: Opening, script: Script) -> NewRun:
    """A script to be kept."""
    request = script_to_bytes(script)
    digest = _digest_of(opening, RunKind.SCRIPT)
    digest.update(script_to_bytes(replace(script, parent="")))  # to whom it belongs makes no other request
    run = _run_of(opening, RunKind.SCRIPT, 0)
    return NewRun(run=run, request_id=opening.request_id, request_digest=digest.hexdigest(), request=request)


def fan_out_work(specs: Sequence[AgentStepSpec]) -> WorkFactory:
    """The work of a fan-out."""
    return lambda _scope: ParallelWork(specs)


def pipeline_work(request: PipelineRequest, checks: RequestChecks) -> WorkFactory:
    """The work of a pipeline."""

    def make(scope: Scope) -> Work:
        questions = Questions(scope.waiting, timeout=request.stage_timeout, most=request.most_requests)
        return PipelineWork(request, questions, checks, scope.owner)

    return make


def specs_of(request: bytes) -> Sequence[AgentStepSpec]:
    """The steps that a kept fan-out was asked for. Raises CannotGoOn if only a newer release understands them."""
    specs = specs_from_bytes(request)
    if specs is None:
        raise CannotGoOn
    return specs


def work_of(kind: RunKind, request: bytes, checks: RequestChecks, scripts: ScriptRuns | None) -> WorkFactory:
    """The work of a kept run. Raises CannotGoOn for a kind or a form that only a newer release knows."""
    if kind is RunKind.PARALLEL:
        return fan_out_work(specs_of(request))
    if kind is RunKind.PIPELINE:
        try:
            return pipeline_work(PipelineRequest(**json.loads(request)), checks)
        except TypeError:
            raise CannotGoOn from None
    if kind is RunKind.SCRIPT and scripts is not None:
        script = script_from_bytes(request)
        if script is None:
            raise CannotGoOn
        return scripts.work(script)
    raise CannotGoOn(f"this release cannot go on with a run of kind {kind}")


def _digest_of(opening: Opening, kind: RunKind) -> hashlib._Hash:
    detached = "" if opening.attached else "/detached"
    return hashlib.sha256(f"{kind}/{opening.workflow_id}/{opening.budget_tokens}{detached}".encode())


def _run_of(opening: Opening, kind: RunKind, steps: int) -> Run:
    budget = opening.budget_tokens
    return Run(
        run_id=f"run-{uuid.uuid4().hex}",
        kind=kind,
        state=RunState.PENDING,
        workflow_id=opening.workflow_id,
        owner=opening.owner,
        attached=opening.attached,
        steps=StepCounts(total=steps),
        budget=None if budget is None else Budget(limit=budget),
        created_at=datetime.now(UTC),
    )
