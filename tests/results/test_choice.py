"""Which result backend a server has, by its settings."""

import pytest
from store.fixtures import OpenReplica, every_kind

from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.memory import MemoryResults
from zndraw_joblib.server.providers.results.redis_results import RedisResults
from zndraw_joblib.server.providers.results.selection import select_result_backend
from zndraw_joblib.server.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.store import schema

REDIS = "redis://127.0.0.1:9"


@every_kind
async def test_what_fits_is_chosen(kind: str, open_replica: OpenReplica) -> None:
    """Redis where it is set, the database where others may share it, else memory; once it was looked at."""
    runtime = open_replica().runtime
    await schema.prepare(runtime.database)
    alone = MemoryResults if kind.startswith("sqlite") else DatabaseResults
    assert isinstance(select_result_backend(JobLibSettings(), runtime), alone)
    assert isinstance(select_result_backend(ServerSettings(), runtime), alone)
    assert isinstance(select_result_backend(ServerSettings(workers=2), runtime), DatabaseResults)
    assert isinstance(
        select_result_backend(ServerSettings(workers=2, redis_url=REDIS), runtime), RedisResults
    )


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
async def test_what_is_asked_for_is_taken(open_replica: OpenReplica) -> None:
    """Whatever would fit."""
    runtime = open_replica().runtime
    chosen = {"memory": MemoryResults, "database": DatabaseResults, "redis": RedisResults}
    for name, backend in chosen.items():
        settings = ServerSettings(result_backend=name, redis_url=REDIS, workers=2)
        assert isinstance(select_result_backend(settings, runtime), backend)


def test_redis_without_an_address_says_what_to_set() -> None:
    """At the start, not at the first read."""
    with pytest.raises(ValueError, match="set ZNDRAW_JOBLIB_REDIS_URL"):
        JobLibSettings(result_backend="redis")
