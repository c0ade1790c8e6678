"""Detached runs in tests over an executor and a registry of this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from coordinator.runs.opening import Opening
from fanfold.model.run import Run
from support.durable import Coordinator


def detached(request_id: str = "r1", **fields: object) -> Opening:
    asked = Opening(owner="alice", request_id=request_id, attached=False)
    return replace(asked, **fields)  # type: ignore[arg-type]


async def ended(coordinator: Coordinator, run_id: str) -> Run:
    """The run as it ended."""
    while (kept := await coordinator.runs.journal.find(run_id)) is None or kept.run.ended_at is None:
        await asyncio.sleep(0.01)
    return kept.run
