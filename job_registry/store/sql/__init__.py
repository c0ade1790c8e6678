"""The store in a database."""
