"""Internal providers: declared by a host's code, answered by the processes of a broker, without a worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import httpx
import pytest
from databases import on_both, on_postgresql
from fastapi import FastAPI, HTTPException, Request
from rest import PROBLEM, V1, expect_problem
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from taskiq import AsyncBroker, InMemoryBroker
from taskiq.receiver import Receiver
from taskiq_redis import ListQueueBroker
from waiting import until

from internal.processes import submit
from zndraw_joblib import (
    Identity,
    InternalProviderRegistry,
    JobLib,
    JobLibSettings,
    Provider,
    WorkerTokenDep,
    ensure_internal_providers,
    mint_internal_worker_token,
    register_internal_jobs,
    register_internal_providers,
)
from zndraw_joblib.wire.providers import request_hash

Sessions = async_sessionmaker[AsyncSession]
UPLOADER = "uploader"
FRAME = "@internal:frames:Frame"
FILES = "@internal:filesystem:Files"


class Frame(Provider):
    """A provider of the host."""

    category: ClassVar[str] = "frames"
    content_type: ClassVar[str] = "text/plain"
    index: int

    def read(self, handler: Any) -> str:
        """Return a text; there is no frame 404."""
        if self.index == 404:
            raise LookupError("no such frame")
        return f"frame {self.index}"


class Files(Frame):
    """A file system of the host."""

    category: ClassVar[str] = "filesystem"


BOUND = 120


class Executor:
    """An executor of a host: it uploads over REST, with the token that it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.uploads = 0
        self.client: httpx.AsyncClient | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(
        self, provider_cls: type[Any], params_json: str, provider_id: str, request_id: str, token: str, /
    ) -> None:
        """Answer one request."""
        self.calls.append((provider_cls.__name__, params_json, token))
        await self.gate.wait()
        headers = {"Authorization": f"Bearer {token}", "X-Request-Hash": request_id}
        try:
            content = provider_cls.model_validate_json(params_json).read(None).encode()
        except LookupError as error:
            headers["X-Result-Status"] = "error"
            problem = {"type": "/v1/problems/frame-not-found", "title": "Not Found", "status": 404}
            content = json.dumps({**problem, "detail": str(error), "index": 404}).encode()
        assert self.client is not None
        url = f"{V1}/providers/{provider_id}/results"
        response = await self.client.post(url, content=content, headers=headers)
        assert response.status_code == 204, response.text
        self.uploads += 1


class Refusing(InMemoryBroker):
    """A broker that accepts no message while `is_down`."""

    is_down = True

    async def kick(self, message: Any) -> None:
        """Refuse the message, or take it."""
        if self.is_down:
            raise ConnectionError("the broker is away")
        await super().kick(message)


class Slow(InMemoryBroker):
    """A broker that takes a message after `gate` was set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def kick(self, message: Any) -> None:
        """Take a message, later."""
        self.reached.set()
        await self.gate.wait()
        await super().kick(message)


def identity(request: Request) -> Identity | None:
    """Return the user whose name is the token; root is a superuser."""
    name = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return Identity(name, is_superuser=name == "root") if name else None


def writable_room(room_id: str, request: Request) -> str:
    """Return the room; only superusers may write to ``@internal``, as in most hosts."""
    user = identity(request)
    if room_id == "@internal" and not (user and user.is_superuser):
        raise HTTPException(403)
    return room_id


async def worker_token() -> str:
    """Return the token of the user that uploads."""
    return UPLOADER


class Host:
    """A host with internal providers, and its users."""

    def __init__(self, app: FastAPI, joblib: JobLib) -> None:
        self.app, self.joblib = app, joblib

    def user(self, name: str) -> httpx.AsyncClient:
        """Return a client of a user."""
        headers = {"Authorization": f"Bearer {name}"} if name else {}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://host", headers=headers)


@asynccontextmanager
async def run_host(
    sessions: Sessions,
    broker: AsyncBroker,
    executor: Executor,
    classes: Sequence[type[Any]] = (Frame,),
    worker_token: Any = worker_token,
    **settings: Any,
) -> AsyncIterator[Host]:
    """Run a host with internal providers."""
    app = FastAPI()
    joblib = JobLib(
        session_maker=sessions,
        identity=identity,
        worker_token=worker_token,
        writable_room=writable_room,
        settings=JobLibSettings(provider_result_backend="database", **settings),
    )
    joblib.mount(app)
    await ensure_internal_providers(classes, sessions, user_id=UPLOADER)
    app.state.internal_provider_registry = register_internal_providers(broker, classes, executor)
    host = Host(app, joblib)
    executor.client = executor.client or host.user("")
    async with app.router.lifespan_context(app):
        yield host


@pytest.fixture
def sessions(engine: AsyncEngine) -> Sessions:
    """Return the host's session maker."""
    return async_sessionmaker(engine)


