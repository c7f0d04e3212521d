"""Several server processes on one database, with PostgreSQL or Valkey between them."""

from replicas.lines import kind, open_line, way  # noqa: F401 - pytest finds fixtures here, by their names
