"""What producers are told whose jobs are not theirs any more, or are too many."""

from __future__ import annotations

from fanfold.errors import GONE, Aborted, NotFound, ResourceExhausted, Unavailable

TRY_AGAIN_SECONDS = 5.0


def gone(job_id: str, detail: str) -> NotFound:
    """The job was given up (C38)."""
    return NotFound(f"{job_id} was given up: {detail}", reason=GONE)


def superseded() -> Aborted:
    """Another stream came after this one."""
    return Aborted("another stream holds the job now", reason="SUPERSEDED")


def overtaken() -> Unavailable:
    """Another stream came while this one was coming; which of them is newer, only their producer knows."""
    return Unavailable("another stream came to hold the job at the same time; come back", reason="OVERTAKEN")


def stale_epoch(held: int, epoch: int) -> Aborted:
    """The job was taken over by a producer with a newer epoch."""
    return Aborted(f"the job is held with epoch {held}, not {epoch}", reason="STALE_EPOCH")


class TooManyJobs(ResourceExhausted):
    """There are as many live jobs as may be (C39); `limit` is the name of what says so."""

    default_reason = "TOO_MANY_JOBS"

    def __init__(self, who: str, limit: str, value: int) -> None:
        super().__init__(
            f"{who} as many live jobs as may be: the limit {limit} is {value:,}", retry_delay=TRY_AGAIN_SECONDS
        )
        self.limit = limit
