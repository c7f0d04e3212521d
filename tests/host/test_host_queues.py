"""Several queues in one app: each has its own paths, database, users, guards, pages and sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import socketio
from fastapi import FastAPI, HTTPException
from realtime.sockets import Socket
from rest import register, report, submit
from sdk.live import LiveServer
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from waiting import until, wait_until

from zndraw_joblib import (
    Category,
    Extension,
    Identity,
    InternalRegistry,
    JobLib,
    JobLibSettings,
    JobManager,
    JobNotFound,
    connect,
    register_socketio_handlers,
)
from zndraw_joblib.wire.events import room_of

BOUND = 30
V1 = "/v1/joblib"
ROOT = Identity("root", is_superuser=True)
ADA = Identity("ada", is_superuser=True)


async def closed(room_id: str) -> str:
    """Refuse one room."""
    if room_id == "attic":
        raise HTTPException(404, "no such room")
    return room_id


def always(user: Identity) -> Callable[[], Identity]:
    """Return an identity that is always this user."""
    return lambda: user


def build(folder: Path, valkey_url: str | None = None, **options: Any) -> FastAPI:
    """Return a host with the queues `/queue-a` and `/team/b`, whose Socket.IO servers may use Valkey."""
    app = FastAPI()
    for prefix, user, guard in (("/queue-a", ROOT, None), ("/team/b", ADA, closed)):
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/{prefix[-1]}.db", poolclass=NullPool)
        manager = None if valkey_url is None else socketio.AsyncRedisManager(valkey_url, channel=prefix)
        sio = socketio.AsyncServer(async_mode="asgi", client_manager=manager)
        joblib = JobLib(
            session_maker=async_sessionmaker(engine),
            identity=always(user),
            readable_room=guard,
            tsio=sio,
            prefix=prefix,
            **options,
        )
        joblib.mount(app, dashboard=f"/dashboard{prefix}")
        register_socketio_handlers(sio, joblib)
        app.mount(f"{prefix}/socket.io", socketio.ASGIApp(sio, socketio_path=""))
    return app


def queues_of(app: FastAPI) -> tuple[JobLib, JobLib]:
    """Return the queues of an app."""
    a, b = app.state.joblib_queues
    return a, b


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    """Return a running host."""
    app = build(tmp_path)
    async with app.router.lifespan_context(app):
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the host."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        yield client


def below(client: httpx.AsyncClient, app: FastAPI, prefix: str) -> httpx.AsyncClient:
    """Return a client of one queue, which uses paths without the prefix."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://host{prefix}")


async def test_each_queue_has_its_own_tasks_and_paths(app: FastAPI, client: httpx.AsyncClient) -> None:
    """REST, the host's API, locations and problems know the queue."""
    a, b = queues_of(app)
    assert app.state.joblib is a
    async with asyncio.timeout(BOUND), below(client, app, "/queue-a") as in_a:
        job = await register(in_a)
        path = f"{V1}/rooms/lab/tasks/{job['full_name']}"
        made = await client.post(f"/queue-a{path}", json={"payload": {}})
        assert made.status_code == 202
        assert made.headers["location"] == f"/queue-a{V1}/tasks/{made.json()['id']}"
        assert (await client.get(made.headers["location"])).json()["created_by"] == "root"
        missing = await client.post(f"/team/b{path}", json={"payload": {}})
        assert missing.json()["type"] == "/team/b/v1/problems/job-not-found"
        assert (await client.get(missing.json()["type"])).status_code == 200
        assert (await client.get(f"{V1}/workers")).status_code == 404
        with pytest.raises(JobNotFound):
            await b.submit(job["full_name"], room="lab")
        task = await a.submit(job["full_name"], room="lab")
        assert (await a.get(task.id)).queue_position == 2
        claimed = (await in_a.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]})).json()["task"]
        for status in ("running", "completed"):
            await report(in_a, claimed, status)
        assert (await a.wait(claimed["id"], timeout=BOUND)).status == "completed"
        body = {"tasks": [{"room_id": "lab", "job_name": "@global:x:y"}]}
        batch = (await client.post(f"/team/b{V1}/tasks/submit", json=body)).json()
        assert batch["results"][0]["problem"]["type"] == "/team/b/v1/problems/job-not-found"


async def test_guards_and_users_are_those_of_the_queue(app: FastAPI, client: httpx.AsyncClient) -> None:
    """A room may be closed in one queue and open in another."""
    statuses = [
        (await client.get(f"{prefix}{V1}/rooms/{room}/tasks")).status_code
        for prefix in ("/queue-a", "/team/b")
        for room in ("lab", "attic")
    ]
    assert statuses == [200, 200, 200, 404]
    users = [(await client.get(f"{prefix}{V1}/me")).json()["id"] for prefix in ("/queue-a", "/team/b")]
    assert users == ["root", "ada"]


