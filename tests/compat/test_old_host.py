"""A host of version 0.1.x runs, on both databases; each old name that it uses is a warning."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Annotated, Any

import httpx
import pytest
import socketio
from databases import on_sqlite
from fastapi import Depends, FastAPI
from host.conftest import Start, start
from realtime.sockets import serve
from rest import ROTATE, V1, claim, register, submit
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from taskiq import InMemoryBroker
from waiting import until

from zndraw_joblib import (
    Emission,
    FrameRoomCleanupDep,
    Job,
    JobLib,
    JobLibSettings,
    JobLibSettingsDep,
    ProblemException,
    ProviderRecord,
    ProvidersInvalidate,
    ResultBackendDep,
    Worker,
    WritableRoomDep,
    get_joblib_settings,
    get_tsio,
    problem_exception_handler,
    register_socketio_handlers,
    run_sweeper,
)
from zndraw_joblib.server.db.engine import open_engine
from zndraw_joblib.server.db.schema import OutdatedSchema

__all__ = ["start"]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    return str(request.getfixturevalue("empty_postgres_url"))


OWN_ROWS = "ignore:(Worker|ProviderRecord).user_id:DeprecationWarning"


@pytest.fixture(scope="session")
def old_host() -> ModuleType:
    """Import the host, with one warning for each old name at its line."""
    with pytest.warns(DeprecationWarning, match="is a name of version 0.1") as warned:
        module = importlib.import_module("compat.old_host")
    found = [str(each.message) for each in warned if each.filename == module.__file__]
    assert len(set(found)) == module.WARNINGS
    return module


@pytest.fixture
async def host(old_host: ModuleType, engine: AsyncEngine) -> Any:
    """Return the host on the test's database, with its own tables."""
    made = old_host.OldHost(engine)
    await made.create_tables()
    return made


async def test_its_routes_and_overrides_work(host: Any, start: Start) -> None:
    """Jobs of any allowed category, and the guard that it overrides; errors are problems."""
    client = await start(host.app)
    response = await client.put(f"{V1}/rooms/lab/jobs", json={**ROTATE, "category": "filesystem"})
    assert (response.status_code, response.json()["full_name"]) == (201, "lab:filesystem:Rotate")
    response = await client.put(f"{V1}/rooms/lab/jobs", json={**ROTATE, "category": "other"})
    assert (response.status_code, response.json()["type"]) == (400, "/v1/problems/invalid-category")
    response = await client.put(f"{V1}/rooms/locked/jobs", json=ROTATE)
    assert (response.status_code, response.json()["detail"]) == (400, "The room is locked")
    task = (await client.post(f"{V1}/rooms/lab/tasks/lab:filesystem:Rotate", json={})).json()
    assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "pending"


@pytest.mark.parametrize("lifespan", [True, False])
async def test_internal_jobs_are_registered_before_the_app_runs(
    host: Any, start: Start, lifespan: bool
) -> None:
    """In an event loop that ends before that of the server starts."""
    await asyncio.to_thread(host.register_jobs)
    transport = httpx.ASGITransport(host.app)
    client = (
        await start(host.app) if lifespan else httpx.AsyncClient(transport=transport, base_url="http://host")
    )
    response = await client.post(f"{V1}/rooms/lab/tasks/@internal:modifiers:Center", json={})
    assert (response.status_code, response.json()["status"]) == (202, "claimed")
    await until(lambda: host.ran)
    assert host.ran == [("Center", {}, "lab")]


async def test_rows_of_internal_jobs(host: Any, start: Start) -> None:
    """They can be created without a broker, also twice."""
    for _ in range(2):
        await host.ensure_jobs()
    listed = (await (await start(host.app)).get(f"{V1}/rooms/lab/jobs")).json()
    assert [job["full_name"] for job in listed["items"]] == ["@internal:modifiers:Center"]


@pytest.mark.filterwarnings(OWN_ROWS)
async def test_its_sweeper_cleans_up_after_rows_of_its_own(host: Any, old_host: ModuleType) -> None:
    """After the commit, the function gets the rooms with frames; the others' events are sent too."""
    silent = datetime.now(UTC) - timedelta(hours=1)
    await host.add_frames("lab", old_host.ROOT, last_heartbeat=silent)
    assert Worker(owner_id="a").is_alive(timedelta(minutes=1))
    seen: list[tuple[set[str], int]] = []

    async def clean_up(rooms: set[str]) -> None:
        async with host.sessions() as session:
            seen.append((rooms, await session.scalar(select(func.count()).select_from(Worker))))

    sweeping = asyncio.create_task(host.sweep(clean_up))
    await until(lambda: seen)
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    assert seen == [({"lab"}, 0)]
    assert [(type(event).__name__, room) for event, room in host.emitted] == [
        ("ProvidersInvalidate", "room:lab")
    ]
    assert isinstance(host.emitted[0][0], old_host.ProvidersInvalidate)


