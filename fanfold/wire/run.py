"""Runs and their events (`run.proto`)."""

from __future__ import annotations

from datetime import datetime

from fanfold.errors import InvalidArgument
from fanfold.model.run import (
    Budget,
    BudgetExhausted,
    EventDetail,
    LogLine,
    PhaseStarted,
    Run,
    RunEnded,
    RunEvent,
    RunKind,
    RunStarted,
    RunState,
    RunStepEvent,
    StageFailed,
    StepChanged,
    StepCounts,
    WaitingChanged,
)
from fanfold.parts import LargeTexts
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.encoded import event_to_bytes as step_event_to_bytes
from fanfold.wire.encoded import has_large_output
from fanfold.wire.script import meta_from_proto, meta_to_proto, result_from_proto, result_to_proto
from fanfold.wire.splice import holes_for, sized, varint
from fanfold.wire.step import event_from_proto, event_to_proto
from fanfold.wire.time import set_timestamp, time_from_proto, time_to_bytes
from fanfold.wire.trace import trace_from_proto, trace_into

_KIND_TO_PROTO = {kind: pb.RunKind.Value(f"RUN_KIND_{kind.name}") for kind in RunKind}
_KIND_FROM_PROTO = {number: kind for kind, number in _KIND_TO_PROTO.items()}
_STATE_TO_PROTO = {state: pb.RunState.Value(f"RUN_STATE_{state.name}") for state in RunState}
_STATE_FROM_PROTO = {number: state for state, number in _STATE_TO_PROTO.items()}
_DETAIL_TO_PROTO = {detail: pb.EventDetail.Value(f"EVENT_DETAIL_{detail.name}") for detail in EventDetail}
_DETAIL_FROM_PROTO = {number: detail for detail, number in _DETAIL_TO_PROTO.items()}

_EVENT = holes_for(pb.RunEvent, "sequence", "time", "step")
_STEP = holes_for(pb.RunStepEvent, "index", "event")


def detail_to_proto(detail: EventDetail) -> pb.EventDetail.ValueType:
    """Which events to send, as an enum number."""
    return _DETAIL_TO_PROTO[detail]


def detail_from_proto(number: pb.EventDetail.ValueType) -> EventDetail:
    """Which events to send; unset and unknown mean outcomes only."""
    return _DETAIL_FROM_PROTO.get(number, EventDetail.OUTCOMES)


def state_from_proto(number: pb.RunState.ValueType) -> RunState:
    """A state that was asked for. Raises InvalidArgument for what is none."""
    state = _STATE_FROM_PROTO.get(number)
    if state is None:
        raise InvalidArgument.of_field("states", "must be states of a run")
    return state


def state_to_proto(state: RunState) -> pb.RunState.ValueType:
    """A state as an enum number."""
    return _STATE_TO_PROTO[state]


def run_to_proto(run: Run, target: pb.Run | None = None) -> pb.Run:
    """Write a run into `target` or a new message."""
    message = pb.Run() if target is None else target
    message.run_id = run.run_id
    message.workflow_id = run.workflow_id
    message.kind = _KIND_TO_PROTO[run.kind]
    message.state = _STATE_TO_PROTO[run.state]
    message.owner = run.owner
    message.attached = run.attached
    message.job_id = run.job_id
    message.steps.total = run.steps.total
    message.steps.running = run.steps.running
    message.steps.succeeded = run.steps.succeeded
    message.steps.failed = run.steps.failed
    message.waiting_on = run.waiting_on
    if run.budget is not None:
        _budget_to_proto(run.budget, message.budget)
    if run.created_at is not None:
        set_timestamp(message.created_at, run.created_at)
    if run.ended_at is not None:
        set_timestamp(message.ended_at, run.ended_at)
    message.coordinator = run.coordinator
    message.reason = run.reason
    return message


def run_from_proto(message: pb.Run) -> Run:
    """The run as it was sent."""
    steps, budget = message.steps, message.budget
    return Run(
        run_id=message.run_id,
        kind=_KIND_FROM_PROTO.get(message.kind, RunKind.PARALLEL),
        state=_STATE_FROM_PROTO.get(message.state, RunState.RUNNING),
        workflow_id=message.workflow_id,
        owner=message.owner,
        attached=message.attached,
        job_id=message.job_id,
        steps=StepCounts(total=steps.total, running=steps.running, succeeded=steps.succeeded, failed=steps.failed),
        budget=_budget_from_proto(budget) if message.HasField("budget") else None,
        waiting_on=message.waiting_on,
        created_at=time_from_proto(message.created_at) if message.HasField("created_at") else None,
        ended_at=time_from_proto(message.ended_at) if message.HasField("ended_at") else None,
        coordinator=message.coordinator,
        reason=message.reason,
    )


def _budget_to_proto(budget: Budget, message: pb.Budget) -> None:
    message.limit = budget.limit
    message.spent = budget.spent
    message.refused_steps = budget.refused_steps
    message.SetInParent()


def _budget_from_proto(message: pb.Budget) -> Budget:
    return Budget(limit=message.limit, spent=message.spent, refused_steps=message.refused_steps)


def event_to_bytes(event: RunEvent) -> bytes:
    """The event in the form in which it is kept and told."""
    if isinstance(event, RunStepEvent) and not has_large_output(event.event):
        return _step_event_to_bytes(event)
    return event_into(event, pb.RunEvent()).SerializeToString()


