"""Hosts with different sessions, locks, event loops, identities, errors and tables."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
import sqlmodel.ext.asyncio.session
from alembic.migration import MigrationContext
from alembic.operations import Operations
from databases import on_both
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from rest import ROTATE, V1, claim, register, report, run_task, submit
from sqlalchemy import NullPool, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from waiting import until

from host.conftest import Start
from zndraw_joblib import JobLib, JobLibSettings, router, verify_readable_room, verify_writable_room

BOUND = 30
ADA = uuid.UUID(int=5)
ANY_SESSION = [AsyncSession, sqlmodel.ext.asyncio.session.AsyncSession]


class Base(DeclarativeBase):
    """A host's own tables."""


class Account(Base):
    """A user account of the host."""

    __tablename__ = "account"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    is_superuser: Mapped[bool] = mapped_column(default=True)


@dataclass
class Person:
    """A user without a row in any table."""

    id: Any
    is_superuser: bool = False


@pytest.fixture
async def engine(async_url: str) -> AsyncIterator[AsyncEngine]:
    """Return the engine of the host, on a database with tables of the host and one account."""
    engine = create_async_engine(async_url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with async_sessionmaker(engine)() as session:
        session.add(Account(id=ADA))
        await session.commit()
    yield engine
    await engine.dispose()


def person_from_header(convert: Callable[[str], Any] = str) -> Callable[..., Any]:
    """Return a dependency that takes the identity from the header `X-Id`."""

    async def current_person(x_id: Annotated[str, Header()]) -> Person:
        return Person(convert(x_id), is_superuser=x_id in {"1", str(uuid.UUID(int=1))})

    return current_person


def mounted(session_maker: Any, identity: Callable[..., Any], **options: Any) -> FastAPI:
    """Return a host with only the queue."""
    app = FastAPI()
    JobLib(session_maker=session_maker, identity=identity, **options).mount(app)
    return app


def in_dependency(sessions: Any) -> Callable[..., Any]:
    """Return an identity dependency whose session stays open during the request and commits at its end."""

    async def open_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session
            await session.commit()

    async def current_account(session: Annotated[AsyncSession, Depends(open_session)]) -> Account | None:
        return await session.get(Account, ADA)

    return current_account


@on_both
async def test_a_lock_around_every_session_does_not_deadlock(engine: AsyncEngine, start: Start) -> None:
    """A host may allow one session at a time, including its identity's own."""
    maker, lock = async_sessionmaker(engine, expire_on_commit=False), asyncio.Lock()

    @asynccontextmanager
    async def one_at_a_time() -> AsyncIterator[AsyncSession]:
        async with lock, maker() as session:
            yield session

    client = await start(mounted(one_at_a_time, in_dependency(one_at_a_time)))
    async with asyncio.timeout(BOUND):
        await run_task(client)
        job = await register(client, room="lab")
        waiting = [asyncio.ensure_future(claim(client, job["worker_id"], 30)) for _ in range(2)]
        tasks = await asyncio.gather(*(submit(client, job) for _ in range(8)))
        claimed = await asyncio.gather(*waiting)
        url = f"{V1}/tasks/{claimed[0]['id']}"
        ended = asyncio.ensure_future(client.get(url, headers={"Prefer": "wait=30"}))
        assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == len(tasks) + 1
        await client.delete(f"{V1}/workers/{job['worker_id']}")
        assert (await ended).json()["status"] == "failed"
        await until(lambda: not lock.locked())  # the server also uses sessions by itself


@on_both
@pytest.mark.parametrize("expire", [True, False], ids=["expire", "keep"])
@pytest.mark.parametrize("session_class", ANY_SESSION, ids=["sqlalchemy", "sqlmodel"])
async def test_any_session_class_works(
    engine: AsyncEngine, start: Start, session_class: type[AsyncSession], expire: bool
) -> None:
    """SQLAlchemy's or SQLModel's, with and without `expire_on_commit`."""
    sessions = async_sessionmaker(engine, class_=session_class, expire_on_commit=expire)
    client = await start(mounted(sessions, in_dependency(sessions)))
    assert (await run_task(client))["created_by"] == str(ADA)


@pytest.fixture
def send_request(async_url: str) -> Callable[..., httpx.Response]:
    """Return a function that sends a request in a new event loop, to a host without a lifespan."""
    sessions = async_sessionmaker(create_async_engine(async_url, poolclass=NullPool))

    async def make_schema() -> None:
        app = mounted(sessions, person_from_header())
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(make_schema())
    app = mounted(sessions, person_from_header())

    def send(method: str, url: str, wait: int = 0, **options: Any) -> httpx.Response:
        headers = {"X-Id": "7", "Prefer": f"wait={wait}"}

        async def alone() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                response = await client.request(method, f"{V1}{url}", headers=headers, **options)
            # A thread of aiosqlite fails if its loop is closed while it connects.
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others, timeout=BOUND)
                assert all(task.done() for task in others)
            return response

        return asyncio.run(alone())

    return send