async def test_pages_and_documents_know_the_prefix(app: FastAPI, client: httpx.AsyncClient) -> None:
    """The operators' page reads its queue's API; metrics, types and operations are there, too."""
    for prefix in ("/queue-a", "/team/b"):
        page = f"http://host/dashboard{prefix}/"
        config = (await client.get(f"{page}config.json")).json()
        assert str(httpx.URL(page).join(config["api"])) == f"http://host{prefix}{V1}"
        assert (await client.get(f"{prefix}{V1}/metrics")).status_code == 200
        assert (await client.get(f"{prefix}{V1}/types/rest.d.ts")).status_code == 200
        for path in (f"{prefix}{V1}/types/x.d.ts", f"{prefix}/v1/problems/x", f"/dashboard{prefix}/static/x"):
            assert (await client.get(path)).json()["type"] == f"{prefix}/v1/problems/not-found", path
    document = (await client.get("/openapi.json")).json()
    operations = [
        operation["operationId"] for path in document["paths"].values() for operation in path.values()
    ]
    assert len(operations) == len(set(operations))
    assert {"joblibQueueASubmitTask", "joblibTeamBSubmitTask"} <= set(operations)


def test_wrong_prefixes_are_errors(tmp_path: Path) -> None:
    """Two queues need two prefixes that give other operation ids, and two channels in Redis."""
    options: dict[str, Any] = {"session_maker": async_sessionmaker(), "identity": lambda: ROOT}
    for prefix in ("queue", "/queue/", "/{room}", "/a//b", "/"):
        with pytest.raises(ValueError, match="begins with a slash"):
            JobLib(**options, prefix=prefix)
    app = FastAPI()
    JobLib(**options).mount(app)
    with pytest.raises(RuntimeError, match="prefix '' already"):
        JobLib(**options).mount(app)
    JobLib(**options, prefix="/a-b").mount(app)
    for prefix in ("/a_b", "/a/b", "/aB"):
        with pytest.raises(
            RuntimeError, match=f"'/a-b' and '{prefix}' .*'joblibABSubmitTask'.*another letter"
        ):
            JobLib(**options, prefix=prefix).mount(app)
    JobLib(**options, prefix="/ab").mount(app)
    with pytest.raises(RuntimeError, match="redis_prefix"):
        build(tmp_path, settings=JobLibSettings(redis_url="redis://127.0.0.1:1"))


class Double(Extension):
    """A job of a worker."""

    category: ClassVar[Category] = Category.ANALYSIS
    number: int = 1

    def run(self, vis: Any, **kwargs: Any) -> int:
        """Return twice the number."""
        return 2 * self.number


class LiveHost(LiveServer):
    """The host under uvicorn."""

    def __init__(self, folder: Path, valkey_url: str | None = None) -> None:
        self._folder, self._valkey_url = folder, valkey_url
        super().__init__(folder)

    def build(self) -> Any:
        """Return the host."""
        self.app = build(self._folder, self._valkey_url)
        return self.app


def test_the_sdk_works_below_a_prefix(tmp_path: Path) -> None:
    """Its URL has the prefix: it registers, connects to the queue's own Socket.IO, and runs a task."""
    live = LiveHost(tmp_path)
    try:
        _, b = queues_of(live.app)
        with connect(f"{live.url}/team/b", realtime=True) as api, JobManager(api) as manager:
            manager.register(Double)
            wait_until(lambda: b.rooms is not None and not b.rooms.is_idle)
            made = manager.submit(Double(number=4), room="lab")
            task = manager.claim(wait=BOUND)
            assert task is not None
            manager.start(task)
            manager.complete(task, 8)
            assert manager.wait_for(str(made), timeout=BOUND).result == 8
        with connect(f"{live.url}/queue-a") as api, pytest.raises(JobNotFound):
            JobManager(api).submit(Double(), room="lab")
    finally:
        live.stop()


async def close_redis(queue: JobLib) -> None:
    """Close the connections of a Socket.IO server to Redis, which python-socketio leaves open."""
    manager = queue.publisher.rooms.manager
    manager.thread.cancel()
    await asyncio.wait([manager.thread])
    await manager.pubsub.aclose()
    await manager.redis.aclose()


async def is_subscribed(manager: socketio.AsyncRedisManager) -> bool:
    """Return whether a server gets what a manager sends: it subscribes after its first socket connected."""
    if manager.redis is None:
        manager._redis_connect()
    [(_, count)] = await manager.redis.pubsub_numsub(manager.channel)
    return bool(count)


async def test_events_stay_in_their_queue(tmp_path: Path, valkey_url: str) -> None:
    """Also if both Socket.IO servers send their events through one Redis."""
    live = LiveHost(tmp_path, valkey_url)
    sockets = [Socket(), Socket()]
    try:
        for joined, prefix in zip(sockets, ("/queue-a", "/team/b"), strict=True):
            path = f"{prefix}/socket.io"
            await joined.client.connect(
                live.url, socketio_path=path, transports=["websocket"], wait_timeout=BOUND
            )
            assert await joined.call("join_room", room_id="lab") == {}
        in_a, in_b = sockets
        other = socketio.AsyncRedisManager(valkey_url, channel="/team/b", write_only=True)
        await until(lambda: is_subscribed(other))
        async with httpx.AsyncClient(base_url=f"{live.url}/queue-a", timeout=BOUND) as rest:
            job = await register(rest)
            ids = [(await submit(rest, job))["id"] for _ in range(2)]
        # The first event was sent to Redis before the second one arrived here.
        await until(lambda: {data.get("id") for _, data in in_a.received} >= set(ids))
        await other.emit("last", {}, "/", room=room_of("lab"))
        await until(lambda: in_b.received)
        assert in_b.received == [("last", {})]
        await other.redis.aclose()
    finally:
        for joined, queue in zip(sockets, queues_of(live.app), strict=True):
            await joined.disconnect()
            loop = queue.runtime.waiters.loop
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close_redis(queue), loop))
        live.stop()