@pytest.mark.filterwarnings(OWN_ROWS)
async def test_a_sweeper_of_the_package_names_the_rooms_with_frames(host: Any, old_host: ModuleType) -> None:
    """`run_sweeper(…, on_frame_rooms=…)`; a function that raises is logged, and the sweeper continues."""
    silent = datetime.now(UTC) - timedelta(hours=1)
    await host.add_frames("lab", old_host.ROOT, last_heartbeat=silent)
    seen: list[set[str]] = []

    async def clean_up(rooms: set[str]) -> None:
        seen.append(rooms)
        if len(seen) == 1:
            await host.add_frames("attic", old_host.ROOT, last_heartbeat=silent)
            raise OSError("no disk")

    settings = JobLibSettings(worker_timeout_seconds=0.1, sweeper_interval_seconds=0.1)
    sweeping = asyncio.create_task(run_sweeper(host.get_session, settings, on_frame_rooms=clean_up))
    await until(lambda: len(seen) == 2)
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    assert seen == [{"lab"}, {"attic"}]


@pytest.mark.filterwarnings(OWN_ROWS, "ignore:zndraw_joblib.sweeper:DeprecationWarning")
async def test_clean_ups_of_the_old_path_return_the_rooms_with_frames(
    host: Any, old_host: ModuleType
) -> None:
    """With the events, which can be sent; the count comes first where several workers may go."""
    from zndraw_joblib.sweeper import cleanup_stale_workers, cleanup_stuck_internal_tasks, cleanup_worker

    worker = await host.add_frames("lab", old_host.ROOT)
    event = Emission(ProvidersInvalidate(), "room:lab")
    async with host.sessions() as session:
        assert await cleanup_worker(session, worker) == ({event}, {"lab"})
        await session.commit()
        silent = datetime.now(UTC) - timedelta(hours=1)
        await host.add_frames("lab", old_host.ROOT, last_heartbeat=silent)
        assert await cleanup_stale_workers(session, timedelta(minutes=1)) == (1, {event}, {"lab"})
        assert await cleanup_stuck_internal_tasks(session, timedelta(minutes=1)) == (0, set())


@on_sqlite
@pytest.mark.parametrize("override", [True, False])
async def test_dependencies_of_the_package_work_in_routes_of_the_host(
    old_host: ModuleType, engine: AsyncEngine, start: Start, override: bool
) -> None:
    """They return what the queue uses; a room passes the guard of the queue, however the host set it."""
    host = old_host.OldHost(engine)
    app, sio = host.app, socketio.AsyncServer(async_mode="asgi")
    register_socketio_handlers(sio, host.joblib)
    if not override:
        app = FastAPI()
        app.add_exception_handler(ProblemException, problem_exception_handler)
        host.joblib = JobLib(
            session_maker=host.sessions,
            identity=old_host.current_user,
            settings=host.settings,
            writable_room=old_host.unlocked_room,
            tsio=sio,
        )
        host.joblib.mount(app)

    @app.get("/own/{room_id}")
    async def own(
        room_id: WritableRoomDep,
        settings: JobLibSettingsDep,
        backend: ResultBackendDep,
        clean_up: FrameRoomCleanupDep,
        tsio: Annotated[Any, Depends(get_tsio)],
        same: Annotated[JobLibSettings, Depends(get_joblib_settings)],
    ) -> list[Any]:
        await clean_up({room_id})
        await backend.store("own", b"kept", 60)
        is_same = settings is same is host.settings
        return [
            room_id,
            is_same,
            (await backend.get("own")).decode(),
            tsio is sio,
            host.cleaned == [{room_id}],
        ]

    client = await start(app)
    assert (await client.get("/own/lab")).json() == ["lab", True, "kept", True, override]
    for room, detail in (("locked", "The room is locked"), ("a:b", "Room ID 'a:b' contains invalid")):
        response = await client.get(f"/own/{room}")
        assert (response.status_code, response.json()["detail"][: len(detail)]) == (400, detail)


def test_a_row_that_is_not_saved_has_its_full_name() -> None:
    """A job and a provider; in a query the name of a job is its column."""
    names = {"room_id": "lab", "category": "modifiers", "name": "Rotate"}
    for table in (Job, ProviderRecord):
        assert table(**names).full_name == "lab:modifiers:Rotate"
    assert "joblib_job.full_name = " in str(select(Job.id).where(Job.full_name == "x"))


@pytest.mark.filterwarnings(OWN_ROWS)
async def test_the_override_of_the_cleanup_is_called(host: Any, old_host: ModuleType, start: Start) -> None:
    """After a worker is removed over REST; not for a worker without frames."""
    client = await start(host.app)
    without = (await client.post(f"{V1}/workers")).json()["id"]
    worker = await host.add_frames("lab", old_host.ROOT)
    for worker_id in (without, worker.id):
        assert (await client.delete(f"{V1}/workers/{worker_id}")).status_code == 204
    await until(lambda: host.cleaned)
    assert host.cleaned == [{"lab"}]


