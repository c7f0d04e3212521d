"""The queue inside a host's app: one object that wires everything."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from types import FrameType
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request

from zndraw_joblib.server.background.health import Health
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.http import PREFIX, TAG, routes
from zndraw_joblib.server.http.problems import ANSWERS
from zndraw_joblib.server.http.problems import router as problem_pages
from zndraw_joblib.server.http.routing import Route, solve
from zndraw_joblib.server.http.tokens import BearerTokens
from zndraw_joblib.server.ports import Identity, ResultBackend, SessionMaker
from zndraw_joblib.server.providers.requests import ProviderRequests
from zndraw_joblib.server.providers.results.selection import select_result_backend
from zndraw_joblib.server.providers.uploads import Uploads
from zndraw_joblib.server.pubsub.connections import connection_factory
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher
from zndraw_joblib.server.realtime.rooms import Rooms
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Clock, Database

logger = logging.getLogger(__name__)


class JobLib:
    """A job queue for a FastAPI app.

        joblib = JobLib(session_maker=async_sessionmaker(engine), identity=current_user)
        joblib.mount(app)

    `session_maker` is any callable that opens an `AsyncSession`, on SQLite or PostgreSQL. `identity` is a
    dependency of the host: what it returns has an `id` and `is_superuser`. With `tsio`, a
    `socketio.AsyncServer` or a wrapper that takes models, events are sent. The app's lifespan brings
    the schema up (SQLite) or checks it, and runs the sweeper.
    """

    def __init__(
        self,
        *,
        session_maker: SessionMaker | Database,
        identity: Callable[..., Any],
        settings: JobLibSettings | None = None,
        tsio: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or JobLibSettings()
        self._socketio = None if tsio is None else SocketIoPublisher(tsio)
        self.runtime = Runtime(session_maker, self.settings, publish=self._socketio, clock=clock)
        self.rooms: Rooms | None = None
        self.reads = ProviderRequests(self.runtime, self._has_unknown_subscribers)
        self._results: ResultBackend | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        self._app: FastAPI | None = None
        self.sweeper = Sweeper(self.runtime.write, self.settings, self.runtime.dispatcher.poke)
        # What lives inside the server as long as it runs, but for the database.
        self.inside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        self._identity = identity
        self._bind = _binding(identity)
        self.health = Health(self.runtime)
        self.health.checks["sweeper"] = self._check_sweeper

    def mount(self, app: FastAPI) -> None:
        """Add the routes under ``/v1/joblib`` and the pages of the problems; join the app's lifespan."""
        self._app = app
        app.state.joblib = self.runtime
        self.runtime.dispatcher.registry = lambda: getattr(app.state, "internal_registry", None)
        app.state.joblib_mount = self
        app.state.joblib_health = self.health
        app.state.joblib_reads = self.reads
        app.state.joblib_answers = Uploads(self.runtime)
        app.state.joblib_identity = self._identity
        app.state.joblib_identify = self._identify
        for route in routes:
            # Straight into the app: an included router is searched twice for each request.
            app.router.add_api_route(
                PREFIX + route.path,
                route.endpoint,
                methods=list(route.methods or ()),
                name=route.name,
                tags=[TAG],
                status_code=route.status_code,
                response_model=route.response_model,
                responses={**route.responses, **ANSWERS},
                dependencies=[Depends(self._identity)],
                route_class_override=Route,
            )
        app.include_router(problem_pages)
        hosts_own = app.router.lifespan_context

        @asynccontextmanager
        async def both(asgi: FastAPI) -> AsyncIterator[Any]:
            async with hosts_own(asgi) as state, self.lifespan():
                yield state

        app.router.lifespan_context = both

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Prepare the schema, sweep while the server runs, and let waiters go when it stops.

        Raises `OutdatedSchema` for a PostgreSQL database that was not upgraded.
        """
        await schema.prepare(self.runtime.database)
        self.runtime.waiters.open()
        if self.rooms is not None:
            self.rooms.install_handlers()
        line = await connection_factory(self.runtime)
        relaying = asyncio.create_task(self.runtime.pubsub.run(line) if line else asyncio.sleep(0))
        minding = asyncio.create_task(self.runtime.scheduler.run(), name="zndraw-joblib scheduler")
        attending = asyncio.create_task(self.rooms.presence.run() if self.rooms else asyncio.sleep(0))
        sweeping = asyncio.create_task(self.sweeper.run(), name="zndraw-joblib sweeper")
        dispatching = asyncio.create_task(self.runtime.dispatcher.run(), name="zndraw-joblib dispatcher")
        try:
            with _on_stop_signals(self._let_everybody_go):
                async with self.inside():
                    yield
        finally:
            hanging_up = self._let_everybody_go()
            for task in (sweeping, minding, dispatching, attending):
                await _ended(task)
            await self.runtime.finish()
            if hanging_up is not None:
                await hanging_up
            await _ended(relaying)
            if close := getattr(self._results, "close", None):
                await close()

    def _let_everybody_go(self) -> "asyncio.Task[None] | None":
        self.runtime.waiters.close()
        if self.rooms is None:
            return None
        self.rooms.disconnects.stop()
        if not self.rooms.requires_identity:
            return None  # the host's sockets are the host's
        self._hanging_up = asyncio.create_task(self.rooms.close_sockets())
        return self._hanging_up

    async def _identify(self, request: Request) -> Identity | None:
        if isinstance(self._identity, BearerTokens):
            return await self._identity.of(request)
        identity: Identity | None = await solve(request, self._bind)
        return identity

    @property
    def results(self) -> ResultBackend:
        """What keeps the answers of providers, unless a host overrides `get_result_backend`."""
        if self._results is None:
            self._results = select_result_backend(self.settings, self.runtime)
        return self._results

    def _has_unknown_subscribers(self) -> bool:
        """Tell whether a host may have let sockets into the rooms of providers by itself."""
        return self._socketio is not None and (self.rooms is None or not self.rooms.owns_provider_rooms)

    def _check_sweeper(self) -> str:
        return "the last good cycle is too long ago" if self.sweeper.is_late else "ok"

    def open_rooms(self, sio: Any) -> Rooms:
        """See `register_socketio_handlers`."""
        if self._app is None:
            raise RuntimeError("zndraw_joblib is not mounted yet: call JobLib(...).mount(app) first")
        if self._socketio is None:
            self._socketio = SocketIoPublisher(sio)
            self.runtime.publish = self._socketio
        self._socketio.rooms = sio
        self.rooms = self._app.state.joblib_rooms = Rooms(sio, self.runtime, self._identify, self._app)
        return self.rooms


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def register_socketio_handlers(sio: Any, joblib: JobLib) -> None:
    """Let the sockets of a `socketio.AsyncServer` join rooms: workers of their jobs, front-ends of rooms.

    Call it after `joblib.mount(app)`. Who a socket is, is asked of `joblib`'s identity, with the headers of
    its connection; with ``auth={"token": …}`` as if they had been sent as a bearer token. Handlers that
    `sio` has already stay: those of `connect` and `disconnect` run after ours. A worker whose socket is gone
    is removed after `disconnect_grace_seconds`. Events are sent by `sio`, unless `joblib` has a `tsio`.
    """
    joblib.open_rooms(sio)


def _binding(identity: Callable[..., Any]) -> Callable[..., Any]:
    # Read while the host's session is open: its user may be an object of the ORM.
    async def bind(user: Annotated[Any, Depends(identity)]) -> Identity | None:
        return None if user is None else Identity(str(user.id), bool(user.is_superuser))

    return bind


@contextmanager
def _on_stop_signals(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` on SIGINT and SIGTERM, before whoever handled them so far.

    A server waits for open requests before it ends the lifespan: waiters must hear of the end earlier.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)
        elif earlier == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, earlier)
