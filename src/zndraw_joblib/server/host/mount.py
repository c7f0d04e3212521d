"""The queue inside a host's app: `JobLib` connects everything, starts the loops and stops them."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Request
from starlette.middleware import Middleware

from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.server.admin.overviews import Overviews
from zndraw_joblib.server.background.end_hooks import EndHooks, Hook
from zndraw_joblib.server.background.loops import CLOCK, Health, Metrics, Rollups, Scheduler, ServerReports
from zndraw_joblib.server.background.schedules import Schedules
from zndraw_joblib.server.background.successors import Successors
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.background.webhooks import Webhooks
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Clock, Database
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.host import checks
from zndraw_joblib.server.host.api import HostApi
from zndraw_joblib.server.http import add_routes
from zndraw_joblib.server.http.access import CALLER, Guard, RoomGuards, WorkerRooms, verify_readable_room
from zndraw_joblib.server.http.identity import BearerTokens, TokenWatch
from zndraw_joblib.server.http.metrics import add_probes
from zndraw_joblib.server.http.middleware import QueueMiddleware
from zndraw_joblib.server.http.openapi import namespace_of
from zndraw_joblib.server.http.pages import Dashboard, add_problem_pages, checked_path
from zndraw_joblib.server.http.requests import solve
from zndraw_joblib.server.internal.dispatcher import Dispatcher
from zndraw_joblib.server.internal.providers import InternalRequests
from zndraw_joblib.server.internal.registry import (
    InternalExecutor,
    InternalRegistry,
    TaskToken,
    WorkerToken,
    WorkerTokens,
    load_listed,
)
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.ports import (
    PAUSES_KEY,
    SCHEDULES_KEY,
    SUCCESSORS_KEY,
    WEBHOOKS_KEY,
    Identity,
    ResultBackend,
    SessionMaker,
    Wake,
)
from zndraw_joblib.server.process.pubsub import connection_factory
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.queue import rules_transitions
from zndraw_joblib.server.realtime.group_streams import GroupStreams
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher, decode
from zndraw_joblib.server.realtime.rooms import Rooms, SocketAccess
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.server.results.provider_requests import ProviderRequests, Uploads
from zndraw_joblib.server.results.results import Store, TaskResults, select_result_backend
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.names import rooms_with_frames
from zndraw_joblib.wire.scopes import Scope

logger = logging.getLogger(__name__)
# Before a loop that has failed begins again.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0


def start(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Return the task that runs a loop, and runs it again after an error that should not have ended it."""
    return asyncio.create_task(_kept(name, run), name=f"zndraw-joblib {name}")


