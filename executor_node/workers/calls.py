"""Calls of agents' functions: how they are found, and what their return or exception comes to."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

from executor_node.secrets import NO_SECRETS, Secrets
from executor_node.texts import cut
from executor_node.told import Result
from executor_node.workers.context import Context
from executor_node.workers.messages import checked_usage
from fanfold.agent import TOLD_CODES, AgentFailed, AgentResult
from fanfold.model.step import FailureCode, StepFailure

AgentFunction = Callable[..., Any]

_MAX_MESSAGE = 2048
_MESH = os.path.dirname(__file__) + os.sep
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep


class Stopped(BaseException):
    """The step is being stopped; raised in the midst of a plain function, so that its `finally` runs."""


@cache
def load(agent: str, entry: str) -> AgentFunction:
    """The function that `entry`, `module:function`, of the agent's file names.

    Raises:
        AgentFailed: the module cannot be imported, or has no such function.
    """
    module_name, _, name = entry.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as error:  # modules run whatever code when they are imported
        raise AgentFailed(f"agent {agent}: entry {entry} cannot be loaded: {_describe(error, NO_SECRETS)}") from error
    if not callable(function):
        raise AgentFailed(f"agent {agent}: entry {entry} cannot be loaded: the module has no such function")
    return function  # type: ignore[no-any-return]


@cache
def load_async(agent: str, entry: str) -> AgentFunction:
    """As `load`, for a function that shares its worker.

    Raises:
        AgentFailed: also if it is not async.
    """
    function = load(agent, entry)
    if not inspect.iscoroutinefunction(function):
        raise AgentFailed(f"agent {agent}: entry {entry} must be async, because the agent is declared shared")
    return function


def result_of(value: object, context: Context, max_output_bytes: int) -> Result:
    """The result that a function's return value stands for."""
    structured_json, usage = None, context.usage
    try:
        if isinstance(value, str):
            output = value
        elif isinstance(value, AgentResult):
            output = value.output
            if not isinstance(output, str):
                return _crash(context, f"the agent's output is no text but {type(output).__name__}")
            if value.structured is not None:
                structured_json = _json_of(value.structured)
        else:
            output = structured_json = _json_of(value)
    except (TypeError, ValueError, RecursionError) as error:
        return _crash(context, f"the agent returned what is no JSON value: {error}")
    if isinstance(value, AgentResult):
        try:
            usage = checked_usage(value.usage)
        except (TypeError, ValueError) as error:
            # What was paid for is kept.
            return _crash(context, f"the agent returned a wrong usage: {error}", cut(output, max_output_bytes))
    # The runtime sees to it again; what it would not take need not get there.
    return Result(output, structured_json, usage, context.source_anchors).within(max_output_bytes)


def result_of_error(error: BaseException, context: Context, max_output_bytes: int) -> Result:
    """The result of a function that raised, whatever it raised. Never raises."""
    if isinstance(error, AgentFailed):
        # A class derived from it may have left its attributes out, or put anything into them.
        message, retryable = getattr(error, "message", error), getattr(error, "retryable", False)
        told, output = getattr(error, "code", None), getattr(error, "output", "")
        failure = StepFailure(
            code=told if told in TOLD_CODES else FailureCode.AGENT_FAILED,
            message=context.secrets.blotted(_text_of(message))[:_MAX_MESSAGE],
            retryable=retryable is True,
        )
        return Result(cut(_text_of(output), max_output_bytes), None, context.usage, context.source_anchors, failure)
    if isinstance(error, Stopped | asyncio.CancelledError) and context.cancelled:
        return _crash(context, "stopped from outside the mesh")  # unless it was the mesh, which knows better
    return _crash(context, _describe(error, context.secrets))


def _crash(context: Context, message: str, output: str = "") -> Result:
    failure = StepFailure(code=FailureCode.CRASHED, message=message[:_MAX_MESSAGE])
    return Result(output, None, context.usage, context.source_anchors, failure)


def _json_of(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _describe(error: BaseException, secrets: Secrets) -> str:
    """The error in one line, and where in the agent's code it happened."""
    text = secrets.blotted(_text_of(error))
    described = f"{type(error).__name__}: {text}"[: _MAX_MESSAGE // 2] if text else type(error).__name__
    place = _place_of(error)
    return f"{described} ({place})" if place else described


def _text_of(value: object) -> str:
    """The value as text, or nothing if it cannot be told."""
    try:
        return str(value)
    except BaseException:  # whatever the agent's own `__str__` does
        return ""


def _place_of(error: BaseException) -> str:
    """File and line of the last frame in the agent's own code, or else in what is installed. Empty if there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    installed = [(file, line) for file, line in frames if file.startswith(_INSTALLED)]
    foreign = (_MESH, _STANDARD, "<", *_INSTALLED)
    own = [(file, line) for file, line in frames if not file.startswith(foreign)]
    for file, line in reversed(own or installed):
        return f"{_shortened(file)}:{line}"
    return ""


def _shortened(file: str) -> str:
    """The file as importing it names it: how the machine's folders are called is nobody's business."""
    relative = [file.removeprefix(root + os.sep) for root in sys.path if root and file.startswith(root + os.sep)]
    return min(relative, key=len, default=os.path.basename(file))
