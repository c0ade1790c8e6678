"""Agents that leave a trace of their lives in a file; also a program that does so, for agents of kind command.

Every line is one `write` to the end of the file, so that executions on all nodes may share it: what happened (start,
beat, end), the execution, when by the machine's monotonic clock, the step, the node (its workspace's name), the pid,
the model tokens that it has spent. An execution's output is its name, so that an outcome tells which one it came from.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fanfold.agent import StepContext
    from fanfold.model.step import AgentStepSpec

BEAT_SECONDS = 0.05


class Trace:
    """One execution's lines, from its start on."""

    def __init__(self, history: str, task: str, node: str) -> None:
        self.execution = f"{os.getpid()}-{time.monotonic_ns()}"
        self.spent = 0
        self._where = f"{task} {node} {os.getpid()}"
        self._file = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __enter__(self) -> Self:
        self.note("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.note("end")
        os.close(self._file)

    def note(self, what: str) -> None:
        line = f"{what} {self.execution} {time.monotonic():.6f} {self._where} {self.spent}\n"
        os.write(self._file, line.encode())


def beats(seconds: float) -> range:
    """Counted, not timed: who was frozen goes on when it wakes up."""
    return range(max(1, round(seconds / BEAT_SECONDS)))


async def beats_on(spec: AgentStepSpec, context: StepContext) -> str:
    """Beats for a while. The prompt is JSON: `history`, `seconds`, and `calls` of the model, each of `tokens`."""
    from fanfold.model.step import Usage  # noqa: PLC0415 - commands have the standard library only

    order = json.loads(spec.prompt)
    with Trace(order["history"], spec.task_id, context.workspace.root.name) as trace:
        times = beats(order["seconds"])
        for number in times:
            await asyncio.sleep(BEAT_SECONDS)
            calls = order["calls"] * (number + 1) // len(times)
            is_called = calls * order["tokens"] > trace.spent
            trace.spent = calls * order["tokens"]
            trace.note("beat")
            if is_called:
                context.turn_finished(calls, Usage(output_tokens=trace.spent, requests=calls))
    return trace.execution


def main(history: str, task: str, seconds: str, mark: str) -> None:
    """Beat for a while, with a daemon beside that has `mark` in its environment and would outlive its parent."""
    with Trace(history, task, Path.cwd().name) as trace:
        if mark and os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            os.execve("/bin/sleep", ["sleep", "600"], {"MARK": mark})
        for _ in beats(float(seconds)):
            time.sleep(BEAT_SECONDS)
            trace.note("beat")
    print(trace.execution, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