async def _kept(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    backoff = ExponentialBackoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    while True:
        try:
            await run()
            return
        except Exception:
            pause = backoff.next()
            logger.exception("The loop %r of this server has failed; it begins again in %.1f s", name, pause)
            await asyncio.sleep(pause)


async def stop(loops: Sequence[asyncio.Task[None]]) -> None:
    """Cancel loops one after the other, and wait for the end of each."""
    for loop in loops:
        loop.cancel()
        await asyncio.wait([loop])


@contextmanager
def on_stop_signals(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` on SIGINT and SIGTERM, before the handlers that are installed already.

    A server waits for open requests before it ends the lifespan, so waiting requests must end earlier.
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


# Call the host after providers were removed with their workers.

OnProvidersRemoved = Callable[[list[str]], Awaitable[object]]

_SECONDS = 60.0
_NO_LIFESPAN = (
    "the background loops of the queue do not run: the lifespan of the app that it is mounted into has not "
    "started, or has ended. Starlette runs only the lifespan of the outermost app"
)


class HasHook(Protocol):
    """What has the host's function."""

    on_providers_removed: Any


class FrameRoomCleanup(Protocol):
    """A host's function that removes the frames of rooms, as in version 0.1.x."""

    async def __call__(self, room_ids: set[str]) -> object:
        """Remove the frames of these rooms."""


async def _do_nothing(room_ids: set[str]) -> None:
    """Clean up nothing."""


async def get_frame_room_cleanup() -> FrameRoomCleanup:
    """Return the function that gets the rooms whose providers of the category ``frames`` were removed.

    A host of version 0.1.x overrides it in ``app.dependency_overrides``. The function is called after the
    commit. New code sets `JobLib.on_providers_removed`.
    """
    return _do_nothing


FrameRoomCleanupDep = Annotated[FrameRoomCleanup, Depends(get_frame_room_cleanup)]


async def notify_removed(host: HasHook, app: FastAPI, full_names: list[str]) -> None:
    """Call the host's functions with the full names of removed providers; log what they raise."""
    try:
        async with asyncio.timeout(_SECONDS):
            if host.on_providers_removed is not None:
                await host.on_providers_removed(full_names)
            await _clean_up_frames(app, rooms_with_frames(full_names))
    except Exception:
        logger.exception("on_providers_removed failed: providers=%s", full_names)


async def _clean_up_frames(app: FastAPI, room_ids: set[str]) -> None:
    """Call the function of the host, if it overrides `get_frame_room_cleanup`."""
    if room_ids and get_frame_room_cleanup in app.dependency_overrides:
        scope: dict[str, Any] = {"type": "http", "app": app, "method": "DELETE", "path": "/", "headers": []}
        request = Request({**scope, "query_string": b"", "path_params": {}})
        clean_up: FrameRoomCleanup = await solve(request, get_frame_room_cleanup)
        await clean_up(room_ids)


if TYPE_CHECKING:
    from taskiq import AsyncBroker

# Offers internal jobs while it is open; it gets the runtime and a function that wakes the dispatcher.
InternalJobs = Callable[[Runtime, Callable[[], None]], AbstractAsyncContextManager[InternalRegistry]]


class JobLib(HostApi):
    """A job queue for a FastAPI app.

        joblib = JobLib(session_maker=async_sessionmaker(engine), identity=current_user)
        joblib.mount(app)

    With `prefix`, as ``/queue-a``, its paths begin with it: an app may have several queues, each with its own
    database, Socket.IO server and guards. `session_maker` is any callable that opens an `AsyncSession`, on
    SQLite or PostgreSQL. `identity` is a dependency of the host; its value has an `id` and `is_superuser`.
    `readable_room` and `writable_room` are dependencies that take `room_id`, check access to the room and
    return it. With `tsio`, a
    `socketio.AsyncServer` or a wrapper that takes models, the queue sends events. `on_end` are functions to
    call after the ends of tasks, by their names; see `submit`. `jobs` are functions with `@job`, classes of
    jobs, or modules with such: the app runs their tasks itself, at most `concurrency` at once, as internal
    jobs: functions in threads, coroutines on its event loop. An internal executor that takes a token gets
    that of `task_token`, a function of a `TokenRequest`, or of `worker_token`, a function without arguments;
    without them one with the rights of its task. The app's lifespan upgrades the schema
    (SQLite, or with `upgrade_tables`) or checks it (PostgreSQL), and runs the background loops. Set
    `on_providers_removed` to an async function to call it with the full names of providers that were removed
    with their workers; its errors are logged, and after a crash of the server it may not be called.
    """

    rooms: Rooms | None = None
    on_providers_removed: OnProvidersRemoved | None = None
    # Of this queue; without it, the first queue of an app has `app.state.internal_registry`.
    internal_registry: InternalRegistry | None = None
    # Of internal providers, in the same way: without it, ``app.state.internal_provider_registry``.
    internal_provider_registry: Any = None
    _results: Store | None = None
    _closing_sockets: asyncio.Task[None] | None = None
    _app: FastAPI | None = None
    _is_running: bool = False

    def __init__(  # noqa: PLR0913 - one argument per part that a host may replace
        self,
        *,
        session_maker: SessionMaker | Database,
        identity: Callable[..., Any],
        readable_room: Guard | None = None,
        writable_room: Guard | None = None,
        provider_result_backend: ResultBackend | None = None,
        result_backend: ResultBackend | None = None,
        settings: JobLibSettings | None = None,
        tsio: Any = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        internal_jobs: InternalJobs | None = None,
        on_end: Mapping[str, Hook] | None = None,
        worker_token: WorkerToken | None = None,
        task_token: TaskToken | None = None,
        prefix: str = "",
        upgrade_tables: bool = False,
        jobs: Sequence[Any] = (),
        concurrency: int = 4,
    ) -> None:
        self.settings, self.clock = settings or JobLibSettings(), clock
        self.prefix, self._upgrades_tables = checks.checked_prefix(prefix), upgrade_tables
        self.identity, self.own_jobs = identity, load_listed(jobs)
        self.guards = RoomGuards(readable_room, writable_room)
        self._tsio, self.publisher = tsio, SocketIoPublisher(tsio)
        self.runtime = runtime = Runtime(
            session_maker,
            self.settings,
            publish=self._publish,
            reach=self.publisher.reach,
            on_due=self._schedule,
            clock=clock,
        )
        self.publisher.pubsub = runtime.pubsub
        runtime.pubsub.subscribe(self._receive)
        self._scheduler, self.worker_rooms = Scheduler(runtime.write), WorkerRooms(self.guards, runtime)
        self._connect_internal(worker_token, task_token)
        self._connect_parts(on_end or {}, monotonic)
        # `result_backend` is its old name.
        self._given_results = result_backend if provider_result_backend is None else provider_result_backend
        self.internal_jobs = checks.checked_jobs(self.own_jobs, concurrency) or internal_jobs

    def _connect_parts(self, on_end: Mapping[str, Hook], monotonic: Callable[[], float]) -> None:
        runtime = self.runtime
        self.uploads, self.task_results = Uploads(runtime), TaskResults(runtime)
        self.streams, self.metrics = Streams(runtime), Metrics(runtime)
        self.group_streams = GroupStreams(runtime, self.streams)
        self.overviews, self.sweeper = Overviews(runtime, self.streams), self._new_sweeper(monotonic)
        self.health = Health(runtime, self._health_checks())
        self.rollups, self.end_hooks = Rollups(runtime), EndHooks(runtime, on_end)
        self.schedules = Schedules(runtime, self.dispatcher.configure)
        self.webhooks, self.successors = Webhooks(runtime), Successors(runtime)

    def _connect_internal(self, worker_token: WorkerToken | None, task_token: TaskToken | None) -> None:
        given = checks.checked_worker_token(worker_token), checks.checked_task_token(task_token)
        tokens = self.runtime.task_tokens
        tokens.has_stored_users = isinstance(self.identity, BearerTokens)
        self.worker_tokens = WorkerTokens(*given, tokens.issue_for_executor, tokens.issue_for_request)
        self.dispatcher = Dispatcher(self.runtime, self._internal_registry, self.worker_tokens)
        internal = InternalRequests(self._internal_providers, self.worker_tokens)
        self.provider_requests = ProviderRequests(self.runtime, self._has_unknown_subscribers, internal)

    def _new_sweeper(self, monotonic: Callable[[], float]) -> Sweeper:
        self._server_reports = ServerReports(self.runtime, self._executors)
        return Sweeper(
            self.runtime.write,
            self.settings,
            self.dispatcher.wake,
            write_short=self.runtime.write_short,
            monotonic=monotonic,
            prune_content=self.task_results.prune,
            report=self._server_reports.report,
        )

    async def _publish(self, emissions: Sequence[Emission]) -> None:
        await self.publisher(emissions)

    def _receive(self, text: str) -> None:
        if (emission := decode(text)) is not None:
            self.runtime.events.put(self.publisher.send_here, [emission])

    def _schedule(self, seconds: float) -> None:
        self._scheduler.add(seconds)

    def wake_loops(self) -> None:
        """Let the loops look for what is due, because the clock has been advanced."""
        self._scheduler.add(0)
        keys = SCHEDULES_KEY, WEBHOOKS_KEY, SUCCESSORS_KEY, PAUSES_KEY
        self.runtime.waiters.notify([Wake(key) for key in keys])
        self.dispatcher.wake()

    def mount(
        self,
        app: FastAPI,
        *,
        dashboard: str | None = None,
        read_only: bool = False,
        headers_module: str | None = None,
        health: str | None = None,
    ) -> None:
        """Add the routes under ``{prefix}/v1/joblib`` and the problem pages; join the app's lifespan.

        With `dashboard`, a path as ``/queue``, add the operators' page there. With `read_only` it offers no
        action. `headers_module` is the URL of a JavaScript module of the host whose default export returns
        the headers that identify the user, for a host without cookies. With `health`, a path as ``/health``,
        add the probes ``/health/live`` and ``/health/ready`` for everybody. Raises TypeError for a part of
        the host that the queue cannot use, and RuntimeError for an app that has started or has such a queue.
        `app.state.joblib` is the first queue of the app.
        """
        self._check(app)
        probes = None if health is None else checked_path("health", health)
        is_first = checks.add_queue(app, self, self.publisher.rooms)
        self._app = app
        self.runtime.on_providers_removed = partial(notify_removed, self, app)
        self.guards.remember(app)
        is_host = not isinstance(self.identity, BearerTokens)
        namespace = namespace_of(self.prefix, is_host=is_host)
        add_routes(app, self, namespace)
        if is_first:
            # At the end, so that it is inside all middleware of the host. It serves all queues of the app.
            app.user_middleware.append(Middleware(QueueMiddleware, host=app))
        add_problem_pages(app, namespace, self.prefix)
        if probes is not None:
            add_probes(app, probes, self.health)
        if dashboard is not None:
            page = Dashboard(
                dashboard,
                is_host=is_host,
                read_only=read_only,
                headers=headers_module,
                prefix=self.prefix,
                find_sign_in=_sign_in_of(self.identity),
            )
            page.add_to(app)
            self.page = page.url
        self._join_lifespan(app)

    def _join_lifespan(self, app: FastAPI) -> None:
        host_lifespan = app.router.lifespan_context

        @asynccontextmanager
        async def both(asgi: FastAPI) -> AsyncIterator[Any]:
            async with host_lifespan(asgi) as state:
                self.guards.remember(app)
                async with self.lifespan():
                    yield state

        app.router.lifespan_context = both

    def _check(self, app: FastAPI) -> None:
        checks.check_app(app)
        checks.check_identity(self.identity)
        checks.check_guards(**self.guards.arguments)
        checks.check_tsio(self._tsio)
        if self._app is not None:
            raise RuntimeError("This JobLib is mounted already. Create another one for another queue")

    async def prepare_tables(self) -> None:
        """Create or upgrade the tables, or check them: on PostgreSQL without `upgrade_tables`."""
        await (schema.upgrade if self._upgrades_tables else schema.prepare)(self.runtime.database)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Prepare the schema, run the background loops, and end waiting requests when the server stops.

        Raises `OutdatedSchema` for a PostgreSQL database that was not upgraded.
        """
        await self.prepare_tables()
        self.runtime.waiters.open()
        self._closing_sockets, self.loop = None, asyncio.get_running_loop()
        if self.rooms is not None:
            self.rooms.install_handlers()
        open_connection = await connection_factory(self.settings, self.runtime.database.pubsub_connection)
        hints = None if open_connection is None else partial(self.runtime.pubsub.run, open_connection)
        pubsub = [] if hints is None else [start("pub/sub", hints)]
        running = [
            start("scheduler", self._scheduler.run),
            start("sweeper", self.sweeper.run),
            start("dispatcher", self.dispatcher.run),
            start("statistics", self.rollups.run),
            start("on_end", self.end_hooks.run),
            start("webhooks", self.webhooks.run),
            start("successors", self.successors.run),
        ]
        running += [start(name, run) for name, run in self._loops_of_callers().items()]
        try:
            with on_stop_signals(self.begin_stop):
                async with self._offered_internal_jobs(), self._as_running():
                    running.append(start("schedules", self.schedules.run))
                    yield
        finally:
            self.begin_stop()
            await stop(running)
            await self._finish()
            if self._closing_sockets is not None:
                await self._closing_sockets
            await stop(pubsub)
            await self._close_results()

    @asynccontextmanager
    async def _as_running(self) -> AsyncIterator[None]:
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def _loops_of_callers(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the loops for bearer tokens and for sockets."""
        loops = {} if self.rooms is None else self.rooms.loops
        if not isinstance(self.identity, BearerTokens):
            return loops
        watch = TokenWatch(self.identity, self.streams, self.rooms, self.runtime.waiters)
        return {**loops, "tokens": self.identity.run, "token watch": watch.run}

    async def _close_results(self) -> None:
        if self._results is not None:
            await self._results.close()
        await self.task_results.close()

    async def _finish(self) -> None:
        await self._server_reports.leave()
        await self.streams.stop()
        await self.runtime.finish()

    @asynccontextmanager
    async def _offered_internal_jobs(self) -> AsyncIterator[None]:
        if self.internal_jobs is None or self._app is None:
            yield
            return
        async with self.internal_jobs(self.runtime, self.dispatcher.wake) as registry:
            holder: Any = self._app.state if self._app.state.joblib is self else self
            holder.internal_registry = registry
            await self._put_schedules(registry.extensions)
            self.dispatcher.wake()
            try:
                yield
            finally:
                holder.internal_registry = None

    def begin_stop(self) -> None:
        """End waiting requests and, on the standalone server, close all sockets and accept no more."""
        self.runtime.waiters.close()
        self.streams.close()
        self.group_streams.close()
        self.overviews.close()
        if self.rooms is None:
            return
        self.rooms.disconnects.stop()
        # A host closes its own sockets.
        if self.rooms.requires_identity and self._closing_sockets is None:
            self._closing_sockets = asyncio.create_task(self.rooms.close_sockets())

    @property
    def results(self) -> ResultBackend:
        """The result backend, unless a host overrides `get_result_backend`."""
        if self._given_results is not None:
            return self._given_results
        if self._results is None:
            self._results = select_result_backend(self.settings, self.runtime)
        return self._results

    def _internal_registry(self) -> InternalRegistry | None:
        return _find_jobs(self, self._app)

    def _executors(self) -> list[str] | None:
        """Return the internal jobs that this server runs; None until the app has offered its own."""
        registry = self._internal_registry()
        if not self._is_running:
            return None
        return [] if registry is None else sorted(registry.tasks)

    def _internal_providers(self) -> Any:
        return _find_registry(self, self._app, "internal_provider_registry")

    def _has_unknown_subscribers(self) -> bool:
        """Return whether a host may have let sockets into the rooms of providers by itself."""
        return self.publisher.is_open and (self.rooms is None or not self.rooms.owns_provider_rooms)

    def _check_internal(self) -> str:
        return _check_registry(self._internal_registry())

    def _health_checks(self) -> dict[str, Callable[[], str]]:
        checks = {
            "loops": self._check_loops,
            "sweeper": self._check_sweeper,
            "internal": self._check_internal,
        }
        return {**checks, CLOCK: self.clock.describe} if isinstance(self.clock, TestClock) else checks

    def _check_loops(self) -> str:
        return "ok" if self._is_running else _NO_LIFESPAN

    def _check_sweeper(self) -> str:
        return "the last good cycle is too long ago" if self.sweeper.is_late else "ok"

    async def _check_readable(self, request: Request, caller: Identity, room_id: str) -> None:
        if not caller.may(Scope.READ):
            raise rules_transitions.missing_scope(caller, Scope.READ)
        request.scope[CALLER] = caller
        await self.guards.check(request, verify_readable_room, room_id)

    def open_rooms(
        self, sio: Any, *, requires_identity: bool = False, limits: ServerSettings | None = None
    ) -> None:
        """Let the sockets of a `socketio.AsyncServer` join rooms; see `register_socketio_handlers`.

        With `requires_identity`, a socket without an identity cannot connect, and the queue closes all
        sockets when the server stops. `limits` bounds connections without an identity.
        """
        if self._app is None:
            raise RuntimeError("JobLib is not mounted: call JobLib(...).mount(app) first")
        checks.check_sockets(self._app, self, sio)
        self.publisher.open(sio)
        access = SocketAccess(
            self._app, self.identify_socket, self._check_readable, requires_identity, limits
        )
        access = access._replace(prefix=self.prefix, check_served=self.worker_rooms.check)
        if isinstance(self.identity, BearerTokens):
            access = access._replace(
                digest_of=self.identity.digest_of, find_revoked=self.identity.find_revoked
            )
        self.rooms = Rooms(sio, self.runtime, access)


def register_socketio_handlers(sio: Any, joblib: JobLib) -> None:
    """Let the sockets of a `socketio.AsyncServer` join rooms: workers those of their jobs, front-ends others.

    Call it after `joblib.mount(app)`. The identity of a socket is that of `joblib`, from the headers of its
    connection; ``auth={"token": …}`` counts as a bearer token. Handlers that `sio` has already stay: those
    of `connect` and `disconnect` run after the queue's. A worker whose socket is lost is removed after
    `disconnect_grace_seconds`. Events go through `sio`, unless `joblib` has a `tsio`.
    """
    joblib.open_rooms(sio)


async def register_internal_jobs(
    app: FastAPI,
    broker: "AsyncBroker",
    extensions: Sequence[type[Any]],
    executor: InternalExecutor,
    session_factory: SessionMaker | Database,
    *,
    joblib: JobLib | None = None,
) -> InternalRegistry:
    """Offer extensions as internal jobs: create or update their jobs, register their tasks with the broker.

    From then on the app accepts their tasks, whether the queue is mounted before or after. Any number of
    replicas may do so at once; the newest code's schema and policy (a `JobPolicy` in the class's `policy`)
    hold. `joblib` is one of several queues of the app. Raises TypeError or ValueError for what cannot be a
    job.
    """
    from zndraw_joblib.server.internal.registry import offer_internal_jobs  # noqa: PLC0415 - loads taskiq

    queue, joblib = joblib, joblib or getattr(app.state, "joblib", None)
    if isinstance(joblib, JobLib) and joblib.own_jobs:
        raise RuntimeError("JobLib(jobs=…) runs jobs already: add these to the list, or leave it out")
    database = session_factory if isinstance(session_factory, Database) else SessionDatabase(session_factory)
    await (joblib.prepare_tables() if isinstance(joblib, JobLib) else schema.prepare(database))
    write = joblib.runtime.write if isinstance(joblib, JobLib) else database.write
    registry = await offer_internal_jobs(write, broker, extensions, executor)
    if queue is None:
        app.state.internal_registry = registry
    else:
        queue.internal_registry = registry
    if isinstance(joblib, JobLib):
        await joblib._put_schedules(registry.extensions)
        joblib.dispatcher.wake()
    return registry


def _find_registry(joblib: Any, app: FastAPI | None, name: str) -> Any:
    """Return a registry of a queue; the first queue of an app has those of ``app.state``."""
    registry = getattr(joblib, name)
    if registry is None and app is not None and app.state.joblib is joblib:
        registry = getattr(app.state, name, None)
    return registry


def _find_jobs(joblib: Any, app: FastAPI | None) -> InternalRegistry | None:
    """Return the internal jobs that this server runs."""
    registry = _find_registry(joblib, app, "internal_registry")
    if registry is None or isinstance(registry, InternalRegistry):
        return registry
    # A host may set any object with `tasks`, and perhaps `executor` and `free`.
    executor, free = getattr(registry, "executor", None), getattr(registry, "free", None)
    return InternalRegistry(registry.tasks, executor=executor, free=free)


def _check_registry(registry: InternalRegistry | None) -> str:
    """Return `ok`, or the reason why the executor in this process runs no internal task."""
    check = getattr(registry.executor if registry else None, "check", None)
    return str(check()) if callable(check) else "ok"


def _sign_in_of(identity: object) -> Callable[[], Awaitable[Any]] | None:
    """Return how the page logs users in at the provider of a standalone server, if it is set up."""
    provider = identity.provider if isinstance(identity, BearerTokens) else None
    return None if provider is None else provider.find_sign_in
