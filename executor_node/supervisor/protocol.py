"""What the runtime and its supervisor say to each other: JSON packets over a SOCK_SEQPACKET socket.

The runtime sends `launch {id, fds}`, `stop {id, grace}` and `kill {id}`; the supervisor answers each launch with one
`ended {id, code}` when no process of that tree remains, or with `refused {id, why}`. What is to be launched has no size
limit and may hold secrets: it travels in a memory file that only the launcher reads.

Each watches the other. The runtime sends `ping {at, until}`, to which the supervisor answers `alive {}` (`liveness`).
The times are of `boot_time`: a runtime from which there is no ping before the time that the last one named has been
stopped or hangs, or the whole machine slept; the supervisor then kills everything.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_FDS = 8
_MAX_PACKET_BYTES = 4096

Packet = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run. Without `argv` it is a worker, which the forked process already holds in its memory."""

    argv: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of a command; a worker has the supervisor's."""
    directory: str = ""


def boot_time() -> float:
    """Seconds since the machine was started, those that it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def control_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a control socket."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(control: socket.socket, packet: Packet, fds: Sequence[int] = ()) -> None:
    """Send one packet whole, and duplicates of `fds` with it.

    Raises:
        BlockingIOError: the other side does not keep up; nothing was sent.
        OSError: the other side is gone.
    """
    socket.send_fds(control, [json.dumps(packet).encode()], fds)


def receive(control: socket.socket) -> tuple[Packet | None, list[int]]:
    """The next packet with its file descriptors; None at the end.

    Raises:
        BlockingIOError: there is none yet.
    """
    data, fds, _, _ = socket.recv_fds(control, _MAX_PACKET_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
    return (json.loads(data) if data else None), fds


def write_memory_file(data: bytes, name: str) -> int:
    """A file in memory that holds `data`, to be read from its start. Returns its file descriptor."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def launch_to_file(launch: Launch) -> int:
    """A memory file that says what to launch. Returns its file descriptor."""
    form = {"argv": list(launch.argv), "environment": dict(launch.environment), "directory": launch.directory}
    return write_memory_file(json.dumps(form).encode(), "launch")


def launch_from_file(fd: int) -> Launch:
    """What the memory file says."""
    with open(fd, "rb") as file:
        return Launch(**json.load(file))
