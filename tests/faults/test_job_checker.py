"""The checker of jobs finds what is wrong: each thing that must not happen, made up one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fanfold.model.job import Job, JobState, OutputPiece
from faults.job_checker import JobHistory, Seen, complaints, given_up
from faults.producing_child import content

ONE = Job(
    id="storm-1",
    kind="storm",
    label="p-1-0",
    state=JobState.COMPLETED,
    owner="a",
    detail="2 lines",
    has_result=True,
)
TWO = Job(
    id="storm-2",
    kind="storm",
    label="p-1-1",
    state=JobState.KILLED,
    owner="a",
    detail="1 lines",
    stop_reason="enough",
    has_result=True,
)
LOST = Job(id="storm-4", kind="storm", label="p-1-2", state=JobState.FAILED, owner="a", detail="producer lost")


def noted(what: str, job: Job, **fields: Any) -> dict[str, Any]:
    return {"what": what, "request": job.label, "job": job.id, **fields}


def kept(job: Job, lines: int) -> dict[str, Any]:
    return noted("kept", job, state=job.state.value, detail=job.detail, lines=lines)


WRITTEN = content("p-1-0", 2)
SEEN = Seen(
    jobs=[ONE, TWO, LOST],
    output={"storm-1": WRITTEN, "storm-2": content("p-1-1", 3), "storm-4": b""},
    told=[TWO, ONE, LOST],
    followed={
        "storm-1": [OutputPiece(offset=0, data=WRITTEN[:70]), OutputPiece(offset=70, data=WRITTEN[70:])],
        "storm-4": [OutputPiece(offset=0, data=content("p-1-2", 1))],
    },
)
GOOD = JobHistory(
    noted=[
        {"what": "asked", "request": "p-1-0"},
        noted("committed", ONE),
        noted("committed", TWO),
        noted("committed", LOST),
        kept(ONE, 2),
        kept(TWO, 1),
        noted("gone", LOST, why="JOB_GONE"),
    ],
    seen={"any": SEEN, "left": SEEN},
    asked_to_stop=frozenset({"storm-2"}),
    stopping=frozenset({"storm-2"}),
)


def seen(**fields: Any) -> JobHistory:
    """As good, but for what one caller has seen."""
    return replace(GOOD, seen={"any": SEEN, "left": replace(SEEN, **fields)})


def with_jobs(*jobs: Job) -> JobHistory:
    """These jobs, for everybody."""
    return replace(GOOD, seen={name: replace(SEEN, jobs=jobs) for name in GOOD.seen})


def with_job(job: Job) -> JobHistory:
    """As good, but for a job."""
    return with_jobs(*(job if job.id == each.id else each for each in SEEN.jobs))


def followed(*pieces: OutputPiece) -> JobHistory:
    """As good, but for what was told of a job's output."""
    return seen(followed={"storm-1": pieces})


def test_a_good_history_has_no_complaint() -> None:
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (with_jobs(ONE, TWO), "storm-4 was committed and is not there"),
        (with_job(replace(LOST, state=JobState.RUNNING)), "running for ever"),
        (with_job(replace(ONE, state=JobState.FAILED)), "was kept as completed"),
        (with_job(replace(ONE, detail="3 lines")), "was kept as completed"),
        (with_job(replace(ONE, has_result=False)), "the result of storm-1 is not there"),
        (with_job(replace(TWO, stop_reason="")), "killed though nobody asked"),
        (with_job(replace(ONE, stop_reason="x")), "asked to stop by nobody"),
        (replace(GOOD, stopping=frozenset({"storm-1", "storm-2"})), "does not know of it"),
        (with_job(replace(LOST, label="p-1-0")), "has several jobs"),
        (replace(GOOD, noted=[*GOOD.noted, noted("committed", replace(ONE, label="q"))]), "to several requests"),
        (seen(output={**SEEN.output, "storm-1": content("p-1-0", 1)}), "64 bytes of output"),
        (seen(output={**SEEN.output, "storm-1": content("p-1-1", 2)}), "not what was written"),
        (seen(told=[TWO, ONE]), "left: the settlement of storm-4 was told 0 times"),
        (seen(told=[*SEEN.told, ONE]), "storm-1 was told 2 times"),
        (seen(told=[TWO, LOST, replace(ONE, state=JobState.RUNNING)]), "was told as running"),
        (seen(jobs=[ONE, LOST]), "left: storm-2 is None here"),
        (seen(jobs=[ONE, replace(TWO, progress="1 of 3"), LOST]), "left: storm-2 is Job("),
        (followed(OutputPiece(offset=0, data=WRITTEN[:127])), "only 127 bytes were told, of 128"),
        (followed(OutputPiece(offset=1, data=WRITTEN[1:], gap_bytes=1)), "from byte 1 after byte 0"),
        (followed(OutputPiece(offset=0, data=WRITTEN), OutputPiece(offset=0, data=WRITTEN)), "byte 0 after byte 128"),
        (followed(OutputPiece(offset=0, data=content("p-1-1", 2))), "was not told as it was written"),
    ],
)
def test_what_must_not_happen_is_complained_of(history: JobHistory, words: str) -> None:
    assert any(words in complaint for complaint in complaints(history)), complaints(history)


def test_what_is_given_up_is_complained_of_where_nothing_may_be() -> None:
    first, second = given_up(GOOD)
    assert first.startswith("storm-4 was given up, 'producer lost', ")
    assert second.startswith("the producer of p-1-2 was sent away for JOB_GONE, ")
    noted = [line for line in GOOD.noted if line["what"] != "gone"]
    assert list(given_up(replace(with_jobs(ONE, TWO), noted=noted))) == []
