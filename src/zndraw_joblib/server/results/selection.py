"""The choice of a server's result backend."""

import sys
from typing import Protocol

from zndraw_joblib.server.process.ports import ContentStore, ResultBackend
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.files import FileContent
from zndraw_joblib.server.results.memory import MemoryResults
from zndraw_joblib.server.runtime.runtime import Runtime


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
    from zndraw_joblib.server.results.redis import RedisResults  # noqa: PLC0415 - few servers need it

    return RedisResults(settings.redis_url, settings.redis_prefix, lambda: settings.max_cached_bytes)


def _select(settings: JobLibSettings, runtime: Runtime) -> str:
    if settings.redis_url is not None:
        return "redis"
    workers = settings.workers if isinstance(settings, ServerSettings) else 1
    return "database" if workers > 1 or not runtime.database.is_sqlite else "memory"


# The choice of the store for the content of task results.

_NO_LIMIT = sys.maxsize


def content_store(runtime: Runtime) -> ContentStore:
    """Return the store of the setting `task_result_backend`, the same one for all users of a runtime.

    It keeps what it gets: `max_stored_result_bytes` is checked before.
    """
    if runtime.content_store is None:
        runtime.content_store = _select_store(runtime)
    return runtime.content_store


def _select_store(runtime: Runtime) -> ContentStore:
    settings = runtime.settings
    kind = settings.task_result_backend
    if kind == "memory":
        return MemoryResults(_NO_LIMIT, max_values=_NO_LIMIT)
    if kind == "files" and settings.task_result_directory is not None:
        return FileContent(settings.task_result_directory)
    if kind == "redis" and settings.redis_url is not None:
        from zndraw_joblib.server.results.redis import RedisResults  # noqa: PLC0415 - few servers need it

        return RedisResults(settings.redis_url, f"{settings.redis_prefix}:tasks", lambda: 2**53)
    return DatabaseResults(runtime, evicts=False)
