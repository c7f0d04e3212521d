from collections.abc import AsyncIterator, Callable

import pytest

from zndraw_joblib.server.results.redis import RedisResults

OpenRedis = Callable[[], RedisResults]
PREFIX = "test-of-results"


@pytest.fixture
async def open_redis(request: pytest.FixtureRequest) -> AsyncIterator[OpenRedis]:
    """Return a function that opens a Redis backend, as each server process does."""
    opened: list[RedisResults] = []

    def open_it() -> RedisResults:
        opened.append(RedisResults(request.getfixturevalue("valkey_url"), PREFIX))
        return opened[-1]

    yield open_it
    for backend in opened:
        await backend.close()
