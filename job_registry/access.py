"""Who may do what with jobs (C33, C34): the one place where that is decided.

A principal sees and controls what it and those nested in it own, and what is open. Operators see and control all;
observers see all, but read no results and control nothing. To everybody else a job looks as if it did not exist.
"""

from __future__ import annotations

from fanfold.errors import NotFound, PermissionDenied
from fanfold.model.principal import Principal, Role, covers, parse_principal
from job_registry.store.store import KeptJob

_WORKERS = (Role.CALLER, Role.OPERATOR, Role.PRODUCER, Role.COORDINATOR)
"""Who does more than to look on or to run steps."""

_FOR_OTHERS = (Role.PRODUCER, Role.COORDINATOR)
"""Who produces jobs for other principals."""


def reach_of(principal: Principal) -> str | None:
    """The principal whose jobs, and whose alone beside the open ones, are listed; None for everybody's."""
    return None if principal.has(Role.OPERATOR, Role.OBSERVER) else principal.name


def sees(principal: Principal, job: KeptJob) -> bool:
    """Whether a job is there for the principal."""
    return job.owner == "" or principal.sees(job.owner)


def controls(principal: Principal, job: KeptJob) -> bool:
    """Whether the principal may stop and delete a job."""
    return principal.has(*_WORKERS) if job.owner == "" else principal.controls(job.owner)


def produces(principal: Principal, job: KeptJob) -> bool:
    """Whether the principal may take a job over as its producer.

    Coordinators take over from one another; others only what they registered themselves: whose job it is asks for its
    stop, and does not take it from under whoever runs it.
    """
    return covers(principal.name, job.producer) or principal.has(Role.COORDINATOR)


def require_seen(principal: Principal, job: KeptJob | None) -> KeptJob:
    """The job, if it is there for the principal. Raises NotFound in the same words whether it exists or not."""
    if job is None or job.deleted or not sees(principal, job):
        raise no_such_job()
    return job


def require_controlled(principal: Principal, job: KeptJob | None) -> KeptJob:
    """The job, if the principal may control it; also a deleted one.

    Raises:
        NotFound: it is not there for the principal.
        PermissionDenied: the principal sees it and no more.
    """
    if job is None or not sees(principal, job):
        raise no_such_job()
    if not controls(principal, job):
        raise PermissionDenied("observers watch jobs; they neither read their results nor control them")
    return job


def require_result(principal: Principal, job: KeptJob | None) -> KeptJob:
    """The job, if the principal may read its result: whoever controls it (C37). Raises as `require_controlled`."""
    if job is not None and job.deleted:
        raise no_such_job()
    return require_controlled(principal, job)


def require_produced(principal: Principal, job: KeptJob | None) -> KeptJob:
    """The job, if the principal may produce it. Raises NotFound in the same words whether it exists or not."""
    if job is None or job.deleted or not produces(principal, job):
        raise no_such_job()
    return job


def owner_of_new(principal: Principal, on_behalf_of: str, *, unowned: bool, open_jobs: bool) -> str:
    """Whom a new job belongs to; empty for one that is open to all.

    Raises:
        InvalidArgument: `on_behalf_of` is no principal.
        PermissionDenied: the principal may not produce for that one, or no open jobs are allowed here.
    """
    owner = parse_principal(on_behalf_of, path="open.on_behalf_of") if on_behalf_of else principal.name
    if not covers(principal.name, owner) and not principal.has(*_FOR_OTHERS):
        raise PermissionDenied("only producers and coordinators produce jobs for other principals")
    if not unowned:
        return owner
    if not open_jobs:
        raise PermissionDenied("open jobs are not allowed here; the registry's configuration says so with open_jobs")
    return ""


def no_such_job() -> NotFound:
    """What everybody is told for whom a job is not there."""
    return NotFound("there is no such job, or it is somebody else's")
