"""The version of the database, and of the queue's schema in it."""

from typing import NamedTuple

from sqlalchemy import text

from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.schema import VERSION_TABLE


class DatabaseVersion(NamedTuple):
    """The database, for example ``postgresql 18.1``, and the revision of the queue's schema."""

    database: str
    schema: str


async def get(tx: Transaction) -> DatabaseVersion:
    """Return the versions of the database and of the schema."""
    number = "sqlite_version()" if tx.is_sqlite else "current_setting('server_version')"
    statement = text(f"SELECT {number}, version_num FROM {VERSION_TABLE}")  # noqa: S608 - constants
    found, revision = (await tx.execute(statement)).one()
    return DatabaseVersion(f"{'sqlite' if tx.is_sqlite else 'postgresql'} {found.split()[0]}", revision)
