"""What runtime and worker say, and how the types of the domain get through.

    runtime   setup ...                        first of all
              run, number, ...                 run a step
              cancel, number                   stop it; a step with a worker of its own is stopped by a signal
              answer, number, text             to what it asked
    worker    text | tool | turn, number, ...  progress
              ask, number, what, text          only steps of the node's own code ask, in workers that steps share
              end, number, ...                 what came of the step, last

A worker also runs code that nobody reviewed, so what it says is checked here like anything that comes from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executor_node.texts import line_of, text_of
from executor_node.told import MAX_TEXT, Progress, Result
from executor_node.workers.frames import MAX_TEXT as MAX_TEXT_WITHIN
from executor_node.workers.frames import Message
from fanfold.agent import TOLD_CODES
from fanfold.model.checks import MAX_LINE, MAX_NAME, MAX_TOKENS, WEEK_SECONDS
from fanfold.model.step import (
    DEFAULT_POLICY,
    MAX_ANCHOR_BYTES,
    MAX_ANCHORS,
    NO_USAGE,
    AgentStepSpec,
    FailureCode,
    SourceAnchor,
    StepFailure,
    StepPolicy,
    TextWritten,
    ToolFinished,
    TurnFinished,
    Usage,
)

_PROMPT_AT = 8
"""Where the prompt is in the message `run`."""
_MAX_COUNT = 2**32 - 1
_RETRYABLE_CODES = frozenset({FailureCode.AGENT_FAILED, FailureCode.CRASHED})
"""Those of the causes that agents tell where another attempt may help."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is told first."""

    shared: bool
    """Whether it runs many steps at once, or one and ends."""
    path: tuple[str, ...]
    """Folders to look for modules in, before those that the interpreter knows."""
    workspace: str
    file_bytes: int
    """The largest file that agents read through their context."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the agent, besides those that all workers have."""


@dataclass(slots=True)
class Run:
    """A step as the worker gets it."""

    number: int
    entry: str
    max_output_bytes: int
    session_id: str
    spec: AgentStepSpec
    assignment: Any = field(default=None, repr=False)
    """What the node's own code is told besides the spec; JSON, with secrets."""


def is_large_run(message: Message) -> bool:
    """Whether a message `run` has a prompt that is to go ahead of it."""
    return len(message[_PROMPT_AT]) > MAX_TEXT_WITHIN


def is_large_end(message: Message) -> bool:
    """Whether a message `end` has a text that is to go ahead of it."""
    return len(message[2]) > MAX_TEXT_WITHIN or (len(message) > 3 and len(message[3] or "") > MAX_TEXT_WITHIN)


def setup_to_message(setup: Setup) -> Message:
    """The message `setup`."""
    return ["setup", setup.shared, setup.path, setup.workspace, setup.file_bytes, dict(setup.environment)]


def setup_from_message(message: Message) -> Setup:
    """What the message `setup` says."""
    _, shared, path, workspace, file_bytes, environment = message
    return Setup(shared, tuple(path), workspace, file_bytes, environment)


def run_to_message(
    number: int, entry: str, max_output_bytes: int, session_id: str, spec: AgentStepSpec, assignment: Any = None
) -> Message:
    """The message `run`."""
    policy = spec.policy
    return [
        "run",
        number,
        entry,
        max_output_bytes,
        session_id,
        spec.task_id,
        spec.agent,
        spec.description,
        spec.prompt,
        spec.max_steps,
        spec.parent_session_id,
        spec.output_schema,
        None if policy is DEFAULT_POLICY else _policy_to_list(policy),
        assignment,
    ]


def run_from_message(message: Message) -> Run:
    """What the message `run` says."""
    _, number, entry, max_output_bytes, session_id, *fields, policy, assignment = message
    task_id, agent, description, prompt, max_steps, parent_session_id, output_schema = fields
    spec = AgentStepSpec(
        task_id=task_id,
        agent=agent,
        description=description,
        prompt=prompt,
        max_steps=max_steps,
        parent_session_id=parent_session_id,
        output_schema=output_schema,
        policy=DEFAULT_POLICY if policy is None else _policy_from_list(policy),
    )
    return Run(number, entry, max_output_bytes, session_id, spec, assignment)


def _policy_to_list(policy: StepPolicy) -> list[Any]:
    return [
        policy.timeout,
        policy.no_progress_timeout,
        policy.max_tokens,
        policy.max_attempts,
        dict(policy.node_labels),
    ]


def _policy_from_list(fields: Sequence[Any]) -> StepPolicy:
    timeout, no_progress_timeout, max_tokens, max_attempts, node_labels = fields
    return StepPolicy(
        timeout=timeout,
        no_progress_timeout=no_progress_timeout,
        max_tokens=max_tokens,
        max_attempts=max_attempts,
        node_labels=node_labels,
    )


