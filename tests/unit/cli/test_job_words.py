"""Jobs as people read them (C35, C42)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fanfold.cli.job_view import fares, job_in_words, job_table
from fanfold.model.job import Job, JobState, OutputSource

BEGUN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
RUNNING = Job(
    id="parallel-7",
    kind="parallel",
    label="audit\x1b[31m",
    state=JobState.RUNNING,
    owner="alice",
    progress="7/12 steps, 1 failed, 3 running",
    sources=(OutputSource(name="log", total_bytes=300_000, earliest_offset=37_856, lossy=True),),
    created_at=BEGUN,
)
ENDED = replace(
    RUNNING,
    state=JobState.KILLED,
    detail="9/12 steps: enough",
    stop_reason="enough",
    settled_at=BEGUN + timedelta(seconds=75),
    has_result=True,
)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (RUNNING, "7/12 steps, 1 failed, 3 running"),
        (
            replace(RUNNING, waiting_on="its producer, which has been away for 12 s"),
            "7/12 steps, 1 failed, 3 running; waiting for its producer, which has been away for 12 s",
        ),
        (replace(RUNNING, progress="", waiting_on="its producer, to stop"), "waiting for its producer, to stop"),
        (replace(RUNNING, progress=""), "-"),
        (ENDED, "9/12 steps: enough"),
        (replace(ENDED, detail=""), "-"),
    ],
)
def test_one_line_says_how_a_job_fares_or_ended(job: Job, words: str) -> None:
    assert fares(job) == words


def test_a_job_is_shown_with_all_there_is_to_say_and_no_strange_characters() -> None:
    lines = list(job_in_words(ENDED))
    assert {
        "state         killed",
        "label         audit",
        "asked to stop enough",
        "took          1 min 15 s",
        "result        yes",
        "output log    300,000 bytes, of which the last 262,144 are held",
    } <= set(lines)


def test_a_job_that_is_open_to_all_says_so() -> None:
    open_to_all = replace(RUNNING, owner="")
    assert "owner         open to everybody" in list(job_in_words(open_to_all))
    row = list(job_table([open_to_all]).lines())[1]
    assert [cell.text.strip() for cell in row][:4] == ["parallel-7", "audit", "running", "(open)"]
