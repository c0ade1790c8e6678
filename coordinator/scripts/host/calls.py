"""What a script says to agent(), checked, as the step that it asks for (C23)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fanfold.errors import InvalidArgument
from fanfold.model.checkpoint import fingerprint
from fanfold.model.checks import MAX_LINE
from fanfold.model.script_checks import parse_options
from fanfold.model.step import DEFAULT_MAX_STEPS, AgentStepSpec, StepPolicy

MAX_LABEL = 80
"""Characters of a label that is made from a prompt."""


class Misuse(Exception):
    """The script is written wrong; its run is to end (C24). The message says where and how."""


@dataclass(frozen=True, slots=True)
class Call:
    """One agent() call. `number` counts from 1, `line` is the script's that made it, 0 if that is not known."""

    number: int
    line: int
    label: str
    phase: str
    spec: AgentStepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTerms:
    """What all calls of a run have in common, which a script can neither see nor change (C25)."""

    parent: str
    default_agent: str = ""
    node_labels: Mapping[str, str]
    """The labels of the executor pool that serves the run."""


def call_of(
    number: int,
    line: int,
    prompt: str,
    options: Mapping[str, Any],
    phase: str,
    terms: CallTerms,
    occurrences: Counter[str],
) -> Call:
    """The call that a script makes in a phase. Raises Misuse.

    Its step is named by what changes the work, and by the how-many-eth of these it is, which `occurrences` counts: so a
    later run finds it again, wherever in the script it stands then (C29).
    """
    try:
        given = parse_options(options)
    except InvalidArgument as error:
        raise misused("agent", line, error) from None
    agent = given.agent or terms.default_agent
    if not agent:
        raise Misuse(f"{place(line)}agent(): options.agent: is required, for there is no default agent")
    if not prompt.strip():
        raise Misuse(f"{place(line)}agent(): the prompt must not be empty")
    if given.schema is not None and not isinstance(given.schema, dict | bool):
        raise Misuse(f"{place(line)}agent(): options.schema: must be a JSON Schema, which is an object or a boolean")
    label = given.label or first_line(prompt)
    spec = AgentStepSpec(
        task_id=f"call-{number}",
        agent=agent,
        description=given.description or label,
        prompt=prompt,
        max_steps=DEFAULT_MAX_STEPS if given.max_steps is None else given.max_steps,
        parent_session_id=terms.parent,
        output_schema=given.schema,
        policy=StepPolicy(
            timeout=None if given.timeout_ms is None else given.timeout_ms / 1000,
            max_tokens=given.max_tokens,
            node_labels={**given.node_labels, **terms.node_labels},
        ),
    )
    asked = fingerprint(spec)[:16]
    occurrences[asked] += 1
    spec = replace(spec, task_id=f"call-{asked}-{occurrences[asked]}")
    return Call(number, line, label, given.phase or phase, spec)


def misused(function: str, line: int, error: InvalidArgument) -> Misuse:
    """The misuse that wrong arguments are."""
    return Misuse(f"{place(line)}{function}(): {'; '.join(map(str, error.violations)) or error.message}")


def place(line: int) -> str:
    """Where in the script something is, ahead of what is said about it."""
    return f"line {line}: " if line else ""


def first_line(prompt: str) -> str:
    """The first line of a prompt that says anything, as a label."""
    line = next(line for line in map(str.strip, prompt.splitlines()) if line)
    return printed(line, MAX_LABEL)


def printed(text: str, most: int = MAX_LINE) -> str:
    """Text on one line of at most so many characters, without control characters."""
    line = "".join(character if character.isprintable() else " " for character in text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."