def _step_event_to_bytes(told: RunStepEvent) -> bytes:
    """Put together, and not set field by field: a run tells two of them for each step.

    Each message around the innermost is a copy, which is nothing for short outputs and half a second for the longest.
    """
    step = _STEP % (varint(told.index), sized(step_event_to_bytes(told.event)))
    if told.stage or told.recalled or told.label or told.budget_spent is not None:
        step += _about_step(told, pb.RunStepEvent()).SerializeToString()
    return _EVENT % (varint(told.sequence), time_to_bytes(told.time), sized(step))


def event_from_bytes(data: bytes) -> RunEvent | None:
    """The event that was kept; None for a kind that only a newer release knows."""
    return run_event_from_proto(pb.RunEvent.FromString(data))


def event_into(event: RunEvent | bytes, message: pb.RunEvent, large: LargeTexts | None = None) -> pb.RunEvent:
    """Write an event, or the form in which it is kept, into a message of a batch, and give that back.

    Large texts of an outcome go into `large` if that is given; a kept form must have none then.
    """
    if isinstance(event, bytes):
        message.MergeFromString(event)
        return message
    message.sequence = event.sequence
    set_timestamp(message.time, event.time)
    if isinstance(event, RunStepEvent):
        _step_event_into(event, message.step, large)
    else:
        _own_event_into(event, message)
    return message


def _step_event_into(told: RunStepEvent, message: pb.RunStepEvent, large: LargeTexts | None) -> None:
    message.index = told.index
    _about_step(told, message)
    event_to_proto(told.event, message.event, large)


def _about_step(told: RunStepEvent, message: pb.RunStepEvent) -> pb.RunStepEvent:
    """Write what most events have nothing of."""
    message.stage = told.stage
    message.recalled = told.recalled
    if told.label:
        message.label, message.phase = told.label, told.phase
    if told.budget_spent is not None:
        message.budget_spent = told.budget_spent
    return message


def _own_event_into(event: RunEvent, message: pb.RunEvent) -> None:
    """Write an event of the run itself."""
    match event:
        case RunStarted():
            _started_into(event, message.started)
        case StageFailed():
            failed = message.stage_failed
            failed.index, failed.stage, failed.error = event.index, event.stage, event.error
        case StepChanged():
            message.step_changed.key = event.key
            message.step_changed.reason = event.reason
        case BudgetExhausted():
            _budget_to_proto(event.budget, message.budget_exhausted.budget)
        case PhaseStarted():
            message.phase.title = event.title
        case LogLine():
            message.log.message = event.message
            message.log.SetInParent()
        case WaitingChanged():
            message.waiting.waiting_on = event.waiting_on
            message.waiting.SetInParent()
        case RunEnded():
            _ended_into(event, message.ended)


def _started_into(event: RunStarted, message: pb.RunStarted) -> None:
    message.run_id = event.run_id
    message.total_steps = event.total_steps
    if event.script is not None:
        meta_to_proto(event.script, message.script)
    if event.trace is not None:
        trace_into(event.trace, message.trace)


def _ended_into(event: RunEnded, message: pb.RunEnded) -> None:
    run_to_proto(event.run, message.run)
    message.error = event.error
    message.out_of_quota = event.out_of_quota
    if event.script_result is not None:
        result_to_proto(event.script_result, message.script_result)


def run_event_from_proto(message: pb.RunEvent) -> RunEvent | None:
    """The event as it was sent; None for a kind that only a newer peer knows."""
    number, time = message.sequence, time_from_proto(message.time)
    if not message.HasField("step"):
        return _own_event_from_proto(message, number, time)
    step = message.step
    told = event_from_proto(step.event)
    if told is None:
        return None
    return RunStepEvent(
        sequence=number,
        time=time,
        index=step.index,
        stage=step.stage,
        event=told,
        recalled=step.recalled,
        budget_spent=step.budget_spent if step.HasField("budget_spent") else None,
        label=step.label,
        phase=step.phase,
    )


def _own_event_from_proto(message: pb.RunEvent, number: int, time: datetime) -> RunEvent | None:
    event: RunEvent | None = None
    match message.WhichOneof("event"):
        case "started":
            started = message.started
            event = RunStarted(
                sequence=number,
                time=time,
                run_id=started.run_id,
                total_steps=started.total_steps,
                script=meta_from_proto(started.script) if started.HasField("script") else None,
                trace=trace_from_proto(started.trace) if started.HasField("trace") else None,
            )
        case "stage_failed":
            failed = message.stage_failed
            event = StageFailed(sequence=number, time=time, index=failed.index, stage=failed.stage, error=failed.error)
        case "step_changed":
            changed = message.step_changed
            event = StepChanged(sequence=number, time=time, key=changed.key, reason=changed.reason)
        case "budget_exhausted":
            budget = _budget_from_proto(message.budget_exhausted.budget)
            event = BudgetExhausted(sequence=number, time=time, budget=budget)
        case "phase":
            event = PhaseStarted(sequence=number, time=time, title=message.phase.title)
        case "log":
            event = LogLine(sequence=number, time=time, message=message.log.message)
        case "waiting":
            event = WaitingChanged(sequence=number, time=time, waiting_on=message.waiting.waiting_on)
        case "ended":
            ended = message.ended
            event = RunEnded(
                sequence=number,
                time=time,
                run=run_from_proto(ended.run),
                error=ended.error,
                script_result=result_from_proto(ended.script_result) if ended.HasField("script_result") else None,
                out_of_quota=ended.out_of_quota,
            )
    return event
