"""Agents of kind command: any program. It gets the prompt as an argument or on its standard input.

All that it writes to its standard output is the step's output, or what `lines` makes of it. A program that exits with 0
has succeeded, also one that wrote nothing (C2). It sees the variables of the node's environment that its agent file
names, and no others.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from executor_node.admission import Limits
from executor_node.agents import OutputForm, PromptBy
from executor_node.agents.command.own import JsonLines
from executor_node.running import RunningStep
from executor_node.supervisor.client import ProcessTree, Supervision, describe_exit
from executor_node.supervisor.pipe import Pipe, Tail
from executor_node.supervisor.protocol import Launch, write_memory_file
from executor_node.workers.messages import Result
from fanfold.model.step import FailureCode, StepFailure, TextWritten

MAX_ARGUMENT_BYTES = 128 * 2**10 - 1
"""The kernel's limit for one argument of a program."""

_TAIL_BYTES = 2048
_PAUSE_SECONDS = 0.01


class CommandAgents:
    """Carries out steps by running programs."""

    def __init__(
        self, supervision: Supervision, *, workspace: Path, environment: Mapping[str, str], limits: Limits
    ) -> None:
        self._supervision = supervision
        self._workspace = workspace
        self._environment = environment
        self._limits = limits

    def carry_out(self, step: RunningStep) -> Command:
        """Run the agent's program for a step.

        Raises:
            OSError: this process is out of file descriptors or memory.
        """
        agent, prompt = step.agent, step.spec.prompt.encode(errors="replace")
        argv = list(agent.command)
        command = Command(step, self._workspace, self._limits)
        if agent.prompt is PromptBy.ARGUMENT:
            if len(prompt) > MAX_ARGUMENT_BYTES:
                why = f"the prompt is larger than {MAX_ARGUMENT_BYTES:,} bytes, the most an argument can hold"
                step.end(Result.of_failure(FailureCode.PAYLOAD_TOO_LARGE, why))
                return command
            if b"\0" in prompt:
                why = "the prompt has a NUL character, which no argument of a program can hold"
                step.end(Result.of_failure(FailureCode.AGENT_FAILED, why))
                return command
            argv.append(prompt.decode())
        environment = {name: self._environment[name] for name in agent.env if name in self._environment}
        launch = Launch(argv=argv, environment=environment, directory=str(self._workspace))
        command.start(self._supervision, launch, prompt if agent.prompt is PromptBy.STDIN else None)
        return command


class Command:
    """One program while it runs."""

    def __init__(self, step: RunningStep, workspace: Path, limits: Limits) -> None:
        self._step = step
        self._grace = limits.stop_grace
        self._max_bytes = step.max_output_bytes
        self._lines = JsonLines(step.progressed, workspace) if step.agent.output is OutputForm.JSON_LINES else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = bytearray()
        self._errors = Tail(_TAIL_BYTES)
        self._tree: ProcessTree | None = None

    def start(self, supervision: Supervision, launch: Launch, standard_input: bytes | None) -> None:
        """Launch it."""
        with ExitStack() as undo:
            self._stdout = Pipe(self._take)
            undo.callback(self._stdout.abandon)
            self._stderr = Pipe(self._errors.add, pause=_PAUSE_SECONDS)
            undo.callback(self._stderr.abandon)
            fds = {1: self._stdout.writer, 2: self._stderr.writer}
            if standard_input is not None:
                fds[0] = write_memory_file(standard_input, "prompt")
                undo.callback(os.close, fds[0])
            self._tree = supervision.launch(launch, fds, self._end)
            undo.pop_all()

    def stop(self) -> None:
        """Stop all its processes."""
        if self._tree is not None:
            self._tree.stop(self._grace)

    def _take(self, data: bytes) -> None:
        kept = data[: self._max_bytes - len(self._written)]
        self._written += kept
        if self._lines is not None:
            self._lines.add(kept)
        elif text := self._decoder.decode(kept):
            self._step.progressed(TextWritten(text=text))
        if len(kept) < len(data):
            self._stdout.close()
            message = f"the output is larger than {self._max_bytes:,} bytes"
            self._step.stop(StepFailure(code=FailureCode.PAYLOAD_TOO_LARGE, message=message))

    def _end(self, code: int, why: str) -> None:
        self._stdout.drain()
        self._stderr.drain()
        written = bytes(self._written)
        result = self._lines.result(written) if self._lines else Result(written.decode(errors="replace"))
        if code != 0 or why:
            result = replace(result, failure=self._failure(code, why))
        stopped_by, errors = self._step.stopped_by, self._errors.text(_TAIL_BYTES)
        if stopped_by is not None and errors and stopped_by.code is not FailureCode.CANCELLED:
            self._step.stopped_by = replace(stopped_by, message=f"{stopped_by.message}; standard error: {errors}")
        self._step.end(result)

    def _failure(self, code: int, why: str) -> StepFailure:
        if why:
            return StepFailure(code=FailureCode.CRASHED, message=why, retryable=True)
        errors = self._errors.text(_TAIL_BYTES)
        message = f"{describe_exit(code)}: {errors}" if errors else describe_exit(code)
        if code < 0:
            return StepFailure(code=FailureCode.CRASHED, message=message, retryable=self._step.agent.idempotent)
        return StepFailure(code=FailureCode.AGENT_FAILED, message=message)
