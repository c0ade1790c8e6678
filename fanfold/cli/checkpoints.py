"""`fanfold checkpoint`: workflows that move from one mesh to another, as files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from fanfold.cli.connection import connected
from fanfold.cli.forms import Wrong, read_json
from fanfold.cli.interruption import run_interruptibly
from fanfold.cli.output import JSON_ENCODING, show_text, tell
from fanfold.cli.sources import STANDARD_INPUT, name_of, read_text
from fanfold.errors import FailedPrecondition, FieldViolation, InvalidArgument
from fanfold.model.checkpoint import WorkflowCheckpoint
from fanfold.model.checkpoint_form import checkpoint_from_json, checkpoint_to_json

MAX_BYTES = 2**30
"""Most bytes of a file that is read."""


def export_checkpoint(server: str | None, workflow_id: str, output: Path | None) -> None:
    """Write the checkpoint of a workflow to a file, or to standard output.

    Raises:
        NotFound: nothing of the workflow is recorded.
        FailedPrecondition: the mesh has no journal.
    """

    async def ask() -> WorkflowCheckpoint:
        async with connected(server) as mesh:
            return await mesh.checkpoint(workflow_id)

    checkpoint = run_interruptibly(ask())
    if output is None or str(output) == STANDARD_INPUT:
        show_text(_lines(checkpoint), JSON_ENCODING)
        return
    _write(output, checkpoint)
    tell(f"{len(checkpoint.records):,} recorded steps of {workflow_id} are in {output}.")


def import_checkpoint(server: str | None, source: str) -> None:
    """Have the checkpoint in a file kept, in place of what is recorded of its workflow.

    Raises:
        InvalidArgument: it is no checkpoint, or was changed; names what is wrong.
        FailedPrecondition: it is of a newer version, or the mesh has no journal.
        Aborted: the workflow runs there.
    """
    checkpoint = _read(source)

    async def ask() -> int:
        async with connected(server) as mesh:
            return await mesh.put_checkpoint(checkpoint)

    records = run_interruptibly(ask())
    tell(f"{records:,} recorded steps of {checkpoint.workflow_id} are there.")


def _read(source: str) -> WorkflowCheckpoint:
    name = name_of(source)
    try:
        return checkpoint_from_json(read_json(read_text(source, MAX_BYTES)).value)
    except Wrong as wrong:
        raise InvalidArgument(f"{name}{wrong.place}: {wrong.what}") from None
    except InvalidArgument as error:
        located = [FieldViolation(f"{name}: {wrong.field}", wrong.description) for wrong in error.violations]
        raise InvalidArgument(violations=located) from None
    except FailedPrecondition as error:
        raise FailedPrecondition(f"{name}: {error.message}", reason=error.reason) from None


def _write(file: Path, checkpoint: WorkflowCheckpoint) -> None:
    """Write it whole or not at all: what is in the file's place is not touched before all is written."""
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("w", encoding=JSON_ENCODING) as target:
            target.writelines(f"{line}\n" for line in _lines(checkpoint))
            target.flush()
            os.fsync(target.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _lines(checkpoint: WorkflowCheckpoint) -> Iterator[str]:
    """The JSON form, a record a line."""
    form = checkpoint_to_json(checkpoint)
    records = form.pop("records")
    head = json.dumps(form, ensure_ascii=False)
    yield head.removesuffix("}") + ', "records": ['
    for index, record in enumerate(records):
        yield json.dumps(record, ensure_ascii=False) + ("," if index < len(records) - 1 else "")
    yield "]}"
