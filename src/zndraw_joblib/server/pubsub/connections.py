"""Which line a server has to its replicas."""

from functools import partial

from zndraw_joblib.server.ports import OpenConnection
from zndraw_joblib.server.runtime import Runtime


async def connection_factory(runtime: Runtime) -> OpenConnection | None:
    """Return what opens a line to other replicas: Redis where it is set, else PostgreSQL; None for SQLite."""
    url = runtime.settings.redis_url
    if url is None:
        return await runtime.database.pubsub_connection()
    from zndraw_joblib.server.pubsub.redis import open_redis_connection  # noqa: PLC0415 - few servers need it

    return partial(open_redis_connection, url, f"{runtime.settings.redis_prefix}:pubsub")
