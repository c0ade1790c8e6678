"""The steps from each schema of the store to the next one, for Alembic."""
