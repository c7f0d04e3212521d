"""A server on a real port for the SDK's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from sdk.live import LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.jobs.capture import running, stop_following_threads
from zndraw_joblib.jobs.task_channel import TaskChannel
from zndraw_joblib.worker import session
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.tasks import ClaimedTask


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Return one server for all tests that do not change it; each test works in a room of its own."""
    live = LiveServer(tmp_path_factory.mktemp("server"))
    yield live
    live.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Return a function that starts a server with settings, for this test alone."""
    with ExitStack() as stack:

        def start(**settings: Any) -> LiveServer:
            live = LiveServer(tmp_path, **settings)
            stack.callback(live.stop)
            return live

        yield start


@pytest.fixture
def api(server: LiveServer) -> Iterator[Connection]:
    """Return a connection to the common server."""
    with server.connect() as connection:
        yield connection


@pytest.fixture
def live_api(server: LiveServer) -> Iterator[Connection]:
    """Return a connection to the common server, with Socket.IO."""
    with server.connect(realtime=True) as connection:
        yield connection


@pytest.fixture
def room() -> str:
    """Return a room that no other test uses."""
    return f"room-{uuid4().hex[:8]}"


@pytest.fixture
def worker(api: Connection) -> Iterator[Callable[..., JobManager]]:
    """Return a function that creates a manager; all are disconnected at the end."""
    with ExitStack() as stack:

        def make(execute: Any = None, *, at: Any = None, **options: Any) -> JobManager:
            manager = JobManager(at or api, execute=execute, **options)
            stack.callback(manager.disconnect, timeout=1)
            return manager

        yield make


@pytest.fixture
def patient_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let frequent heartbeats wait for a slow server: otherwise a warning says after 2 s that one failed."""
    monkeypatch.setattr(session, "_SHORTEST_TIMEOUT_SECONDS", 60.0)


@pytest.fixture
def followed() -> Iterator[None]:
    """Follow threads already, as after a task, so that a test wraps the methods that follow them."""
    stop_following_threads()
    with running(ClaimedTask("a", "job", "room", None, 1, {}, UUID(int=0), channel=TaskChannel("a", 1))):
        pass
    yield
    stop_following_threads()
