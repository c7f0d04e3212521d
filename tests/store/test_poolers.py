"""A server does not start on a connection pooler in transaction mode, which breaks LISTEN and time limits."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from store.transaction_pooler import TransactionPooler
from zndraw_joblib import JobLib
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import connect, pooling, schema
from zndraw_joblib.server.store.engine import open_engine, open_sessions


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
    with pytest.raises(connect.UnusableDatabase, match="pool_mode = session"):
        async with connect.connected(pooled_url) as database:
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
    async with connect.connected(postgres_url) as database:
        await schema.prepare(database)
