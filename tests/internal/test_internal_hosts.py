"""Internal jobs in a host's app, registered at any time, by many replicas, with any executor."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, Request
from rest import V1
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from taskiq import InMemoryBroker
from waiting import until

from internal.processes import submit, wait_for_end
from zndraw_joblib import (
    GuardedExecutor,
    Identity,
    InternalRegistry,
    JobLib,
    JobPolicy,
    TokenRequest,
    register_internal_jobs,
    register_internal_tasks,
)
from zndraw_joblib.wire.messages import TaskToSubmit
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.statuses import TaskStatus

NAME = "@internal:modifiers:Double"
Sessions = async_sessionmaker[AsyncSession]


class Double:
    """An extension that is no subclass of `Extension`, but has the same attributes."""

    category: ClassVar[str] = "modifiers"
    policy: ClassVar[JobPolicy] = JobPolicy(priority=3)
    schema: ClassVar[dict[str, Any]] = {"type": "object"}

    def __init__(self, x: int) -> None:
        self.x = x

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """Return the schema of the payload."""
        return cls.schema

    @classmethod
    def model_validate(cls, payload: dict[str, Any]) -> "Double":
        """Return an extension for a payload."""
        return cls(payload["x"])

    def run(self, vis: Any) -> int:
        """Return twice x."""
        return 2 * self.x


class Executor:
    """An executor of a host that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str, /
    ) -> None:
        """Record a call."""
        self.calls.append((extension_cls, payload, room_id, task_id))


@pytest.fixture
def sessions(engine: AsyncEngine) -> Sessions:
    """Return the host's session maker."""
    return async_sessionmaker(engine)


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    """Run a broker in memory."""
    broker = InMemoryBroker()
    await broker.startup()
    yield broker
    await broker.shutdown()


def mounted(app: FastAPI, sessions: Sessions) -> JobLib:
    """Mount the queue; every request is a superuser's."""
    joblib = JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True))
    joblib.mount(app)
    return joblib


@asynccontextmanager
async def run_lifespan(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the lifespan of an app; return a client."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://host") as client,
    ):
        yield client


@pytest.mark.parametrize("order", ["before the mount", "after the mount", "in a running app"])
async def test_jobs_may_be_registered_before_or_after_the_mount(
    order: str, sessions: Sessions, broker: InMemoryBroker
) -> None:
    """Each submission reads the registry from the state of the app."""
    app = FastAPI()

    async def register() -> InternalRegistry:
        return await register_internal_jobs(app, broker, [Double], GuardedExecutor(sessions), sessions)

    if order == "before the mount":
        await register()
    mounted(app, sessions)
    if order == "after the mount":
        await register()
    async with run_lifespan(app) as client:
        if order == "in a running app":
            response = await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={"payload": {"x": 4}})
            assert response.status_code == 404
            await register()
        assert app.state.internal_registry.extensions == {NAME: Double}
        ended = await wait_for_end(client, await submit(client, NAME, x=4))
        assert (ended["status"], ended["result"], ended["priority"]) == ("completed", 8, 3)


@on_both
async def test_a_host_submits_internal_tasks_in_its_own_transaction(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """They are dispatched after its commit, as those that it submits without a session."""
    app = FastAPI()
    joblib = mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], Executor(), sessions)
    async with app.router.lifespan_context(app):
        async with sessions() as session:
            tasks = [await joblib.submit(NAME, {"x": 1}, room="lab", session=session)]
            several = [TaskToSubmit(room_id="lab", job_name=NAME, payload={"x": x}) for x in (2, 3)]
            tasks += await joblib.submit_many(several, session=session)
            await session.commit()
        for task in tasks:
            await until(partial(has_left_the_queue, joblib, task.id))


async def has_left_the_queue(joblib: JobLib, task_id: UUID) -> bool:
    """Return whether a task was dispatched."""
    return (await joblib.get(task_id)).status != TaskStatus.PENDING


