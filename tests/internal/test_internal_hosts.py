"""Internal jobs in a host's app: registered at any time, by many replicas, with any executor."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from rest import V1
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from taskiq import InMemoryBroker
from waiting import until

from internal.crew import end_of, submit
from zndraw_joblib import (
    GuardedExecutor,
    Identity,
    InternalRegistry,
    JobLib,
    JobPolicy,
    register_internal_jobs,
    register_internal_tasks,
)

NAME = "@internal:modifiers:Double"
Sessions = async_sessionmaker[AsyncSession]


class Double:
    """No subclass of anything of ours: used by what it offers."""

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
        """Make one."""
        return cls(payload["x"])

    def run(self, vis: Any) -> int:
        """Return twice x."""
        return 2 * self.x


class Executor:
    """A host's own: it is called by position, and does what it likes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str, /
    ) -> None:
        """Take a call."""
        self.calls.append((extension_cls, payload, room_id, task_id))


@pytest.fixture
def sessions(engine: AsyncEngine) -> Sessions:
    """Return the host's session maker."""
    return async_sessionmaker(engine)


@pytest.fixture
async def broker() -> AsyncIterator[InMemoryBroker]:
    """Run a broker in memory, as hosts do."""
    broker = InMemoryBroker()
    await broker.startup()
    yield broker
    await broker.shutdown()


def mounted(app: FastAPI, sessions: Sessions) -> JobLib:
    """Mount the queue, for one superuser."""
    joblib = JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True))
    joblib.mount(app)
    return joblib


@asynccontextmanager
async def living(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run the app's lifespan, and talk to it."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://host") as client,
    ):
        yield client


@pytest.mark.parametrize("order", ["before the mount", "after the mount", "in a running app"])
async def test_the_order_of_registering_and_mounting_does_not_matter(
    order: str, sessions: Sessions, broker: InMemoryBroker
) -> None:
    """A submit reads the registry from the app's state when it comes."""
    app = FastAPI()

    async def offer() -> InternalRegistry:
        return await register_internal_jobs(app, broker, [Double], GuardedExecutor(sessions), sessions)

    if order == "before the mount":
        await offer()
    mounted(app, sessions)
    if order == "after the mount":
        await offer()
    async with living(app) as client:
        if order == "in a running app":
            answer = await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={"payload": {"x": 4}})
            assert answer.status_code == 404
            await offer()
        assert app.state.internal_registry.extensions == {NAME: Double}
        ended = await end_of(client, await submit(client, NAME, x=4))
        assert (ended["status"], ended["result"], ended["priority"]) == ("completed", 8, 3)


async def test_a_hosts_executor_is_called_as_the_contract_says(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """With the class, the payload, the room and the id, by position; once, and its reports are its affair."""

    def wrapped() -> AsyncSession:
        return sessions()

    app, executor = FastAPI(), Executor()
    joblib = mounted(app, sessions)
    registry = await register_internal_jobs(app, broker, [Double], executor, wrapped)
    assert (set(registry.tasks), registry.executor) == ({NAME}, executor)
    async with living(app) as client:
        task = await submit(client, NAME, x=1)
        await until(lambda: executor.calls)
        await joblib.dispatcher.dispatch()
        assert executor.calls == [(Double, {"x": 1}, "lab", task["id"])]
        report = f"{V1}/tasks/{task['id']}"
        assert (await client.patch(report, json={"status": "running"})).status_code == 200
        assert (await client.patch(report, json={"status": "completed"})).status_code == 200


async def test_a_host_may_fill_the_registry_itself(sessions: Sessions, broker: InMemoryBroker) -> None:
    """Whatever has `tasks`; without it the job is there, and has no executor: 503."""
    app, executor = FastAPI(), Executor()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], executor, sessions)
    async with living(app) as client:
        registry, app.state.internal_registry = app.state.internal_registry, None
        answer = await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={"payload": {"x": 1}})
        assert (answer.status_code, answer.json()["type"]) == (
            503,
            "/v1/problems/internal-job-not-configured",
        )
        app.state.internal_registry = registry
        await submit(client, NAME, x=1)


