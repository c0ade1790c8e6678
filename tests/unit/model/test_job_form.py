"""Jobs as JSON, which scripts rely on (C5)."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from fanfold.model.job import Job, JobState, OutputSource
from fanfold.model.job_form import job_to_json

JOB = Job(
    id="parallel-7",
    kind="parallel",
    label="audit",
    state=JobState.STOPPING,
    owner="alice",
    stop_reason="enough",
    sources=(OutputSource(name="log", total_bytes=9, earliest_offset=2, lossy=True),),
    created_at=datetime(2026, 3, 1, 12, 30, 15, 500_000, UTC),
    unknown_fields=b"\x00",
)


@pytest.mark.contract("C5")
def test_a_job_has_all_its_fields_and_none_of_the_wire() -> None:
    assert json.loads(json.dumps(job_to_json(JOB))) == {
        "id": "parallel-7",
        "kind": "parallel",
        "label": "audit",
        "state": "stopping",
        "owner": "alice",
        "parent": "",
        "progress": "",
        "detail": "",
        "stop_reason": "enough",
        "waiting_on": "",
        "sources": [{"name": "log", "total_bytes": 9, "earliest_offset": 2, "lossy": True}],
        "has_result": False,
        "created_at": "2026-03-01T12:30:15.500000Z",
        "settled_at": None,
    }
