"""The standalone server, with its own users and database."""

import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import socketio
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from zndraw_joblib.jobs.logs import fields_here
from zndraw_joblib.jobs.traces import TRACEPARENT
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.admin.sql_operators import TokenRecord
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.host.clocks import add_clock
from zndraw_joblib.server.host.mount import InternalJobs, JobLib
from zndraw_joblib.server.http import metrics
from zndraw_joblib.server.http.identity import BearerTokens, FoundToken
from zndraw_joblib.server.http.middleware import QueueMiddleware, may_have_telemetry
from zndraw_joblib.server.http.openapi import tag_metadata
from zndraw_joblib.server.http.pages import add_operations_page, install_exception_handlers
from zndraw_joblib.server.http.requests import REQUEST_ID, SCOPE_KEY, SEND, request_id_of, with_header
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.realtime import socketio_internals
from zndraw_joblib.server.realtime.client_managers import PubSubManager
from zndraw_joblib.server.realtime.socketio_internals import LocalManager
from zndraw_joblib.wire.names import IDEMPOTENCY_KEY
from zndraw_joblib.wire.providers import REQUEST_HASH, RESULT_STATUS, WORKER_ID

MAX_EVENT_BYTES = 100_000
_DESCRIPTION = """\
Workers register *jobs*; clients submit *tasks* of a job in a *room*, and follow them until they end.

Every operation under `/v1/joblib` needs a bearer token. Every error is a problem (RFC 9457): its `type`
is the path of a page that explains it; each operation lists its problems. With the header
`Idempotency-Key` a request may be repeated safely, and with `Prefer: wait=N` it waits for an event.
"""
# The head of the OpenAPI document.
_INFO: dict[str, Any] = {
    "title": "zndraw-joblib",
    "summary": "A job queue with an HTTP API.",
    "description": _DESCRIPTION,
    "license_info": {"name": "MIT", "identifier": "MIT"},
    "openapi_tags": tag_metadata(),
    "servers": [{"url": "/", "description": "This server."}],
}


class StandaloneApp(FastAPI):
    """An app that answers the queue's requests before its own layers, unless it has other middleware.

    The layers have nothing to do for them: a route answers every error as a problem.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._queue_first = QueueMiddleware(self._call_layers, self)

    @cached_property
    def _has_telemetry(self) -> bool:
        # Asked once, because it reads the environment. Telemetry is configured before the first request.
        return may_have_telemetry(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; its response, and records of the log, have its id."""
        scope["app"], scope[SEND] = self, send
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope[SCOPE_KEY] = request_id = request_id_of(scope)
        is_direct = len(self.user_middleware) == 1 and not self._has_telemetry
        # Not `log_fields`, because each request pays for it.
        token = fields_here.set({"request_id": request_id})
        try:
            await (self._queue_first if is_direct else self._call_layers)(scope, receive, send)
        finally:
            fields_here.reset(token)

    async def _call_layers(self, scope: Scope, receive: Receive, send: Send) -> None:
        send = with_header(send, scope.pop(SCOPE_KEY))
        await super().__call__(scope, receive, send)


def create_app(
    settings: ServerSettings, *, realtime: bool = True, tsio: Any = None, clock: TestClock | None = None
) -> FastAPI:
    """Return the standalone app, without Socket.IO unless `realtime`. With `tsio`, events go there too.

    With `clock`, a superuser advances the time of the queue. Raises `InvalidDatabaseUrl` and
    `CannotLoadJobs`. The start of the app raises `OutdatedSchema`.
    """
    database = open_database(settings.database_url, clock, Limits.of(settings))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await database.close()

    options = {**_INFO, "docs_url": None, "redoc_url": None, "lifespan": lifespan}
    app = StandaloneApp(**options, version=version("zndraw-joblib"))
    add_operations_page(app)
    install_exception_handlers(app)
    if settings.cors_origins:
        _add_cors(app, settings)
    joblib = JobLib(
        session_maker=database,
        identity=_bearer_tokens(database, settings),
        settings=settings,
        tsio=tsio,
        internal_jobs=_internal_jobs(settings),
        clock=clock,
    )
    is_shown = settings.dashboard != "off"
    joblib.mount(app, dashboard="/" if is_shown else None, read_only=settings.dashboard == "read-only")
    app.include_router(metrics.health_router)
    metrics.add_root(app, joblib.identity)
    if clock is not None:
        add_clock(app, joblib.identity)
    if realtime:
        _mount_socketio(app, joblib, settings)
    return app


