"""The journal in a database: SQLAlchemy Core, one writer thread, readers beside it."""
