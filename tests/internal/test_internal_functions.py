"""Internal jobs from functions, on both databases."""

import asyncio
import threading

import pytest
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from taskiq import InMemoryBroker

from internal.processes import TOKEN, running, submit, wait_for_end
from zndraw_joblib import (
    GuardedExecutor,
    Identity,
    JobLib,
    ScheduleTimes,
    TaskContext,
    job,
    register_internal_jobs,
)
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.internal.registry import CannotLoadJobs, load
from zndraw_joblib.server.process.settings import ServerSettings

SCHEDULE = "/v1/joblib/rooms/@internal/schedules/sleepy"


@job
def whoami(task: TaskContext, vis: object, word: str = "none") -> list[str | bool]:
    """Return what the executor adds to the arguments."""
    task.progress(1, 1)
    return [task.task_id, task.room_id, vis is task, word, threading.current_thread().name]


@job(schedule=ScheduleTimes(cron="0 3 * * *", payload={"word": "hi"}))
async def sleepy(word: str) -> list[str]:
    """Return on an event loop, in the thread of the task."""
    await asyncio.sleep(0)
    return [word, threading.current_thread().name]


@job
async def crash() -> None:
    """Fail on the event loop."""
    await asyncio.sleep(0)
    raise ValueError("no luck")


def undecorated(word: str) -> str:
    """Be no job."""
    return word


async def test_functions_and_coroutines_run_inside_the_server(database_url: str) -> None:
    """The category `jobs` is allowed whatever the setting says; a coroutine gets a loop in its thread."""
    names = ",".join(f"{__name__}:{name}" for name in ("whoami", "sleepy", "crash"))
    settings = ServerSettings(
        database_url=database_url, admin_token=TOKEN, internal_extensions=names, allowed_categories=["x"]
    )
    async with running(create_app(settings)) as client:
        done = await wait_for_end(client, await submit(client, "@internal:jobs:whoami", word="hi"))
        assert done["error"] is None
        assert done["result"][:4] == [done["id"], done["room_id"], True, "hi"]
        assert done["progress"]["current"] == 1
        ended = await wait_for_end(client, await submit(client, "@internal:jobs:sleepy", word="hi"))
        assert ended["result"][0] == "hi"
        assert ended["result"][1] != threading.current_thread().name
        failed = await wait_for_end(client, await submit(client, "@internal:jobs:crash"))
        assert (failed["status"], failed["error"]) == ("failed", "ValueError: no luck")
        assert (await client.get(SCHEDULE)).json()["job"] == "@internal:jobs:sleepy"


async def test_a_host_registers_functions_with_its_broker(engine: AsyncEngine) -> None:
    """As it registers classes; a function without the decorator is refused."""
    app, sessions, broker = FastAPI(), async_sessionmaker(engine), InMemoryBroker()
    JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True)).mount(app)
    async with running(app) as client:
        executor = GuardedExecutor(app.state.joblib.runtime, concurrency=2)
        with pytest.raises(TypeError, match=r"undecorated\(\) is no job.*@job"):
            await register_internal_jobs(app, broker, [undecorated], executor, sessions)  # type: ignore[list-item]
        await register_internal_jobs(app, broker, [sleepy], executor, sessions)
        await broker.startup()
        ended = await wait_for_end(client, await submit(client, "@internal:jobs:sleepy", word="hi"))
        assert ended["result"][0] == "hi"
        assert (await client.get(SCHEDULE)).json()["cron"] == "0 3 * * *"
        await broker.shutdown()


@pytest.mark.parametrize(
    ("name", "text"),
    [("undecorated", r"undecorated\(\) is no job.*decorate it with @job"), ("TOKEN", "is no job")],
)
def test_internal_extensions_say_what_is_no_job(name: str, text: str) -> None:
    """The error names the entry and the remedy."""
    with pytest.raises(CannotLoadJobs, match=text):
        load([f"{__name__}:{name}"])
