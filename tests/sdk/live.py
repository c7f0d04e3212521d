"""A server on a real port."""

import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import uvicorn
from servers import free_port
from waiting import wait_until

from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings

TOKEN = "a-token-for-the-tests"
# Socket.IO does not respond to the open poll of a client that leaves.
_GRACE_SECONDS = 2


def is_release(request: httpx.Request) -> bool:
    """Return whether a request gives tasks back."""
    return request.url.path.endswith("/tasks/report") and b'"status":"pending"' in request.content


class LiveServer:
    """The standalone app under uvicorn, in a thread; it can be stopped and started on the same port.

    With a `clock` only a test lets much time pass, however slow the machine is.
    """

    def __init__(self, folder: Path, *, clock: TestClock | None = None, **settings: Any) -> None:
        given = {"database_url": f"sqlite+aiosqlite:///{folder}/{uuid4().hex}.db", "admin_token": TOKEN}
        self.settings = ServerSettings(**(given | settings))
        self.clock = clock
        # Held, so that no other program gets it during a restart.
        self.port = free_port()
        self.start()

    def build(self) -> Any:
        """Return the app to serve."""
        return create_app(self.settings, clock=self.clock)

    def start(self) -> None:
        """Start the server, and return when it serves requests."""
        app = self.build()
        config = uvicorn.Config(
            app,
            port=self.port,
            log_config=None,
            lifespan="on",
            ws="wsproto",
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._uvicorn.started or not self._thread.is_alive())
        assert self._uvicorn.started
        joblib = getattr(app, "other_asgi_app", app).state.joblib
        self.joblib, self.runtime, self.publisher = joblib, joblib.runtime, joblib.publisher

    def stop(self) -> None:
        """Stop as a deployment does: waiting requests get their response."""
        self.runtime.waiters.close()
        self._uvicorn.should_exit = True
        self._thread.join(30)

    def advance(self, seconds: float, *, keep_workers: bool = False) -> None:
        """Advance the clock of the server, which does what is due then; return when that is done."""
        body = {"seconds": seconds, "keep_workers": keep_workers}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        httpx.post(f"{self.url}/clock/advance", json=body, headers=headers, timeout=60).raise_for_status()

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_polls(self) -> int:
        """The number of open long-polls."""
        return len(self.runtime.waiters)

    def sockets_in(self, room: str) -> int:
        """Return the number of sockets in a Socket.IO room."""
        rooms = self.publisher.rooms.manager.rooms.get("/", {})
        return len(rooms.get(room, ()))

    def connect(self, *, realtime: bool = False) -> Connection:
        """Return a superuser's connection."""
        return connect(self.url, TOKEN, realtime=realtime)
