"""A worker with the Socket.IO client of a host, on a real Socket.IO server."""

import gc
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import socketio
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import LiveServer
from sdk.providers import Call
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.http.pages import install_exception_handlers
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.events import (
    Event,
    JoinJobRoom,
    JoinProviderRoom,
    LeaveJobRoom,
    LeaveProviderRoom,
    providers_of,
    room_of,
    workers_of,
)
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.subscriptions import Subscriptions
from zndraw_joblib.worker.tasks import HeldTasks

Make = Callable[..., JobManager]
HOST = Identity("host", is_superuser=True)


class HostServer(LiveServer):
    """A host's app whose Socket.IO server admits workers to the rooms of their jobs."""

    def build(self) -> Any:
        """Return the app to serve."""
        self.joined: list[str] = []
        self.left: list[str] = []
        self.tsio = tsio = socketio.AsyncServer(async_mode="asgi")
        engine = create_async_engine(self.settings.database_url)

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            yield
            await engine.dispose()

        app = FastAPI(lifespan=lifespan)
        install_exception_handlers(app)
        sessions = async_sessionmaker(engine)
        JobLib(session_maker=sessions, identity=lambda: HOST, settings=self.settings, tsio=tsio).mount(app)

        @tsio.on(JoinJobRoom.event_name)
        async def join(sid: str, data: Any) -> None:
            await tsio.enter_room(sid, workers_of(JoinJobRoom.model_validate(data).job_name))
            self.joined.append(data["worker_id"])

        @tsio.on("watch")
        async def watch(sid: str, room_id: str) -> None:
            await tsio.enter_room(sid, room_of(room_id))

        @tsio.on(LeaveJobRoom.event_name)
        async def leave(sid: str, data: Any) -> None:
            await tsio.leave_room(sid, workers_of(LeaveJobRoom.model_validate(data).job_name))
            self.left.append(data["worker_id"])

        self._admit_providers(tsio)
        return socketio.ASGIApp(tsio, app)

    def _admit_providers(self, tsio: socketio.AsyncServer) -> None:
        @tsio.on(JoinProviderRoom.event_name)
        async def join_provider(sid: str, data: Any) -> None:
            await tsio.enter_room(sid, providers_of(JoinProviderRoom.model_validate(data).provider_name))
            self.joined.append(data["worker_id"])

        @tsio.on(LeaveProviderRoom.event_name)
        async def leave_provider(sid: str, data: Any) -> None:
            await tsio.leave_room(sid, providers_of(LeaveProviderRoom.model_validate(data).provider_name))
            self.left.append(data["worker_id"])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostServer]:
    """Return a host with Socket.IO, for this test alone."""
    live = HostServer(tmp_path)
    yield live
    live.stop()


@pytest.fixture
def host_api(host: HostServer) -> Iterator[Connection]:
    """Return a connection to the host."""
    with host.connect() as connection:
        yield connection


@pytest.fixture
def tsio(host: HostServer) -> Iterator[socketio.Client]:
    """Return a Socket.IO client that is not connected yet."""
    client = socketio.Client(reconnection_delay=0.05, reconnection_delay_max=0.1)
    yield client
    client.shutdown()


def connect_client(tsio: socketio.Client, host: HostServer) -> None:
    """Connect as a host does, over a WebSocket: the client library has no HTTP client here."""
    tsio.connect(host.url, transports=["websocket"], wait_timeout=30)


class Wrapper:
    """A host's wrapper, which takes events and their classes."""

    def __init__(self, inner: socketio.Client) -> None:
        self._inner = inner

    def on(self, event: Any, handler: Callable[..., Any]) -> None:
        """Add a handler."""
        self._inner.on(getattr(event, "event_name", event), handler)

    def emit(self, event: Event) -> None:
        """Send a model under its event name."""
        self._inner.emit(event.event_name, event.model_dump(mode="json"))


@pytest.mark.parametrize("wrap", [lambda tsio: tsio, Wrapper], ids=["plain", "wrapper"])
def test_an_event_wakes_the_worker(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client, wrap: Any
) -> None:
    """If claims do not wait on the server, task_available starts a claim long before the next poll."""
    connect_client(tsio, host)
    manager = worker(lambda task: 1, at=host_api, tsio=wrap(tsio), long_poll=0, polling_interval=60)
    manager.register(Add, room=room)
    wait_until(lambda: host.joined == [str(manager.worker_id)])
    for _ in range(3):
        began = time.monotonic()
        assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 1
        assert time.monotonic() - began < 30
    manager.disconnect()
    wait_until(lambda: host.left == host.joined)


