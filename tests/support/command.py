"""The `fanfold` command as a process, and a mesh that `fanfold up` has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

FANFOLD = (sys.executable, "-m", "fanfold.cli")
DEADLINE = 30.0
"""Seconds until a condition that a test waits for is taken to fail."""


@dataclass(frozen=True, slots=True)
class Up:
    """A running `fanfold up`."""

    process: subprocess.Popen[str]
    table: str
    data_dir: Path
    workspace: Path

    @property
    def server(self) -> str:
        return self.address_of("coordinator")

    def address_of(self, service: str) -> str:
        return next(line.split()[1] for line in self.table.splitlines() if line.startswith(f"{service} "))

    def processes(self) -> list[psutil.Process]:
        """All processes that belong to it, its own left out."""
        return psutil.Process(self.process.pid).children(recursive=True)


def environment(server: str = "") -> dict[str, str]:
    return {**os.environ, "FANFOLD_SERVER": server, "FANFOLD_NODE__STEP__STOP_GRACE": "1"}


def fanfold(*arguments: str | Path, server: str = "", text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `server` in the environment."""
    return subprocess.run(
        [*FANFOLD, *arguments],
        input=text,
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not after {seconds:g} s: {what}"
        time.sleep(0.02)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; whatever has ended may wait a little for its new parent to notice."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def with_argument(argument: str) -> list[psutil.Process]:
    """The live processes that were started with exactly that argument."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if argument in process.cmdline():
                found.append(process)
    return found


@contextmanager
def started(folder: Path, *arguments: str, python: str = sys.executable) -> Iterator[Up]:
    """`fanfold up` on free ports; killed at the end if it still runs, with all that belongs to it.

    In a folder where there was one before, it goes on with what that has left.
    """
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    data_dir = folder / "data"
    places = ["--data-dir", str(data_dir), "--workspace", str(workspace)]
    command = [python, *FANFOLD[1:], "up", "--port", "0", *places, *arguments]
    with (folder / "up.err").open("w") as stderr:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True)
    processes: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("job-registry "):
            lines.append(process.stdout.readline())
            assert lines[-1], (folder / "up.err").read_text()
        up = Up(process, "".join(lines), data_dir, workspace)
        processes = up.processes()
        yield up
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for leaked in processes:
            with suppress(psutil.Error):
                leaked.kill()


def steps(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    """A step for each agent and prompt: s0, s1 and so on."""
    return [
        {"task_id": f"s{number}", "agent": agent, "description": "a test", "prompt": prompt}
        for number, (agent, prompt) in enumerate(pairs)
    ]


def begun_parallel(up: Up, *pairs: tuple[str, str], options: tuple[str, ...] = ("--json",)) -> subprocess.Popen[str]:
    """A fan-out that goes on while the test does."""
    process = subprocess.Popen(
        [*FANFOLD, "parallel", "-", *options],
        env=environment(up.server),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(steps(*pairs)))
    process.stdin.close()
    process.stdin = None  # or `communicate` would write to it
    return process
