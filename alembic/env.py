"""Runs the migrations on a connection that is handed in, or on a URL from the environment."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection

from zndraw_joblib.server.db.engine import open_engine
from zndraw_joblib.server.db.schema import VERSION_TABLE
from zndraw_joblib.server.db.tables import metadata
from zndraw_joblib.server.process.settings import DEFAULT_DATABASE_URL


def _migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=lambda name, kind, _: kind != "table" or (name or "").startswith("joblib_"),
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


async def _migrate_by_url() -> None:
    engine = open_engine(os.environ.get("ZNDRAW_JOBLIB_DATABASE_URL", DEFAULT_DATABASE_URL))
    async with engine.begin() as connection:
        await connection.run_sync(_migrate)
    await engine.dispose()


if (handed_in := context.config.attributes.get("connection")) is not None:
    _migrate(handed_in)
else:
    asyncio.run(_migrate_by_url())