def test_socketio_servers_that_mix_queues_are_errors(tmp_path: Path) -> None:
    """One server, or one channel of Redis, for two queues; the number of a database makes no difference."""
    app = build(tmp_path, "redis://user:secret@127.0.0.1:1/0")
    sio_of_a = queues_of(app)[0].publisher.rooms
    joblib = JobLib(session_maker=async_sessionmaker(), identity=lambda: ROOT, prefix="/c")
    joblib.mount(app)
    with pytest.raises(RuntimeError, match=r"'/queue-a' and '/c' have one Socket.IO server"):
        register_socketio_handlers(sio_of_a, joblib)
    manager = socketio.AsyncRedisManager("redis://127.0.0.1:1/5", channel="/team/b")
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=manager)
    with pytest.raises(RuntimeError, match=r"'/team/b' and '/c' have one channel in Redis .'/team/b'."):
        register_socketio_handlers(sio, joblib)
    with pytest.raises(RuntimeError, match=r"'/queue-a' and '/d' have one Socket.IO server"):
        JobLib(session_maker=async_sessionmaker(), identity=lambda: ROOT, prefix="/d", tsio=sio_of_a).mount(
            app
        )
    assert app.state.joblib_queues[-1] is joblib


@pytest.mark.parametrize("kept", ["/api", ""])
async def test_a_prefix_stands_below_the_root_path(app: FastAPI, kept: str) -> None:
    """A proxy may take the root path off, or leave it; the queue's own URLs never contain it."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path="/api")
    async with httpx.AsyncClient(transport=transport, base_url=f"http://host{kept}/queue-a") as client:
        job = await register(client)
        made = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": {}})
        assert made.headers["location"] == f"/queue-a{V1}/tasks/{made.json()['id']}"
        assert (await client.get(f"{V1}/tasks/{made.json()['id']}")).status_code == 200
        claimed = (await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]})).json()[
            "task"
        ]
        assert (await report(client, claimed, "running")).status_code == 200
        missing = await client.get(f"{V1}/tasks/{job['worker_id']}")
        assert missing.json()["type"] == "/queue-a/v1/problems/task-not-found"
        assert (await client.get("/v1/problems/task-not-found")).status_code == 200
        assert (await client.get(f"{V1}/metrics")).status_code == 200
        page = f"http://host{kept}/dashboard/queue-a/"
        config = (await client.get(f"{page}config.json")).json()
        assert str(httpx.URL(page).join(config["api"])) == f"http://host{kept}/queue-a{V1}"
        document = (await client.get(f"http://host{kept}/openapi.json")).json()
        assert document["servers"] == [{"url": "/api"}]
        assert f"/queue-a{V1}/tasks/claim" in document["paths"]
        other = await client.get(f"http://host{kept}/team/b{V1}/tasks/{claimed['id']}")
        assert other.status_code == 404


async def test_a_refused_connection_names_the_page_of_its_queue() -> None:
    """As a refused join does."""
    joblib = JobLib(session_maker=async_sessionmaker(), identity=lambda: None, prefix="/queue-a")
    joblib.mount(FastAPI())
    sio = socketio.AsyncServer(async_mode="asgi")
    joblib.open_rooms(sio, requires_identity=True)
    with pytest.raises(socketio.exceptions.ConnectionRefusedError) as refused:
        await sio.handlers["/"]["connect"]("sid", {"asgi.scope": {"query_string": b"", "path": "/"}})
    assert refused.value.error_args["data"]["type"] == "/queue-a/v1/problems/unauthorized"


async def test_each_queue_has_its_own_internal_jobs(tmp_path: Path) -> None:
    """Those of the second one do not replace those of the first."""
    app, queues, registries = FastAPI(), list[JobLib](), [InternalRegistry({}), InternalRegistry({})]
    for number, registry in enumerate(registries):

        @asynccontextmanager
        async def offer(*_: Any, registry: InternalRegistry = registry) -> AsyncIterator[InternalRegistry]:
            yield registry

        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/{number}.db", poolclass=NullPool)
        queues.append(
            JobLib(
                session_maker=async_sessionmaker(engine),
                identity=lambda: ROOT,
                prefix=f"/{number}",
                internal_jobs=offer,
            )
        )
        queues[-1].mount(app)
    async with app.router.lifespan_context(app):
        assert [queue.dispatcher.registry() for queue in queues] == registries
        assert app.state.internal_registry is registries[0]
        assert queues[1].internal_registry is registries[1]
    assert [queue.dispatcher.registry() for queue in queues] == [None, None]