async def test_an_executor_of_a_host_is_called_once_by_position(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """It gets the class, the payload, the room and the id, and reports on the task itself."""

    def wrapped() -> AsyncSession:
        return sessions()

    app, executor = FastAPI(), Executor()
    joblib = mounted(app, sessions)
    registry = await register_internal_jobs(app, broker, [Double], executor, wrapped)
    assert (set(registry.tasks), registry.executor) == ({NAME}, executor)
    async with run_lifespan(app) as client:
        task = await submit(client, NAME, x=1)
        await until(lambda: executor.calls)
        await joblib.dispatcher.dispatch()
        assert executor.calls == [(Double, {"x": 1}, "lab", task["id"])]
        report = f"{V1}/tasks/{task['id']}"
        assert (await client.patch(report, json={"status": "running"})).status_code == 200
        assert (await client.patch(report, json={"status": "completed"})).status_code == 200


class TokenExecutor(Executor):
    """An executor of a host that reports with the token that it gets as a keyword."""

    client: httpx.AsyncClient

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str, /, *, token: str
    ) -> None:
        """Run a task, and submit another one below it."""
        if not payload["x"]:
            return
        headers = {"Authorization": f"Bearer {token}"}
        child = await self.client.post(
            f"{V1}/rooms/lab/tasks/{NAME}", json={"payload": {"x": 0}}, headers=headers
        )
        reports = [
            await self.client.patch(f"{V1}/tasks/{task_id}", json={"status": status}, headers=headers)
            for status in ("running", "completed")
        ]
        self.calls.append((token, child, *[report.status_code for report in reports]))


async def test_an_executor_gets_the_token_of_its_task(sessions: Sessions, broker: InMemoryBroker) -> None:
    """With the rights of this task, as its submitter; or the token that the host's function returns."""

    def identity(request: Request) -> Identity | None:
        user = request.headers.get("x-id")
        return Identity(user, is_superuser=False) if user else None

    requests: list[TokenRequest] = []

    def task_token(request: TokenRequest) -> str:
        requests.append(request)
        return "of-the-host"

    app, executor = FastAPI(), TokenExecutor()
    joblib = JobLib(session_maker=sessions, identity=identity)
    joblib.mount(app)
    await register_internal_jobs(app, broker, [Double], executor, sessions)
    async with run_lifespan(app) as client:
        executor.client = client
        task, (token, child, *reports) = await run_of_ann(client, executor)
        assert (token[:4], reports) == ("jlt_", [200, 200]), child.text
        assert (child.json()["parent"], child.json()["created_by"]) == (task["id"], "ann")
        await limit_jobs_of_ann(sessions)
        _, (_, child, *reports) = await run_of_ann(client, executor)
        assert (child.status_code, reports) == (403, [200, 200])
        # Users of a host have no row; on a standalone server that means that the token was revoked.
        await revoke_token_of_ann(sessions)
        for is_standalone, status in ((True, 403), (False, 202)):
            joblib.runtime.task_tokens.has_stored_users = is_standalone
            _, (_, child, *reports) = await run_of_ann(client, executor)
            assert (child.status_code, reports) == (status, [200, 200]), child.text
        joblib.worker_tokens._task_token = task_token
        assert (await run_of_ann(client, executor))[1][0] == "of-the-host"
        assert (requests[0].name, requests[0].room_id, requests[0].user_id) == (NAME, "lab", "ann")


async def run_of_ann(client: httpx.AsyncClient, executor: TokenExecutor) -> Any:
    """Submit a task; return it, and the call of the executor."""
    executor.calls.clear()
    url, body = f"{V1}/rooms/lab/tasks/{NAME}", {"payload": {"x": 1}}
    task = (await client.post(url, json=body, headers={"X-Id": "ann"})).json()
    await until(lambda: executor.calls)
    return task, executor.calls[-1]


async def limit_jobs_of_ann(sessions: Sessions) -> None:
    """Store a token as the standalone server does, with a pattern of jobs."""
    insert = "INSERT INTO joblib_token (name, digest, created_at, jobs, is_superuser)"
    row = {"name": "ann", "digest": "0", "at": datetime.now(UTC), "jobs": '["lab:*"]'}
    async with sessions() as session:
        await session.execute(text(f"{insert} VALUES (:name, :digest, :at, :jobs, false)"), row)
        await session.commit()


async def revoke_token_of_ann(sessions: Sessions) -> None:
    """Delete the token, as a revocation does."""
    async with sessions() as session:
        await session.execute(text("DELETE FROM joblib_token WHERE name = 'ann'"))
        await session.commit()