@pytest.mark.parametrize("wrap", [lambda tsio: tsio, Wrapper], ids=["plain", "wrapper"])
def test_a_provider_request_wakes_the_worker(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client, wrap: Any
) -> None:
    """The host's own handler of the event stays, and the requests run in the worker's threads."""
    received, threads = threading.Semaphore(0), set()
    tsio.on("provider_request", lambda data: received.release())
    connect_client(tsio, host)
    manager = worker(at=host_api, tsio=wrap(tsio), long_poll=0, polling_interval=60)

    def handler(word: str) -> bytes:
        threads.add(threading.current_thread().name)
        return word.encode()

    manager.register_provider(Call, name="one", handler=handler, room=room)
    wait_until(lambda: host.joined == [str(manager.worker_id)])
    for word in ("a", "b"):
        began = time.monotonic()
        assert manager.read_provider(f"{room}:calls:one", {"word": word}).content == word.encode()
        assert time.monotonic() - began < 30
        # A wrapper may hide the host's other handlers.
        assert wrap is Wrapper or received.acquire(timeout=30)
    assert {name.rpartition("-")[0] for name in threads} == {"zndraw-joblib-read"}
    manager.unregister_provider(f"{room}:calls:one")
    wait_until(lambda: host.left == host.joined)
    manager.register_provider(Call, name="one", handler=handler, room=room)
    manager.disconnect()
    wait_until(lambda: len(host.joined) == 2 and host.left == host.joined)


def test_the_hosts_handlers_stay(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client
) -> None:
    """The host's own handlers run, also with two managers, and rooms are joined again after a reconnect."""
    connected, received = threading.Semaphore(0), threading.Event()
    dropped, cancelled = threading.Event(), threading.Event()
    tsio.on("connect", connected.release)
    tsio.on("disconnect", dropped.set)  # older clients pass no reason
    tsio.on("task_status_event", lambda data: cancelled.set() if data["status"] == "cancelled" else None)
    tsio.on("*", lambda event, data: received.set() if event == "task_available" else None)
    first, second = (worker(at=host_api, tsio=tsio) for _ in range(2))
    connect_client(tsio, host)
    assert connected.acquire(timeout=30)
    for manager in (first, second):
        manager.register(Add, room=room)
    ids = {str(first.worker_id), str(second.worker_id)}
    wait_until(lambda: set(host.joined) == ids)
    host.joined.clear()
    with tsio.eio.ws.sock as lost:
        lost.shutdown(socket.SHUT_RDWR)
        assert connected.acquire(timeout=30)
    wait_until(lambda: set(host.joined) == ids)
    assert dropped.wait(30)
    first.submit(Add(), room=room)
    assert received.wait(30)
    tsio.call("watch", room, timeout=30)
    task = first.claim(30)
    first.cancel(task)
    assert cancelled.wait(30)


def test_a_namespace_class_keeps_its_events(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client
) -> None:
    """A host that handles events with a namespace class still gets them."""
    connected, dropped = threading.Event(), threading.Event()

    class Namespace(socketio.ClientNamespace):
        def on_connect(self) -> None:
            connected.set()

        def on_disconnect(self) -> None:
            dropped.set()

    tsio.register_namespace(Namespace("/"))
    worker(at=host_api, tsio=tsio).register(Add, room=room)
    connect_client(tsio, host)
    assert connected.wait(30)
    tsio.disconnect()
    assert dropped.wait(30)


def test_a_worker_works_without_a_connection(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client
) -> None:
    """A client that is not connected changes nothing; once it is, the worker joins its rooms."""
    manager = worker(lambda task: 1, at=host_api, tsio=tsio)
    manager.register(Add, room=room)
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 1
    connect_client(tsio, host)
    wait_until(lambda: host.joined == [str(manager.worker_id)])
    tsio.disconnect()
    manager.disconnect()
    assert not manager.workers().items


