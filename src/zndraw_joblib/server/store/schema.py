"""The schema's version: which one the database has, which one this code needs, and the way there."""

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
# PostgreSQL: two upgrades at once would both see the old version.
_UPGRADE_LOCK = 7_046_029_254_386_353_131


class OutdatedSchema(RuntimeError):
    """The database's schema is not the one this version needs, and it was not to be touched."""


def scripts() -> Path:
    """Return the folder of the migrations: inside the package once installed, else in the repository."""
    here = Path(__file__).resolve().parent.parent
    installed = here / "alembic"
    return installed if installed.is_dir() else here.parents[2] / "alembic"


def newest() -> str:
    """Return the version that this code needs."""
    return str(ScriptDirectory(str(scripts())).get_current_head())


async def current(database: Database) -> str | None:
    """Return the database's version, None for one without our tables."""
    return await database.run_sync(_current)


async def upgrade(database: Database) -> None:
    """Bring the database to the newest version, or leave it as it is; safe beside another upgrade."""
    # Alembic keeps its context in globals: one at a time in a process, whatever loop or thread asks.
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
        await asyncio.sleep(_POLL_SECONDS)
    try:
        await database.run_sync(_upgrade)
    finally:
        _ALEMBIC.release()


async def prepare(database: Database) -> None:
    """Upgrade SQLite; check anything else.

    Raises `OutdatedSchema` with the command to run.
    """
    found = await current(database)
    if found == newest():
        return
    if not await database.run_sync(lambda connection: connection.dialect.name == "sqlite"):
        raise OutdatedSchema(
            f"The database's schema is {found or 'missing'}, this version needs {newest()}. It is not "
            "changed without being asked: run 'zndraw-joblib db upgrade' with the same database URL, "
            "then start again."
        )
    await upgrade(database)


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    else:
        # The driver begins no transaction for a CREATE TABLE by itself.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
