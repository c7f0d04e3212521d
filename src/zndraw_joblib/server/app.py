"""The standalone server: our own users, our own database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import socketio
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from zndraw_joblib.contract.providers import REQUEST_HASH, RESULT_STATUS, WORKER_ID
from zndraw_joblib.server.http import health
from zndraw_joblib.server.http.problems import install_exception_handlers
from zndraw_joblib.server.http.tokens import BearerTokens
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.realtime.pubsub_manager import PubSubManager
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.engine import open_database

_MAX_EVENT_BYTES = 100_000


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the standalone app. May raise `InvalidDatabaseUrl`, `CannotLoad`; its start `OutdatedSchema`."""
    database = open_database(settings.database_url)
    tokens = BearerTokens(database, settings.admin_token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await database.close()

    app = FastAPI(title="zndraw-joblib", lifespan=lifespan)
    install_exception_handlers(app)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=[
                *("Authorization", "Content-Type", "If-None-Match", "Prefer"),
                *(REQUEST_HASH, RESULT_STATUS, WORKER_ID),
            ],
            expose_headers=["ETag", "Location", "Preference-Applied", "Retry-After"],
        )
    joblib = JobLib(session_maker=database, identity=tokens, settings=settings)
    joblib.mount(app)
    app.include_router(health.router)
    sio = socketio.AsyncServer(
        async_mode="asgi",
        client_manager=_client_manager(settings, joblib),
        cors_allowed_origins=[],  # the app's own CORS holds, and no cookie says who somebody is
        transports=settings.socketio_transports,
        max_http_buffer_size=_MAX_EVENT_BYTES,
    )
    joblib.open_rooms(sio).requires_identity = True
    _serve_inside(app, joblib, settings)
    app.mount("/socket.io", socketio.ASGIApp(sio))
    return app


def _serve_inside(app: FastAPI, joblib: JobLib, settings: ServerSettings) -> None:
    if settings.internal_extensions:
        from zndraw_joblib.server.internal.setup import serve_inside  # noqa: PLC0415 - few servers need taskiq

        serve_inside(app, joblib, settings)


def _client_manager(settings: ServerSettings, joblib: JobLib) -> Any:
    """Return what carries events to the sockets of other processes; on SQLite alone there are none."""
    if settings.redis_url is not None:
        from zndraw_joblib.server.realtime.redis_manager import RedisManager  # noqa: PLC0415 - few servers need it

        return RedisManager(settings.redis_url, f"{settings.redis_prefix}:socketio")
    if settings.database_url.startswith("sqlite"):
        return socketio.AsyncManager()
    return PubSubManager(joblib.runtime.pubsub)
