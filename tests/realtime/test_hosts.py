"""A host's own Socket.IO server keeps its handlers; its identity and its guards of rooms apply."""

import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
import pytest
import socketio
from fastapi import Depends, FastAPI, Header, Request
from rest import V1, claim, register, report, submit
from waiting import until

from realtime.sockets import LiveServer, Socket, serve
from zndraw_joblib import (
    Forbidden,
    JobLib,
    Unauthorized,
    register_socketio_handlers,
    validate_room_id,
    verify_readable_room,
    verify_writable_room,
)
from zndraw_joblib.server.db.engine import open_engine, open_sessions
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.wire.events import providers_of, workers_of

KEY = "ada"
EXAMPLE = Path(__file__).parents[2] / "examples" / "host_app.py"


class User(NamedTuple):
    """A user of the host."""

    id: str
    is_superuser: bool


async def current_user(request: Request, authorization: Annotated[str, Header()] = "") -> User:
    """Take the bearer token for the name of the user. Read the body, which is empty for a socket."""
    await request.body()
    name = authorization.removeprefix("Bearer ")
    if not name:
        raise Unauthorized("A name is needed")
    return User(name, name == KEY)


async def readable(room_id: str, user: Annotated[User, Depends(current_user)]) -> str:
    """Keep the room `attic` for one user."""
    if room_id == "attic" and user.id != KEY:
        raise Forbidden("The attic is private")
    return validate_room_id(room_id)


class Host:
    """An app with a Socket.IO server and the queue."""

    def __init__(self, url: str, wrap: Callable[[Any], Any]) -> None:
        self.engine = open_engine(url)
        self.sio = socketio.AsyncServer(async_mode="asgi")
        self.events: list[tuple[str, ...]] = []
        self.unknown: set[str] = set()
        self.app = FastAPI()
        self.app.dependency_overrides[verify_readable_room] = readable
        self.joblib = JobLib(
            session_maker=open_sessions(self.engine), identity=self.known_user, tsio=wrap(self.sio)
        )
        self.joblib.mount(self.app)
        self.asgi = socketio.ASGIApp(self.sio, self.app)

    async def known_user(self, user: Annotated[User, Depends(current_user)]) -> User:
        """Refuse a user whom the host no longer knows."""
        if user.id in self.unknown:
            raise Unauthorized("The user is unknown")
        return user

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[LiveServer]:
        """Serve the app."""
        async with serve(self.asgi, self.app, KEY) as server:
            yield server
        await self.engine.dispose()

    def on_connect(self, sid: str, environ: dict[str, Any], auth: Any) -> bool | None:
        """Refuse the token `stranger`."""
        self.events.append(("connect", str((auth or {}).get("token"))))
        return False if (auth or {}).get("token") == "stranger" else None

    async def on_disconnect(self, sid: str) -> None:
        """Record the event. A handler for older versions of python-socketio takes no reason."""
        self.events.append(("disconnect",))


class Wrapper:
    """A typed wrapper whose `emit` takes a model."""

    def __init__(self, sio: Any) -> None:
        self._sio = sio

    async def emit(self, model: Any, *, room: str) -> None:
        """Send a model under the name of its class."""
        await self._sio.emit(model.event_name, model.model_dump(mode="json"), room=room)


