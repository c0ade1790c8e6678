"""The steps from each schema of the journal to the next one, for Alembic."""
