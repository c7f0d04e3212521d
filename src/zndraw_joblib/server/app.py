"""The standalone server: our own users, our own database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from zndraw_joblib.server.adapters.tokens import BearerTokens
from zndraw_joblib.server.http import health
from zndraw_joblib.server.http.problems import install_exception_handlers
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store.engine import open_database


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
    JobLib(session_maker=database, identity=tokens, settings=settings).mount(app)
    app.include_router(health.router)
    return app
