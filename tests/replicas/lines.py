"""The lines between replicas that the tests run over."""

from functools import partial

import pytest
from databases import OpenDatabase

from zndraw_joblib.server.ports import OpenConnection
from zndraw_joblib.server.pubsub.redis import open_redis_connection


@pytest.fixture(params=["postgresql", "postgresql-of-a-host", "valkey"])
def way(request: pytest.FixtureRequest) -> str:
    """Run the test over each kind of line. On SQLite there are no replicas."""
    return str(request.param)


@pytest.fixture
def kind(way: str) -> str:
    """Take PostgreSQL, whatever the line is."""
    return "postgresql" if way == "valkey" else way


@pytest.fixture
async def open_line(request: pytest.FixtureRequest, new_database: OpenDatabase, way: str) -> OpenConnection:
    """Return what opens a line, over PostgreSQL or over Valkey."""
    if way == "valkey":
        return partial(open_redis_connection, request.getfixturevalue("valkey_url"), f"test-{id(request)}")
    line = await new_database(None).pubsub_connection()
    assert line is not None
    return line
