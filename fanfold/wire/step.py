"""Specs, outcomes and events of one step (`step.proto`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fanfold.model.step import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_STEPS,
    DEFAULT_POLICY,
    NO_USAGE,
    AgentStepSpec,
    AttemptStarted,
    FailureCode,
    Progress,
    SourceAnchor,
    StepEnded,
    StepEvent,
    StepFailure,
    StepOutcome,
    StepPolicy,
    StepProgressed,
    StepStarted,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)
from fanfold.parts import LargeTexts, TextField
from fanfold.strict_json import compact_json
from fanfold.v1 import step_pb2 as pb
from fanfold.wire.time import seconds_from_proto, set_duration, set_timestamp, time_from_proto
from fanfold.wire.unknown import has_unknown, unknown_of
from fanfold.wire.values import json_from_text, schema_from_text

STRUCTURED_PATH = "outcome.structured_json"

_CODE_TO_PROTO = {code: pb.FailureCode.Value(f"FAILURE_CODE_{code.value}") for code in FailureCode}
_CODE_FROM_PROTO = {number: code for code, number in _CODE_TO_PROTO.items()}


def spec_to_proto(
    spec: AgentStepSpec, target: pb.AgentStepSpec | None = None, large: LargeTexts | None = None
) -> pb.AgentStepSpec:
    """Write a spec into `target` or a new message; its large texts go into `large` if that is given."""
    message = pb.AgentStepSpec() if target is None else target
    message.task_id = spec.task_id
    message.agent = spec.agent
    message.description = spec.description
    message.prompt = spec.prompt if large is None else large.lift(TextField.PROMPT, spec.prompt)
    if spec.max_steps != DEFAULT_MAX_STEPS:
        message.max_steps = spec.max_steps
    if spec.parent_session_id:
        message.parent_session_id = spec.parent_session_id
    if spec.output_schema is not None:
        text = compact_json(spec.output_schema)
        if large is None or large.lift(TextField.OUTPUT_SCHEMA_JSON, text):
            message.output_schema_json = text
    if spec.policy is not DEFAULT_POLICY and spec.policy != DEFAULT_POLICY:
        _policy_to_proto(spec.policy, message.policy)
    if spec.unknown_fields:
        message.MergeFromString(spec.unknown_fields)
    return message


def spec_from_proto(
    message: pb.AgentStepSpec, *, path: str = "step", schemas: dict[str, Any] | None = None
) -> AgentStepSpec:
    """The spec as it was sent; what it says is still to be checked.

    `schemas` remembers schemas by their text, so that the many steps of a run that share one share one value.

    Raises:
        InvalidArgument: `output_schema_json` is not JSON, or is nested too deeply.
    """
    has_policy = message.HasField("policy")
    unknown = has_unknown(message) or (has_policy and has_unknown(message.policy))
    schema = None
    if message.HasField("output_schema_json"):
        schema = schema_from_text(message.output_schema_json, f"{path}.output_schema_json", schemas)
    return AgentStepSpec(
        task_id=message.task_id,
        agent=message.agent,
        description=message.description,
        prompt=message.prompt,
        max_steps=message.max_steps if message.HasField("max_steps") else DEFAULT_MAX_STEPS,
        parent_session_id=message.parent_session_id,
        output_schema=schema,
        policy=_policy_from_proto(message.policy) if has_policy else DEFAULT_POLICY,
        unknown_fields=unknown_of(message) if unknown else b"",
    )


def _policy_to_proto(policy: StepPolicy, message: pb.StepPolicy) -> None:
    message.SetInParent()
    if policy.timeout is not None:
        set_duration(message.timeout, policy.timeout)
    if policy.no_progress_timeout is not None:
        set_duration(message.no_progress_timeout, policy.no_progress_timeout)
    if policy.max_tokens is not None:
        message.max_tokens = policy.max_tokens
    if policy.max_attempts != DEFAULT_MAX_ATTEMPTS:
        message.max_attempts = policy.max_attempts
    message.node_labels.update(policy.node_labels)


def _policy_from_proto(message: pb.StepPolicy) -> StepPolicy:
    return StepPolicy(
        timeout=seconds_from_proto(message.timeout) if message.HasField("timeout") else None,
        no_progress_timeout=(
            seconds_from_proto(message.no_progress_timeout) if message.HasField("no_progress_timeout") else None
        ),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        max_attempts=message.max_attempts if message.HasField("max_attempts") else DEFAULT_MAX_ATTEMPTS,
        node_labels=dict(message.node_labels),
    )


def outcome_to_proto(
    outcome: StepOutcome, target: pb.StepOutcome | None = None, large: LargeTexts | None = None
) -> pb.StepOutcome:
    """Write an outcome into `target` or a new message; its large texts go into `large` if that is given."""
    message = pb.StepOutcome() if target is None else target
    message.task_id = outcome.task_id
    message.session_id = outcome.session_id
    message.agent = outcome.agent
    message.output = outcome.output if large is None else large.lift(TextField.OUTPUT, outcome.output)
    message.success = outcome.success
    message.attempts = outcome.attempts
    message.node = outcome.node
    if outcome.structured is not None:
        text = compact_json(outcome.structured)
        if large is None or large.lift(TextField.STRUCTURED_JSON, text):
            message.structured_json = text
    for anchor in outcome.source_anchors:
        message.source_anchors.add(tool=anchor.tool, url_or_path=anchor.url_or_path, lines=anchor.lines)
    if outcome.failure is not None:
        failure_to_proto(outcome.failure, message.failure)
    if outcome.usage is not NO_USAGE:
        usage_to_proto(outcome.usage, message.usage)
    if outcome.started_at is not None:
        set_timestamp(message.started_at, outcome.started_at)
    if outcome.ended_at is not None:
        set_timestamp(message.ended_at, outcome.ended_at)
    if outcome.agent_session_id:
        message.agent_session_id = outcome.agent_session_id
    if outcome.unknown_fields:
        message.MergeFromString(outcome.unknown_fields)
    return message


def outcome_from_proto(message: pb.StepOutcome) -> StepOutcome:
    """The outcome as it was sent.

    Raises:
        InvalidArgument: it holds something that is no JSON, or a time outside RFC 3339.
    """
    failure = failure_from_proto(message.failure) if message.HasField("failure") else None
    structured = None
    if message.HasField("structured_json"):
        structured = json_from_text(message.structured_json, path=STRUCTURED_PATH)
    return StepOutcome(
        task_id=message.task_id,
        session_id=message.session_id,
        agent=message.agent,
        output=message.output,
        success=message.success,
        structured=structured,
        source_anchors=_anchors_from_proto(message.source_anchors) if message.source_anchors else (),
        failure=failure,
        usage=usage_from_proto(message.usage) if message.HasField("usage") else NO_USAGE,
        attempts=message.attempts,
        node=message.node,
        started_at=time_from_proto(message.started_at) if message.HasField("started_at") else None,
        ended_at=time_from_proto(message.ended_at) if message.HasField("ended_at") else None,
        agent_session_id=message.agent_session_id,
        unknown_fields=unknown_of(message) if _outcome_has_unknown(message) else b"",
    )


def _anchors_from_proto(messages: Iterable[pb.SourceAnchor]) -> tuple[SourceAnchor, ...]:
    return tuple(SourceAnchor(tool=each.tool, url_or_path=each.url_or_path, lines=each.lines) for each in messages)


def _outcome_has_unknown(message: pb.StepOutcome) -> bool:
    return (
        has_unknown(message)
        or (message.HasField("failure") and has_unknown(message.failure))
        or (message.HasField("usage") and has_unknown(message.usage))
    )


def failure_to_proto(failure: StepFailure, message: pb.StepFailure) -> None:
    """Write why a step failed into a message."""
    message.code = _CODE_TO_PROTO[failure.code]
    message.message = failure.message
    message.retryable = failure.retryable


def failure_from_proto(message: pb.StepFailure) -> StepFailure:
    """Why a step failed, as it was sent."""
    # A newer peer's code is still a failure, and the mesh cannot say which.
    code = _CODE_FROM_PROTO.get(message.code, FailureCode.INTERNAL)
    return StepFailure(code=code, message=message.message, retryable=message.retryable)


def usage_to_proto(usage: Usage, message: pb.Usage) -> None:
    """Write a usage into a message."""
    message.SetInParent()
    message.input_tokens = usage.input_tokens
    message.output_tokens = usage.output_tokens
    message.requests = usage.requests


def usage_from_proto(message: pb.Usage) -> Usage:
    """The usage as it was sent."""
    usage = Usage(input_tokens=message.input_tokens, output_tokens=message.output_tokens, requests=message.requests)
    return NO_USAGE if usage == NO_USAGE else usage


def event_to_proto(
    event: StepEvent, target: pb.StepEvent | None = None, large: LargeTexts | None = None
) -> pb.StepEvent:
    """Write an event into `target` or a new message; large texts of an outcome go into `large` if that is given."""
    message = pb.StepEvent() if target is None else target
    if isinstance(event, StepEnded) and event.outcome.encoded_end:
        encoded = event.outcome.encoded_end
        if large is None or not large.may_be_in(encoded):
            message.MergeFromString(encoded)
            return message
    message.task_id = event.task_id
    set_timestamp(message.time, event.time)
    if isinstance(event, StepEnded):
        outcome_to_proto(event.outcome, message.ended.outcome, large)
    elif isinstance(event, StepStarted):
        message.started.SetInParent()
        message.started.session_id = event.session_id
        message.started.node = event.node
    else:
        _progress_to_proto(event.progress, message.progress)
    return message


def event_from_proto(message: pb.StepEvent) -> StepEvent | None:
    """The event as it was sent; None for a kind that only a newer peer knows.

    Raises:
        InvalidArgument: as `outcome_from_proto`.
    """
    time = time_from_proto(message.time)
    if message.HasField("ended"):
        outcome = outcome_from_proto(message.ended.outcome)
        return StepEnded(task_id=message.task_id, time=time, outcome=outcome)
    if message.HasField("started"):
        started = message.started
        return StepStarted(task_id=message.task_id, time=time, session_id=started.session_id, node=started.node)
    progress = _progress_from_proto(message.progress)
    return None if progress is None else StepProgressed(task_id=message.task_id, time=time, progress=progress)


def _progress_to_proto(progress: Progress, message: pb.StepProgress) -> None:
    match progress:
        case ToolFinished():
            message.tool.name = progress.name
            message.tool.success = progress.success
            message.tool.detail = progress.detail
        case TurnFinished():
            message.turn.turn = progress.turn
            usage_to_proto(progress.usage, message.turn.usage)
        case TextWritten():
            message.text.text = progress.text
        case AttemptStarted():
            message.attempt.attempt = progress.attempt
            message.attempt.node = progress.node
            failure_to_proto(progress.cause, message.attempt.cause)


def _progress_from_proto(message: pb.StepProgress) -> Progress | None:
    match message.WhichOneof("progress"):
        case "tool":
            tool = message.tool
            return ToolFinished(name=tool.name, success=tool.success, detail=tool.detail)
        case "turn":
            return TurnFinished(turn=message.turn.turn, usage=usage_from_proto(message.turn.usage))
        case "text":
            return TextWritten(text=message.text.text)
        case "attempt":
            attempt = message.attempt
            return AttemptStarted(attempt=attempt.attempt, node=attempt.node, cause=failure_from_proto(attempt.cause))
        case _:
            return None
