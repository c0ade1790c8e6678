"""Runs the migrations of the store."""

from fanfold.sql.migration import run_migrations
from job_registry.store.sql.tables import metadata

run_migrations(metadata)
