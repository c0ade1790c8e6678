"""What tests of producing ask of a registry's jobs."""

from __future__ import annotations

from fanfold.model.job import JobSpec, JobState
from fanfold.model.principal import Principal, Role
from job_registry.jobs import Jobs
from job_registry.store.store import JobQuery, KeptJob

BOB = Principal("bob", frozenset({Role.CALLER}))
SPEC = JobSpec(kind="test", sources=("out",))


async def states(jobs: Jobs) -> dict[str, JobState]:
    return {job.id: job.state for job in await jobs.store.list_jobs(JobQuery())}


async def kept(jobs: Jobs, job_id: str) -> KeptJob:
    found = await jobs.find(job_id)
    assert found is not None
    return found