@pytest.fixture(params=["plain", "wrapper"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Return a host whose `tsio` is its Socket.IO server or a wrapper around it."""
    return Host(f"sqlite:///{tmp_path}/host.db", (lambda sio: sio) if request.param == "plain" else Wrapper)


@pytest.mark.parametrize("order", ["before", "after", "as a namespace"])
async def test_the_handlers_of_the_host_stay(host: Host, order: str) -> None:
    """The host may add them earlier or later, as functions or as a namespace, and they may refuse."""
    if order == "after":
        register_socketio_handlers(host.sio, host.joblib)
    if order == "as a namespace":

        class Own(socketio.AsyncNamespace):
            async def on_connect(self, sid: str, environ: dict[str, Any], auth: Any = None) -> Any:
                return host.on_connect(sid, environ, auth)

            async def on_disconnect(self, sid: str, reason: str) -> None:
                await host.on_disconnect(sid)

        host.sio.register_namespace(Own("/"))
    else:
        host.sio.on("connect", host.on_connect)
        host.sio.on("disconnect", host.on_disconnect)
    if order != "after":
        register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as server:
        front = await server.connect("lab", token="bob")
        rest = await server.rest()
        await submit(rest, await register(rest))
        assert await front.new_statuses() == ["pending"]
        with pytest.raises(socketio.exceptions.ConnectionError):
            await server.connect(token="stranger")
        await front.disconnect()
    assert host.events[:2] == [("connect", "bob"), ("connect", "stranger")]
    assert ("disconnect",) in host.events


async def test_the_identity_of_the_host_is_checked_at_each_join(host: Host) -> None:
    """A user whom the host no longer knows joins no more rooms over an open connection."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as server:
        bob = await server.connect(auth={"token": "bob"})
        assert await bob.call("join_room", room_id="lab") == {}
        host.unknown.add("bob")
        assert (await bob.call("join_room", room_id="other"))["status"] == 401
        host.unknown.clear()
        assert await bob.call("join_room", room_id="other") == {}


async def test_the_identity_and_guards_of_the_host_apply(host: Host) -> None:
    """A user may join the rooms that the host's guard allows; a refused join gets a problem."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as server:
        ada, bob, anonymous = [
            await server.connect(auth={"token": name} if name else None) for name in (KEY, "bob", "")
        ]
        assert await ada.call("join_room", room_id="attic") == {}
        assert (await bob.call("join_room", room_id="attic"))["detail"] == "The attic is private"
        assert (await anonymous.call("join_room", room_id="lab"))["status"] == 401
        rest = await server.rest()
        job = await register(rest)
        join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
        assert (await bob.call("join_job_room", **join))["status"] == 403
        for reserved in ("@internal", "@host"):
            server_itself = await server.connect(auth={"token": reserved})
            assert (await server_itself.call("join_room", room_id="lab"))["status"] == 403
        assert await ada.call("join_job_room", **join) == {}


async def test_joins_leave_nothing_behind(host: Host) -> None:
    """The dependencies of the host run for each join, and the socket keeps no values of theirs."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as server:
        ada = await server.connect(auth={"token": KEY})
        assert host.joblib.rooms is not None
        [request] = host.joblib.rooms.requests.values()
        receive, keys = request.receive, set(request.scope)
        for _ in range(3):
            assert await ada.call("join_room", room_id="attic") == {}
        assert (request.receive, set(request.scope) - {"state"}) == (receive, keys - {"state"})


async def test_a_host_gets_all_events(host: Host) -> None:
    """Front-ends of all rooms get events of a global job; a worker gets a cancellation."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as server:
        front, worker, rest = await server.connect("lab"), await server.connect(), await server.rest()
        job = await register(rest)
        assert [event for event, _ in await front.new_events()] == ["jobs_invalidate"]
        await worker.call("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
        task = await submit(rest, job)
        await claim(rest, job["worker_id"])
        await report(rest, task, "cancelled")
        assert await front.new_statuses() == ["pending", "claimed", "cancelled"]
        assert await worker.new_statuses() == ["cancelled"]


async def test_a_host_may_handle_rooms_by_itself(host: Host) -> None:
    """Without `register_socketio_handlers` the events go to the rooms that the host's handlers join."""

    async def join(sid: str, room: str) -> None:
        await host.sio.enter_room(sid, f"room:{room}")

    host.sio.on("join_room", join)
    async with host.serve() as server:
        front, rest = await server.connect(), await server.rest()
        await front.client.call("join_room", "lab")
        await submit(rest, await register(rest))
        assert "pending" in str(await _received_events(front))
        assert (await rest.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


async def _received_events(front: Any) -> Any:
    await front.client.call("join_room", "elsewhere")
    return front.received


async def test_the_example_guards_its_rooms(tmp_path: Path) -> None:
    """Only the owner of a private room gets its events; a socket without a key joins no room."""
    spec = importlib.util.spec_from_file_location("host_app", EXAMPLE)
    assert spec is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    app = example.create_app(f"sqlite+aiosqlite:///{tmp_path}/host.db")
    async with serve(app, app, "no-token-of-this-host") as server:
        rest = await server.rest()
        ada, bob = [
            {"X-Key": (await rest.post("/users", json={"name": name})).json()["key"]} for name in ("a", "b")
        ]
        response = await rest.put("/rooms/lab", json={"is_private": True}, headers=ada)
        assert response.status_code == 200
        owner, other, anonymous = [
            await server.connect(auth=None, headers=headers) for headers in (ada, bob, {})
        ]
        assert await owner.call("join_room", room_id="lab") == {}
        assert (await other.call("join_room", room_id="lab"))["status"] == 404
        assert (await anonymous.call("join_room", room_id="attic"))["status"] == 401
        rest.headers.update(ada)
        await submit(rest, await register(rest))
        assert await owner.new_statuses() == ["pending"]
        assert await other.new_events() == []


def test_handlers_need_a_mounted_queue(host: Host) -> None:
    """The error names the call that must come first."""
    joblib = JobLib(session_maker=open_sessions(host.engine), identity=current_user)
    with pytest.raises(RuntimeError, match="mount"):
        register_socketio_handlers(host.sio, joblib)


async def test_a_socket_leaves_the_rooms_that_its_user_may_not_serve(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose owner lost the room gets no more events of its jobs and provider requests."""
    # Its worker counts as connected until the requests are sent.
    monkeypatch.setattr(rules_providers, "GRACE", timedelta(minutes=5))
    refused: set[str] = set()

    async def writable(room_id: str) -> str:
        if room_id in refused:
            raise Forbidden("The room is no longer yours")
        return room_id

    host = Host(database_url, lambda sio: sio)
    host.app.dependency_overrides[verify_writable_room] = writable
    register_socketio_handlers(host.sio, host.joblib)
    assert host.joblib.rooms is not None
    host.joblib.rooms.check_seconds = 0.02
    async with host.serve() as server:
        rest = await server.rest("bob")
        bob = await server.connect(auth={"token": "bob"})
        served = {room: await serve_room(rest, bob, room) for room in ("lab", "den")}
        assert served["lab"] | served["den"] <= joined(host)
        refused.add("lab")
        await until(lambda: not served["lab"] & joined(host))
        assert served["den"] <= joined(host)
        for room in ("lab", "den"):
            url = f"{V1}/rooms/{room}/providers/{room}:files:Home"
            assert (await rest.get(url, headers={"Prefer": "wait=0"})).status_code == 504
        await until(lambda: bool(asked(bob)))
        assert asked(bob) == ["den:files:Home"]


async def serve_room(rest: httpx.AsyncClient, worker: Socket, room: str) -> set[str]:
    """Register a job and a provider, and join their rooms by a socket. Return the names of these rooms."""
    job = await register(rest, room=room)
    worker_id = {"worker_id": job["worker_id"]}
    assert await worker.call("join_job_room", job_name=job["full_name"], **worker_id) == {}
    body = {"category": "files", "name": "Home", **worker_id}
    provider = (await rest.put(f"{V1}/rooms/{room}/providers", json=body)).json()["full_name"]
    assert await worker.call("join_provider_room", provider_name=provider, **worker_id) == {}
    return {workers_of(job["full_name"]), providers_of(provider)}


def asked(worker: Socket) -> list[str]:
    """Return the providers whose requests a socket received, in order."""
    return [data["provider_name"] for event, data in worker.received if event == "provider_request"]


def joined(host: Host) -> set[str]:
    """Return the rooms of the host's Socket.IO server that have sockets."""
    return {name for name in host.sio.manager.rooms.get("/", {}) if name}
