"""Several server processes on one database, with pub/sub over PostgreSQL or Valkey."""

from replicas.connections import kind, open_connection, transport  # noqa: F401 - fixtures, found by their names
