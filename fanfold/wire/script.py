"""Workflow scripts and what comes of them (`run.proto`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.script import AgentFailure, Script, ScriptMeta, ScriptPhase, ScriptResult, StopReason
from fanfold.model.script_checks import parse_args, parse_meta, parse_parent
from fanfold.strict_json import compact_json
from fanfold.v1 import run_pb2 as pb
from fanfold.wire.step import failure_from_proto, failure_to_proto
from fanfold.wire.unknown import has_unknown
from fanfold.wire.values import json_from_text

_REASON_TO_PROTO = {reason: pb.StopReason.Value(f"STOP_REASON_{reason.name}") for reason in StopReason}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}

_MAX_VALUE_DEPTH = 500
"""More than a script's process can return; of what is much deeper, others could not make text again."""

_MetaMessage = TypeVar("_MetaMessage", pb.Script, pb.ScriptMeta)
_Part = TypeVar("_Part")


def script_to_proto(script: Script, message: pb.Script) -> None:
    """Write a script into a message."""
    message.source = script.source
    meta_to_proto(script.meta, message)
    if script.args is not None:
        message.args_json = compact_json(script.args)
    message.provider = script.provider
    if script.max_total_agents is not None:
        message.max_total_agents = script.max_total_agents
    message.parent = script.parent


def script_from_proto(
    message: pb.Script, owner: str, *, path: str = "open.script"
) -> tuple[Script, list[FieldViolation]]:
    """The script that is asked for, its parent as a whole path within the owner; and all that is wrong with its form.

    What is wrong is missing in the script, in which more may be found to be wrong.
    """
    wrong: list[FieldViolation] = []

    def checked(parse: Callable[[], _Part]) -> _Part | None:
        try:
            return parse()
        except InvalidArgument as error:
            wrong.extend(error.violations)
            return None

    meta = checked(lambda: parse_meta(_meta_form(message), path=path))
    args = checked(lambda: parse_args(message.args_json, path=f"{path}.args_json"))
    parent = checked(lambda: parse_parent(message.parent, owner, path=f"{path}.parent"))
    script = Script(
        source=message.source,
        meta=meta or ScriptMeta(name="", description=""),
        args=args,
        provider=message.provider,
        max_total_agents=message.max_total_agents if message.HasField("max_total_agents") else None,
        parent=parent or "",
    )
    return script, wrong


def script_to_bytes(script: Script) -> bytes:
    """A script in the form in which it is kept."""
    message = pb.Script()
    script_to_proto(script, message)
    return message.SerializeToString(deterministic=True)


def script_from_bytes(data: bytes) -> Script | None:
    """The script that was kept, its parent a whole path; None if there is more to it than this release knows."""
    message = pb.Script.FromString(data)
    return None if has_unknown(message) else script_from_proto(message, message.parent.partition("/")[0])[0]


def _meta_form(message: pb.Script | pb.ScriptMeta) -> dict[str, Any]:
    return {
        "name": message.name,
        "description": message.description,
        "when_to_use": message.when_to_use,
        "phases": tuple({"title": phase.title, "detail": phase.detail} for phase in message.phases),
    }


def meta_to_proto(meta: ScriptMeta, message: _MetaMessage) -> None:
    """Write what a script says of itself into a message."""
    message.name, message.description, message.when_to_use = meta.name, meta.description, meta.when_to_use
    for phase in meta.phases:
        message.phases.add(title=phase.title, detail=phase.detail)


def meta_from_proto(message: pb.ScriptMeta) -> ScriptMeta:
    """What a script says of itself, as it was sent."""
    return ScriptMeta(
        name=message.name,
        description=message.description,
        when_to_use=message.when_to_use,
        phases=tuple(ScriptPhase(title=phase.title, detail=phase.detail) for phase in message.phases),
    )


def result_to_proto(result: ScriptResult, message: pb.ScriptResult) -> None:
    """Write a result into a message."""
    if result.stop_reason is StopReason.COMPLETED:
        message.value_json = compact_json(result.value)
    message.stop_reason = _REASON_TO_PROTO[result.stop_reason]
    message.error = result.error
    message.agents_started = result.agents_started
    for failure in result.failures:
        told = message.failures.add(call=failure.call, label=failure.label, phase=failure.phase, line=failure.line)
        failure_to_proto(failure.failure, told.failure)


def result_from_proto(message: pb.ScriptResult) -> ScriptResult:
    """A result as it was sent.

    Raises:
        InvalidArgument: its value is no JSON.
    """
    value = None
    if message.HasField("value_json"):
        value = json_from_text(message.value_json, path="script_result.value_json", most_deep=_MAX_VALUE_DEPTH)
    return ScriptResult(
        value=value,
        stop_reason=_REASON_FROM_PROTO.get(message.stop_reason, StopReason.ERROR),
        error=message.error,
        agents_started=message.agents_started,
        failures=tuple(
            AgentFailure(
                call=failure.call,
                label=failure.label,
                phase=failure.phase,
                line=failure.line,
                failure=failure_from_proto(failure.failure),
            )
            for failure in message.failures
        ),
    )