@pytest.fixture
def executor() -> Executor:
    """Return an executor."""
    return Executor()


@pytest.fixture(params=["in this process", "over Valkey"])
async def broker(
    request: pytest.FixtureRequest, valkey_url: str, executor: Executor
) -> AsyncIterator[AsyncBroker]:
    """Run a broker; one over Valkey has a second instance that receives, as in a worker process."""
    if request.param == "in this process":
        memory = InMemoryBroker()
        await memory.startup()
        yield memory
        await memory.shutdown()
        return
    queue = f"internal-providers-{id(executor)}"
    async with AsyncExitStack() as stack:
        sender, receiver = (ListQueueBroker(valkey_url, queue_name=queue) for _ in range(2))
        for each in (sender, receiver):
            stack.push_async_callback(each.shutdown)
        receiver.is_worker_process = True
        register_internal_providers(receiver, [Frame], executor)
        stopping = asyncio.Event()
        receiving = asyncio.create_task(Receiver(receiver, run_startup=True).listen(stopping))
        await sender.startup()
        yield sender
        stopping.set()
        await receiving


async def read(client: httpx.AsyncClient, name: str, room: str = "lab", wait: int = 30, **params: Any) -> Any:
    """Send a provider request; return the response."""
    url = f"{V1}/rooms/{room}/providers/{name}"
    return await client.get(url, params=params, headers={"Prefer": f"wait={wait}"})


async def names(client: httpx.AsyncClient, room: str = "lab") -> list[str]:
    """Return the providers that a room lists."""
    page = (await client.get(f"{V1}/rooms/{room}/providers")).json()
    assert page["total"] == len(page["items"])
    return sorted(item["full_name"] for item in page["items"])


@on_both
async def test_requests_reach_the_executor_once(
    sessions: Sessions, broker: AsyncBroker, executor: Executor
) -> None:
    """Each room sees the provider, which has no worker. Its results are stored like those of a worker."""
    async with run_host(sessions, broker, executor) as host, host.user("ada") as ada:
        assert await names(ada) == await names(ada, "@internal") == await names(ada, "@global") == [FRAME]
        info = (await ada.get(f"{V1}/rooms/lab/providers/{FRAME}/info")).json()
        assert (info["worker_id"], info["content_type"]) == (None, "text/plain")
        assert info["schema"] == Frame.model_json_schema()
        executor.gate.clear()
        waiting = [asyncio.ensure_future(read(ada, FRAME, index=1)) for _ in range(5)]
        expect_problem(await read(ada, FRAME, wait=0, index=1), 504, "provider-timeout")
        executor.gate.set()
        for response in await asyncio.gather(*waiting):
            assert (response.status_code, response.text) == (200, "frame 1")
            assert response.headers["content-type"].startswith("text/plain")
        assert (await read(ada, FRAME, "elsewhere", wait=0, index=1)).text == "frame 1"
        assert executor.calls == [("Frame", '{"index":"1"}', UPLOADER)]


@on_both
async def test_the_token_of_a_request_uploads_its_result_and_nothing_else(
    sessions: Sessions, executor: Executor
) -> None:
    """It is what an executor gets from a host that makes no tokens. After the answer it is useless."""
    async with (
        run_host(sessions, InMemoryBroker(), executor, worker_token=None) as host,
        host.user("ada") as ada,
    ):
        provider_id = (await ada.get(f"{V1}/rooms/lab/providers/{FRAME}/info")).json()["id"]
        executor.gate.clear()
        waiting = [asyncio.ensure_future(read(ada, FRAME, index=index)) for index in (1, 2)]
        await until(lambda: len(executor.calls) == 2)
        hashes = {index: request_hash({"index": str(index)}) for index in (1, 2)}
        url = f"{V1}/providers/{provider_id}/results"
        async with host.user(executor.calls[0][2]) as bearer:
            own = 1 if '"1"' in executor.calls[0][1] else 2
            for method, path, hashed in (
                ("POST", url, hashes[3 - own]),
                ("POST", url, None),
                ("POST", f"{V1}/providers/{UUID(int=1)}/results", hashes[own]),
                ("DELETE", f"{V1}/providers/{provider_id}", hashes[own]),
                ("GET", f"{V1}/rooms/lab/providers/{FRAME}", hashes[own]),
                ("GET", f"{V1}/me", hashes[own]),
                ("POST", f"{V1}/rooms/@internal/tasks/@internal:a:B", hashes[own]),
                ("POST", f"{V1}/workers", hashes[own]),
            ):
                headers = {} if hashed is None else {"X-Request-Hash": hashed}
                expect_problem(await bearer.request(method, path, headers=headers), 403, "forbidden")
            executor.gate.set()
            assert [(await response).text for response in waiting] == ["frame 1", "frame 2"]
            await until(lambda: executor.uploads == 2)
            repeat = await bearer.post(url, content=b"forged", headers={"X-Request-Hash": hashes[own]})
            expect_problem(repeat, 401, "unauthorized")


