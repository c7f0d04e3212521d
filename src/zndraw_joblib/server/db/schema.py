"""The version of the database and of its schema, its upgrade, and the opening of a database for a command."""

import asyncio
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import SchemaItem
from sqlalchemy.util.concurrency import await_only, in_greenlet

from zndraw_joblib.server.db.asyncpg_options import InvalidDatabaseUrl, parse_url, shown_hosts
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import TransactionPooling, check_sessions, check_url, open_database
from zndraw_joblib.server.db.tables import IdempotencyKey, RuntimeSetting
from zndraw_joblib.wire.problems import ServiceUnavailable

VERSION_TABLE = "joblib_alembic_version"
# The version of a database to which not all rows are copied yet.
UNFINISHED = "unfinished-copy"
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


@cache
def versions() -> list[str]:
    """Return the versions that this code knows, oldest first: the names of the migrations begin with them."""
    return sorted(file.name.partition("_")[0] for file in (scripts() / "versions").glob("*_*.py"))


def newest() -> str:
    """Return the version that this code needs."""
    return versions()[-1]


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
    version_found = await check(database)
    if version_found == newest():
        return
    if not await database.run_sync(lambda connection: connection.dialect.name == "sqlite"):
        raise OutdatedSchema(
            f"The database's schema is {version_found or 'missing'}, but this version needs {newest()}. Run "
            "'zndraw-joblib db upgrade' with the same database URL, then start again. An app may do so at "
            "its start, with JobLib(upgrade_tables=True), or with 'await joblib.create_tables(connection)' "
            "where it creates its own tables."
        )
    await upgrade(database)


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant
    return revision


def _check(connection: Connection) -> str | None:
    revision = _current(connection)
    if revision is None or revision in versions():
        return revision
    if revision == UNFINISHED:
        raise OutdatedSchema(
            "The database is a copy that has not ended. Run 'zndraw-joblib db copy' again with the same "
            "URLs: it continues"
        )
    writer = connection.execute(select(_settings.c.value).where(_settings.c.name == _UPGRADED_BY)).scalar()
    release = f"zndraw-joblib {writer}" if writer else "A newer zndraw-joblib"
    raise OutdatedSchema(
        f"The database's schema has version {revision!r}, which this release ({version('zndraw-joblib')}, "
        f"schema {newest()}) does not know. {release} upgraded it. Install that release or a newer one, or "
        "restore a backup from before its upgrade"
    )


def _upgrade(connection: Connection) -> None:
    # Most processes find the newest version, and need no migrations.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

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


# The version of the database, and of the queue's schema in it.


class DatabaseVersion(NamedTuple):
    """The database, for example ``postgresql 18.1``, and the revision of the queue's schema."""

    database: str
    schema: str


async def get(tx: Transaction) -> DatabaseVersion:
    """Return the versions of the database and of the schema."""
    number = "sqlite_version()" if tx.is_sqlite else "current_setting('server_version')"
    statement = text(f"SELECT {number}, version_num FROM {VERSION_TABLE}")  # noqa: S608 - constants
    release, revision = (await tx.execute(statement)).one()
    return DatabaseVersion(f"{'sqlite' if tx.is_sqlite else 'postgresql'} {release.split()[0]}", revision)


# Check that the database accepts writes, without a lasting change.

keys = IdempotencyKey.__table__

# On SQLite it needs more new pages than other small writes, so it fails before them when the disk is full.
_SQLITE_SIZE = 64 * 1024
_SIZE = 64


async def write(tx: Transaction) -> None:
    """Insert a row and delete it again. The commit writes to the disk."""
    row_id, now = uuid4(), await tx.now()
    answer = "." * (_SQLITE_SIZE if tx.is_sqlite else _SIZE)
    row = {"id": row_id, "fingerprint": row_id, "created_at": now, "answer": answer}
    await tx.execute(insert(keys), [row])
    await tx.execute(delete(keys).where(keys.c.id == row_id))


# Open a database for one command, and explain why it cannot be used.

_ANSWER_SECONDS = 20.0
_IN_MEMORY = frozenset({None, "", ":memory:"})


class UnusableDatabase(RuntimeError):
    """The database cannot be used; the text says why, without a password."""


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """The database that a URL names; `text` shows it without a password, `file` is an SQLite file."""

    text: str
    is_sqlite: bool
    file: Path | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the database ends with its process."""
        return self.is_sqlite and self.file is None

    @property
    def is_missing(self) -> bool:
        """Whether the SQLite file does not exist."""
        return self.file is not None and not self.file.exists()


def locate(url: str) -> DatabaseLocation:
    """Return which database a URL names. Raises `InvalidDatabaseUrl`."""
    try:
        check_url(url)
        parts = parse_url(url)
    except InvalidDatabaseUrl:
        raise
    except Exception:
        # SQLAlchemy's text may quote a part of the URL, which may be the password.
        raise InvalidDatabaseUrl(
            "The database URL cannot be read: a part of it is invalid. It must look like "
            "sqlite:///file.db or postgresql://user:password@host:5432/name, with special characters as %XX"
        ) from None
    if parts.get_backend_name() == "sqlite":
        file = None if parts.database in _IN_MEMORY else Path(parts.database or "").absolute()
        return DatabaseLocation(str(file or "in memory"), is_sqlite=True, file=file)
    user = f"{parts.username}@" if parts.username else ""
    text = f"{parts.get_backend_name()}://{user}{shown_hosts(parts)}/{parts.database or ''}"
    return DatabaseLocation(text, is_sqlite=False)


@asynccontextmanager
async def connected(url: str, option: str = "--database-url") -> AsyncIterator[Database]:
    """Open a database that answers, and close it after the block.

    Errors of the database inside the block become an `UnusableDatabase`, which names the `option` of the URL.
    """
    location, database = locate(url), open_database(url)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await database.run_sync(lambda _: None)
        yield database
    except TimeoutError as error:
        raise UnusableDatabase(
            f"The database {location.text} did not answer within {_ANSWER_SECONDS:g} s. "
            f"Check that it runs and that {option} names it"
        ) from error
    except _database_errors() as error:
        raise UnusableDatabase(
            f"The database {location.text} cannot be used: {_reason(error)}. "
            f"Check that it runs and that {option} names it"
        ) from error
    except (OutdatedSchema, TransactionPooling) as error:
        raise UnusableDatabase(f"{location.text}: {error}") from error
    finally:
        await database.close()


def _database_errors() -> tuple[type[Exception], ...]:
    import asyncpg  # noqa: PLC0415 - see `engine.open_database`; only an error is compared with them

    return DBAPIError, OSError, ServiceUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError


def _reason(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        number = cause.errno or 0
        return os.strerror(number) if number > 0 else cause.strerror or str(cause)
    return str(cause) or type(cause).__name__


# Migrations of a host.

_PREFIX = "joblib_"


def alembic_include_object(
    item: SchemaItem, name: str | None, kind: str, reflected: bool, compare_to: SchemaItem | None
) -> bool:
    """Return False for the queue's tables, so that ``alembic revision --autogenerate`` does not drop them.

    Pass it to ``context.configure(include_object=…)`` in a host's `env.py`. A host that already has such a
    function calls this one in it, and returns False if it does.
    """
    is_unknown_to_host = kind == "table" and reflected and compare_to is None
    return not (is_unknown_to_host and (name or "").startswith(_PREFIX))
