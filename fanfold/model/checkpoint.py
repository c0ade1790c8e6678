"""What is needed to go on with a workflow elsewhere: a record for each successful step (C7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fanfold.model.step import AgentStepSpec, StepOutcome

CHECKPOINT_VERSION = 1
"""Version of the form of checkpoints; newer ones are refused (C7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One successful step. `key` is its task id, or item and stage index of a pipeline, as "3.0"."""

    key: str
    fingerprint: str
    outcome: StepOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCheckpoint:
    """The records of a workflow."""

    workflow_id: str
    records: Sequence[StepRecord] = ()
    updated_at: datetime | None = None
    schema_version: int = CHECKPOINT_VERSION


def fingerprint(spec: AgentStepSpec, item_hash: str = "") -> str:
    """SHA-256 over the canonical JSON (RFC 8785 for what occurs in it) of what changes the work (C7), in hexadecimal.

    `item_hash` is `hash_of_item` of the pipeline's item that the step belongs to; empty elsewhere.
    """
    # Written out, as this is done for every recorded step and takes a tenth of what json.dumps does.
    item = f'"item":{_canonical(item_hash)},' if item_hash else ""
    schema = "null" if spec.output_schema is None else _canonical(spec.output_schema)
    return _digest(
        f'{{"agent":{_canonical(spec.agent)},{item}"max_steps":{spec.max_steps},'
        f'"output_schema":{schema},"prompt":{_canonical(spec.prompt)}}}'
    )


def hash_of_item(item: Any) -> str:
    """SHA-256 over the canonical JSON text of an item, which is a JSON value, in hexadecimal."""
    return _digest(json.dumps(item, separators=(",", ":"), sort_keys=True, ensure_ascii=False))


_canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
