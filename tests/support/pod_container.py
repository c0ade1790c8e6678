"""Becomes a container: builds the root that its pod is to see, gives up what it may not do, and executes its command.

Run as root in namespaces of mounts, processes and host names that were made for it, with what is wanted as JSON in the
one argument. It gives itself the limits that Kubernetes gives a pod with `runAsNonRoot`, `readOnlyRootFilesystem`, all
capabilities dropped, no privilege escalation, and the runtime's default seccomp profile.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARED = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache")
"""What an image would bring, besides this very installation."""
DEVICES = ("null", "zero", "full", "random", "urandom")

DENIED_X86_64 = (
    # Of others' processes, of the kernel and its keys, of namespaces and mounts, of the machine
    *(310, 311, 312),  # process_vm_readv, process_vm_writev, kcmp
    *(163, 103, 321, 298, 323),  # acct, syslog, bpf, perf_event_open, userfaultfd
    *(248, 249, 250),  # add_key, request_key, keyctl
    *(175, 176, 313, 246, 320),  # init_module, delete_module, finit_module, kexec_load, kexec_file_load
    *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    *(237, 238, 239),  # mbind, set_mempolicy, get_mempolicy
    *(272, 308, 155, 161),  # unshare, setns, pivot_root, chroot
    *(165, 166, 428, 429, 430, 431, 432, 433, 442),  # mount, umount2, open_tree ... fspick, mount_setattr
    *(179, 300, 304),  # quotactl, fanotify_init, open_by_handle_at
    *(164, 227, 169, 170, 171, 167, 168),  # settimeofday, clock_settime, reboot, names of the host, swapon, swapoff
    *(172, 173, 153, 134, 136, 139, 212),  # iopl, ioperm, vhangup, uselib, ustat, sysfs, lookup_dcookie
)
"""What the default profiles of container runtimes refuse to those without capabilities (EPERM)."""
_CLONE, _CLONE3 = 56, 435
_NEW_NAMESPACES = 0x7E020000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become what the argument says."""
    wanted = json.loads(sys.argv[1])
    socket.sethostname(wanted["hostname"])
    root = Path(wanted["root"])
    _build(root, wanted)
    os.chroot(root)
    os.chdir(wanted["folder"])
    _give_up(wanted["user"])
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # as `unshare --kill-child` had asked, which another user forgets
    os.execvpe(wanted["command"][0], wanted["command"], wanted["environment"])


def _build(root: Path, wanted: dict[str, Any]) -> None:
    _mount("-t", "tmpfs", "tmpfs", str(root))
    for mount in wanted["mounts"]:
        _bind(mount["source"], root / mount["target"][1:], read_only=mount["read_only"])
    shared = {path: path for path in SHARED}
    for target, source in (shared | wanted["installation"]).items():  # which may be in a folder that is mounted
        if Path(source).is_symlink():
            (root / target[1:]).symlink_to(os.readlink(source))
        elif Path(source).exists():
            _bind(source, root / target[1:], read_only=True)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/hosts").write_text(wanted["hosts"])
    (root / "etc/nsswitch.conf").write_text("hosts: files\n")
    (root / "etc/passwd").write_text("fanfold:x:10001:10001::/home/fanfold:/bin/false\n")
    (root / "proc").mkdir()
    _mount("-t", "proc", "proc", str(root / "proc"))
    for device in DEVICES:
        _bind(f"/dev/{device}", root / "dev" / device)
    (root / "dev/shm").mkdir()
    _mount("-t", "tmpfs", "tmpfs", str(root / "dev/shm"))
    _mount("-o", "remount,ro", str(root))


def _bind(source: str, target: Path, *, read_only: bool = False) -> None:
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount("--bind", source, str(target))
    if read_only:
        _mount("-o", "remount,bind,ro", str(target))


def _mount(*arguments: str) -> None:
    program = shutil.which("mount")
    assert program is not None
    subprocess.run([program, *arguments], check=True)


def _give_up(user: int) -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)
    os.setgroups([user])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)  # with root go all capabilities
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _set_filter()


def _set_filter() -> None:
    """The seccomp profile, as a program for the kernel's small machine: instructions of 8 bytes."""
    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    refuse, allow = 0x00050001, 0x7FFF0000
    instructions: list[tuple[int, int, int, int]] = [(load, 0, 0, 0)]
    for number in DENIED_X86_64:
        instructions += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    instructions += [(equal, 0, 1, _CLONE3), (give, 0, 0, 0x00050000 | 38)]  # ENOSYS: libraries then take clone
    instructions += [(equal, 0, 3, _CLONE), (load, 0, 0, 16), (any_bit, 0, 1, _NEW_NAMESPACES), (give, 0, 0, refuse)]
    instructions += [(give, 0, 0, allow)]
    code = b"".join(struct.pack("=HBBI", what, yes, no, value) for what, yes, no, value in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HxxxxxxQ", len(instructions), ctypes.addressof(buffer))
    _prctl(_PR_SET_SECCOMP, 2, program)


def _prctl(option: int, value: int, more: bytes | None = None) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), more or ctypes.c_ulong(0), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


if __name__ == "__main__":
    main()
