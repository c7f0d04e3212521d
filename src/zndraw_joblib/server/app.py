"""The standalone server: our own users, our own database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import socketio
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from zndraw_joblib.server.adapters.tokens import BearerTokens
from zndraw_joblib.server.http import health
from zndraw_joblib.server.http.problems import install_exception_handlers
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.engine import open_database

_MAX_EVENT_BYTES = 100_000


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the standalone app. Raises `InvalidDatabaseUrl`; its start may raise `OutdatedSchema`."""
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
            allow_headers=["Authorization", "Content-Type", "Prefer"],
            expose_headers=["Location", "Preference-Applied", "Retry-After"],
        )
    joblib = JobLib(session_maker=database, identity=tokens, settings=settings)
    joblib.mount(app)
    app.include_router(health.router)
    sio = socketio.AsyncServer(
        async_mode="asgi",
        cors_allowed_origins=[],  # the app's own CORS holds, and no cookie says who somebody is
        transports=settings.socketio_transports,
        max_http_buffer_size=_MAX_EVENT_BYTES,
    )
    joblib.open_rooms(sio).is_closed_to_strangers = True
    app.mount("/socket.io", socketio.ASGIApp(sio))
    return app