async def test_an_executor_of_providers_without_a_token(sessions: Sessions) -> None:
    """Gets none, and one that takes it as a keyword gets it."""
    calls: list[Any] = []

    async def without(cls: Any, params: str, provider_id: str, request_id: str) -> None:
        calls.append(None)

    async def keyword(cls: Any, params: str, provider_id: str, request_id: str, *, token: str) -> None:
        calls.append(token[:4])

    for function in (without, keyword):
        executor: Any = function
        executor.client = True
        async with (
            run_host(sessions, InMemoryBroker(), executor, worker_token=None) as host,
            host.user("ada") as ada,
        ):
            await read(ada, FRAME, wait=0, index=len(calls))
            await until(lambda function=function: len(calls) == 1 + (function is keyword))
    assert calls == [None, "jlt_"]


async def test_readers_get_the_problem_that_the_executor_uploads(
    sessions: Sessions, broker: AsyncBroker, executor: Executor
) -> None:
    """With its status and all its members, and from the store."""
    async with run_host(sessions, broker, executor) as host, host.user("ada") as ada:
        for wait in (30, 0, 0):
            response = await read(ada, FRAME, wait=wait, index=404)
            assert (response.status_code, response.headers["content-type"]) == (404, PROBLEM)
            assert response.json() == {
                **{"type": "/v1/problems/frame-not-found", "title": "Not Found", "status": 404},
                **{"detail": "no such frame", "index": 404},
            }
        assert len(executor.calls) == 1


async def test_a_dispatch_that_fails_leaves_no_mark(sessions: Sessions, executor: Executor) -> None:
    """The caller gets 503; the next one is served, and need not wait for the end of a lock."""
    broker = Refusing()
    async with run_host(sessions, broker, executor) as host, host.user("ada") as ada:
        for _ in range(2):
            problem = expect_problem(await read(ada, FRAME, index=2), 503, "service-unavailable")
            assert "did not accept the request" in problem["detail"]
        broker.is_down = False
        assert (await read(ada, FRAME, index=2)).text == "frame 2"
        host.app.state.internal_provider_registry = None
        problem = expect_problem(await read(ada, FRAME, index=3), 503, "provider-not-connected")
        assert "no executor in this server" in problem["detail"]


async def leave(reading: "asyncio.Task[Any]") -> None:
    """End a reader's request before its answer."""
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()


async def test_a_reader_that_leaves_does_not_stop_its_request(sessions: Sessions, executor: Executor) -> None:
    """The broker gets it, and once; the next reader gets its result."""
    broker = Slow()
    async with (
        asyncio.timeout(BOUND),
        run_host(sessions, broker, executor, provider_inflight_ttl_seconds=3600) as host,
        host.user("ada") as ada,
    ):
        reading = asyncio.create_task(read(ada, FRAME, index=1))
        await broker.reached.wait()
        await leave(reading)
        broker.gate.set()
        await until(lambda: len(executor.calls) == 1)
        assert (await read(ada, FRAME, index=1)).text == "frame 1"
        assert len(executor.calls) == 1


