"""Jobs, and what is asked and told of them (`job.proto`, `job_registry.proto`)."""

from __future__ import annotations

from fanfold.errors import InvalidArgument
from fanfold.model.job import Job, JobChanges, JobFilter, JobPage, JobSpec, JobState, OutputPiece, OutputSource
from fanfold.v1 import job_pb2 as pb
from fanfold.v1 import job_registry_pb2 as registry_pb
from fanfold.wire.time import set_timestamp, time_from_proto
from fanfold.wire.unknown import has_unknown, unknown_of

_STATE_TO_PROTO = {state: pb.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState}
_STATE_FROM_PROTO = {number: state for state, number in _STATE_TO_PROTO.items()}


def job_state_to_proto(state: JobState) -> pb.JobState.ValueType:
    """A state as an enum number."""
    return _STATE_TO_PROTO[state]


def job_state_from_proto(number: pb.JobState.ValueType, *, path: str) -> JobState:
    """A state that was asked for. Raises InvalidArgument, naming `path`, for what is none."""
    state = _STATE_FROM_PROTO.get(number)
    if state is None:
        raise InvalidArgument.of_field(path, "must be a state of a job")
    return state


def job_to_proto(job: Job, target: pb.Job | None = None) -> pb.Job:
    """Write a job into `target` or a new message."""
    message = pb.Job() if target is None else target
    if job.unknown_fields:
        message.MergeFromString(job.unknown_fields)
    message.id, message.kind, message.label = job.id, job.kind, job.label
    message.state = _STATE_TO_PROTO[job.state]
    message.owner, message.parent = job.owner, job.parent
    message.progress, message.detail, message.stop_reason = job.progress, job.detail, job.stop_reason
    message.waiting_on = job.waiting_on
    for source in job.sources:
        message.sources.add(
            name=source.name,
            total_bytes=source.total_bytes,
            earliest_offset=source.earliest_offset,
            lossy=source.lossy,
        )
    message.has_result = job.has_result
    if job.created_at is not None:
        set_timestamp(message.created_at, job.created_at)
    if job.settled_at is not None:
        set_timestamp(message.settled_at, job.settled_at)
    return message


def job_from_proto(message: pb.Job) -> Job:
    """The job as it was sent. A state that only a newer registry knows is taken for one that is not settled."""
    return Job(
        id=message.id,
        kind=message.kind,
        label=message.label,
        state=_STATE_FROM_PROTO.get(message.state, JobState.RUNNING),
        owner=message.owner,
        parent=message.parent,
        progress=message.progress,
        detail=message.detail,
        stop_reason=message.stop_reason,
        waiting_on=message.waiting_on,
        sources=tuple(
            OutputSource(
                name=source.name,
                total_bytes=source.total_bytes,
                earliest_offset=source.earliest_offset,
                lossy=source.lossy,
            )
            for source in message.sources
        ),
        has_result=message.has_result,
        created_at=time_from_proto(message.created_at) if message.HasField("created_at") else None,
        settled_at=time_from_proto(message.settled_at) if message.HasField("settled_at") else None,
        unknown_fields=unknown_of(message) if has_unknown(message) else b"",
    )


def job_spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """What is to be registered, as a message."""
    message = pb.JobSpec()
    if spec.unknown_fields:
        message.MergeFromString(spec.unknown_fields)
    message.kind, message.label, message.parent = spec.kind, spec.label, spec.parent
    message.sources.extend(spec.sources)
    message.unowned = spec.unowned
    return message


def job_spec_from_proto(message: pb.JobSpec) -> JobSpec:
    """What is to be registered; nothing is checked here."""
    return JobSpec(
        kind=message.kind,
        label=message.label,
        parent=message.parent,
        sources=tuple(message.sources),
        unowned=message.unowned,
        unknown_fields=unknown_of(message) if has_unknown(message) else b"",
    )


def job_filter_to_proto(wanted: JobFilter) -> registry_pb.JobFilter:
    """Which jobs to show, as a message."""
    return registry_pb.JobFilter(
        owner=wanted.owner,
        kind=wanted.kind,
        states=map(job_state_to_proto, wanted.states),
        label=wanted.label,
        parent=wanted.parent,
    )


def job_filter_from_proto(message: registry_pb.JobFilter) -> JobFilter:
    """Which jobs to show. Raises InvalidArgument for a state that is none."""
    numbers = list(message.states)
    return JobFilter(
        owner=message.owner,
        kind=message.kind,
        states=tuple(
            job_state_from_proto(number, path=f"filter.states[{numbers.index(number)}]")
            for number in dict.fromkeys(numbers)
        ),
        label=message.label,
        parent=message.parent,
    )


def job_page_to_proto(page: JobPage) -> registry_pb.ListJobsResponse:
    """A page of jobs, as a message."""
    return registry_pb.ListJobsResponse(
        jobs=map(job_to_proto, page.jobs), next_page_token=page.next_page_token, watch_cursor=page.watch_cursor
    )


def job_page_from_proto(message: registry_pb.ListJobsResponse) -> JobPage:
    """The page of jobs."""
    return JobPage(
        jobs=tuple(map(job_from_proto, message.jobs)),
        next_page_token=message.next_page_token,
        watch_cursor=message.watch_cursor,
    )


def job_changes_to_proto(changes: JobChanges) -> registry_pb.WatchJobsResponse:
    """Changed jobs, as a message."""
    return registry_pb.WatchJobsResponse(jobs=map(job_to_proto, changes.jobs), cursor=changes.cursor)


def job_changes_from_proto(message: registry_pb.WatchJobsResponse) -> JobChanges:
    """The changed jobs."""
    return JobChanges(jobs=tuple(map(job_from_proto, message.jobs)), cursor=message.cursor)


def output_piece_to_proto(piece: OutputPiece) -> registry_pb.ReadJobOutputResponse:
    """Output, as a message."""
    message = registry_pb.ReadJobOutputResponse(offset=piece.offset, data=piece.data, gap_bytes=piece.gap_bytes)
    if piece.time is not None:
        set_timestamp(message.time, piece.time)
    return message


def output_piece_from_proto(message: registry_pb.ReadJobOutputResponse) -> OutputPiece:
    """The output."""
    return OutputPiece(
        offset=message.offset,
        data=message.data,
        gap_bytes=message.gap_bytes,
        time=time_from_proto(message.time) if message.HasField("time") else None,
    )