async def test_a_host_may_set_the_registry_itself(sessions: Sessions, broker: InMemoryBroker) -> None:
    """Without a registry the job exists but has no executor: 503."""
    app, executor = FastAPI(), Executor()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], executor, sessions)
    async with run_lifespan(app) as client:
        registry, app.state.internal_registry = app.state.internal_registry, None
        response = await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={"payload": {"x": 1}})
        assert (response.status_code, response.json()["type"]) == (
            503,
            "/v1/problems/internal-job-not-configured",
        )
        app.state.internal_registry = registry
        await submit(client, NAME, x=1)


@pytest.mark.parametrize(("is_exclusive", "slots"), [(True, 0), (True, 1), (False, 1), (False, None)])
async def test_a_registry_of_a_hosts_own_class_keeps_its_executor_and_free(
    sessions: Sessions, broker: InMemoryBroker, is_exclusive: bool, slots: int | None
) -> None:
    """Any object with `tasks` will do; its executor's `exclusive_start` and its `free` count as well."""
    app, executor = FastAPI(), Executor()
    executor.exclusive_start = is_exclusive  # type: ignore[attr-defined]
    joblib = mounted(app, sessions)
    registry = await register_internal_jobs(app, broker, [Double], executor, sessions)
    own = SimpleNamespace(tasks=registry.tasks, executor=executor)
    if slots is not None:
        own.free = lambda: slots
    app.state.internal_registry = own
    mode = joblib.dispatcher.mode(JobName("@internal", "modifiers", "Double"))
    assert mode is not None
    assert (mode.exclusive_start, mode.is_bounded) == (is_exclusive, slots is not None)
    if slots == 0:
        async with run_lifespan(app) as client:
            await submit(client, NAME, x=1)
            await joblib.dispatcher.dispatch()
        assert executor.calls == []


@pytest.mark.parametrize("database", [None, "postgresql://host/name", object()])
def test_an_executor_of_internal_tasks_names_a_wrong_database(database: Any) -> None:
    """The error names the class that was given, and what to pass."""
    kind = type(database).__name__
    with pytest.raises(TypeError, match=f"database is a {kind}: pass a session maker, or the `runtime`"):
        GuardedExecutor(database)


async def test_a_worker_process_registers_tasks_alone(broker: InMemoryBroker) -> None:
    """The tasks have the full names of the jobs; no database and no app is needed."""
    executor = Executor()
    registry = register_internal_tasks(broker, [Double], executor)
    assert (list(registry.tasks), broker.find_task(NAME)) == ([NAME], registry.tasks[NAME])
    await registry.tasks[NAME].kiq(task_id="1", room_id="lab", payload={"x": 1})
    await broker.wait_all()
    assert executor.calls == [(Double, {"x": 1}, "lab", "1")]


@on_both
async def test_replicas_that_start_at_once_register_one_job(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """No replica fails, and the job has one row."""
    apps = [FastAPI() for _ in range(8)]
    registrations = [register_internal_jobs(app, broker, [Double], Executor(), sessions) for app in apps]
    await asyncio.gather(*registrations)
    mounted(apps[0], sessions)
    async with run_lifespan(apps[0]) as client:
        assert (await client.get(f"{V1}/rooms/@internal/jobs")).json()["total"] == 1


@on_both
async def test_a_new_registration_replaces_the_policy_and_keeps_the_tasks(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """The schema is replaced too; a paused job stays paused."""

    class Newer(Double):
        policy = JobPolicy(max_attempts=5)
        schema: ClassVar[dict[str, Any]] = {"type": "object", "required": ["x"]}

    Newer.__name__ = "Double"
    app = FastAPI()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], Executor(), sessions)
    async with run_lifespan(app) as client:
        task = await submit(client, NAME)
        await client.post(f"{V1}/rooms/@internal/jobs/{NAME}/pause")
        await register_internal_jobs(app, broker, [Newer], Executor(), sessions)
        job = (await client.get(f"{V1}/rooms/@internal/jobs/{NAME}")).json()
        assert (job["schema"], job["max_attempts"], job["priority"]) == (Newer.schema, 5, 0)
        assert job["paused"] is True
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "claimed"
        assert (await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={})).status_code == 422


