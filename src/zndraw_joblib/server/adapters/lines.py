"""Which line a server has to its replicas."""

from functools import partial

from zndraw_joblib.server.ports import OpenLine
from zndraw_joblib.server.runtime import Runtime


async def line_of(runtime: Runtime) -> OpenLine | None:
    """Return what opens a line to other replicas: Redis where it is set, else PostgreSQL; None for SQLite."""
    url = runtime.settings.redis_url
    if url is None:
        return await runtime.database.line()
    from zndraw_joblib.server.adapters.redis import redis_line  # noqa: PLC0415 - few servers need it

    return partial(redis_line, url, f"{runtime.settings.redis_prefix}:relay")
