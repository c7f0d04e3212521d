"""A connection with `realtime`: its own Socket.IO client in the background, and work without it."""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.http.pages import install_exception_handlers
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_workers
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.events import sockets_of, workers_of
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.subscriptions import Subscriptions
from zndraw_joblib.worker.tasks import HeldTasks

Make = Callable[..., JobManager]
Own = Callable[..., LiveServer]
HOST = Identity("host", is_superuser=True)
REALTIME = "zndraw_joblib.client.realtime"
ON_POLL = {"long_poll": 0, "polling_interval": 60}


class HostWithoutSocketIo(LiveServer):
    """A host without Socket.IO. An older release does not say so. `paths` are those of its requests."""

    def __init__(self, folder: Path, *, is_older: bool) -> None:
        self.is_older = is_older
        self.paths: list[str] = []
        super().__init__(folder)

    def build(self) -> Any:
        """Return the app to serve."""
        app = FastAPI()
        install_exception_handlers(app)

        @app.middleware("http")
        async def record(request: Request, call_next: Any) -> Response:
            self.paths.append(request.url.path)
            if self.is_older and self.paths[-1].endswith("/version"):
                return JSONResponse({"version": "1"})
            response: Response = await call_next(request)
            return response

        database = open_database(self.settings.database_url)
        queue = JobLib(session_maker=database, identity=lambda: HOST, settings=self.settings, prefix="/queue")
        queue.mount(app, dashboard="/jobs")
        return app


def wait_until_joined(live: LiveServer, manager: JobManager, room: str) -> None:
    """Wait until a worker is in the rooms of its job and of its own."""
    names = [workers_of(f"{room}:modifiers:Add"), sockets_of(manager.worker_id)]
    wait_until(lambda: all(live.sockets_in(name) for name in names))


def assert_fast(manager: JobManager, room: str) -> None:
    """Check that a task ends long before the worker's next poll."""
    began = time.monotonic()
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 1
    assert time.monotonic() - began < 30


def lines(caplog: pytest.LogCaptureFixture, least: int) -> list[str]:
    """Return the log messages of the connection."""
    return [r.getMessage() for r in caplog.records if r.name == REALTIME and r.levelno >= least]


@pytest.mark.parametrize("transports", [["websocket"], ["polling"], ["polling", "websocket"]], ids=str)
def test_an_event_wakes_the_worker(own_server: Own, worker: Make, room: str, transports: list[str]) -> None:
    """With each transport a task starts at once, although claims do not wait on the server."""
    live = own_server(socketio_transports=transports)
    with live.connect(realtime=True) as api:
        manager = worker(lambda task: 1, at=api, **ON_POLL)
        manager.register(Add, room=room)
        wait_until_joined(live, manager, room)
        for _ in range(3):
            assert_fast(manager, room)
        manager.disconnect(5)


