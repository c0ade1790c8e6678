"""`fanfold run` and `fanfold check`: carry a workflow script out, or only say what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from fanfold.cli.connection import connected
from fanfold.cli.exits import Interrupted
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import show_document, show_text, tell
from fanfold.cli.printable import printable
from fanfold.cli.run_view import show_started
from fanfold.cli.runs import find_run
from fanfold.cli.script_file import ScriptFile
from fanfold.cli.script_tree import shown
from fanfold.errors import FieldViolation, InternalError, InvalidArgument
from fanfold.model.run import RunKind
from fanfold.model.script import AgentFailure, ScriptResult, StopReason
from fanfold.model.script_checks import parse_meta, result_to_json
from fanfold.rpc.loop import run as run_loop
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.started import StartedWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOrder:
    """What a script's run is about besides the script."""

    server: str | None = None
    parent: str = ""
    provider: str = ""
    max_total_agents: int | None = None
    budget_tokens: int | None = None
    workflow_id: str = ""
    resume: str = ""
    """A run, by its id or how no other one begins, whose workflow is gone on with."""
    request_id: str = ""


def run_script(script: ScriptFile, order: ScriptOrder, *, as_json: bool, quiet: bool) -> ScriptResult:
    """Carry a script out and print what came of it, also of one that is interrupted.

    Raises:
        InvalidArgument: names everything that is wrong with the request; nothing was started.
        Unavailable: the mesh cannot be reached, or was lost.
        Interrupted: by a signal; the script and its agents are gone.
    """
    running = _Running(script, order, quiet=quiet or as_json)
    try:
        result = run_interruptibly(running.run(), running.tell_cancelling)
    except InvalidArgument as error:
        raise script.located(error) from None
    except Interrupted:
        if running.result is not None:
            _show(running.result, as_json=as_json, quiet=quiet)
        raise
    _show(result, as_json=as_json, quiet=quiet)
    return result


def start_script(script: ScriptFile, order: ScriptOrder, *, as_json: bool) -> None:
    """Start a script that goes on by itself, and print its job's id.

    Raises:
        InvalidArgument: names everything that is wrong with the request; nothing was started.
        FailedPrecondition: the mesh has no journal or no job registry.
        Unavailable: the mesh or its registry cannot be reached.
    """

    async def ask() -> StartedWorkflow:
        async with connected(order.server) as mesh:
            return await mesh.start_workflow(**await _asked(mesh, script, order))

    try:
        run = run_interruptibly(ask())
    except InvalidArgument as error:
        raise script.located(error) from None
    show_started(run, as_json=as_json)


async def _asked(mesh: Mesh, script: ScriptFile, order: ScriptOrder) -> dict[str, Any]:
    """What is asked for, by the parameters of `Mesh.workflow`."""
    return {
        "script": script.source,
        "meta": script.meta,
        "args": script.args,
        "parent": order.parent or f"./cli-{uuid.uuid4().hex[:12]}",
        "provider": order.provider,
        "max_total_agents": order.max_total_agents,
        "budget_tokens": order.budget_tokens,
        "workflow_id": await _workflow_of(mesh, order),
        "request_id": order.request_id,
    }


async def _workflow_of(mesh: Mesh, order: ScriptOrder) -> str:
    if not order.resume:
        return order.workflow_id
    run = await find_run(mesh, order.resume)
    if run.kind is not RunKind.SCRIPT or not run.workflow_id:
        what = "it was run without --workflow-id" if run.kind is RunKind.SCRIPT else f"it is a {run.kind} run"
        raise InvalidArgument.of_field("--resume", f"nothing is recorded of a script's calls in {run.run_id}: {what}")
    if order.workflow_id not in {"", run.workflow_id}:
        raise InvalidArgument.of_field("--workflow-id", f"{run.run_id} is of the workflow {run.workflow_id}")
    return run.workflow_id


class _Running:
    """A script that is carried out; what came of it stays readable when it is interrupted."""

    def __init__(self, script: ScriptFile, order: ScriptOrder, *, quiet: bool) -> None:
        self._script = script
        self._order = order
        self._quiet = quiet
        self._has_begun = False
        self.result: ScriptResult | None = None

    async def run(self) -> ScriptResult:
        """Carry it out, once. Cancelling this cancels it and waits until it is gone."""
        async with connected(self._order.server) as mesh:
            asked = await _asked(mesh, self._script, self._order)
            async with mesh.workflow(**asked) as run:
                self._has_begun = True
                try:
                    async with nullcontext() if self._quiet else shown(run):
                        self.result = await run.result()
                except asyncio.CancelledError:
                    await run.cancel("its caller was interrupted")
                    self.result = await run.result()
                    raise
                return self.result

    def tell_cancelling(self) -> None:
        """Say that it is being cancelled, which takes as long as its agents take to be gone."""
        if self._has_begun and not self._quiet:
            tell("Cancelling; waiting until the agents are gone ...")


def _show(result: ScriptResult, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        show_document(result_to_json(result))
        return
    if result.stop_reason is StopReason.COMPLETED:
        show_text([json.dumps(result.value, ensure_ascii=False, indent=2)], "utf-8")
    if not quiet:
        for failure in result.failures:
            tell(failure_in_words(failure), "yellow")
    if result.stop_reason is StopReason.ERROR:
        tell(f"Error: {printable(result.error)}", "red")


def failure_in_words(failure: AgentFailure) -> str:
    """Why something was null, on one line."""
    place = f" (line {failure.line})" if failure.line else ""
    phase = f"{failure.phase}: " if failure.phase else ""
    return printable(f"null: {phase}{failure.label}{place}: {failure.failure.code}: {failure.failure.message}")


def check_script(script: ScriptFile) -> None:
    """Say what is wrong with a script, without running it and without a mesh.

    Raises:
        InvalidArgument: names everything that is wrong.
        InternalError: there is no script engine here.
    """
    run_loop(_check(script))


async def _check(script: ScriptFile) -> None:
    # Only this command needs an engine of its own.
    from coordinator.scripts.engine.engine import EngineFailed, ScriptStart, ScriptSyntaxError  # noqa: PLC0415
    from coordinator.scripts.engine.lockdown import Limits  # noqa: PLC0415
    from coordinator.scripts.engine.quickjs import QuickJsEngine  # noqa: PLC0415

    wrong: list[FieldViolation] = []
    try:
        parse_meta(script.meta)
    except InvalidArgument as error:
        wrong += error.violations
    async with QuickJsEngine(Limits(heap_bytes=64 * 2**20, cpu_seconds=30), spare=0) as engine:
        try:
            process = await engine.start(ScriptStart(source=script.source, args=None, seed=(0, 0, 0, 0), now=0))
            process.kill()
            await process.closed()
        except ScriptSyntaxError as error:
            where = f"line {error.line}, column {error.column}: " if error.line else ""
            wrong.append(FieldViolation(script.name, f"{where}{error}"))
        except EngineFailed as error:
            raise InternalError(str(error)) from None
    if wrong:
        raise InvalidArgument(violations=wrong)
