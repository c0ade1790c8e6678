"""What the journal's database is for, and which schema it has."""

from __future__ import annotations

from coordinator.journal.journal import JournalFailed
from fanfold.sql.database import Contents

JOURNAL = Contents("journal", JournalFailed, table="runs")

SCHEMA = "0002"
"""The schema that this release knows: the latest of the migrations."""