async def test_a_worker_process_registers_tasks_alone(broker: InMemoryBroker) -> None:
    """Under the full names, with no database and no app."""
    executor = Executor()
    registry = register_internal_tasks(broker, [Double], executor)
    assert (list(registry.tasks), broker.find_task(NAME)) == ([NAME], registry.tasks[NAME])
    await registry.tasks[NAME].kiq(task_id="1", room_id="lab", payload={"x": 1})
    await broker.wait_all()
    assert executor.calls == [(Double, {"x": 1}, "lab", "1")]


async def test_replicas_that_start_at_once_offer_the_same_job(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """None of them fails, and there is one row."""
    apps = [FastAPI() for _ in range(8)]
    offers = [register_internal_jobs(app, broker, [Double], Executor(), sessions) for app in apps]
    await asyncio.gather(*offers)
    mounted(apps[0], sessions)
    async with living(apps[0]) as client:
        assert (await client.get(f"{V1}/rooms/@internal/jobs")).json()["total"] == 1


async def test_the_newest_code_renews_a_job_and_keeps_its_tasks(
    sessions: Sessions, broker: InMemoryBroker
) -> None:
    """The schema and the policy are replaced; one that is paused stays paused; its tasks stay."""

    class Newer(Double):
        policy = JobPolicy(max_attempts=5)
        schema: ClassVar[dict[str, Any]] = {"type": "object", "required": ["x"]}

    Newer.__name__ = "Double"
    app = FastAPI()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Double], Executor(), sessions)
    async with living(app) as client:
        task = await submit(client, NAME)
        await client.post(f"{V1}/rooms/@internal/jobs/{NAME}/pause")
        await register_internal_jobs(app, broker, [Newer], Executor(), sessions)
        job = (await client.get(f"{V1}/rooms/@internal/jobs/{NAME}")).json()
        assert (job["schema"], job["max_attempts"], job["priority"]) == (Newer.schema, 5, 0)
        assert job["paused"] is True
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "claimed"
        assert (await client.post(f"{V1}/rooms/lab/tasks/{NAME}", json={})).status_code == 422


class Lossy(AsyncSession):
    """A session of which every other answer to a commit is lost on its way."""

    commits = itertools.count()

    async def commit(self) -> None:
        """Commit, and fail all the same."""
        await super().commit()
        if next(self.commits) % 2:
            raise ConnectionResetError("the answer was lost")


class Tell(Double):
    """Counts its runs."""

    runs: ClassVar[list[int]] = []

    def run(self, vis: Any) -> int:
        """Count."""
        self.runs.append(self.x)
        return self.x


async def test_lost_answers_and_doubled_messages_run_each_task_once(
    engine: AsyncEngine, sessions: Sessions, broker: InMemoryBroker
) -> None:
    """What was started is not started again, and not forgotten; what has ended is reported once."""
    Tell.runs.clear()
    app = FastAPI()
    mounted(app, sessions)
    await register_internal_jobs(app, broker, [Tell], Executor(), sessions)
    executor = GuardedExecutor(async_sessionmaker(engine, class_=Lossy), concurrency=8)
    async with living(app) as client:
        tasks = [await submit(client, "@internal:modifiers:Tell", x=x) for x in range(12)]
        calls = [executor(Tell, task["payload"], "lab", task["id"]) for task in tasks for _ in range(3)]
        await asyncio.gather(*calls)
        ends = [await end_of(client, task) for task in tasks]
    await executor.stop()
    assert [(end["status"], end["result"], end["attempt"]) for end in ends] == [
        ("completed", x, 1) for x in range(12)
    ]
    assert sorted(Tell.runs) == list(range(12))


@pytest.mark.parametrize(
    ("name", "category"), [("Fine", None), ("Fine", "mod:ifiers"), ("not fine", "modifiers")]
)
def test_what_cannot_be_a_job_is_refused(name: str, category: Any, broker: InMemoryBroker) -> None:
    """With its name."""
    cls = type(name, (Double,), {"category": category})
    with pytest.raises(ValueError, match=f"{name} cannot be an internal job"):
        register_internal_tasks(broker, [cls], Executor())
