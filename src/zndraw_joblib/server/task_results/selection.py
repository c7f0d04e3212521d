"""The choice of the store for the content of task results."""

import sys

from zndraw_joblib.server.ports import ContentStore
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.memory import MemoryResults
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.task_results.files import FileContent

_NO_LIMIT = sys.maxsize


def content_store(runtime: Runtime) -> ContentStore:
    """Return the store of the setting `task_result_backend`, the same one for all users of a runtime.

    It keeps what it gets: `max_stored_result_bytes` is checked before.
    """
    if runtime.content_store is None:
        runtime.content_store = _select(runtime)
    return runtime.content_store


def _select(runtime: Runtime) -> ContentStore:
    settings = runtime.settings
    kind = settings.task_result_backend
    if kind == "memory":
        return MemoryResults(_NO_LIMIT, max_values=_NO_LIMIT)
    if kind == "files" and settings.task_result_directory is not None:
        return FileContent(settings.task_result_directory)
    if kind == "redis" and settings.redis_url is not None:
        from zndraw_joblib.server.providers.results.redis_results import RedisResults  # noqa: PLC0415 - few servers need it

        return RedisResults(settings.redis_url, f"{settings.redis_prefix}:tasks", lambda: 2**53)
    return DatabaseResults(runtime, evicts=False)
