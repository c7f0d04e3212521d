"""`AsyncTestQueue`, for tests that are coroutines: the app runs in their event loop."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from testing.tested_jobs import Area, Flaky, Later
from zndraw_joblib import TaskStatus
from zndraw_joblib.testing import AsyncTestQueue

URL = "/v1/joblib/rooms/lab/tasks/@global:analysis:Area"


@pytest.fixture(params=["with-lifespan", "without-lifespan"])
async def client(request: pytest.FixtureRequest, joblib_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the app in this event loop."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(joblib_app), base_url="http://test")
    if request.param == "without-lifespan":
        async with client:
            yield client
        return
    async with joblib_app.router.lifespan_context(joblib_app), client:
        yield client


async def test_a_submitted_task_is_found_and_run(
    client: httpx.AsyncClient, async_joblib_queue: AsyncTestQueue
) -> None:
    """All methods are coroutines, otherwise as those of `TestQueue`."""
    queue = async_joblib_queue
    await queue.register(Area)
    await queue.refute_submitted(Area)
    assert (await client.post(URL, json={"payload": {"width": 3}})).status_code == 202
    [task] = await queue.assert_submitted(Area, payload={"width": 3})
    [ended] = await queue.work()
    assert (ended.id, ended.status, ended.result) == (task.id, TaskStatus.COMPLETED, 3)
    assert len(await queue.log(ended)) == 1
    assert (await client.get(f"/v1/joblib/tasks/{task.id}")).json()["status"] == "completed"


async def test_a_waiting_request_is_answered(
    client: httpx.AsyncClient, async_joblib_queue: AsyncTestQueue
) -> None:
    """A long-poll of the host's front-end gets the result as soon as the test has run the task."""
    await async_joblib_queue.register(Later)
    task = await async_joblib_queue.submit(Later(), room="lab")
    request = client.get(f"/v1/joblib/tasks/{task.id}", headers={"Prefer": "wait=20"})
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(request)
        await asyncio.sleep(0)
        await async_joblib_queue.work(vis="context")
    assert waiting.result().json()["result"] == "context"


async def test_a_coroutine_runs_in_the_loop_of_the_test(async_joblib_queue: AsyncTestQueue) -> None:
    """So it can use what the test has created there."""
    await async_joblib_queue.register(Later)
    await async_joblib_queue.submit(Later())

    class Loop:
        def __str__(self) -> str:
            return str(asyncio.get_running_loop() is loop)

    loop = asyncio.get_running_loop()
    assert [task.result for task in await async_joblib_queue.work(vis=Loop())] == ["True"]


async def test_retries_and_drain(client: httpx.AsyncClient, async_joblib_queue: AsyncTestQueue) -> None:
    """The queue's clock moves also while the lifespan's own loops run."""
    await async_joblib_queue.register(Flaky)
    await async_joblib_queue.submit(Flaky(failures=2))
    assert await async_joblib_queue.work() == []
    assert [task.result for task in await async_joblib_queue.drain()] == [3]
    assert (await async_joblib_queue.sweep()).errors == 0
