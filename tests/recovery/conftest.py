from store.fixtures import (  # noqa: F401 - pytest finds fixtures here, by their names
    clock,
    database_url,
    engine,
    kind,
    nothing_out_of_order,
    open_one,
    open_replica,
    pair,
    postgres_for_all,
    replica,
    sqlite_template,
    timed,
)
