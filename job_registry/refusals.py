"""What producers are told whose jobs are not theirs any more."""

from __future__ import annotations

from fanfold.errors import GONE, Aborted, NotFound


def gone(job_id: str, detail: str) -> NotFound:
    """The job was given up (C38)."""
    return NotFound(f"{job_id} was given up: {detail}", reason=GONE)


def superseded() -> Aborted:
    """Another stream came after this one."""
    return Aborted("another stream holds the job now", reason="SUPERSEDED")


def stale_epoch(held: int, epoch: int) -> Aborted:
    """The job was taken over by a producer with a newer epoch."""
    return Aborted(f"the job is held with epoch {held}, not {epoch}", reason="STALE_EPOCH")
