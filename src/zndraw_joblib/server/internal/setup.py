"""Internal jobs of the standalone server: run in its own process, or over Redis in worker processes."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import socketio
from taskiq import TaskiqEvents

from zndraw_joblib.server.internal import extensions
from zndraw_joblib.server.internal.brokers import EmbeddedBroker, QueueBroker
from zndraw_joblib.server.internal.executor import GuardedExecutor
from zndraw_joblib.server.internal.registration import offer_internal_jobs, offer_of, register_internal_tasks
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.realtime.client_managers import RedisManager
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.engine import open_database
from zndraw_joblib.server.store.limits import Limits


@asynccontextmanager
async def internal_jobs(
    settings: ServerSettings,
    found: Sequence[type[Any]],
    runtime: Runtime,
    wake_dispatcher: Callable[[], None],
) -> AsyncIterator[InternalRegistry]:
    """Offer the extensions `found` as internal jobs while the context is open.

    Without `redis_url` their tasks run in this process, else in processes of `internal-worker`.
    """
    executor = GuardedExecutor(runtime, concurrency=settings.internal_concurrency)
    broker = (
        _queue(settings)
        if settings.redis_url
        else EmbeddedBroker(settings.internal_concurrency, on_free=wake_dispatcher)
    )
    registry = await offer_internal_jobs(runtime.write, broker, found, executor)
    await broker.startup()
    try:
        yield registry
    finally:
        await broker.shutdown()


def worker_broker(settings: ServerSettings) -> QueueBroker:
    """Return the broker of a process that runs internal tasks. Raises `CannotLoad`, also without Redis."""
    if settings.redis_url is None:
        raise extensions.CannotLoad(
            "redis_url is not set, so internal_extensions run inside the server; to run them in worker "
            "processes, set ZNDRAW_JOBLIB_REDIS_URL"
        )
    if not settings.internal_extensions:
        raise extensions.CannotLoad(
            "internal_extensions is empty; set ZNDRAW_JOBLIB_INTERNAL_EXTENSIONS to module:Class, …"
        )
    found = load_extensions(settings)
    # It only emits: no client connects to it.
    sio: Any = socketio.AsyncServer(
        client_manager=RedisManager(settings.redis_url, f"{settings.redis_prefix}:socketio")
    )
    database = open_database(settings.database_url, limits=Limits.of(settings))
    executor = GuardedExecutor(
        database, settings=settings, tsio=sio, concurrency=settings.internal_concurrency
    )
    broker = _queue(settings)
    register_internal_tasks(broker, found, executor)

    async def close(_: object) -> None:
        await database.close()

    broker.add_event_handler(TaskiqEvents.WORKER_SHUTDOWN, close)
    return broker


def load_extensions(settings: ServerSettings) -> list[type[Any]]:
    """Return the classes of `internal_extensions`. Raises `CannotLoad` for one that cannot be a job."""
    found = extensions.load(settings.internal_extensions)
    for entry, cls in zip(settings.internal_extensions, found, strict=False):
        try:
            offer_of(cls)
        except ValueError as error:
            raise extensions.CannotLoad(f"internal_extensions: {entry!r}: {error}") from error
    return found


def _queue(settings: ServerSettings) -> QueueBroker:
    return QueueBroker(str(settings.redis_url), f"{settings.redis_prefix}:internal:queue")