def ask_to_message(number: int, what: str, text: str) -> Message:
    """The message `ask`."""
    return ["ask", number, what, text]


def ask_from_message(message: Message) -> tuple[str, str]:
    """What the message `ask` asks, and of what.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    _, _, what, text = message
    return text_of(what), text_of(text)


def result_to_message(number: int, result: Result) -> Message:
    """The message `end`."""
    if (
        result.structured_json is None
        and result.failure is None
        and not result.source_anchors
        and result.usage is NO_USAGE
    ):
        return ["end", number, result.output]
    usage, failure = result.usage, result.failure
    return [
        "end",
        number,
        result.output,
        result.structured_json,
        _usage_to_list(usage),
        [[anchor.tool, anchor.url_or_path, anchor.lines] for anchor in result.source_anchors],
        failure and [failure.code, failure.message, failure.retryable],
    ]


def result_from_message(message: Message) -> Result:
    """What the message `end` says.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    if len(message) == 3:
        return Result(text_of(message[2]))
    _, _, output, structured_json, usage, anchors, failure = message
    return Result(
        output=text_of(output),
        structured_json=None if structured_json is None else text_of(structured_json),
        usage=_usage_from_list(usage),
        source_anchors=tuple(_anchor_from_list(anchor) for anchor in anchors[:MAX_ANCHORS]),
        failure=failure and _failure_from_list(failure),
    )


def progress_from_message(message: Message) -> Progress:
    """What one of the messages `text`, `tool` and `turn` says.

    Raises:
        ValueError, TypeError: it is malformed.
    """
    match message:
        case ["text", _, text]:
            return TextWritten(text=text_of(text))
        case ["tool", _, name, success, detail, *_]:
            return ToolFinished(name=line_of(name)[:MAX_NAME], success=bool(success), detail=line_of(detail))
        case ["turn", _, turn, usage]:
            return TurnFinished(turn=_count(turn, _MAX_COUNT), usage=_usage_from_list(usage))
    raise ValueError(f"an unknown message: {message[0]!r:.64}")


def seconds_from_message(message: Message) -> float | None:
    """How long what one of these messages says has taken, if it says so and that makes sense."""
    seconds = message[5] if message[0] == "tool" and len(message) > 5 else None
    return seconds if isinstance(seconds, float) and 0 <= seconds <= WEEK_SECONDS else None


def text_to_message(number: int, text: str) -> Message:
    """The message `text`; only as much as is told is sent, because a frame has its limit."""
    return ["text", number, text[-MAX_TEXT:]]


def tool_to_message(number: int, name: str, success: bool, detail: str, seconds: float | None = None) -> Message:
    """The message `tool`; as `text`."""
    return ["tool", number, name[:MAX_NAME], success, detail[:MAX_LINE], seconds]


def turn_to_message(number: int, turn: int, usage: Usage) -> Message:
    """The message `turn`.

    Raises:
        ValueError, TypeError: what is told is no count.
    """
    return ["turn", number, _count(turn, _MAX_COUNT), _usage_to_list(checked_usage(usage))]


def checked_usage(usage: object) -> Usage:
    """The usage if it is one; agents may say anything.

    Raises:
        ValueError, TypeError: it is none, or has something that is no count.
    """
    if not isinstance(usage, Usage):
        raise TypeError(f"the usage is no fanfold.model.step.Usage but {type(usage).__name__}")
    if usage is not NO_USAGE:
        _usage_from_list(_usage_to_list(usage))
    return usage


def _usage_to_list(usage: Usage) -> list[int]:
    return [usage.input_tokens, usage.output_tokens, usage.requests]


def _usage_from_list(fields: Sequence[object]) -> Usage:
    input_tokens, output_tokens, requests = (_count(field, MAX_TOKENS) for field in fields)
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, requests=requests)
    return NO_USAGE if usage == NO_USAGE else usage


def _anchor_from_list(fields: Sequence[object]) -> SourceAnchor:
    tool, url_or_path, lines = map(text_of, fields)
    if len(tool) > MAX_NAME or len(url_or_path) > MAX_ANCHOR_BYTES or len(lines) > MAX_NAME:
        raise ValueError("an anchor larger than the limit")
    return SourceAnchor(tool=tool, url_or_path=url_or_path, lines=lines)


def _failure_from_list(fields: Sequence[object]) -> StepFailure:
    told, message, retryable = fields
    code = FailureCode(text_of(told))
    if code not in TOLD_CODES:
        code = FailureCode.CRASHED
    may_be_retried = bool(retryable) and code in _RETRYABLE_CODES
    return StepFailure(code=code, message=text_of(message)[:MAX_LINE], retryable=may_be_retried)


def _count(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a whole number from 0 to {most} expected, not {value!r:.64}")
    return value
