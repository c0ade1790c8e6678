"""The JSON form of a job: snake_case names, lower-case states, times in RFC 3339 (C5)."""

from __future__ import annotations

from typing import Any

from fanfold.model.forms import json_form
from fanfold.model.job import Job


def job_to_json(job: Job) -> dict[str, Any]:
    """The JSON form of a job."""
    form: dict[str, Any] = json_form(Job, job, without={"unknown_fields"})
    return form
