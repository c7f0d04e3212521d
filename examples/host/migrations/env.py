"""Migrate the host's own tables. The queue's tables beside them are migrated by the queue."""

import asyncio
import os

from alembic import context
from examples.host.app import DATABASE_URL
from examples.host.models import Base
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from zndraw_joblib import alembic_include_object


def migrate(connection: Connection) -> None:
    """Run the migrations or, for `--autogenerate` and `check`, compare the tables with the models."""
    context.configure(
        connection=connection, target_metadata=Base.metadata, include_object=alembic_include_object
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_migrate() -> None:
    """Run the migrations on the host's database."""
    engine = create_async_engine(os.environ.get("HOST_DATABASE_URL", DATABASE_URL))
    async with engine.begin() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


asyncio.run(connect_and_migrate())
