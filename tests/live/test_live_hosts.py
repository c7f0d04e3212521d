"""A host's own Socket.IO server: its handlers stay, its identity and its rooms' guards hold."""

import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
import socketio
from fastapi import Depends, FastAPI, Header
from rest import V1, claim, register, report, submit

from live.sockets import Live, serving
from zndraw_joblib import (
    Forbidden,
    JobLib,
    Unauthorized,
    register_socketio_handlers,
    validate_room_id,
    verify_readable_room,
)
from zndraw_joblib.server.store.engine import open_engine, open_sessions

KEY = "ada"
EXAMPLE = Path(__file__).parents[2] / "examples" / "host_app.py"


class User(NamedTuple):
    """A user of the host."""

    id: str
    is_superuser: bool


async def current_user(authorization: Annotated[str, Header()] = "") -> User:
    """Tell users by their names: this host trusts everybody."""
    name = authorization.removeprefix("Bearer ")
    if not name:
        raise Unauthorized("Who are you?")
    return User(name, name == KEY)


async def readable(room_id: str, user: Annotated[User, Depends(current_user)]) -> str:
    """Keep one room for one user."""
    if room_id == "attic" and user.id != KEY:
        raise Forbidden("The attic is not for you")
    return validate_room_id(room_id)


class Host:
    """An app with a Socket.IO server, beside the queue."""

    def __init__(self, folder: Path, wrap: Callable[[Any], Any]) -> None:
        self.engine = open_engine(f"sqlite:///{folder}/host.db")
        self.sio = socketio.AsyncServer(async_mode="asgi")
        self.heard: list[tuple[str, ...]] = []
        self.app = FastAPI()
        self.app.dependency_overrides[verify_readable_room] = readable
        self.joblib = JobLib(
            session_maker=open_sessions(self.engine), identity=current_user, tsio=wrap(self.sio)
        )
        self.joblib.mount(self.app)
        self.asgi = socketio.ASGIApp(self.sio, self.app)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Live]:
        """Serve it."""
        async with serving(self.asgi, self.app, KEY) as live:
            yield live
        await self.engine.dispose()

    def on_connect(self, sid: str, environ: dict[str, Any], auth: Any) -> bool | None:
        """Let nobody in who says that he is a stranger."""
        self.heard.append(("connect", str((auth or {}).get("token"))))
        return False if (auth or {}).get("token") == "stranger" else None

    async def on_disconnect(self, sid: str) -> None:
        """Note it; an older handler takes no reason."""
        self.heard.append(("disconnect",))


class Wrapper:
    """A typed wrapper: `emit` takes a model."""

    def __init__(self, sio: Any) -> None:
        self._sio = sio

    async def emit(self, model: Any, *, room: str) -> None:
        """Send a model under the name of its class."""
        await self._sio.emit(model.event_name, model.model_dump(mode="json"), room=room)


@pytest.fixture(params=["plain", "wrapper"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Return a host whose `tsio` is its server, or a wrapper around it."""
    return Host(tmp_path, (lambda sio: sio) if request.param == "plain" else Wrapper)


@pytest.mark.parametrize("order", ["before", "after", "as a namespace"])
async def test_the_hosts_own_handlers_stay(host: Host, order: str) -> None:
    """Whether they came before ours or after them, as functions or as a class; and they may refuse."""
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
    async with host.serve() as live:
        front = await live.socket("lab", token="bob")
        rest = await live.rest()
        await submit(rest, await register(rest))
        assert await front.statuses() == ["pending"]
        with pytest.raises(socketio.exceptions.ConnectionError):
            await live.socket(token="stranger")
        await front.close_sockets()
    assert host.heard[:2] == [("connect", "bob"), ("connect", "stranger")]
    assert ("disconnect",) in host.heard


async def test_the_hosts_identity_and_guards_hold(host: Host) -> None:
    """Whoever its dependency knows may join what its guard of rooms allows; others are told why not."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as live:
        ada, bob, nobody = [
            await live.socket(auth={"token": name} if name else None) for name in (KEY, "bob", "")
        ]
        assert await ada.ask("join_room", room_id="attic") == {}
        assert (await bob.ask("join_room", room_id="attic"))["detail"] == "The attic is not for you"
        assert (await nobody.ask("join_room", room_id="lab"))["status"] == 401
        rest = await live.rest()
        job = await register(rest)
        join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
        assert (await bob.ask("join_job_room", **join))["status"] == 403
        assert await ada.ask("join_job_room", **join) == {}


async def test_all_who_are_concerned_hear(host: Host) -> None:
    """By a wrapper too: front-ends of all rooms of a global job, and a worker of a cancellation."""
    register_socketio_handlers(host.sio, host.joblib)
    async with host.serve() as live:
        front, worker, rest = await live.socket("lab"), await live.socket(), await live.rest()
        job = await register(rest)
        assert [event for event, _ in await front.settled()] == ["jobs_invalidate"]
        await worker.ask("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
        task = await submit(rest, job)
        await claim(rest, job["worker_id"])
        await report(rest, task, "cancelled")
        assert await front.statuses() == ["pending", "claimed", "cancelled"]
        assert await worker.statuses() == ["cancelled"]


async def test_a_host_without_our_handlers_gets_the_events(host: Host) -> None:
    """It may have handlers of its own for the rooms."""

    async def join(sid: str, room: str) -> None:
        await host.sio.enter_room(sid, f"room:{room}")

    host.sio.on("join_room", join)
    async with host.serve() as live:
        front, rest = await live.socket(), await live.rest()
        await front.client.call("join_room", "lab")
        await submit(rest, await register(rest))
        assert "pending" in str(await _heard(front))
        assert (await rest.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


async def _heard(front: Any) -> Any:
    await front.client.call("join_room", "elsewhere")
    return front.heard


async def test_the_example_guards_its_rooms_live_too(tmp_path: Path) -> None:
    """A private room's events are its owner's; who has no key hears nothing."""
    spec = importlib.util.spec_from_file_location("host_app", EXAMPLE)
    assert spec is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    app = example.create_app(f"sqlite+aiosqlite:///{tmp_path}/host.db")
    async with serving(app, app, "no-token-of-this-host") as live:
        rest = await live.rest()
        ada, bob = [
            {"X-Key": (await rest.post("/users", json={"name": name})).json()["key"]} for name in ("a", "b")
        ]
        made = await rest.put("/rooms/lab", json={"is_private": True}, headers=ada)
        assert made.status_code == 200
        owner, other, nobody = [await live.socket(auth=None, headers=headers) for headers in (ada, bob, {})]
        assert await owner.ask("join_room", room_id="lab") == {}
        assert (await other.ask("join_room", room_id="lab"))["status"] == 404
        assert (await nobody.ask("join_room", room_id="attic"))["status"] == 401
        rest.headers.update(ada)
        await submit(rest, await register(rest))
        assert await owner.statuses() == ["pending"]
        assert await other.settled() == []


def test_rooms_are_opened_after_the_queue_is_mounted(host: Host) -> None:
    """Else the host is told what to call first."""
    joblib = JobLib(session_maker=open_sessions(host.engine), identity=current_user)
    with pytest.raises(RuntimeError, match="mount"):
        register_socketio_handlers(host.sio, joblib)
