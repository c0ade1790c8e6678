"""The processes of an embedded mesh of one node: what each of them costs, and holds.

Time on the CPU says more than time on the clock wherever the machine has other work too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Processes:
    """This process, which is the client, and those below it that carry steps."""

    by_role: dict[str, list[psutil.Process]]

    @classmethod
    def found(cls) -> Self:
        """The processes of the one mesh that runs below this process."""
        roles: dict[str, list[psutil.Process]] = {"client": [psutil.Process()]}
        for process in psutil.Process().children(recursive=True):
            if role := _role_of(process):
                roles.setdefault(role, []).append(process)
        return cls(roles)

    def seconds(self) -> dict[str, float]:
        """CPU seconds that each role has taken so far."""
        return {role: sum(map(_seconds_of, processes)) for role, processes in self.by_role.items()}

    def resident(self, role: str) -> int:
        """Bytes of memory that a role holds."""
        return sum(process.memory_info().rss for process in self.by_role[role])


def descendants() -> set[int]:
    """Ids of all processes below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def microseconds_a_step(before: dict[str, float], after: dict[str, float], steps: int) -> dict[str, float]:
    """What each role took between two readings of `Processes.seconds`, for a step."""
    return {role: (after[role] - before[role]) / steps * 1e6 for role in before}


def _role_of(process: psutil.Process) -> str:
    words = process.cmdline()
    if "coordinator" in words:
        return "coordinator"
    if "executor-node" in words and "--supervised" in words:
        return "supervisor, workers" if "--runtime" in words else "node runtime"
    return ""


def _seconds_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
