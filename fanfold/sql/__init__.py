"""A service's own database: SQLAlchemy Core, one writer thread, readers beside it."""
