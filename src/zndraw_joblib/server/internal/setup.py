"""The internal jobs of the standalone server: in its own process, or over Redis in processes of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import socketio
from fastapi import FastAPI
from taskiq import TaskiqEvents

from zndraw_joblib.server.internal import extensions
from zndraw_joblib.server.internal.brokers import EmbeddedBroker, QueueBroker
from zndraw_joblib.server.internal.executor import GuardedExecutor
from zndraw_joblib.server.internal.registry import offer_of, register_internal_jobs, register_internal_tasks
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.realtime.redis_manager import RedisManager
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.engine import open_database


def serve_inside(app: FastAPI, joblib: JobLib, settings: ServerSettings) -> None:
    """Offer `internal_extensions` as long as the app runs. Raises `CannotLoad`.

    Without `redis_url` their tasks run in this process, else in those of `internal-worker`.
    """
    found = _load(settings)
    runtime = joblib.runtime

    @asynccontextmanager
    async def offered() -> AsyncIterator[None]:
        executor = GuardedExecutor(runtime, concurrency=settings.internal_concurrency)
        broker = _queue(settings) if settings.redis_url else EmbeddedBroker(settings.internal_concurrency)
        if isinstance(broker, EmbeddedBroker):
            broker.on_free = runtime.dispatcher.poke
        await register_internal_jobs(app, broker, found, executor, runtime.database)
        await broker.startup()
        try:
            yield
        finally:
            app.state.internal_registry = None
            await broker.shutdown()

    joblib.inside = offered


def worker_broker(settings: ServerSettings) -> QueueBroker:
    """Return the broker of a process that runs internal tasks. Raises `CannotLoad`, also without Redis."""
    if settings.redis_url is None:
        raise extensions.CannotLoad(
            "internal_extensions run inside the server unless redis_url (ZNDRAW_JOBLIB_REDIS_URL) is set"
        )
    if not settings.internal_extensions:
        raise extensions.CannotLoad("internal_extensions (ZNDRAW_JOBLIB_INTERNAL_EXTENSIONS) names nothing")
    found = _load(settings)
    # It sends alone: nobody connects to it.
    sio: Any = socketio.AsyncServer(
        client_manager=RedisManager(settings.redis_url, f"{settings.redis_prefix}:socketio")
    )
    database = open_database(settings.database_url)
    executor = GuardedExecutor(
        database,
        settings=settings,
        tsio=sio,
        concurrency=settings.internal_concurrency,
    )
    broker = _queue(settings)
    register_internal_tasks(broker, found, executor)

    async def close(_: object) -> None:
        await database.close()

    broker.add_event_handler(TaskiqEvents.WORKER_SHUTDOWN, close)
    return broker


def _load(settings: ServerSettings) -> list[type[Any]]:
    found = extensions.load(settings.internal_extensions)
    for entry, cls in zip(settings.internal_extensions, found, strict=False):
        try:
            offer_of(cls)
        except ValueError as error:
            raise extensions.CannotLoad(f"internal_extensions: {entry!r}: {error}") from error
    return found


def _queue(settings: ServerSettings) -> QueueBroker:
    return QueueBroker(str(settings.redis_url), f"{settings.redis_prefix}:internal")
