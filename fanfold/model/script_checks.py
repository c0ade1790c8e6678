"""The edge of workflow scripts: what their authors and they themselves write becomes types, or all that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.forms import checked
from fanfold.model.principal import covers
from fanfold.model.script import MAX_LINEAGE, AgentFailure, AgentOptions, ScriptMeta, ScriptResult, StopReason
from fanfold.model.step import FailureCode, StepFailure
from fanfold.model.validation import nearest_name, parse_line
from fanfold.strict_json import parse_json

OPTION_NAMES = tuple(field.name for field in fields(AgentOptions))
_META_NAMES = tuple(field.name for field in fields(ScriptMeta))


def parse_meta(form: object, *, path: str = "meta") -> ScriptMeta:
    """What a script says of itself, from a mapping or as it is.

    Raises:
        InvalidArgument: naming every wrong field; for an unknown one the nearest that there is.
    """
    given = dict(form) if isinstance(form, Mapping) else form
    meta: ScriptMeta = checked(ScriptMeta, given, path=path, told=partial(_with_nearest, path, _META_NAMES))
    return meta


def parse_options(form: Mapping[str, Any], *, path: str = "options") -> AgentOptions:
    """The options of an agent() call; those that are None are not given. Raises InvalidArgument as `parse_meta`."""
    given = {name: value for name, value in form.items() if value is not None or name not in OPTION_NAMES}
    options: AgentOptions = checked(AgentOptions, given, path=path, told=partial(_with_nearest, path, OPTION_NAMES))
    return options


def _with_nearest(path: str, names: tuple[str, ...], found: FieldViolation) -> FieldViolation:
    """What is wrong; of an unknown field also which one was probably meant."""
    if found.description != "unknown field" or found.field.count(".") != 1:
        return found
    return FieldViolation(found.field, _unknown(found.field.removeprefix(f"{path}."), names))


def _unknown(name: str, names: tuple[str, ...]) -> str:
    nearest = nearest_name(name, names)
    return f"unknown field; did you mean {nearest}?" if nearest else f"unknown field; there are {', '.join(names)}"


def parse_parent(parent: str, owner: str, *, path: str = "parent") -> str:
    """The session that a run belongs to, as a whole path: it lies within the owner's principal (C21).

    Raises:
        InvalidArgument: it is missing, somebody else's, or nested too deep.
    """
    parse_line(parent, path=path, most=256, required=True)
    whole = f"{owner}/{parent.removeprefix('./')}" if parent.startswith("./") else parent
    names = whole.split("/")
    if "" in names or any(name in {".", ".."} for name in names):
        raise InvalidArgument.of_field(path, "must be names with slashes between them")
    if not covers(owner, whole):
        raise InvalidArgument.of_field(path, f"must lie within {owner}, or begin with ./")
    if len(names) > MAX_LINEAGE:
        raise InvalidArgument.of_field(path, f"must be at most {MAX_LINEAGE} names deep, not {len(names)}")
    if len(whole) > 256:
        raise InvalidArgument.of_field(path, "must be at most 256 characters with the principal before it")
    return whole


def parse_args(text: str, *, path: str = "args") -> Any:
    """The arguments of a script from JSON text; none are null. Raises InvalidArgument for what is no JSON."""
    try:
        return parse_json(text) if text else None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.of_field(path, f"must be JSON: {error or 'nests too deep'}") from None


def result_from_json(text: bytes) -> ScriptResult:
    """The result that `result_to_json` has made a document of. Raises InvalidArgument for another document."""
    try:
        form = json.loads(text)
        return ScriptResult(
            value=form["value"],
            stop_reason=StopReason(form["stop_reason"]),
            error=form["error"] or "",
            agents_started=form["agents_started"],
            failures=tuple(_failure_from_json(failure) for failure in form["failures"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgument("this is no result of a script") from error


def _failure_from_json(form: Mapping[str, Any]) -> AgentFailure:
    why = form["failure"]
    return AgentFailure(**{**form, "failure": StepFailure(**{**why, "code": FailureCode(why["code"])})})


def result_to_json(result: ScriptResult) -> dict[str, Any]:
    """The JSON form of a result: snake_case names, lower-case words (C26)."""
    return {
        "value": result.value,
        "stop_reason": str(result.stop_reason),
        "error": result.error or None,
        "agents_started": result.agents_started,
        "failures": [
            {**asdict(failure), "failure": {**asdict(failure.failure), "code": str(failure.failure.code)}}
            for failure in result.failures
        ],
    }
