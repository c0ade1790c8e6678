"""What a registry and its producers have promised, checked against what was seen of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.model.job import Job, JobState, OutputPiece
from faults.producing_child import LINE_BYTES, content
from job_registry.states import LOST

BY_THE_REGISTRY = (LOST, "not settled within")
"""How details begin that the registry gives itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one caller has seen.

    `jobs` and `output` is what there is at the end, `told` the settled jobs that a watcher was told, in order, and
    `followed` the output that one who followed jobs to their end was told meanwhile.
    """

    jobs: Sequence[Job]
    output: Mapping[str, bytes]
    told: Sequence[Job]
    followed: Mapping[str, Sequence[OutputPiece]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What was seen.

    `noted` is what producers noted, `seen` what callers have seen, by their names, each at a registry or at several.
    Somebody asked the jobs `asked_to_stop` to stop, and was answered of those in `stopping` that they would.
    """

    noted: Sequence[Mapping[str, Any]]
    seen: Mapping[str, Seen]
    asked_to_stop: frozenset[str]
    stopping: frozenset[str]

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs, as each caller has to see them."""
        return next(iter(self.seen.values())).jobs


def complaints(history: JobHistory) -> list[str]:
    """All that is not as it was promised."""
    found = [*_lost_jobs(history), *_numbers(history), *_settlements(history)]
    for name, seen in history.seen.items():
        theirs = [*_others(history, seen), *_output(history, seen), *_following(seen), *_watching(seen)]
        found += [f"{name}: {complaint}" for complaint in theirs]
    return found


def given_up(history: JobHistory) -> Iterator[str]:
    """What must not be where every producer is always back within the grace."""
    for job in history.jobs:
        if job.detail.startswith(BY_THE_REGISTRY):
            yield f"{job.id} was given up, {job.detail!r}, though its producer was back in time (C38)"
    for line in history.noted:
        if line["what"] == "gone":
            yield f"the producer of {line['request']} was sent away for {line['why']}, and nobody else has it (C32)"


def _lost_jobs(history: JobHistory) -> Iterator[str]:
    there = {job.id: job for job in history.jobs}
    for line in history.noted:
        if line["what"] in {"committed", "kept"} and line["job"] not in there:
            yield f"{line['job']} was {line['what']} and is not there (F6)"
    for job in history.jobs:
        if not job.state.is_settled:
            yield f"{job.id} is {job.state} for ever, waiting on {job.waiting_on!r} (F3)"


def _numbers(history: JobHistory) -> Iterator[str]:
    pairs = {(line["request"], line["job"]) for line in history.noted if line.get("job")}
    pairs |= {(job.label, job.id) for job in history.jobs}
    for request, count in Counter(request for request, _ in pairs).items():
        if count > 1:
            yield f"the request {request} has several jobs: {sorted(pairs)} (C44)"
    for job_id, count in Counter(job_id for _, job_id in pairs).items():
        if count > 1:
            yield f"{job_id} was given to several requests: {sorted(pairs)} (C33)"


def _settlements(history: JobHistory) -> Iterator[str]:
    there = {job.id: job for job in history.jobs}
    for line in history.noted:
        job = there.get(line.get("job", ""))
        if line["what"] == "kept" and job is not None:
            if (job.state, job.detail) != (line["state"], line["detail"]):
                yield f"{job.id} was kept as {line['state']}, {line['detail']!r}, and is {job.state}, {job.detail!r}"
            elif not job.detail.startswith(BY_THE_REGISTRY) and not job.has_result:
                yield f"the result of {job.id} is not there (C37)"
    for job in history.jobs:
        if job.state is JobState.KILLED and not job.stop_reason:
            yield f"{job.id} was killed though nobody asked (C35)"
        if job.stop_reason and job.id not in history.asked_to_stop:
            yield f"{job.id} was asked to stop by nobody (C38)"
    for job_id in history.stopping:
        if job_id in there and not there[job_id].stop_reason:
            yield f"{job_id} was asked to stop, which was answered, and does not know of it (C38)"


def _others(history: JobHistory, seen: Seen) -> Iterator[str]:
    elsewhere = {job.id: job for job in history.jobs}
    here = {job.id: job for job in seen.jobs}
    for job_id in sorted(elsewhere.keys() | here.keys()):
        if elsewhere.get(job_id) != here.get(job_id):
            yield f"{job_id} is {here.get(job_id)} here, and {elsewhere.get(job_id)} elsewhere (C44)"


def _output(history: JobHistory, seen: Seen) -> Iterator[str]:
    kept = [line for line in history.noted if line["what"] == "kept" and line["detail"] == f"{line['lines']} lines"]
    lines = {line["job"]: line["lines"] for line in kept}
    for job in seen.jobs:
        data = seen.output[job.id]
        if data != _written(job.label, 0, len(data)):
            yield f"the output of {job.id} is not what was written (C37)"
        if len(data) < lines.get(job.id, 0) * LINE_BYTES:  # a former life may have written more
            yield f"{job.id} has {len(data)} bytes of output, and {lines[job.id]} lines were written (C37)"


def _following(seen: Seen) -> Iterator[str]:
    """Whoever follows may be told more than is kept in the end: what a registry that was killed had not written."""
    labels = {job.id: job.label for job in seen.jobs}
    for job_id in labels.keys() & seen.followed.keys():
        told, pieces = 0, seen.followed[job_id]
        for piece in pieces:
            if piece.gap_bytes or piece.offset != told:
                yield f"the output of {job_id} was told from byte {piece.offset} after byte {told} (C37)"
            told = piece.offset + len(piece.data)
            if piece.data != _written(labels[job_id], piece.offset, told):
                yield f"the output of {job_id} was not told as it was written (C37)"
        if told < len(seen.output[job_id]):
            yield f"of the output of {job_id} only {told} bytes were told, of {len(seen.output[job_id])} (C37)"


def _written(request: str, first: int, last: int) -> bytes:
    return content(request, last // LINE_BYTES + 1)[first:last]


def _watching(seen: Seen) -> Iterator[str]:
    told = Counter(job.id for job in seen.told)
    for job in seen.jobs:
        if told[job.id] != 1:
            yield f"the settlement of {job.id} was told {told[job.id]} times (F23)"
    final = {job.id: job for job in seen.jobs}
    for job in seen.told:
        if job.id in final and (job.state, job.detail) != (final[job.id].state, final[job.id].detail):
            yield f"{job.id} was told as {job.state}, {job.detail!r}, and is {final[job.id].state} (C35)"
