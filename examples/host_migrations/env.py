"""Alembic's env.py of the example host: it migrates the host's tables and ignores the queue's tables.

alembic init -t async migrations      # then replace migrations/env.py with this file
alembic revision --autogenerate -m 'Add users and rooms'
alembic upgrade head
"""

import asyncio

from alembic import context
from examples.host_app import DATABASE_URL, Base
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from zndraw_joblib import alembic_include_object


def migrate(connection: Connection) -> None:
    """Run the migrations or, for `--autogenerate`, compare the tables with the models."""
    context.configure(
        connection=connection, target_metadata=Base.metadata, include_object=alembic_include_object
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_migrate() -> None:
    """Run the migrations on the host's database."""
    engine = create_async_engine(DATABASE_URL)
    async with engine.begin() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


asyncio.run(connect_and_migrate())
