"""The version of the database's schema: read it, check it and upgrade it."""

import asyncio
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util.concurrency import await_only, in_greenlet

from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.pooling import check_sessions
from zndraw_joblib.server.store.tables import RuntimeSetting

VERSION_TABLE = "joblib_alembic_version"
_ALEMBIC = threading.Lock()
# The runtime setting that names the release which made the newest change of the schema.
_UPGRADED_BY = "upgraded_by"
_settings = RuntimeSetting.__table__
_POLL_SECONDS = 0.02
# PostgreSQL: two concurrent upgrades would both see the old version.
_UPGRADE_LOCK = 7_046_029_254_386_353_131


class OutdatedSchema(RuntimeError):
    """The database's schema is not the version that this code needs."""


def scripts() -> Path:
    """Return the folder of the migrations: in the installed package, or in the repository."""
    here = Path(__file__).resolve().parent.parent
    installed = here / "alembic"
    return installed if installed.is_dir() else here.parents[2] / "alembic"


def newest() -> str:
    """Return the version that this code needs."""
    return str(ScriptDirectory(str(scripts())).get_current_head())


async def current(database: Database) -> str | None:
    """Return the database's version, None without the queue's tables."""
    return await database.run_sync(_current)


async def check(database: Database) -> str | None:
    """Return the version of the schema. Raises `OutdatedSchema` if this release does not know it."""
    return await database.run_sync(_check)


async def upgrade(database: Database) -> None:
    """Upgrade the database to the newest version, also while another process does the same."""
    # Alembic keeps its context in globals, so that only one upgrade can run in a process.
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
        await asyncio.sleep(_POLL_SECONDS)
    try:
        await database.run_sync(_upgrade)
    finally:
        _ALEMBIC.release()


def create(connection: Connection) -> None:
    """Create the tables, or upgrade them, in the transaction of a host's connection. Does not commit."""
    while not _ALEMBIC.acquire(blocking=False):
        if in_greenlet():  # of an event loop, in which another upgrade may hold it
            await_only(asyncio.sleep(_POLL_SECONDS))
        else:
            time.sleep(_POLL_SECONDS)
    try:
        _upgrade(connection)
    finally:
        _ALEMBIC.release()


def create_tables(connection: Any) -> Any:
    """Call `create` for a `Connection`; for an `AsyncConnection` return an awaitable that does."""
    if isinstance(connection, AsyncConnection):
        return connection.run_sync(create)
    if not isinstance(connection, Connection):
        raise TypeError(
            f"create_tables takes a connection, not {type(connection).__name__}: in "
            "'async with engine.begin() as connection', write 'await joblib.create_tables(connection)'"
        )
    return create(connection)


async def prepare(database: Database) -> None:
    """Upgrade a SQLite database; check the version of any other.

    Raises `OutdatedSchema` with the command to run, or with the release to install, and `TransactionPooling`.
    """
    await check_sessions(database)
    found = await check(database)
    if found == newest():
        return
    if not await database.run_sync(lambda connection: connection.dialect.name == "sqlite"):
        raise OutdatedSchema(
            f"The database's schema is {found or 'missing'}, but this version needs {newest()}. Run "
            "'zndraw-joblib db upgrade' with the same database URL, then start again. An app that creates "
            "its own tables at the start may call 'await joblib.create_tables(connection)' there."
        )
    await upgrade(database)


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _check(connection: Connection) -> str | None:
    found, known = _current(connection), ScriptDirectory(str(scripts()))
    if found is None or found in {script.revision for script in known.walk_revisions()}:
        return found
    writer = connection.execute(select(_settings.c.value).where(_settings.c.name == _UPGRADED_BY)).scalar()
    release = f"zndraw-joblib {writer}" if writer else "A newer zndraw-joblib"
    raise OutdatedSchema(
        f"The database's schema has version {found!r}, which this release ({version('zndraw-joblib')}, "
        f"schema {newest()}) does not know. {release} upgraded it. Install that release or a newer one, or "
        "restore a backup from before its upgrade"
    )


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    elif not getattr(connection.connection.driver_connection, "in_transaction", False):
        # The sqlite3 module begins no transaction before CREATE TABLE.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    before = _check(connection)
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if before != newest():
        connection.execute(delete(_settings).where(_settings.c.name == _UPGRADED_BY))
        row = {"name": _UPGRADED_BY, "value": version("zndraw-joblib")}
        connection.execute(insert(_settings), row)