def _add_cors(app: FastAPI, settings: ServerSettings) -> None:
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=[
            *("Authorization", "Content-Type", "If-None-Match", "If-Range", "Range"),
            *("Last-Event-ID", "Prefer", IDEMPOTENCY_KEY, REQUEST_HASH, REQUEST_ID, RESULT_STATUS),
            *(TRACEPARENT, WORKER_ID),
        ],
        expose_headers=[
            *("Accept-Ranges", "Content-Disposition", "Content-Range", "ETag"),
            *("Location", "Preference-Applied", "Retry-After", REQUEST_ID),
        ],
    )


def _bearer_tokens(database: Database, settings: ServerSettings) -> BearerTokens:
    provider = None
    if settings.oidc_issuer is not None:
        # Few servers need the library of the extra `oidc`.
        from zndraw_joblib.server.http.oidc import Provider  # noqa: PLC0415

        provider = Provider(settings)
    return BearerTokens(_StoredTokens(database), settings.admin_token, provider)


class _StoredTokens:
    """The tokens in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def by_digest(self, digest: str) -> FoundToken | None:
        """Return the token with a digest."""
        return _found(await self._database.read_short(sql_operators.token_by_digest, digest))

    async def by_name(self, name: str) -> FoundToken | None:
        """Return the token with a name."""
        return _found(await self._database.read_short(sql_operators.token_by_name, name))

    async def by_names(self, names: Collection[str]) -> dict[str, FoundToken]:
        """Return the tokens with these names."""
        rows = await self._database.read_short(sql_operators.tokens_by_name, names)
        return {row.name: found for row in rows if (found := _found(row)) is not None}

    async def existing(self, digests: Collection[str]) -> set[str]:
        """Return which of these digests belong to a token."""
        return await self._database.read_short(sql_operators.existing_tokens, digests)

    async def record_use(self, digests: Collection[str]) -> None:
        """Record that tokens are used, unless that is recorded for the last minute."""
        await self._database.write(sql_operators.record_use, digests)


def _found(row: TokenRecord | None) -> FoundToken | None:
    if row is None:
        return None
    # A clock that differs from the database's moves the end of a cached token by up to 3 s.
    seconds = math.inf if row.expires_at is None else (row.expires_at - datetime.now(UTC)).total_seconds()
    return FoundToken(row.identity, row.created_at, max(seconds, 0.0))


def _internal_jobs(settings: ServerSettings) -> InternalJobs | None:
    if not settings.internal_extensions:
        return None
    from zndraw_joblib.server.internal import setup  # noqa: PLC0415 - few servers need Redis and a broker

    return partial(setup.internal_jobs, settings, setup.load_extensions(settings))


def _mount_socketio(app: FastAPI, joblib: JobLib, settings: ServerSettings) -> None:
    sio = socketio.AsyncServer(
        async_mode="asgi",
        client_manager=_client_manager(settings, joblib),
        cors_allowed_origins=[],  # the app's own CORS applies, and no cookie carries an identity
        transports=settings.socketio_transports,
        max_http_buffer_size=MAX_EVENT_BYTES,
    )
    joblib.open_rooms(sio, requires_identity=True, limits=settings)
    socketio_internals.send_directly(sio)
    app.mount("/socket.io", socketio.ASGIApp(sio))


def _client_manager(settings: ServerSettings, joblib: JobLib) -> Any:
    """Return what carries events to the sockets of other processes; on SQLite alone there are none."""
    if settings.redis_url is not None:
        from zndraw_joblib.server.realtime.redis_manager import RedisManager  # noqa: PLC0415 - as above

        return RedisManager(settings.redis_url, f"{settings.redis_prefix}:socketio")
    if settings.database_url.startswith("sqlite"):
        return LocalManager()
    return PubSubManager(joblib.runtime.pubsub)
