"""Which result backend a server has."""

from zndraw_joblib.server.ports import ResultBackend
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.memory import MemoryResults
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.settings import JobLibSettings


def select_result_backend(settings: JobLibSettings, runtime: Runtime) -> ResultBackend:
    """Return the backend of the setting `result_backend`.

    `auto` is Redis where `redis_url` is set; else the database, where other processes may share it; else
    memory. Ask once the runtime's database was used, for only then it is known what a host's is.
    """
    kind: str = settings.result_backend
    if kind == "auto":
        kind = _chosen(settings, runtime)
    if kind == "database":
        return DatabaseResults(runtime)
    if kind == "memory":
        return MemoryResults(lambda: settings.max_cached_bytes)
    if settings.redis_url is None:
        raise ValueError("result_backend is 'redis', but redis_url is not set")
    from zndraw_joblib.server.providers.results.redis_results import RedisResults  # noqa: PLC0415 - few servers need it

    return RedisResults(settings.redis_url, settings.redis_prefix)


def _chosen(settings: JobLibSettings, runtime: Runtime) -> str:
    if settings.redis_url is not None:
        return "redis"
    is_shared = getattr(settings, "workers", 1) > 1 or not runtime.database.is_sqlite
    return "database" if is_shared else "memory"