def test_rooms_are_joined_again_after_a_restart_of_the_server(
    own_server: Own, worker: Make, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On the same port. The log has one line for the lost connection and one for the new one."""
    caplog.set_level(logging.INFO)
    live = own_server()
    with live.connect(realtime=True) as api:
        manager = worker(lambda task: 1, at=api, **ON_POLL)
        manager.register(Add, room=room)
        wait_until_joined(live, manager, room)
        live.stop()
        assert manager.worker_id is not None
        live.start()
        wait_until_joined(live, manager, room)
        assert_fast(manager, room)
        manager.disconnect(5)
    lost, back = lines(caplog, logging.INFO)
    assert "continues without it" in lost
    assert "is connected" in back


def test_the_server_may_start_later(own_server: Own, worker: Make, room: str) -> None:
    """Neither `connect` nor `JobManager` nor the registration fails or waits for the socket."""
    live = own_server()
    live.stop()
    with live.connect(realtime=True) as api:
        manager = worker(lambda task: 1, at=api, **ON_POLL)
        live.start()
        manager.register(Add, room=room)
        wait_until_joined(live, manager, room)
        assert_fast(manager, room)
        manager.disconnect(5)


@contextmanager
def worker_without_socketio(folder: Path, worker: Make, *, is_older: bool) -> Iterator[HostWithoutSocketIo]:
    """Yield a host without Socket.IO after a worker of it has run a task; the worker goes on."""
    live = HostWithoutSocketIo(folder, is_older=is_older)
    try:
        with connect(f"{live.url}/queue", TOKEN, realtime=True) as api:
            manager = worker(lambda task: 1, at=api)
            manager.register(Add, room="lab")
            assert manager.wait_for(manager.submit(Add(), room="lab"), 30).result == 1
            yield live
            manager.disconnect(5)
    finally:
        live.stop()


def test_a_worker_asks_once_whether_a_server_has_socketio(
    tmp_path: Path, worker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it has none, the worker opens no socket. The same answer has the URL of the operators' page."""
    caplog.set_level(logging.DEBUG)
    with worker_without_socketio(tmp_path, worker, is_older=False) as live:
        wait_until(lambda: lines(caplog, logging.INFO))
        with connect(f"{live.url}/queue", TOKEN) as api:
            release = RestApi(api).send(ops.GET_VERSION)
        assert (release.socketio, release.page) == (False, "./../jobs/")
    [message] = lines(caplog, logging.DEBUG)
    assert "has no Socket.IO" in message
    assert not [path for path in live.paths if "socket.io" in path]


def test_an_older_server_without_socketio(
    tmp_path: Path, worker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The client retries with growing pauses, logs that once, and never logs the token."""
    caplog.set_level(logging.DEBUG)
    with worker_without_socketio(tmp_path, worker, is_older=True) as live:
        wait_until(lambda: len([line for line in lines(caplog, logging.DEBUG) if "without" in line]) >= 3)
    assert [path for path in live.paths if path.endswith("/version")] == ["/queue/v1/joblib/version"]
    [message] = lines(caplog, logging.INFO)
    assert "404" in message
    assert TOKEN not in caplog.text


def test_a_refused_token_is_logged_once(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    """With the server's reason, and without the token."""
    caplog.set_level(logging.DEBUG)
    with connect(server.url, "an-unknown-token", realtime=True):
        wait_until(lambda: len([line for line in lines(caplog, logging.DEBUG) if "without" in line]) >= 2)
    [message] = lines(caplog, logging.INFO)
    assert "refused the connection" in message
    assert "an-unknown-token" not in caplog.text


def test_rooms_are_left_with_their_jobs(
    worker: Make, room: str, server: LiveServer, live_api: Connection
) -> None:
    """When a job is unregistered, and when the worker disconnects; the connection stays open."""
    jobs = workers_of(f"{room}:modifiers:Add")
    manager = worker(at=live_api)
    manager.register(Add, room=room)
    wait_until_joined(server, manager, room)
    manager.unregister(Add, room=room)
    wait_until(lambda: not server.sockets_in(jobs))
    manager.register(Add, room=room)
    wait_until(lambda: server.sockets_in(jobs))
    manager.disconnect()
    wait_until(lambda: not server.sockets_in(jobs))
    assert live_api.tsio is not None
    assert live_api.tsio.connected


def test_a_worker_that_is_registered_again_joins_again(
    worker: Make, room: str, server: LiveServer, live_api: Connection
) -> None:
    """With its new id, so that it gets the events of its tasks."""
    manager = worker(lambda task: 1, at=live_api, heartbeat_interval=0.1, **ON_POLL)
    manager.register(Add, room=room)
    wait_until_joined(server, manager, room)
    old = manager.worker_id
    RestApi(live_api).remove_worker(old, 60)
    wait_until(lambda: manager.worker_id not in {None, old})
    wait_until(lambda: server.sockets_in(sockets_of(manager.worker_id)))
    assert_fast(manager, room)


def test_a_refused_join_is_logged_once(
    room: str, worker: Make, live_api: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """With the server's reason. If the server does not know the worker, a heartbeat follows, which
    registers it again.
    """
    manager = worker(at=live_api)
    manager.register(Add, room=room)
    wait_until(lambda: live_api.tsio.connected)
    subscriptions = Subscriptions(live_api.tsio, HeldTasks())
    name = f"{room}:modifiers:Add"
    for unserved in (f"{room}:modifiers:Other", f"{room}:modifiers:Others"):
        subscriptions.join(unserved, manager.worker_id)
        subscriptions.on_connect()
    wait_until(lambda: len(warnings(caplog)) == 2)
    assert all("does not serve" in line for line in warnings(caplog))
    assert not subscriptions.heartbeat_due.is_set()
    subscriptions.join(name, uuid4())
    assert subscriptions.heartbeat_due.wait(30)
    assert len(warnings(caplog)) == 2


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about subscriptions."""
    return [
        r.getMessage()
        for r in caplog.records
        if r.name.endswith("subscriptions") and r.levelno > logging.INFO
    ]


class Forwarder:
    """Forwards TCP connections to a port, until it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Cut all connections, and accept no new ones."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_worker_whose_socket_is_cut_keeps_its_tasks(own_server: Own, worker: Make, room: str) -> None:
    """It sends a heartbeat; without one the server would remove it, and fail its task, after the grace
    period.
    """
    # The heartbeat comes within four seconds, and later on a slow machine.
    live = own_server(disconnect_grace_seconds=3600)
    running, may_end = threading.Event(), threading.Event()

    def execute(task: Any) -> int:
        running.set()
        assert may_end.wait(40)
        return 1

    forwarder = Forwarder(live.port)
    with live.connect() as api, closing(Realtime(forwarder.url, TOKEN, trust_proxies=False)) as tsio:
        manager = worker(execute, at=api, tsio=tsio, heartbeat_interval=60)
        manager.register(Add, room=room)
        wait_until_joined(live, manager, room)
        before = manager.worker_id
        task_id = manager.submit(Add(), room=room)
        assert running.wait(30)
        forwarder.cut()
        wait_until(lambda: not live.sockets_in(sockets_of(before)))
        noticed = datetime.now(UTC)
        wait_until(lambda: manager.workers().items[0].last_heartbeat > noticed)
        removing = live.runtime.write(rules_workers.remove_if_silent, before, noticed)
        assert asyncio.run_coroutine_threadsafe(removing, live.joblib.loop).result(30) is None
        may_end.set()
        assert manager.wait_for(task_id, 30).result == 1
        assert manager.worker_id == before
        manager.disconnect(5)


@contextmanager
def closing(tsio: Realtime) -> Iterator[Realtime]:
    """Close a connection at the end."""
    with ExitStack() as stack:
        stack.callback(tsio.close)
        yield tsio


PROGRAM = """
import sys, time
from typing import ClassVar
from zndraw_joblib import Extension, JobManager, connect

class Add(Extension):
    category: ClassVar[str] = "modifiers"
    def run(self, vis, **kwargs): ...

api = connect(sys.argv[1], sys.argv[2], realtime=True)
if sys.argv[3] == "works":
    manager = JobManager(api, execute=lambda task: 1)
    manager.register(Add, room=sys.argv[4])
    deadline = time.monotonic() + 60
    while not api.tsio.connected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert api.tsio.connected
    manager.disconnect()
    api.close()
    assert not api.tsio.connected
print(time.time())
"""


@pytest.mark.parametrize("case", ["works", "is left open", "has no server"])
def test_the_connection_does_not_keep_a_program_alive(server: LiveServer, room: str, case: str) -> None:
    """Neither a closed connection, nor an open one, nor one that never opened."""
    url = "http://127.0.0.1:9" if case == "has no server" else server.url
    command = [sys.executable, "-c", PROGRAM, url, TOKEN, case, room]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.time() - float(done.stdout) < 20


def test_close_does_not_wait_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hanging connection attempt ends by itself."""
    monkeypatch.setattr("zndraw_joblib.client.realtime._RESPONSE_SECONDS", 60)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = connect(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, realtime=True)
        silent.settimeout(60)
        near, _ = silent.accept()
        with near:
            began = time.monotonic()
            api.close()
            assert time.monotonic() - began < 30
