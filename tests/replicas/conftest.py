"""Several server processes on one database, with pub/sub over PostgreSQL or Valkey."""

from functools import partial

import pytest
from databases import OpenDatabase

from zndraw_joblib.server.process.ports import OpenConnection
from zndraw_joblib.server.process.redis import open_redis_connection


@pytest.fixture(params=["postgresql", "postgresql-of-a-host", "valkey"])
def transport(request: pytest.FixtureRequest) -> str:
    """Run the test over each kind of connection. SQLite has no replicas."""
    return str(request.param)


@pytest.fixture
def kind(transport: str) -> str:
    """Use PostgreSQL as database."""
    return "postgresql" if transport == "valkey" else transport


@pytest.fixture
async def open_connection(
    request: pytest.FixtureRequest, new_database: OpenDatabase, transport: str
) -> OpenConnection:
    """Return a function that opens a connection, over PostgreSQL or Valkey."""
    if transport == "valkey":
        return partial(open_redis_connection, request.getfixturevalue("valkey_url"), f"test-{id(request)}")
    connection = await new_database(None).pubsub_connection()
    assert connection is not None
    return connection
