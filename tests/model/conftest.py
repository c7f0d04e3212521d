from store.fixtures import postgres_for_all, sqlite_template  # noqa: F401 - pytest finds fixtures here