async def test_a_failing_cleanup_is_logged(
    host: Any, start: Start, old_host: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker is removed, and the response says so."""

    async def fail(rooms: set[str]) -> None:
        raise OSError("no disk")

    host.clean_up = fail
    client = await start(host.app)
    provider = {"category": "frames", "name": "all", "schema": {}}
    registered = (await client.put(f"{V1}/rooms/lab/providers", json=provider)).json()
    assert (await client.delete(f"{V1}/workers/{registered['worker_id']}")).status_code == 204
    await until(lambda: [each for each in caplog.records if "on_providers_removed failed" in each.message])


@pytest.mark.filterwarnings(OWN_ROWS)
async def test_old_names_of_columns_find_rows(host: Any, old_host: ModuleType) -> None:
    """In queries and on rows; the ids of users are texts."""
    user = old_host.User(id=old_host.UUID(int=7))
    worker = await host.add_frames("lab", user)
    rows: Any = Worker
    async with host.sessions() as session:
        found = (await session.scalars(select(rows).where(rows.user_id == str(user.id)))).one()
    assert (found.id, found.user_id) == (worker.id, str(user.id))


def test_a_row_with_an_unknown_field_is_refused() -> None:
    """The error names the field and those that exist; an old name warns."""
    with pytest.raises(TypeError, match=r"Worker has no field usr_id; it has id, owner_id"):
        Worker(**{"usr_id": "a"})
    with pytest.warns(DeprecationWarning, match=r"Worker\(user_id=…\)") as warned:
        Worker(**{"user_id": "a"})
    assert warned[0].filename == __file__


@pytest.mark.parametrize("call", ["ensure_jobs", "register_jobs"])
async def test_missing_tables_are_created_on_sqlite(old_host: ModuleType, tmp_path: Any, call: str) -> None:
    """Before the first request and without a migration."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'new.db'}")
    host = old_host.OldHost(engine)
    await (asyncio.to_thread(host.register_jobs) if call == "register_jobs" else host.ensure_jobs())
    async with host.sessions() as session:
        assert await session.scalar(select(func.count()).select_from(Worker)) == 0
    await engine.dispose()


@pytest.mark.parametrize("call", ["ensure_jobs", "register_jobs"])
async def test_missing_tables_are_named_on_postgresql(
    old_host: ModuleType, empty_postgres_url: str, call: str
) -> None:
    """The error says what to run or to call; with that call the same works."""
    engine = open_engine(empty_postgres_url)
    host = old_host.OldHost(engine)
    with pytest.raises(OutdatedSchema, match=r"zndraw-joblib db upgrade.*joblib.create_tables\(connection\)"):
        await (asyncio.to_thread(host.register_jobs) if call == "register_jobs" else host.ensure_jobs())
    await host.create_tables()
    await engine.dispose()
    await (asyncio.to_thread(host.register_jobs) if call == "register_jobs" else host.ensure_jobs())
    async with host.sessions() as session:
        assert (await session.scalars(select(Job.full_name))).all() == ["@internal:modifiers:Center"]
    await engine.dispose()


async def test_a_router_without_a_queue_says_what_to_call(
    old_host: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, at the first request."""
    app = FastAPI()
    app.include_router(old_host.router)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        assert (await client.get(f"{V1}/workers")).status_code == 500
    assert "call JobLib(...).mount(app) before it handles requests" in caplog.text


def host_without_glue(old_host: ModuleType, engine: AsyncEngine, ran: list[str]) -> FastAPI:
    """Return an old host that calls `mount` and nothing else that is new.

    Its lifespan registers an internal job, which needs the tables, and runs a sweeper of its own.
    """
    sessions = async_sessionmaker(engine)

    async def execute(cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str) -> None:
        ran.append(room_id)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(old_host.SQLModel.metadata.create_all)
        await old_host.register_internal_jobs(app, InMemoryBroker(), [old_host.Center], execute, sessions)
        sweeping = asyncio.create_task(old_host.run_sweeper(sessions, settings=JobLibSettings()))
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)

    app = FastAPI(lifespan=lifespan)
    app.include_router(old_host.router)
    app.add_exception_handler(ProblemException, problem_exception_handler)
    JobLib(session_maker=sessions, identity=old_host.current_user, upgrade_tables=True).mount(app)
    return app


async def test_one_call_replaces_the_glue_of_a_host(old_host: ModuleType, empty_database_url: str) -> None:
    """On a real port and an empty database: `mount` adds the routes, the tables and the sweeper."""
    engine, ran = open_engine(empty_database_url), list[str]()
    app = host_without_glue(old_host, engine, ran)
    async with serve(app, app, "unused") as server:
        client = await server.rest()
        internal = await client.post(f"{V1}/rooms/lab/tasks/@internal:modifiers:Center", json={})
        assert internal.status_code == 202
        await until(lambda: ran == ["lab"])
        job = await register(client, room="lab")
        task = await submit(client, job, room="lab")
        assert (await claim(client, job["worker_id"]) or {})["id"] == task["id"]
        listed = (await client.get(f"{V1}/admin/sweeper")).json()
        assert listed["mode"] == "enforce"
        assert not app.state.joblib.sweeper.is_late
    await engine.dispose()


def test_the_hosts_metadata_has_no_table_of_the_queue(old_host: ModuleType) -> None:
    """`SQLModel.metadata.create_all` creates the host's own tables alone."""
    names = old_host.SQLModel.metadata.tables
    assert "note" in names
    assert not [name for name in names if name.startswith("joblib_")]
