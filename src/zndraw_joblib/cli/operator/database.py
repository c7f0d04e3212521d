"""Open the server's database for a command, and say in one line why it cannot be used."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import asyncpg
import typer
from alembic.util import CommandError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.cli.operator import configuration
from zndraw_joblib.cli.refusal import Misuse, Refusal
from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.engine import InvalidDatabaseUrl, open_database, open_engine

Result = TypeVar("Result")

_ANSWER_SECONDS = 20.0
_MEMORY = frozenset({None, "", ":memory:"})


def describe(url: str) -> str:
    """Return which database a URL means: the file, or where the server is, without a password."""
    parts = _parse(url)
    if _is_sqlite(parts):
        return "in memory" if is_in_memory(url) else str(Path(parts.database or "").absolute())
    user = f"{parts.username}@" if parts.username else ""
    host = parts.host or parts.query.get("host") or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.get_backend_name()}://{user}{host}{port}/{parts.database or ''}"


def is_in_memory(url: str) -> bool:
    """Tell whether a URL means a database that ends with its process."""
    parts = _parse(url)
    return _is_sqlite(parts) and parts.database in _MEMORY


def is_sqlite(url: str) -> bool:
    """Tell whether a URL means SQLite, which is for one server process."""
    return _is_sqlite(_parse(url))


def is_missing(url: str) -> bool:
    """Tell whether a URL means an SQLite file that is not there."""
    parts = _parse(url)
    return _is_sqlite(parts) and not is_in_memory(url) and not Path(parts.database or "").exists()


def run(url: str, work: Callable[[Database], Awaitable[Result]], *, is_new_fine: bool = True) -> Result:
    """Return what `work` returns, given the database of a URL.

    Raises `Misuse` for a URL that names none, `Refusal` for one that cannot be used, and for an SQLite
    file that is not there unless `is_new_fine`.
    """

    async def open_and_work() -> Result:
        async with _opened(url) as database:
            return await work(database)

    if not is_new_fine and is_missing(url):
        raise Refusal(f"There is no database {describe(url)}; --database-url names another")
    _parse(url)
    return asyncio.run(open_and_work())


def _is_sqlite(parts: URL) -> bool:
    return parts.get_backend_name() == "sqlite"


def _parse(url: str) -> URL:
    try:
        open_engine(url)
        return make_url(url)
    except InvalidDatabaseUrl as error:
        raise Misuse(str(error)) from error
    except Exception as error:
        # What SQLAlchemy says of a URL may quote a part of it, and that may be the password.
        raise Misuse(
            "The database URL cannot be read; it must look like sqlite:///file.db or "
            "postgresql://user:password@host:5432/name, with special characters as %XX"
        ) from error


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Database]:
    database = open_database(url)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await database.run_sync(lambda _: None)
        yield database
    except TimeoutError as error:
        raise Refusal(f"The database {describe(url)} did not answer in {_ANSWER_SECONDS:g} s") from error
    except (DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Refusal(f"The database {describe(url)} cannot be used: {_reason(error)}") from error
    except ServiceUnavailable as error:
        raise Refusal(f"The database {describe(url)} cannot be used: {error}") from error
    except schema.OutdatedSchema as error:
        raise Refusal(str(error)) from error
    except CommandError as error:
        raise Refusal(
            f"The schema of the database {describe(url)} is of a version that this one does not know "
            f"({error}); it was made by a newer zndraw-joblib"
        ) from error
    finally:
        await database.close()


def _reason(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return os.strerror(cause.errno or 0)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def upgrade(database_url: str | None) -> None:
    """Bring the schema to the newest version."""
    url = configuration.read(database_url).database_url

    async def raise_schema(database: Database) -> str | None:
        before = await schema.current(database)
        await schema.upgrade(database)
        return before

    before, newest = run(url, raise_schema), schema.newest()
    done = "was already at" if before == newest else f"went from {before or 'nothing'} to"
    typer.echo(f"{describe(url)}: the schema {done} {newest}")


def current(database_url: str | None) -> None:
    """Print the schema's version, and what to do if it is not the newest."""
    url = configuration.read(database_url).database_url
    found = run(url, schema.current, is_new_fine=False)
    if found == schema.newest():
        typer.echo(f"{found} (newest)")
    else:
        typer.echo(f"{found or 'no schema'}; the newest is {schema.newest()}: run 'zndraw-joblib db upgrade'")
