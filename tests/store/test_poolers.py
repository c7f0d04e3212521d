"""A server does not start on a connection pooler in transaction mode, which breaks LISTEN and time limits."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from store.transaction_pooler import TransactionPooler
from zndraw_joblib import JobLib
from zndraw_joblib.server.db import engine as pooling
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_engine, open_sessions
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
async def pooled_url(postgres_url: str) -> AsyncIterator[str]:
    """Return the URL of a migrated database behind such a pooler."""
    async with TransactionPooler(postgres_url).running() as pooler:
        yield pooler.url


async def test_a_server_does_not_start_behind_a_transaction_pooler(pooled_url: str) -> None:
    """The error says what to do."""
    app = create_app(ServerSettings(database_url=pooled_url, admin_token="x" * 20))
    with pytest.raises(pooling.TransactionPooling, match="pool_mode = session"):
        async with app.router.lifespan_context(app):
            pass
    with pytest.raises(schema.UnusableDatabase, match="pool_mode = session"):
        async with schema.connected(pooled_url) as database:
            await schema.prepare(database)


async def test_a_host_does_not_start_behind_a_transaction_pooler(pooled_url: str) -> None:
    """Its own engine connects to the pooler."""
    engine = open_engine(pooled_url)
    app = FastAPI()
    JobLib(session_maker=open_sessions(engine), identity=lambda: None).mount(app)
    with pytest.raises(pooling.TransactionPooling):
        async with app.router.lifespan_context(app):
            pass
    await engine.dispose()


async def test_a_direct_connection_is_accepted(postgres_url: str) -> None:
    """Each connection is a session of its own."""
    async with schema.connected(postgres_url) as database:
        await schema.prepare(database)
