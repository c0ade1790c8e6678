"""The edge: turns what comes from outside into the types of `fanfold.model`, or says field by field what is wrong."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from annotated_types import MaxLen, MinLen

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.checks import MAX_IDENTIFIER, MAX_LINE, MAX_NAME, Exact, OneLine, Tokens
from fanfold.model.forms import checked, checked_json, json_form
from fanfold.model.node import Agent, NodeView
from fanfold.model.step import DEFAULT_MAX_STEPS, DEFAULT_POLICY, AgentStepSpec, StepOutcome, StepPolicy

_NOT_JSON = {"unknown_fields"}


def parse_specs(items: object, *, path: str = "steps", first_index: int = 0) -> list[AgentStepSpec]:
    """Specs from mappings or specs. Unknown fields are refused by name (C5).

    `path` names the list in errors, and `first_index` is the position of the first item within it.

    Raises:
        InvalidArgument: naming every wrong field, as `steps[3].task_id`.
    """
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise InvalidArgument.of_field(path, f"must be a list of steps, not {type(items).__name__}")
    plain = []
    for item in items:
        spec = _plain_spec(item)
        if spec is None:
            break
        plain.append(spec)
    else:
        return plain
    prepared = [
        item if type(item) is AgentStepSpec else _prepared(item, f"{path}[{index}]")
        for index, item in enumerate(items, start=first_index)
    ]
    specs: list[AgentStepSpec] = checked(
        list[AgentStepSpec], prepared, path=path, first_index=first_index, told=_with_nearest
    )
    return specs


def _with_nearest(violation: FieldViolation) -> FieldViolation:
    """What is wrong with a step; of an unknown field also which one was probably meant."""
    parent, _, name = violation.field.rpartition(".")
    if violation.description != "unknown field":
        return violation
    known = {field.name for field in fields(StepPolicy if parent.endswith(".policy") else AgentStepSpec)} - _NOT_JSON
    nearest = nearest_name(name, known)
    return FieldViolation(violation.field, f"unknown field; did you mean {nearest}?") if nearest else violation


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that was probably meant; empty if none is near."""
    return next(iter(difflib.get_close_matches(name.lower(), sorted(names), n=1, cutoff=0.5)), "")


def _plain_spec(item: object) -> AgentStepSpec | None:
    """The spec, if it has nothing but short ASCII text, like most; then it is right, which pydantic tells at more cost.

    None means that it has to be looked at more closely.
    """
    if type(item) is dict and "unknown_fields" not in item:
        try:
            spec = AgentStepSpec(**item)
        except TypeError:
            return None
    elif type(item) is AgentStepSpec:
        spec = item
    else:
        return None
    is_plain = (
        _is_plain_line(spec.task_id, MAX_IDENTIFIER)
        and _is_plain_line(spec.agent, MAX_NAME)
        and _is_plain_line(spec.description, MAX_LINE)
        and type(spec.prompt) is str
        and spec.prompt != ""
        and spec.prompt.isascii()
        and spec.max_steps == DEFAULT_MAX_STEPS
        and type(spec.max_steps) is int
        and spec.parent_session_id == ""
        and spec.output_schema is None
        and spec.policy is DEFAULT_POLICY
        and spec.unknown_fields == b""
    )
    return spec if is_plain else None


def _is_plain_line(text: object, max_length: int) -> bool:
    # Of ASCII, printable is just what has no control characters.
    return type(text) is str and 0 < len(text) <= max_length and text.isascii() and text.isprintable()


def check_outcome(outcome: StepOutcome, *, path: str) -> None:
    """Raise InvalidArgument, naming every wrong field, for an outcome that is none."""
    checked(StepOutcome, outcome, path=path)


def _prepared(item: object, path: str) -> object:
    """Any mapping as the dictionary that pydantic wants; the field that is no part of the JSON form is refused."""
    if not isinstance(item, Mapping):
        return item
    if "unknown_fields" in item:
        raise InvalidArgument.of_field(f"{path}.unknown_fields", "unknown field")
    return dict(item)


