"""The JSON form of a job: snake_case names, lower-case states, times in RFC 3339 (C5)."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from fanfold.model.job import Job


def job_to_json(job: Job) -> dict[str, Any]:
    """The JSON form of a job."""
    form: dict[str, Any] = _adapter().dump_python(job, mode="json", exclude={"unknown_fields"})
    return form


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)