def test_each_request_may_have_its_own_event_loop(send_request: Callable[..., httpx.Response]) -> None:
    """A synchronous test client works like this; waiting works too."""
    job = send_request("PUT", "/rooms/lab/jobs", json=ROTATE).json()
    worker = {"worker_id": job["worker_id"]}
    for wait in (0, 1):
        assert send_request("POST", "/tasks/claim", wait, json=worker).json() == {
            "task": None,
            "reason": "empty",
        }
        task = send_request("POST", f"/rooms/lab/tasks/{job['full_name']}", json={}).json()
        claimed = send_request("POST", "/tasks/claim", wait, json=worker).json()["task"]
        assert claimed["id"] == task["id"]
        assert send_request("GET", f"/tasks/{task['id']}", wait).json() == claimed
        assert send_request("PATCH", f"/workers/{job['worker_id']}").status_code == 200
        for status in ("running", "completed"):
            assert (
                send_request("PATCH", f"/tasks/{task['id']}", json={"status": status}).json()["status"]
                == status
            )
    assert send_request("DELETE", f"/workers/{job['worker_id']}").status_code == 204


async def test_a_host_may_change_settings_at_run_time(engine: AsyncEngine, start: Start) -> None:
    """Each request reads the current settings."""
    settings = JobLibSettings()
    client = await start(
        mounted(async_sessionmaker(engine), person_from_header(), settings=settings), **{"X-Id": "7"}
    )
    job = await register(client, room="lab", schema={"required": ["y"]})
    url = f"{V1}/rooms/attic/tasks/{job['full_name']}"
    assert (await client.post(url, json={})).status_code == 404
    settings.cross_room_jobs = True
    assert (await client.post(url, json={})).status_code == 422
    settings.validate_payload = False
    assert (await client.post(url, json={})).status_code == 202
    settings.allowed_categories = ["analysis"]
    response = await client.put(f"{V1}/rooms/lab/jobs", json={**ROTATE, "name": "Other"})
    assert response.json()["type"] == "/v1/problems/invalid-category"
    settings.worker_timeout_seconds = 8
    assert (await client.post(f"{V1}/workers")).json()["heartbeat_interval_seconds"] == 2


@pytest.mark.parametrize(
    ("ids", "convert"),
    [
        (("1", "7", "77"), int),
        ((str(uuid.UUID(int=1)), str(uuid.UUID(int=7)), str(uuid.UUID(int=8))), uuid.UUID),
        (("1", "\xe4@x.org", "\xc4@x.org"), str),
    ],
    ids=["int", "uuid", "text"],
)
async def test_an_identity_may_have_any_type_of_id(
    engine: AsyncEngine, start: Start, ids: tuple[str, ...], convert: Callable[[str], Any]
) -> None:
    """Numbers, UUIDs and addresses are compared as text."""
    app = mounted(async_sessionmaker(engine), person_from_header(convert))
    root, ada, bob = [await start(app, **{"X-Id": name.encode("latin-1")}) for name in ids]
    job = await register(root)
    assert (await ada.put(f"{V1}/rooms/@global/jobs", json=ROTATE)).status_code == 403
    task = await submit(ada, job)
    assert (await report(bob, task, "cancelled")).status_code == 403
    assert (await report(ada, task, "cancelled")).status_code == 200
    worker = (await ada.post(f"{V1}/workers")).json()
    assert (await bob.patch(f"{V1}/workers/{worker['id']}")).status_code == 403
    assert (await ada.patch(f"{V1}/workers/{worker['id']}")).status_code == 200


