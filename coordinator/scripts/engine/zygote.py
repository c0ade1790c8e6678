"""The process that scripts' processes are forked from, with an engine, a realm and the prelude loaded.

It is executed, never forked from the coordinator, so that it holds no secret; it has a clean environment, one thread,
and a socket to the coordinator. For each message there with a descriptor, a child's end of its channel, it forks a
child and answers with the child's process id and, on Linux, a descriptor of the child.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import platform
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from coordinator.scripts.engine.child import Realm, serve
from coordinator.scripts.engine.lockdown import Limits

READY = b"r"
FORK = b"f"
ANSWER = struct.Struct("!i")

_PR_SET_PDEATHSIG = 1


def main(quickjs_path: str, parent: int, limits: Limits) -> None:
    """Serve until the coordinator's end of the socket, which is standard input, is closed."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prime()
    prelude = (Path(__file__).parent / "prelude.js").read_text()
    realm = Realm(_load(quickjs_path).Context(), prelude)
    own_id = os.getpid()
    gc.freeze()  # so that children need not copy what they never free
    with socket.socket(fileno=os.dup(0)) as control:
        control.sendall(READY)
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not request:
                return
            (channel,) = descriptors
            child = os.fork()
            if child == 0:
                _become_child(channel, realm, limits, own_id)
            os.close(channel)
            _answer(control, child)


def _become_child(channel: int, realm: Realm, limits: Limits, parent: int) -> NoReturn:
    os.dup2(channel, 0)
    os.dup2(channel, 1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    serve(realm, limits, parent)


def _answer(control: socket.socket, child: int) -> None:
    descriptor = -1
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            descriptor = os.pidfd_open(child)
    socket.send_fds(control, [ANSWER.pack(child)], [descriptor] if descriptor >= 0 else [])
    if descriptor >= 0:
        os.close(descriptor)


def _prime() -> None:
    """Have loaded whatever is only loaded when it is first used: children cannot open files."""
    time.tzset()
    time.localtime()
    "é".encode("utf-8", "replace")
    b"\xff".decode("utf-8", "replace")


def _load(path: str) -> Any:
    """The engine's extension module, by its file: the path that packages are found in is not searched."""
    spec = importlib.util.spec_from_file_location("_quickjs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_quickjs"] = module
    spec.loader.exec_module(module)
    return module
