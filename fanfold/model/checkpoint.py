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
    work = {
        "agent": spec.agent,
        "prompt": spec.prompt,
        "max_steps": spec.max_steps,
        "output_schema": spec.output_schema,
    }
    if item_hash:
        work["item"] = item_hash
    return _digest(json.dumps(work, separators=(",", ":"), sort_keys=True, ensure_ascii=False))


def hash_of_item(item: Any) -> str:
    """SHA-256 over the canonical JSON text of an item, which is a JSON value, in hexadecimal."""
    return _digest(json.dumps(item, separators=(",", ":"), sort_keys=True, ensure_ascii=False))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
