"""The pub/sub connection that a server uses: Redis, PostgreSQL, or none."""

from collections.abc import Awaitable, Callable
from functools import partial

from zndraw_joblib.server.ports import OpenConnection
from zndraw_joblib.server.settings import JobLibSettings


async def connection_factory(
    settings: JobLibSettings, database_factory: Callable[[], Awaitable[OpenConnection | None]]
) -> OpenConnection | None:
    """Return what opens a connection to the other replicas; None on SQLite, which has no notifications.

    With `redis_url` it is Redis, else `database_factory()`.
    """
    if settings.redis_url is None:
        return await database_factory()
    from zndraw_joblib.server.pubsub.redis import open_redis_connection  # noqa: PLC0415 - few servers need it

    return partial(open_redis_connection, settings.redis_url, f"{settings.redis_prefix}:pubsub")
