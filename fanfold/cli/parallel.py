"""`fanfold parallel`: runs the steps of a file and prints what came of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import nullcontext

from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.outcomes import show_outcomes, summary
from fanfold.cli.output import tell
from fanfold.cli.progress import Tally, shown
from fanfold.cli.specs import read_steps
from fanfold.errors import Aborted, FanfoldError, InvalidArgument
from fanfold.model.run import ParallelResult
from fanfold.model.step import AgentStepSpec
from fanfold.sdk.mesh import Mesh

CLEAN_UP_SECONDS = 30.0
"""Longest wait for a cancelled run to be gone: more than a coordinator takes."""

_ASK_AGAIN_SECONDS = 0.05


def parallel(source: str, *, server: str | None, as_json: bool, quiet: bool) -> bool:
    """Run the steps in `source`. Whether all of them succeeded.

    Raises:
        InvalidArgument: a step is wrong; nothing was started.
        Unavailable: the mesh cannot be reached, or was lost.
        Interrupted: by a signal; the run was cancelled.
    """
    steps = read_steps(source)
    try:
        result = run_interruptibly(run_steps(steps.specs, server=server, quiet=quiet))
    except InvalidArgument as error:
        raise steps.located(error) from None
    show_outcomes(result, as_json=as_json)
    if not quiet:
        tell(summary(result))
    return all(outcome.success for outcome in result)


async def run_steps(specs: Sequence[AgentStepSpec], *, server: str | None, quiet: bool = False) -> ParallelResult:
    """Run a fan-out and show its progress. Cancelling it cancels its steps and waits until they are gone."""
    tally = Tally(len(specs))
    request_id = f"cli-{uuid.uuid4().hex}"
    async with Mesh(server) as mesh:
        try:
            async with nullcontext() if quiet else shown(tally):
                return await mesh.parallel(specs, on_event=None if quiet else tally.note, request_id=request_id)
        except asyncio.CancelledError:
            tell("Cancelling; waiting until the steps are gone ...")
            await _gone(mesh, request_id)
            raise


async def _gone(mesh: Mesh, request_id: str) -> None:
    """Wait until the run of that request is gone: as long as it is not, a second one with its id is refused."""
    try:
        async with asyncio.timeout(CLEAN_UP_SECONDS):
            while True:
                try:
                    await mesh.parallel([], request_id=request_id)
                except Aborted:
                    await asyncio.sleep(_ASK_AGAIN_SECONDS)
                else:
                    return
    except TimeoutError:
        tell(f"The mesh has not cleaned up within {CLEAN_UP_SECONDS:g} s; its log says more.", "red")
    except FanfoldError as error:
        tell(f"Nobody can say whether the steps are gone: {error.message}", "red")
