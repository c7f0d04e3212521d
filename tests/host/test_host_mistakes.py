"""Each mistake of a host is an error when it mounts the queue, and the error says what to do."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
import socketio
from databases import on_both
from fastapi import Depends, FastAPI, Request
from rest import V1, expect_problem
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlmodel import Field, SQLModel

from host.conftest import Start
from host.queues import ROOT
from zndraw_joblib import JobLib, router
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase


class Item(SQLModel, table=True):
    """A table of a host that creates its tables from the metadata."""

    __tablename__ = "host_item"
    id: int | None = Field(default=None, primary_key=True)


async def user() -> Any:
    """Return a user."""
    return ROOT


async def no_room() -> str:
    """Admit everybody."""
    return "lab"


async def by_room(room_id: str) -> str:
    """Return the room."""
    return room_id


async def below(room: Annotated[str, Depends(by_room)]) -> str:
    """Return the room of another dependency."""
    return room


async def by_request(request: Request) -> str:
    """Read the room from the path."""
    return str(request.path_params["room_id"])


def queue(**options: Any) -> JobLib:
    """Return a queue that is not mounted."""
    given = {"session_maker": async_sessionmaker(), "identity": user, **options}
    return JobLib(**given)


def test_unusable_parts_are_errors_at_mount(subtests: pytest.Subtests) -> None:
    """The error names the argument."""
    for options, match in [
        ({"identity": ROOT}, "not a function.*identity=current_user"),
        ({"identity": dict}, "has no attribute 'id'"),
        ({"readable_room": no_room}, "readable_room: 'no_room' does not take the parameter room_id"),
        ({"writable_room": "lab"}, "writable_room is 'lab', not a function"),
        ({"tsio": socketio.Server()}, "synchronous.*AsyncServer"),
        ({"tsio": socketio.AsyncServer}, "cannot emit"),
        ({"tsio": object()}, "cannot emit"),
    ]:
        with subtests.test(options=options, match=match):
            app = FastAPI()
            routes = list(app.routes)
            with pytest.raises(TypeError, match=match):
                queue(**options).mount(app)
            assert app.routes == routes


def test_a_session_maker_opens_asynchronous_sessions(subtests: pytest.Subtests) -> None:
    """The error says which one to pass."""
    for given in (sessionmaker(), create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://"), 5):
        with subtests.test(given=given), pytest.raises(TypeError, match="async_sessionmaker"):
            queue(session_maker=given)


@pytest.mark.parametrize("guard", [by_room, below, by_request])
def test_guards_that_find_the_room_are_accepted(guard: Any) -> None:
    """As a parameter, below another dependency, or from the request."""
    app = FastAPI()
    joblib = queue(readable_room=guard)
    joblib.mount(app)
    assert app.state.joblib is joblib


def test_a_queue_is_mounted_once_and_in_time() -> None:
    """Not twice, not into an app that has started, not into another object."""
    app, joblib = FastAPI(), queue()
    joblib.mount(app)
    with pytest.raises(RuntimeError, match="mounted already"):
        joblib.mount(FastAPI())
    late = FastAPI()
    late.middleware_stack = late.build_middleware_stack()
    with pytest.raises(RuntimeError, match="has started"):
        queue().mount(late)
    with pytest.raises(TypeError, match="FastAPI app, not ASGIApp"):
        queue().mount(socketio.ASGIApp(socketio.AsyncServer(async_mode="asgi"), FastAPI()))


async def test_a_router_without_a_queue_says_what_to_call(caplog: pytest.LogCaptureFixture) -> None:
    """The response and the log name the call."""
    app = FastAPI()
    app.include_router(router)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        body = expect_problem(await client.get(f"{V1}/workers"), 500, "internal-server-error")
    assert "JobLib(...).mount(app)" in body["detail"]
    assert "JobLib(...).mount(app)" in caplog.text


@pytest.fixture
def empty_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database without tables."""
    if kind == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'host.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url.replace("postgresql:", "postgresql+asyncpg:", 1)


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[AsyncEngine]:
    """Return the engine of a host without tables."""
    engine = create_async_engine(empty_url)
    yield engine
    await engine.dispose()


@on_both
@pytest.mark.parametrize("how", ["async", "sync"])
async def test_a_host_creates_the_tables_beside_its_own(empty: AsyncEngine, start: Start, how: str) -> None:
    """One line, also repeated; the version is set, and a rollback removes all. Then the app starts."""
    joblib = queue(session_maker=async_sessionmaker(empty))

    async def create(connection: Any) -> None:
        await connection.run_sync(SQLModel.metadata.tables["host_item"].create, checkfirst=True)
        if how == "async":
            await joblib.create_tables(connection)
        else:
            await connection.run_sync(joblib.create_tables)

    if empty.dialect.name == "postgresql":
        async with empty.connect() as connection:
            await create(connection)
            await connection.rollback()
            assert await connection.run_sync(lambda c: inspect(c).get_table_names()) == []
    for _ in range(2):
        async with empty.begin() as connection:
            await create(connection)
    assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()
    app = FastAPI()
    joblib.mount(app)
    client = await start(app)
    assert (await client.get(f"{V1}/workers")).status_code == 200


async def test_tables_in_a_transaction_that_has_begun(empty: AsyncEngine) -> None:
    """The host may have written before; another object than a connection is an error."""
    async with empty.begin() as connection:
        await connection.execute(text("CREATE TABLE other (id INTEGER)"))
        await connection.execute(text("INSERT INTO other VALUES (1)"))
        await queue().create_tables(connection)
        assert (await connection.execute(text("SELECT count(*) FROM joblib_task"))).scalar() == 0
    with pytest.raises(TypeError, match="takes a connection, not AsyncEngine"):
        queue().create_tables(empty)


@on_both
async def test_a_missing_schema_names_the_call(empty: AsyncEngine) -> None:
    """On PostgreSQL the start stops with the command and the call; SQLite creates the tables."""
    app = FastAPI()
    queue(session_maker=async_sessionmaker(empty)).mount(app)
    if empty.dialect.name == "sqlite":
        async with app.router.lifespan_context(app):
            assert await schema.current(SessionDatabase(open_sessions(empty))) == schema.newest()
        return
    with pytest.raises(schema.OutdatedSchema, match=r"db upgrade.*upgrade_tables=True.*create_tables"):
        async with app.router.lifespan_context(app):
            raise AssertionError("it started")
