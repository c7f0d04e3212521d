"""A server on a real port, on either database, and both kinds of clients."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from databases import PostgresDatabases, only_sqlite  # noqa: F401 - a fixture, found by its name
from sdk.live import TOKEN, LiveServer

from client.both import Both
from zndraw_joblib.client.async_queue import AsyncQueue
from zndraw_joblib.client.queue import Queue
from zndraw_joblib.worker.manager import JobManager


def run_job(task: Any) -> Any:
    """Run the job of a task."""
    return task.extension.run(None, task=task)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LiveServer]]:
    """Return the servers that have been started, by the kind of their database."""
    started: dict[str, LiveServer] = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture
def server(
    kind: str, servers: dict[str, LiveServer], tmp_path_factory: pytest.TempPathFactory, request: Any
) -> LiveServer:
    """Return the common server of a kind of database; each test works in a room of its own."""
    if kind not in servers:
        folder = tmp_path_factory.mktemp("server")
        settings: dict[str, Any] = {}
        if kind == "postgresql":
            postgres: PostgresDatabases = request.getfixturevalue("postgres")
            settings["database_url"] = postgres.url.format(postgres.create())
        servers[kind] = LiveServer(folder, **settings)
    return servers[kind]


@pytest.fixture
def room() -> str:
    """Return a room that no other test uses."""
    return f"room-{uuid4().hex[:8]}"


@pytest.fixture
def worker(server: LiveServer) -> Iterator[Callable[..., JobManager]]:
    """Return a function that creates a worker, which runs the jobs of the classes that are registered."""
    with ExitStack() as stack:

        def make(
            execute: Any = lambda task: task.extension.run(None, task=task), **options: Any
        ) -> JobManager:
            api = stack.enter_context(server.connect())
            manager = JobManager(api, execute=execute, **options)
            stack.callback(manager.disconnect, timeout=1)
            return manager

        yield make


@pytest.fixture(params=["sync", "async"])
async def open_queue(
    request: pytest.FixtureRequest, server: LiveServer
) -> AsyncIterator[Callable[..., Both]]:
    """Return a function that opens a `Queue` or an `AsyncQueue`; their methods are called alike."""
    opened: list[Queue | AsyncQueue] = []

    def open_it(url: str = "", token: str | None = TOKEN, **options: Any) -> Both:
        cls = Queue if request.param == "sync" else AsyncQueue
        opened.append(cls(url or server.url, token, **options))
        return Both(opened[-1])

    yield open_it
    for queue in opened:
        if isinstance(queue, Queue):
            queue.close()
        else:
            await queue.aclose()


@pytest.fixture
def queue(open_queue: Callable[..., Both], room: str) -> Both:
    """Return a client of either kind, whose room is that of the test."""
    return open_queue(room=room)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the credentials file, and an environment without a URL and a token."""
    for name in ("URL", "TOKEN"):
        monkeypatch.delenv(f"ZNDRAW_JOBLIB_{name}", raising=False)
    monkeypatch.setenv("ZNDRAW_JOBLIB_CREDENTIALS", str(tmp_path / "credentials.json"))
    return tmp_path / "credentials.json"
