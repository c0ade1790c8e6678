"""The settings of databases that services have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import model_validator
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from fanfold.section import Section

_SECRET = re.compile("password|secret|scram_", re.IGNORECASE)
"""In the names of the driver's options whose values are none to be shown, as `sslpassword`, that of a key."""


class DatabaseSettings(Section):
    """Where a service keeps what is to outlive it."""

    path: str = ""
    """SQLite file, made if it is not there. With neither this nor `url` coordinators refuse resumable and detached runs
    (C17), and the registry keeps jobs in memory, where they end with its process."""
    url: str = ""
    """In place of a file, a database of PostgreSQL, as `postgresql://fanfold@db.example.com/fanfold?sslmode=verify-full`
    (extra `postgres`); in it the service has a schema of its own, made if it is not there. Without the password."""
    password_file: Path | None = None
    """File with the password of `url`; by default the driver's own ways: `PGPASSWORD`, `PGPASSFILE`, certificates."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.url:
            return self
        if self.path:
            raise ValueError("path and url exclude one another")
        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):  # the latter with what is in the place of the port
            raise ValueError("url must be like postgresql://user@host/database, with one host and port there") from None
        if url.drivername not in {"postgresql", "postgres"}:
            raise ValueError("url must begin with postgresql://")
        if url.password is not None or any(map(_SECRET.search, url.query)):
            raise ValueError("url must not contain the password; name its file as password_file")
        return self

    @property
    def is_set(self) -> bool:
        """Whether anything is to be kept."""
        return bool(self.path or self.url)