def test_a_worker_leaves_no_handler_behind(
    worker: Make, room: str, host: HostServer, host_api: Connection, tsio: socketio.Client
) -> None:
    """A worker that disconnects gives the client back as it was; another one still gets its events."""

    def own(data: Any) -> None:
        """Handle an event for the host."""

    tsio.on("task_available", own)
    connect_client(tsio, host)
    before = {namespace: dict(handlers) for namespace, handlers in tsio.handlers.items()}
    first = worker(at=host_api, tsio=tsio)
    second = worker(lambda task: 1, at=host_api, tsio=tsio, long_poll=0, polling_interval=60)
    first.register(Add, room=room)
    second.register(Picky, room=room)
    first.disconnect()
    wait_until(lambda: set(host.left) and set(host.joined) - set(host.left) == {str(second.worker_id)})
    assert second.wait_for(second.submit(Picky(word="good"), room=room), 30).result == 1
    second.disconnect()
    assert tsio.handlers == before
    first.register(Add, room=room)
    assert tsio.handlers != before
    first.disconnect()
    assert tsio.handlers == before


@pytest.mark.slow
@pytest.mark.parametrize("has_handler", [True, False])
def test_thousands_of_workers_share_a_client(has_handler: bool) -> None:
    """Each gets the events, the host's handler is called once, and nothing remains of closed workers."""
    client, calls = socketio.Client(), []
    if has_handler:
        client.on("task_available", calls.append)
    before = {namespace: dict(handlers) for namespace, handlers in client.handlers.items()}
    opened = [Subscriptions(client, HeldTasks()) for _ in range(2000)]
    for number, subscriptions in enumerate(opened):
        subscriptions.join(f"lab:modifiers:Job{number}", uuid4())
    client.handlers["/"]["task_available"]("event")
    assert calls == ["event"] * has_handler
    assert all(subscriptions.wake.is_set() for subscriptions in opened)
    last = weakref.ref(opened[-1])
    for subscriptions in opened:
        subscriptions.close()
    assert client.handlers == before
    opened.clear()
    del subscriptions
    gc.collect()
    assert last() is None
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


class OpenWrapper(Wrapper):
    """A host's wrapper that shows the handlers of its client, and has no hash."""

    __hash__ = None  # type: ignore[assignment]

    @property
    def handlers(self) -> Any:
        """Return the client's handlers."""
        return self._inner.handlers


@pytest.mark.parametrize("has_handler", [True, False])
def test_wrappers_of_a_client_share_its_handlers(has_handler: bool) -> None:
    """Each worker may have a wrapper of its own: the host is called once, and gets its client back."""
    client, calls = socketio.Client(), []
    if has_handler:
        client.on("task_available", calls.append)
    before = {namespace: dict(handlers) for namespace, handlers in client.handlers.items()}
    opened = [Subscriptions(OpenWrapper(client), HeldTasks()) for _ in range(2000)]
    for subscriptions in opened:
        subscriptions.join("lab:modifiers:Job", uuid4())
    client.handlers["/"]["task_available"]("event")
    assert calls == ["event"] * has_handler
    assert all(subscriptions.wake.is_set() for subscriptions in opened)
    for subscriptions in opened:
        subscriptions.close()
    assert client.handlers == before


def test_a_wrapper_without_a_hash_gets_one_handler() -> None:
    """Workers that come and go add nothing to a wrapper from which no handler can be removed."""
    added: list[Any] = []

    class Closed:
        __hash__ = None  # type: ignore[assignment]

        def on(self, event: Any, handler: Callable[..., Any]) -> None:
            added.append(event)

    wrapper = Closed()
    for _ in range(3):
        subscriptions = Subscriptions(wrapper, HeldTasks())
        subscriptions.join("lab:modifiers:Job", uuid4())
        subscriptions.close()
    assert added
    assert len(added) == len(set(added))


@pytest.mark.parametrize("wrap", [lambda tsio: tsio, OpenWrapper], ids=["plain", "wrapper"])
def test_a_handler_that_the_host_replaced_is_set_again(wrap: Any) -> None:
    """If the host sets its own handler later, the next worker gets the events, and so does the host."""
    client, calls = socketio.Client(), []
    first, second = (Subscriptions(wrap(client), HeldTasks()) for _ in range(2))
    first.join("lab:modifiers:Job", uuid4())
    client.on("task_available", calls.append)
    second.join("lab:modifiers:Job", uuid4())
    client.handlers["/"]["task_available"]("event")
    assert calls == ["event"]
    assert first.wake.is_set()
    assert second.wake.is_set()
    first.close()
    second.close()
    assert client.handlers == {"/": {"task_available": calls.append}}