async def test_an_identity_that_is_none_is_refused(engine: AsyncEngine, start: Start) -> None:
    """A dependency that returns None for strangers gives them no access."""

    async def no_identity() -> None:
        return None

    client = await start(mounted(async_sessionmaker(engine), no_identity))
    response = await client.get(f"{V1}/workers")
    assert (response.status_code, response.json()["type"]) == (401, "/v1/problems/unauthorized")


async def test_the_routes_of_a_host_keep_their_errors(engine: AsyncEngine, start: Start) -> None:
    """404, 405, 422 and exceptions of the host are not changed."""
    app = mounted(async_sessionmaker(engine), person_from_header())

    @app.get("/own/{number}")
    async def own(number: int) -> int:
        raise HTTPException(418, {"own": "shape"})

    client = await start(app, **{"X-Id": "7"})
    assert (await client.get("/nowhere")).json() == {"detail": "Not Found"}
    assert (await client.post("/own/1")).json() == {"detail": "Method Not Allowed"}
    assert (await client.get("/own/1")).json() == {"detail": {"own": "shape"}}
    response = await client.get("/own/x")
    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["path", "number"])
    assert response.headers["content-type"] == "application/json"
    ours = await client.get(f"{V1}/workers", params={"limit": "x"})
    assert ours.headers["content-type"] == "application/problem+json"


async def test_a_host_handles_its_own_exceptions(engine: AsyncEngine, start: Start) -> None:
    """Its identity and its guards may raise them, and its exception handler responds."""

    class NotHere(Exception):
        pass

    app = mounted(async_sessionmaker(engine), person_from_header())

    @app.exception_handler(NotHere)
    async def answer_it(request: Request, error: NotHere) -> Response:
        return JSONResponse({"own": str(error)}, 423)

    async def guard(room_id: str) -> str:
        raise NotHere(room_id)

    app.dependency_overrides[verify_writable_room] = guard
    client = await start(app, **{"X-Id": "7"})
    response = await client.put(f"{V1}/rooms/lab/jobs", json=ROTATE)
    assert (response.status_code, response.json()) == (423, {"own": "lab"})


async def test_dependencies_of_the_whole_app_apply(engine: AsyncEngine, start: Start) -> None:
    """A dependency of the host's app applies to the routes of the queue too."""

    async def gate(x_gate: Annotated[str, Header()] = "") -> None:
        if x_gate != "open":
            raise HTTPException(403, "closed")

    app = FastAPI(dependencies=[Depends(gate)])
    JobLib(session_maker=async_sessionmaker(engine), identity=person_from_header()).mount(app)
    client = await start(app, **{"X-Id": "7"})
    assert (await client.get(f"{V1}/workers")).status_code == 403
    assert (await client.get(f"{V1}/workers", headers={"X-Gate": "open"})).status_code == 200


async def test_a_host_may_override_its_identity(engine: AsyncEngine, start: Start) -> None:
    """`app.dependency_overrides` applies to the identity as to any dependency."""

    async def locked_out() -> Person:
        raise HTTPException(401, "access denied")

    app = mounted(async_sessionmaker(engine), locked_out)
    client = await start(app)
    assert (await client.post(f"{V1}/workers")).status_code == 401
    app.dependency_overrides[locked_out] = lambda: Person("tester")
    assert (await client.post(f"{V1}/workers")).status_code == 201


