"""A server on a real port, and Socket.IO clients that record the events they receive."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import socketio
import uvicorn
from fastapi import FastAPI

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.queue.rules_tokens import digest, new_token
from zndraw_joblib.server.realtime.rooms import Rooms
from zndraw_joblib.server.runtime.runtime import Runtime

Received = tuple[str, Any]


class Socket:
    """A connected Socket.IO client: `received` has its events in order, `problems` those named `problem`."""

    def __init__(self) -> None:
        self.client = socketio.AsyncClient(reconnection=False, request_timeout=30)
        self.received: list[Received] = []
        self.problems: list[dict[str, Any]] = []
        self.client.on("*", self._receive)
        self.client.on("problem", self.problems.append)

    def _receive(self, event: str, data: Any = None) -> None:
        self.received.append((event, data))

    async def disconnect(self) -> None:
        """Close the connection without a disconnect packet, which would wait for an open poll."""
        await self.client.eio.disconnect(abort=True)
        await self.client.shutdown()

    async def call(self, event: str, **data: Any) -> Any:
        """Send an event and return its acknowledgement."""
        return await self.client.call(event, data, timeout=30)

    async def new_events(self) -> list[Received]:
        """Return the events since the last call, after all that the server sent before now have come."""
        # The acknowledgement follows all events that the server sent before it.
        await self.call("leave_room", room_id="nowhere")
        received, self.received = self.received, []
        return received

    async def new_statuses(self) -> list[str]:
        """Return the task statuses among the new events."""
        return [data["status"] for event, data in await self.new_events() if event == "task_status_event"]


@dataclass
class LiveServer:
    """A server on a port; `token` belongs to a superuser."""

    url: str
    runtime: Runtime
    token: str
    stack: AsyncExitStack
    rooms: Rooms | None = None
    joblib: Any = None

    async def create_user(self, name: str, *rights: Any) -> str:
        """Create a user, with the fields of `TokenRights`, and return the user's token."""
        token = new_token()
        await self.runtime.write(
            sql_operators.add_token,
            name=name,
            digest=digest(token),
            is_superuser=False,
            rights=sql_operators.TokenRights(*rights),
        )
        return token

    async def rest(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client of the REST API, for the superuser or another user."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)
        return await self.stack.enter_async_context(client)

    async def connect(self, *rooms: str, token: str | None = None, **options: Any) -> Socket:
        """Return a socket that has joined these rooms."""
        connected = Socket()
        auth = options.pop("auth", {"token": token or self.token})
        options = {"transports": ["websocket"], "wait_timeout": 30, **options}
        self.stack.push_async_callback(connected.disconnect)
        await connected.client.connect(self.url, auth=auth, **options)
        for room in rooms:
            assert await connected.call("join_room", room_id=room) == {}
        return connected


@asynccontextmanager
async def serve(app: Any, joblib: FastAPI, token: str) -> AsyncIterator[LiveServer]:
    """Serve an app on a free port; `joblib` is the FastAPI app with the queue, either `app` or inside it."""
    runtime: Runtime = joblib.state.joblib.runtime
    uvicorn_server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.create_task(uvicorn_server.serve([listener]))
        async with AsyncExitStack() as stack:
            server = LiveServer(url, runtime, token, stack, joblib.state.joblib.rooms, joblib.state.joblib)
            assert (await (await server.rest()).get("/v1/problems/forbidden")).status_code == 200
            yield server
        runtime.waiters.close()
        uvicorn_server.should_exit = True
        await running


def names(received: Iterable[Received]) -> list[str]:
    """Return the names of events."""
    return [event for event, _ in received]