class LosesResponses(AsyncSession):
    """A session that loses the response to every second commit."""

    commits = itertools.count()

    async def commit(self) -> None:
        """Commit, then raise as if the connection broke."""
        await super().commit()
        if next(self.commits) % 2:
            raise ConnectionResetError("the response was lost")


class Record(Double):
    """An extension that records its runs."""

    runs: ClassVar[list[int]] = []

    def run(self, vis: Any) -> int:
        """Record the run."""
        self.runs.append(self.x)
        return self.x


@on_both
async def test_lost_responses_and_duplicate_messages_run_each_task_once(
    engine: AsyncEngine, sessions: Sessions, broker: InMemoryBroker
) -> None:
    """No started task is started again or forgotten; each end is reported once."""
    Record.runs.clear()
    app = FastAPI()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Record], Executor(), sessions)
    executor = GuardedExecutor(async_sessionmaker(engine, class_=LosesResponses), concurrency=8)
    async with run_lifespan(app) as client:
        tasks = [await submit(client, "@internal:modifiers:Record", x=x) for x in range(12)]
        calls = [executor(Record, task["payload"], "lab", task["id"]) for task in tasks for _ in range(3)]
        await asyncio.gather(*calls)
        ends = [await wait_for_end(client, task) for task in tasks]
    await executor.stop()
    assert [(end["status"], end["result"], end["attempt"]) for end in ends] == [
        ("completed", x, 1) for x in range(12)
    ]
    assert sorted(Record.runs) == list(range(12))


async def test_a_message_decides_neither_payload_nor_class(
    sessions: Sessions, broker: InMemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A task runs with its own payload, once; a message that names another job runs nothing."""
    Record.runs.clear()
    app = FastAPI()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double, Record], Executor(), sessions)
    executor = GuardedExecutor(sessions)
    async with run_lifespan(app) as client:
        task = await submit(client, NAME, x=2)
        other = await submit(client, "@internal:modifiers:Record", x=3)
        await executor(Record, {"x": 66}, "elsewhere", task["id"])
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "claimed"
        await executor(Double, {"x": 77}, "elsewhere", task["id"])
        await executor(Record, {"x": 88}, "elsewhere", other["id"])
        ends = [await wait_for_end(client, each) for each in (task, other)]
    await executor.stop()
    assert [(end["result"], end["room_id"], end["attempt"]) for end in ends] == [(4, "lab", 1), (3, "lab", 1)]
    assert Record.runs == [3]
    assert "is of job @internal:modifiers:Double, not of @internal:modifiers:Record" in caplog.text


class HangingSockets:
    """A Socket.IO server of a host that sends nothing until `released`."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.events: list[Any] = []

    async def emit(self, event: Any, *, room: str) -> None:
        """Wait, then record."""
        await self.released.wait()
        self.events.append(event)


async def test_an_executor_publishes_its_last_events_before_it_stops(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """The event loop of a worker process ends with it, and with it what was not sent."""
    app, tsio = FastAPI(), HangingSockets()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], Executor(), sessions)
    executor = GuardedExecutor(sessions, tsio=tsio)
    async with run_lifespan(app) as client:
        task = await submit(client, NAME, x=2)
        await executor(Double, task["payload"], "lab", task["id"])
        stopping = asyncio.create_task(executor.stop())

        async def has_left() -> bool:
            return bool((await client.get(f"{V1}/workers")).json()["total"] == 0)

        await until(has_left)
        await asyncio.wait([stopping], timeout=0.2)
        tsio.released.set()
        await stopping
        assert "completed" in [getattr(event, "status", None) for event in tsio.events]


def test_an_extension_with_an_invalid_name_or_category_is_refused(
    broker: InMemoryBroker, subtests: pytest.Subtests
) -> None:
    """The error names the extension."""
    for name, category, fault in [
        ("Fine", None, "The class Fine has no category"),
        ("Fine", "mod:ifiers", "Fine cannot be an internal job"),
        ("not fine", "modifiers", "not fine cannot be an internal job"),
    ]:
        with subtests.test(name=name, category=category, fault=fault):
            cls = type(name, (Double,), {"category": category})
            with pytest.raises((TypeError, ValueError), match=fault):
                register_internal_tasks(broker, [cls], Executor())