async def test_an_app_may_be_started_again(engine: AsyncEngine) -> None:
    """After a stop and a new start waiting requests are woken as before."""
    app = mounted(async_sessionmaker(engine), person_from_header())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://host", headers={"X-Id": "7"}
    ) as client:
        for _ in range(2):
            async with app.router.lifespan_context(app):
                job = await register(client, room="lab")
                waiting = asyncio.ensure_future(claim(client, job["worker_id"], 30))
                await asyncio.wait([waiting], timeout=0.2)
                async with asyncio.timeout(BOUND):
                    task = await submit(client, job)
                    claimed = await waiting
                assert claimed is not None
                assert claimed["id"] == task["id"]
                await client.delete(f"{V1}/workers/{job['worker_id']}")


async def test_a_router_without_joblib_logs_what_is_missing(
    engine: AsyncEngine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses every request, and the log names the call that is missing."""
    app = FastAPI()
    app.include_router(router)
    client = await start(app)
    response = await client.get(f"{V1}/workers")
    assert (response.status_code, response.json()["type"]) == (500, "/v1/problems/internal-server-error")
    assert "JobLib" in caplog.text


async def test_a_guard_may_replace_the_room(engine: AsyncEngine, start: Start) -> None:
    """The override returns the room for writes and for reads."""

    async def short(room_id: str) -> str:
        return room_id.removeprefix("room-")

    app = mounted(async_sessionmaker(engine), person_from_header())
    app.dependency_overrides[verify_writable_room] = short
    app.dependency_overrides[verify_readable_room] = short
    client = await start(app, **{"X-Id": "7"})
    job = await register(client, room="room-lab")
    assert job["full_name"] == "lab:modifiers:Rotate"
    assert (await submit(client, job, "room-lab"))["room_id"] == "lab"
    assert (await client.get(f"{V1}/rooms/room-lab/tasks")).json()["total"] == 1


async def test_a_middleware_of_the_host_delays_no_waiter(engine: AsyncEngine, start: Start) -> None:
    """A long-poll behind a middleware is woken as usual."""
    app = mounted(async_sessionmaker(engine), person_from_header())

    @app.middleware("http")
    async def stamp(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        response.headers["X-Stamp"] = "1"
        return response

    client = await start(app, **{"X-Id": "7"})
    job = await register(client, room="lab")
    waiting = asyncio.ensure_future(claim(client, job["worker_id"], 30))
    async with asyncio.timeout(BOUND):
        task = await submit(client, job)
        assert (await waiting)["id"] == task["id"]
    assert (await client.get(f"{V1}/workers")).headers["x-stamp"] == "1"


async def test_the_queue_may_be_mounted_anywhere(engine: AsyncEngine, start: Start) -> None:
    """In an app mounted under a path, before and after other routers."""
    inner = mounted(async_sessionmaker(engine), person_from_header())
    pages = APIRouter()

    @pages.get("/{rest:path}")
    async def page(rest: str) -> str:
        return rest

    inner.include_router(pages)
    outer = FastAPI()
    outer.mount("/api", inner)
    await start(inner)
    client = await start(outer, **{"X-Id": "7"})
    client.base_url = "http://host/api"
    ended = await run_task(client)
    assert (await client.get("/elsewhere")).json() == "elsewhere"
    job = await register(client, room="lab")
    response = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={})
    assert response.headers["location"] == f"{V1}/tasks/{response.json()['id']}"
    assert ended["room_id"] == "lab"


async def test_the_queue_changes_no_table_of_the_host(sqlite_url: str, start: Start) -> None:
    """Its tables have their own prefix and their own version table."""
    engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))

    def make_hosts_tables(connection: Any) -> None:
        Base.metadata.create_all(connection)
        context = MigrationContext.configure(connection)
        context._ensure_version_table()
        Operations(context).execute("INSERT INTO alembic_version VALUES ('hosts-own')")

    async with engine.begin() as connection:
        await connection.run_sync(make_hosts_tables)
    client = await start(mounted(async_sessionmaker(engine), person_from_header()), **{"X-Id": "7"})
    await run_task(client)
    async with engine.connect() as connection:
        names = set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))
        versions = (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalars().all()
    await engine.dispose()
    own = {"account", "alembic_version"}
    assert own <= names
    assert all(name.startswith("joblib_") for name in names - own)
    assert "joblib_alembic_version" in names
    assert versions == ["hosts-own"]
