"""Open a database for one command, and explain why it cannot be used."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.asyncpg_options import InvalidDatabaseUrl
from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.engine import check_url, open_database
from zndraw_joblib.server.store.pooling import TransactionPooling

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
        parts = make_url(url)
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
    host = parts.host or parts.query.get("host") or ""
    port = f":{parts.port}" if parts.port else ""
    text = f"{parts.get_backend_name()}://{user}{host}{port}/{parts.database or ''}"
    return DatabaseLocation(text, is_sqlite=False)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Database]:
    """Open a database that answers, and close it after the block.

    Errors of the database inside the block become an `UnusableDatabase`.
    """
    location, database = locate(url), open_database(url)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await database.run_sync(lambda _: None)
        yield database
    except TimeoutError as error:
        raise UnusableDatabase(
            f"The database {location.text} did not answer within {_ANSWER_SECONDS:g} s. "
            "Check that it runs and that --database-url names it"
        ) from error
    except (DBAPIError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ServiceUnavailable) as error:
        raise UnusableDatabase(
            f"The database {location.text} cannot be used: {_reason(error)}. "
            "Check that it runs and that --database-url names it"
        ) from error
    except (schema.OutdatedSchema, TransactionPooling) as error:
        raise UnusableDatabase(f"{location.text}: {error}") from error
    finally:
        await database.close()


def _reason(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
        number = cause.errno or 0
        return os.strerror(number) if number > 0 else cause.strerror or str(cause)
    return str(cause) or type(cause).__name__
