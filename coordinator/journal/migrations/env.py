"""Runs the migrations of the journal."""

from coordinator.journal.sql.tables import metadata
from fanfold.sql.migration import run_migrations

run_migrations(metadata)
