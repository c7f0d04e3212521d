"""What the shop submits, and what it does with the results."""

from typing import ClassVar

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from zndraw_joblib import Backoff, Extension, JobPolicy, RetryOn
from zndraw_joblib.testing import AsyncTestQueue, TestQueue


class Ship(Extension):
    """Stand in for the worker's job: it has the same name and the same fields."""

    category: ClassVar[str] = "modifiers"
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=Backoff(base_seconds=60, factor=1)
    )
    item: str
    count: int

    def run(self, vis: object) -> str:
        """Return the parcel's label, unless the truck is broken."""
        if vis == "broken truck":
            raise RuntimeError("the truck is broken")
        return f"{self.count} x {self.item}"


def test_an_order_is_shipped(client: TestClient, joblib_queue: TestQueue) -> None:
    """The endpoint submits a task; the client reads its result."""
    joblib_queue.register(Ship)
    task_id = client.post("/orders", json={"item": "lamp", "count": 2}).json()["task"]
    joblib_queue.assert_submitted(Ship, room="shop", payload={"item": "lamp"})
    joblib_queue.work()
    assert client.get(f"/v1/joblib/tasks/{task_id}").json()["result"] == "2 x lamp"


def test_an_order_beyond_the_stock_is_not_shipped(client: TestClient, joblib_queue: TestQueue) -> None:
    """The request fails, so its transaction leaves neither order nor task."""
    joblib_queue.register(Ship)
    assert client.post("/orders", json={"item": "lamp", "count": 99}).status_code == 409
    joblib_queue.refute_submitted(Ship)
    assert client.get("/orders").json() == []


def test_a_broken_truck_is_tried_again(client: TestClient, joblib_queue: TestQueue) -> None:
    """After a failure the task waits a minute."""
    joblib_queue.register(Ship)
    client.post("/orders", json={"item": "lamp"})
    assert joblib_queue.work(vis="broken truck") == []
    joblib_queue.advance(61)
    [task] = joblib_queue.work()
    assert (task.status, task.attempt) == ("completed", 2)


def test_a_lost_worker_fails_the_task(client: TestClient, joblib_queue: TestQueue) -> None:
    """A worker of the shop claims the task and is silent from then on."""
    admin = {"x-user": "admin"}
    job = {"category": "modifiers", "name": "Ship"}
    worker = client.put("/v1/joblib/rooms/@global/jobs", json=job, headers=admin).json()["worker_id"]
    task_id = client.post("/orders", json={"item": "lamp"}).json()["task"]
    client.post("/v1/joblib/tasks/claim", json={"worker_id": worker}, headers=admin)
    joblib_queue.advance(3600)
    joblib_queue.sweep()
    assert client.get(f"/v1/joblib/tasks/{task_id}").json()["error"] == "Worker disconnected"


@pytest.mark.asyncio
async def test_a_coroutine_uses_the_same_queue(
    joblib_app: FastAPI, async_joblib_queue: AsyncTestQueue
) -> None:
    """The app, the test and the job share an event loop."""
    await async_joblib_queue.register(Ship)
    transport = httpx.ASGITransport(joblib_app)
    async with (
        joblib_app.router.lifespan_context(joblib_app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        await client.post("/orders", json={"item": "lamp"})
        [task] = await async_joblib_queue.work()
    assert task.result == "1 x lamp"
