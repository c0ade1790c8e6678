"""What the store's database is for, and which schema it has."""

from __future__ import annotations

from fanfold.sql.database import Contents
from job_registry.store.store import StoreFailed

STORE = Contents("job store", StoreFailed, table="jobs")

SCHEMA = "0004"
"""The schema that this release knows: the latest of the migrations."""
