"""A server on a real port, and sockets that write down what they hear."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import socketio
import uvicorn
from fastapi import FastAPI

from zndraw_joblib.server.http.tokens import digest
from zndraw_joblib.server.realtime.rooms import Rooms
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.store import tokens

Heard = tuple[str, Any]


class Socket:
    """A connected Socket.IO client: `heard` has the events that came, in their order."""

    def __init__(self) -> None:
        self.client = socketio.AsyncClient(reconnection=False)
        self.heard: list[Heard] = []
        self.refusals: list[dict[str, Any]] = []
        self.client.on("*", self._hear)
        self.client.on("problem", self._refuse)

    def _hear(self, event: str, data: Any = None) -> None:
        self.heard.append((event, data))

    def _refuse(self, data: dict[str, Any]) -> None:
        self.refusals.append(data)

    async def close_sockets(self) -> None:
        """Close the connection without a word: by polling, a farewell waits for the poll that is open."""
        await self.client.eio.disconnect(abort=True)
        await self.client.shutdown()

    async def ask(self, event: str, **data: Any) -> Any:
        """Send an event and return its acknowledgement."""
        return await self.client.call(event, data, timeout=10)

    async def settled(self) -> list[Heard]:
        """Return what has come since the last time, once all that was sent before now is here."""
        # An acknowledgement follows whatever the server sent before it.
        await self.ask("leave_room", room_id="nowhere")
        heard, self.heard = self.heard, []
        return heard

    async def statuses(self) -> list[str]:
        """Return the statuses among what has come since the last time."""
        return [data["status"] for event, data in await self.settled() if event == "task_status_event"]


@dataclass
class Live:
    """A server on a port."""

    url: str
    runtime: Runtime
    token: str
    stack: AsyncExitStack
    rooms: Rooms | None = None

    async def user(self, name: str, *, is_superuser: bool = False) -> str:
        """Make a user and return their token."""
        token = f"token-of-{name}-for-the-tests"
        add = partial(tokens.add, name=name, digest=digest(token), is_superuser=is_superuser)
        await self.runtime.write(add)
        return token

    async def rest(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client of the REST API, as a superuser or by another token."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)
        return await self.stack.enter_async_context(client)

    async def socket(self, *rooms: str, token: str | None = None, **how: Any) -> Socket:
        """Return a socket that has joined these rooms."""
        made = Socket()
        auth = how.pop("auth", {"token": token or self.token})
        await made.client.connect(self.url, auth=auth, **{"transports": ["websocket"], **how})
        self.stack.push_async_callback(made.close_sockets)
        for room in rooms:
            assert await made.ask("join_room", room_id=room) == {}
        return made


@asynccontextmanager
async def serving(app: Any, joblib: FastAPI, token: str) -> AsyncIterator[Live]:
    """Serve an app on a free port; `joblib` is the app, in or behind it, that has the queue."""
    runtime: Runtime = joblib.state.joblib.runtime
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.create_task(server.serve([listener]))
        async with AsyncExitStack() as stack:
            live = Live(url, runtime, token, stack, joblib.state.joblib.rooms)
            assert (await (await live.rest()).get("/v1/problems/forbidden")).status_code == 200
            yield live
        runtime.waiters.close()
        server.should_exit = True
        await running


def names(heard: Iterable[Heard]) -> list[str]:
    """Return the names of events."""
    return [event for event, _ in heard]
