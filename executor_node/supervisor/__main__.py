"""`python -m executor_node.supervisor`: the first process of a node. Not for people.

`--runtime ARGV...` starts the runtime and serves it; see `exec_supervised`. `--control FD` serves the program that
started us, at the other end of that socket; see `Supervision.spawn`.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import executor_node.agents.builtin  # noqa: F401 - so that workers hold it from their birth
from executor_node.supervisor import linux, protocol
from executor_node.supervisor.inheritance import CONTROL_FD, ENVIRONMENT_FD, adopt
from executor_node.supervisor.supervisor import Supervisor
from executor_node.workers.main import run_worker


def main(arguments: Sequence[str]) -> int:
    """Supervise until the runtime is gone. Returns the exit code."""
    match arguments:
        case ["--control", fd]:
            return Supervisor(adopt(int(fd)), run_worker, runtime=None).run()
        case ["--runtime", *argv] if argv:
            control, runtime_end = protocol.control_pair()
            own = os.getpid()
            runtime = os.fork()
            if runtime == 0:
                _become_runtime(argv, runtime_end.fileno(), parent=own)
            runtime_end.close()
            os.close(ENVIRONMENT_FD)
            return Supervisor(control, run_worker, runtime=runtime).run()
        case _:
            print(__doc__, file=sys.stderr)
            return 2


def _become_runtime(argv: Sequence[str], control: int, *, parent: int) -> NoReturn:
    try:
        linux.die_with_parent(parent, signal.SIGKILL)
        os.setpgid(0, 0)  # signals from a terminal come to it through the supervisor alone
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # it holds some for each step
        os.dup2(control, CONTROL_FD)
        for fd in (CONTROL_FD, ENVIRONMENT_FD):
            os.set_inheritable(fd, True)
        os.execvp(argv[0], list(argv))  # noqa: S606 - no shell is what we want
    except OSError as error:
        print(f"cannot start {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
