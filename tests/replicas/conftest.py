"""Several server processes on one database, with PostgreSQL or Valkey between them."""

from store.fixtures import (  # noqa: F401 - likewise
    clock,
    database_url,
    engine,
    nothing_out_of_order,
    open_one,
    open_replica,
    postgres_for_all,
    replica,
    sqlite_template,
    timed,
)

from replicas.lines import kind, open_line, valkey, way  # noqa: F401 - fixtures are taken by their names
