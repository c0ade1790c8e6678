"""The steps of a run under faults, and what they leave behind."""

from __future__ import annotations

import gc
import json
import os
import random
import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from faults.agents import beating
from faults.checker import Execution, executions_of

STEPS = 30
AGENTS = ["shell", "shell", "beats-alone", "beats-shared"]
"""What steps ask for; commands twice as often, because most can go wrong with them."""

SPENDERS = ["spends-alone", "spends-shared"]
"""Agents that spend model tokens."""

SHARED = {"beats-shared", "spends-shared"}
CALLS, CALL_TOKENS = 3, 20
MAX_TOKENS = 100
"""Of a step that spends: its calls, what each costs, and what is set aside for it."""


class Load:
    """The steps of a run, and where they leave their traces."""

    def __init__(self, history: Path) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.steps: list[dict[str, Any]] = []
        self._history = history

    def add(self, agent: str, seconds: float, *, daemon: bool = False) -> None:
        """Add a step that beats for a while, as a command perhaps with a daemon."""
        task_id = f"step-{len(self.steps)}"
        if agent == "shell":
            program = [sys.executable, "-IS", beating.__file__]
            words = [*program, str(self._history), task_id, str(seconds), self.mark if daemon else ""]
            prompt = f"export MARK={self.mark}; exec {shlex.join(words)}"
        else:
            calls = CALLS if agent in SPENDERS else 0
            order = {"history": str(self._history), "seconds": seconds, "calls": calls, "tokens": CALL_TOKENS}
            prompt = json.dumps(order)
        policy = {"max_attempts": 10, "max_tokens": MAX_TOKENS}
        self.steps.append({"task_id": task_id, "agent": agent, "description": "d", "prompt": prompt, "policy": policy})

    def add_some(self, draw: random.Random, steps: int = STEPS, agents: Sequence[str] = AGENTS) -> None:
        """Add steps of all kinds. Some last so long that what was given up could meet what took its place."""
        for _ in range(steps):
            seconds = draw.uniform(2.5, 5) if draw.random() < 0.1 else draw.uniform(0.1, 1.5)
            self.add(draw.choice(agents), seconds, daemon=draw.random() < 0.3)

    @property
    def task_ids(self) -> list[str]:
        """Its steps, in order."""
        return [step["task_id"] for step in self.steps]

    def executions(self) -> list[Execution]:
        """The lives of the steps, as they wrote them down."""
        return executions_of(self._history.read_text().splitlines()) if self._history.exists() else []

    def survivors(self, *, shared: bool) -> list[Execution]:
        """Executions whose process is still there; those in processes that steps share outlive their steps."""
        agents = {step["task_id"]: step["agent"] for step in self.steps}
        found = self.executions()
        return [each for each in found if (agents[each.task_id] in SHARED) is shared and _is_alive(each)]

    def processes(self) -> list[psutil.Process]:
        """Live processes of its commands, whoever their parents are now."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _is_alive(execution: Execution) -> bool:
    """Whether its process is there, and not another one that got its number."""
    with suppress(psutil.Error):
        process = psutil.Process(execution.pid)
        since = time.time() - time.monotonic()
        return process.create_time() <= since + execution.began and process.status() != psutil.STATUS_ZOMBIE
    return False


def open_files() -> int:
    """How many files the test itself has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
