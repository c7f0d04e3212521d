"""The choice of a server's result backend."""

from typing import Protocol

from zndraw_joblib.server.ports import ResultBackend
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.memory import MemoryResults
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.settings import JobLibSettings, ServerSettings


class Results(ResultBackend, Protocol):
    """A built-in result backend."""

    async def close(self) -> None:
        """Close the connections of this event loop."""


def select_result_backend(settings: JobLibSettings, runtime: Runtime) -> Results:
    """Return the backend of the setting `result_backend`.

    `auto` selects Redis if `redis_url` is set, else the database if several processes may share it, else
    memory. Call it after the first use of the runtime's database: only then is a host's dialect known.
    """
    kind: str = settings.result_backend
    if kind == "auto":
        kind = _select(settings, runtime)
    if kind == "database":
        return DatabaseResults(runtime)
    if kind == "memory":
        return MemoryResults(lambda: settings.max_cached_bytes)
    if settings.redis_url is None:
        raise ValueError("result_backend is 'redis', but redis_url is not set")
    from zndraw_joblib.server.providers.results.redis_results import RedisResults  # noqa: PLC0415 - few servers need it

    return RedisResults(settings.redis_url, settings.redis_prefix, lambda: settings.max_cached_bytes)


def _select(settings: JobLibSettings, runtime: Runtime) -> str:
    if settings.redis_url is not None:
        return "redis"
    workers = settings.workers if isinstance(settings, ServerSettings) else 1
    return "database" if workers > 1 or not runtime.database.is_sqlite else "memory"
