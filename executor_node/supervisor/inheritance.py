"""How a node becomes supervisor and runtime without leaving secrets where agents could read them.

The kernel shows a process's first environment in /proc/PID/environ, and a forked process has that of its parent. So the
supervisor is executed with a harmless environment, and the real one goes to the runtime in a memory file.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from executor_node.supervisor import linux
from executor_node.supervisor.protocol import write_memory_file

CONTROL_FD = 3
"""Where the runtime finds its control socket."""
ENVIRONMENT_FD = 4
"""Where the runtime finds its environment."""

# -P: the folder we were started in must not shadow modules.
SUPERVISOR = (sys.executable, "-P", "-m", "executor_node.supervisor")


def exec_supervised(
    runtime_argv: Sequence[str], runtime_environment: Mapping[str, str], clean_environment: Mapping[str, str]
) -> NoReturn:
    """Replace this process by a supervisor that runs `runtime_argv`, and that ends with its exit code.

    SIGTERM or SIGINT to the supervisor is a SIGTERM to the runtime; a second one kills. When either process is gone,
    however it went, all that was started through them is killed (F17).

    Args:
        runtime_argv: the runtime's program and arguments; it calls `inherited_environment` and `inherited_control`.
        runtime_environment: what `inherited_environment` gives it.
        clean_environment: the environment of all processes, agents' included, so without any secret.
    """
    fd = write_memory_file(json.dumps(dict(runtime_environment)).encode(), "environment")
    os.dup2(fd, ENVIRONMENT_FD, inheritable=True)
    os.set_inheritable(ENVIRONMENT_FD, True)
    arguments = [*SUPERVISOR, "--runtime", *runtime_argv]
    os.execve(arguments[0], arguments, dict(clean_environment))  # noqa: S606 - no shell is what we want


def inherited_environment() -> dict[str, str]:
    """The environment given to `exec_supervised`. The runtime calls it once, before it reads any settings.

    From then on other processes of the same user, so agents, cannot look into the memory of this one.

    Raises:
        OSError: this process is not a supervised runtime.
    """
    linux.forbid_inspection()
    with open(ENVIRONMENT_FD, "rb") as file:
        environment: dict[str, str] = json.load(file)
    return environment


def inherited_control() -> socket.socket:
    """The control socket to the supervisor of this process, which is its runtime. To be called once.

    Raises:
        OSError: this process is not a supervised runtime.
    """
    return adopt(CONTROL_FD)


def adopt(fd: int) -> socket.socket:
    """The socket with an inherited file descriptor, not to be inherited any further."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)
