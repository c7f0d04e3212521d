"""The version of the database's schema: read it, check it and upgrade it."""

import asyncio
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from zndraw_joblib.server.store.database import Database

VERSION_TABLE = "joblib_alembic_version"
_ALEMBIC = threading.Lock()
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


async def upgrade(database: Database) -> None:
    """Upgrade the database to the newest version, also while another process does the same."""
    # Alembic keeps its context in globals, so that only one upgrade can run in a process.
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
        await asyncio.sleep(_POLL_SECONDS)
    try:
        await database.run_sync(_upgrade)
    finally:
        _ALEMBIC.release()


async def prepare(database: Database) -> None:
    """Upgrade a SQLite database; check the version of any other.

    Raises `OutdatedSchema` with the command to run.
    """
    found = await current(database)
    if found == newest():
        return
    if not await database.run_sync(lambda connection: connection.dialect.name == "sqlite"):
        raise OutdatedSchema(
            f"The database's schema is {found or 'missing'}, but this version needs {newest()}. Run "
            "'zndraw-joblib db upgrade' with the same database URL, then start again."
        )
    await upgrade(database)


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    else:
        # The sqlite3 module begins no transaction before CREATE TABLE.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
