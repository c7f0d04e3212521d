"""The settings select the result backend of a server."""

import pytest
from databases import every_kind
from replica import OpenReplica

from zndraw_joblib.server.db import schema
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.redis import RedisResults
from zndraw_joblib.server.results.results import select_result_backend
from zndraw_joblib.server.results.stores import MemoryResults

REDIS = "redis://127.0.0.1:9"


@every_kind
async def test_auto_selects_a_backend_that_fits(kind: str, open_replica: OpenReplica) -> None:
    """Redis if it is set, the database if several processes may share it, else memory."""
    runtime = open_replica().runtime
    await schema.prepare(runtime.database)
    unshared = MemoryResults if kind.startswith("sqlite") else DatabaseResults
    assert isinstance(select_result_backend(JobLibSettings(), runtime), unshared)
    assert isinstance(select_result_backend(ServerSettings(), runtime), unshared)
    assert isinstance(select_result_backend(ServerSettings(workers=2), runtime), DatabaseResults)
    assert isinstance(
        select_result_backend(ServerSettings(workers=2, redis_url=REDIS), runtime), RedisResults
    )


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_an_explicit_choice_wins(open_replica: OpenReplica) -> None:
    """The setting `result_backend` decides, whatever `auto` would select."""
    runtime = open_replica().runtime
    chosen = {"memory": MemoryResults, "database": DatabaseResults, "redis": RedisResults}
    for name, backend in chosen.items():
        settings = ServerSettings(provider_result_backend=name, redis_url=REDIS, processes=2)
        assert isinstance(select_result_backend(settings, runtime), backend)


def test_redis_without_a_url_names_the_missing_setting() -> None:
    """The error comes at the start, not at the first provider request."""
    with pytest.raises(ValueError, match="set ZNDRAW_JOBLIB_REDIS_URL"):
        JobLibSettings(provider_result_backend="redis")
