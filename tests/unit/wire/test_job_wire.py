"""Jobs, and what is asked and told of them, there and back (C5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message

from fanfold.errors import InvalidArgument
from fanfold.model.job import Job, JobChanges, JobFilter, JobPage, JobSpec, JobState, OutputPiece, OutputSource
from fanfold.v1 import job_pb2 as pb
from fanfold.wire import job as wire

NOW = datetime(2026, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)
JOB = Job(
    id="nightly-audit-7",
    kind="nightly-audit",
    label="all of it",
    state=JobState.KILLED,
    owner="alice/session-7",
    parent="parallel-3",
    progress="7/12",
    detail="stopped half way",
    stop_reason="enough",
    waiting_on="its producer",
    sources=(
        OutputSource(name="stdout", total_bytes=2**40, earliest_offset=2**40 - 7, lossy=True),
        OutputSource(name="stderr"),
    ),
    has_result=True,
    created_at=NOW,
    settled_at=NOW,
)
LATER_FIELD = b"\xf2\x3f\x03new"  # field 1022, length-delimited

Pair = tuple[Callable[[Any], Message], Callable[[Any], Any]]
PAIRS: list[tuple[Any, Pair]] = [
    (JOB, (wire.job_to_proto, wire.job_from_proto)),
    (
        JobSpec(kind="audit", label="l", parent="p-1", sources=("out", "log"), unowned=True),
        (wire.job_spec_to_proto, wire.job_spec_from_proto),
    ),
    (
        JobFilter(owner="alice", kind="audit", states=(JobState.RUNNING, JobState.FAILED), label="l", parent="p-1"),
        (wire.job_filter_to_proto, wire.job_filter_from_proto),
    ),
    (
        JobPage(jobs=(JOB,), next_page_token="next", watch_cursor="here"),
        (wire.job_page_to_proto, wire.job_page_from_proto),
    ),
    (JobChanges(jobs=(JOB,), cursor="there"), (wire.job_changes_to_proto, wire.job_changes_from_proto)),
    (
        OutputPiece(offset=2**41, data=b"\x00\xff", gap_bytes=9, time=NOW),
        (wire.output_piece_to_proto, wire.output_piece_from_proto),
    ),
]


@pytest.mark.contract("C5")
@pytest.mark.parametrize(("thing", "pair"), PAIRS, ids=lambda value: type(value).__name__)
def test_everything_comes_back_as_it_was_sent(thing: Any, pair: Pair) -> None:
    to_proto, from_proto = pair
    sent = to_proto(thing).SerializeToString()
    assert from_proto(type(to_proto(thing)).FromString(sent)) == thing


@pytest.mark.contract("C5")
def test_what_only_a_newer_registry_tells_of_a_job_is_passed_on() -> None:
    newer = wire.job_to_proto(JOB).SerializeToString() + LATER_FIELD
    job = wire.job_from_proto(pb.Job.FromString(newer))
    assert job != JOB
    assert LATER_FIELD in wire.job_to_proto(job).SerializeToString()
    assert wire.job_from_proto(wire.job_to_proto(job)) == job


@pytest.mark.contract("C5")
def test_what_only_a_newer_producer_wants_registered_is_passed_on() -> None:
    newer = pb.JobSpec(kind="audit").SerializeToString() + LATER_FIELD
    spec = wire.job_spec_from_proto(pb.JobSpec.FromString(newer))
    assert LATER_FIELD in wire.job_spec_to_proto(spec).SerializeToString()


def test_a_state_of_a_newer_registry_counts_as_not_settled() -> None:
    message = wire.job_to_proto(JOB)
    message.state = 99  # type: ignore[assignment]  # what a newer release may send
    assert not wire.job_from_proto(message).state.is_settled


def test_a_filter_with_what_is_no_state_is_refused_by_its_place() -> None:
    message = wire.job_filter_to_proto(JobFilter(states=(JobState.RUNNING,)))
    message.states.append(pb.JOB_STATE_UNSPECIFIED)
    with pytest.raises(InvalidArgument) as refusal:
        wire.job_filter_from_proto(message)
    assert [wrong.field for wrong in refusal.value.violations] == ["filter.states[1]"]