def parse_spec(item: object, *, path: str = "step") -> AgentStepSpec:
    """One spec from a mapping or a spec. Raises InvalidArgument as `parse_specs` does."""
    plain = _plain_spec(item)
    if plain is not None:
        return plain
    try:
        return parse_specs([item], path=path)[0]
    except InvalidArgument as error:
        renamed = [FieldViolation(v.field.replace(f"{path}[0]", path, 1), v.description) for v in error.violations]
        raise InvalidArgument(violations=renamed) from None


def require_json_schemas(specs: Sequence[AgentStepSpec], *, path: str = "steps") -> None:
    """Raise InvalidArgument for the first `output_schema` that is no JSON value, as a caller's code may give."""
    checked: set[int] = set()
    for index, spec in enumerate(specs):
        schema = spec.output_schema
        if id(schema) not in checked:
            checked.add(id(schema))
            require_json_schema(schema, path=f"{path}[{index}].output_schema")


def require_json_schema(schema: Any, *, path: str) -> None:
    """Raise InvalidArgument for a schema that is no JSON value; None is no schema and allowed."""
    if schema is not None:
        json_text(schema, path=path)


def json_text(value: Any, *, path: str) -> str:
    """The JSON text of a value that a caller's Python code gives. Raises InvalidArgument for what is no JSON value."""
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument.of_field(path, f"must be JSON: {error}") from None
    return text


def spec_to_json(spec: AgentStepSpec) -> dict[str, Any]:
    """The JSON form of a spec: snake_case names, durations in seconds (C5)."""
    form: dict[str, Any] = json_form(AgentStepSpec, spec, without=_NOT_JSON)
    return form


def outcome_to_json(outcome: StepOutcome) -> dict[str, Any]:
    """The JSON form of an outcome: snake_case names, times in RFC 3339 (C5)."""
    form: dict[str, Any] = json_form(StepOutcome, outcome, without=_NOT_JSON)
    if not outcome.agent_session_id:  # digests of checkpoints from before there was one are to fit
        del form["agent_session_id"]
    return form


def node_view_to_json(view: NodeView) -> dict[str, Any]:
    """The JSON form of a node as the coordinator sees it: snake_case names, lower-case states, times in RFC 3339."""
    form: dict[str, Any] = json_form(NodeView, view)
    form["node"]["agents"] = [agent_to_json(agent) for agent in view.node.agents]
    return form


def agent_to_json(agent: Agent) -> dict[str, Any]:
    """The JSON form of an agent as a node offers it; its schema is a nested object, null for none."""
    form: dict[str, Any] = json_form(Agent, agent, without={"output_schema_json"})
    return form | {"output_schema": agent.output_schema}


def time_to_json(time: datetime) -> str:
    """The JSON form of a time, which is RFC 3339."""
    text: str = json_form(datetime, time)
    return text


def outcome_from_json(form: Mapping[str, Any]) -> StepOutcome:
    """The outcome that a JSON form stands for. Raises InvalidArgument for anything else."""
    if "unknown_fields" in form:
        raise InvalidArgument.of_field("outcome.unknown_fields", "unknown field")
    outcome: StepOutcome = checked_json(StepOutcome, json.dumps(form), path="outcome")
    return outcome


@cache
def _line(most: int, required: bool) -> Any:
    return Annotated[str, Exact(), MinLen(int(required)), MaxLen(most), OneLine]


def parse_request_id(text: str) -> str:
    """A request id, or nothing. Raises InvalidArgument unless it is at most 128 characters on one line (C44)."""
    return parse_line(text, path="request_id")


def parse_line(text: str, *, path: str, most: int = 128, required: bool = False) -> str:
    """An id or a reason, or nothing unless it is required: one line of at most `most` characters.

    Raises:
        InvalidArgument: it is something else; names `path`.
    """
    if _is_plain_line(text, most) or (text == "" and not required):
        return text
    line: str = checked(_line(most, required), text, path=path)
    return line


def parse_budget(tokens: int | None, *, path: str = "budget_tokens") -> int | None:
    """A budget in tokens, or none. Raises InvalidArgument unless it is a whole number, 0 or more (C13)."""
    if tokens is None:
        return None
    budget: int = checked(Tokens, tokens, path=path)
    return budget