@on_postgresql
async def test_a_reader_may_leave_before_its_request_is_recorded(
    sessions: Sessions, executor: Executor
) -> None:
    """What is recorded is sent, so that the next reader need not wait for the end of its lifetime."""
    waiting = sql(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with (
        asyncio.timeout(BOUND),
        run_host(sessions, InMemoryBroker(), executor, provider_inflight_ttl_seconds=3600) as host,
        host.user("ada") as ada,
        sessions() as observer,
    ):
        async with sessions.begin() as session:
            await session.execute(sql("SELECT id FROM joblib_provider FOR UPDATE"))
            reading = asyncio.create_task(read(ada, FRAME, index=1))
            while not (await observer.execute(waiting)).scalar_one():
                await observer.rollback()
                await asyncio.sleep(0.01)
            await leave(reading)
        assert (await read(ada, FRAME, index=1)).text == "frame 1"
        assert len(executor.calls) == 1


@on_postgresql
async def test_two_servers_send_a_request_once(
    sessions: Sessions, broker: AsyncBroker, executor: Executor
) -> None:
    """Both may send it, and the readers of both get the result."""
    executor.gate.clear()
    async with (
        run_host(sessions, broker, executor) as one,
        run_host(sessions, broker, executor) as two,
        one.user("ada") as ada,
        two.user("eve") as eve,
    ):
        waiting = [asyncio.ensure_future(read(each, FRAME, index=1)) for each in (ada, eve) * 3]
        expect_problem(await read(eve, FRAME, wait=0, index=1), 504, "provider-timeout")
        executor.gate.set()
        assert {response.text for response in await asyncio.gather(*waiting)} == {"frame 1"}
        assert len(executor.calls) == 1


async def test_no_request_registers_or_removes_them(sessions: Sessions, executor: Executor) -> None:
    """Not even of a superuser, nor of the owner; a worker that claims gets none of their requests."""
    async with (
        run_host(sessions, InMemoryBroker(), executor) as host,
        host.user("root") as root,
        host.user(UPLOADER) as uploader,
    ):
        body = {"category": "frames", "name": "Frame"}
        for client in (root, uploader):
            response = await client.put(f"{V1}/rooms/@internal/providers", json=body)
            detail = expect_problem(response, 403, "forbidden")["detail"]
            assert client is uploader or "ensure_internal_providers" in detail  # the guard comes first
            provider = (await client.get(f"{V1}/rooms/lab/providers/{FRAME}/info")).json()
            expect_problem(await client.delete(f"{V1}/providers/{provider['id']}"), 403, "forbidden")
        assert await names(root) == [FRAME]
        url = f"{V1}/providers/{provider['id']}/results"
        async with host.user("eve") as eve:
            response = await eve.post(url, content=b"wrong", headers={"X-Request-Hash": "0" * 64})
            expect_problem(response, 403, "forbidden")


async def test_file_systems_are_for_superusers_by_default(sessions: Sessions, executor: Executor) -> None:
    """Others do not see them, and get 403. A setting opens them to all, while the server runs."""
    broker, classes = InMemoryBroker(), [Frame, Files]
    async with (
        run_host(sessions, broker, executor, classes) as host,
        host.user("root") as root,
        host.user("ada") as ada,
    ):
        assert await names(root) == [FILES, FRAME]
        assert await names(ada) == [FRAME]
        assert (await read(root, FILES, index=1)).text == "frame 1"
        for response in (
            await read(ada, FILES, index=1),
            await ada.get(f"{V1}/rooms/lab/providers/{FILES}/info"),
        ):
            problem = expect_problem(response, 403, "forbidden")
            assert "filebrowser_require_superuser" in problem["detail"]
        host.joblib.settings.filebrowser_require_superuser = False
        assert await names(ada) == [FILES, FRAME]
        assert (await read(ada, FILES, index=1)).text == "frame 1"


@on_both
async def test_replicas_declare_them_at_once_and_a_change_outdates_results(
    sessions: Sessions, executor: Executor
) -> None:
    """The same declaration changes nothing; another content type is a new registration."""

    class Newer(Frame):
        content_type: ClassVar[str] = "text/html"

    Newer.__name__ = "Frame"
    broker = InMemoryBroker()
    async with run_host(sessions, broker, executor) as host, host.user("ada") as ada:
        assert (await read(ada, FRAME, index=1)).text == "frame 1"
        before = (await ada.get(f"{V1}/rooms/lab/providers/{FRAME}/info")).json()
        await asyncio.gather(
            *[ensure_internal_providers([Frame, Files], sessions, user_id=UPLOADER) for _ in range(5)]
        )
        assert (await ada.get(f"{V1}/rooms/lab/providers/{FRAME}/info")).json() == before
        assert (await read(ada, FRAME, wait=0, index=1)).status_code == 200
        await ensure_internal_providers([Newer], sessions, user_id=UPLOADER)
        renewed = await read(ada, FRAME, index=1)
        assert renewed.headers["content-type"].startswith("text/html")
        assert len(executor.calls) == 2


class NoRead:
    """A class that is no provider."""

    category = "frames"


async def test_errors_name_what_cannot_be_an_internal_provider(sessions: Sessions) -> None:
    """And what to pass instead."""
    broker, executor = InMemoryBroker(), Executor()
    bad = type("Bad", (Frame,), {"category": "a:b", "__annotations__": {}})
    odd = type("Odd", (Frame,), {"content_type": "text", "__annotations__": {}})
    for cls, kind, text in [
        (NoRead, TypeError, "NoRead is no provider: pass a class with model_json_schema"),
        (bad, ValueError, "Bad cannot be an internal provider: category"),
        (odd, ValueError, "Odd cannot be an internal provider: content_type"),
    ]:
        with pytest.raises(kind, match=text):
            register_internal_providers(broker, [cls], executor)
        with pytest.raises(kind, match=text):
            await ensure_internal_providers([cls], sessions, user_id=UPLOADER)
    with pytest.raises(TypeError, match="executor is None, not an async function"):
        register_internal_providers(broker, [Frame], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two classes have the same category and name"):
        register_internal_providers(broker, [Frame, Frame], executor)
    for user_id in (None, "", "@internal"):
        with pytest.raises(ValueError, match="user_id is"):
            await ensure_internal_providers([Frame], sessions, user_id=user_id)
    registry = register_internal_providers(broker, [Frame], executor)
    assert isinstance(registry, InternalProviderRegistry)
    assert (set(registry.tasks), registry.providers, registry.executor) == ({FRAME}, {FRAME: Frame}, executor)


class Move:
    """An internal job."""

    category = "modifiers"
    model_json_schema = staticmethod(dict)
    model_validate = staticmethod(dict)
    run = print


Calls = list[tuple[Any, ...]]


def taking_token(calls: Calls) -> Any:
    """Return an executor with a parameter `token`."""

    async def run(cls: Any, payload: Any, room_id: str, task_id: str, token: str | None = None) -> None:
        calls.append((room_id, token))

    return run


def taking_keyword(calls: Calls) -> Any:
    """Return an executor whose parameter `token` is a keyword."""

    async def run(cls: Any, payload: Any, room_id: str, task_id: str, *, token: str | None) -> None:
        calls.append((room_id, token))

    return run


def taking_none(calls: Calls) -> Any:
    """Return an executor that takes no token, but other arguments."""

    async def run(cls: Any, payload: Any, room_id: str, task_id: str, pause: float = 0.0) -> None:
        calls.append((room_id, pause))

    return run


@pytest.mark.parametrize(
    ("make", "expected"), [(taking_token, UPLOADER), (taking_keyword, UPLOADER), (taking_none, 0.0)]
)
async def test_executors_of_jobs_get_a_token_if_they_take_one(
    make: Any, expected: Any, sessions: Sessions
) -> None:
    """The host's function is called for each dispatch."""
    calls: Calls = []
    minted: list[str] = []

    async def mint() -> str:
        minted.append(UPLOADER)
        return UPLOADER

    memory = InMemoryBroker(await_inplace=True)
    app = FastAPI()
    joblib = JobLib(session_maker=sessions, identity=lambda: Identity("ada", True), worker_token=mint)
    joblib.mount(app)
    await register_internal_jobs(app, memory, [Move], make(calls), sessions)
    host = Host(app, joblib)
    async with app.router.lifespan_context(app), host.user("ada") as ada:
        await submit(ada, "@internal:modifiers:Move")
        await submit(ada, "@internal:modifiers:Move")
    assert calls == [("lab", expected)] * 2
    assert len(minted) == (0 if make is taking_none else 2)


async def test_a_host_uses_the_token_in_its_own_routes(sessions: Sessions) -> None:
    """As a dependency or by a call; without a function, or without a text, the error says so."""

    async def no_text() -> Any:
        return 7

    app, other = FastAPI(), FastAPI()
    JobLib(session_maker=sessions, identity=identity, worker_token=worker_token).mount(app)
    wrong = JobLib(session_maker=sessions, identity=identity, worker_token=no_text)
    wrong.mount(other)

    @app.get("/token")
    async def token(token: WorkerTokenDep) -> str:
        return token

    async with Host(app, wrong).user("ada") as ada:
        assert (await ada.get("/token")).json() == UPLOADER
    assert await mint_internal_worker_token(app) == await worker_token()
    with pytest.raises(TypeError, match="worker_token returned int: it must return a text"):
        await mint_internal_worker_token(wrong)
    without: Any = SimpleNamespace(state=SimpleNamespace())
    with pytest.raises(Exception, match=r"pass JobLib\(worker_token=function\)"):
        await mint_internal_worker_token(without)
    with pytest.raises(TypeError, match="worker_token is a str, not a function"):
        JobLib(session_maker=sessions, identity=identity, worker_token="secret")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="worker_token is called without arguments, but requires request"):
        JobLib(session_maker=sessions, identity=identity, worker_token=lambda request: "")  # type: ignore[misc,arg-type]
