"""PostgreSQL databases that are used again: making and dropping one costs more than most tests."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

_TEMPLATE = "joblib_template"
_numbers = itertools.count()
# Whatever a test may have left beside rows: tables, columns, indexes, triggers, functions.
_SHAPE = """
    SELECT string_agg(thing, ',' ORDER BY thing) FROM (
        SELECT c.relname || '.' || coalesce(a.attname, '') AS thing FROM pg_class c
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'public'::regnamespace
        UNION ALL SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ) AS things
"""
_EMPTY = (
    "TRUNCATE joblib_attempt, joblib_task, joblib_worker_job, joblib_worker, joblib_job, joblib_token, "
    "joblib_switch, joblib_provider_call, joblib_provider_worker, joblib_provider, joblib_result_part, "
    "joblib_result RESTART IDENTITY"
)
_HANG_UP = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()
"""


class Shelf:
    """Gives an empty, migrated database, and takes it back. `url` has `{}` for the name."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._names: list[str] = []
        self._shape: str | None = None

    def take(self) -> str:
        """Return the URL of an empty database."""
        if not self._names:
            name = f"shelf_{id(self)}_{next(_numbers)}"
            self._shape = self._shape or self._run(_TEMPLATE, _shape)
            self._run("postgres", lambda c: c.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}"))
            self._names.append(name)
        return self._url.format(self._names[-1])

    def give_back(self) -> None:
        """Empty the database, or throw it away where its shape was changed."""
        name = self._names[-1]
        self._run("postgres", lambda c: c.execute(_HANG_UP, name))
        if self._run(name, _shape) == self._shape:
            self._run(name, lambda c: c.execute(_EMPTY))
            return
        self._names.remove(name)
        self._run("postgres", lambda c: c.execute(f"DROP DATABASE {name} WITH (FORCE)"))

    def _run(self, name: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            connection = await asyncpg.connect(self._url.format(name))
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(connected())


def _shape(connection: Any) -> Awaitable[Any]:
    found: Awaitable[Any] = connection.fetchval(_SHAPE)
    return found
