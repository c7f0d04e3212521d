"""Internal jobs: tasks are claimed before their dispatch, and never by a remote worker."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit

from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.wire.events import TaskAvailable, TaskStatusEvent

NAME = "@internal:modifiers:Rotate"
SUBMIT = f"{V1}/rooms/lab/tasks/{NAME}"


class Broker:
    """A broker that records dispatched tasks; it awaits `act`, if set, before the dispatch returns."""

    def __init__(self, act: Any = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.act = act

    async def kiq(self, **call: Any) -> None:
        """Record one call."""
        self.calls.append(call)
        if self.act is not None:
            await self.act(call["task_id"])


@pytest.fixture
async def job(client: httpx.AsyncClient) -> dict[str, Any]:
    """Register an internal job."""
    return await register(client, room="@internal")


@pytest.fixture
def broker(app: FastAPI) -> Broker:
    """Give the server an executor for the job."""
    broker = Broker()
    app.state.internal_registry = InternalRegistry({NAME: broker})
    return broker


async def test_an_internal_job_has_no_remote_worker(client: httpx.AsyncClient) -> None:
    """A registration creates and links no worker, whether it names one or not."""
    worker = (await client.post(f"{V1}/workers")).json()
    for worker_id in (None, worker["id"]):
        job = await register(client, room="@internal", worker_id=worker_id)
        assert (job["worker_id"], job["workers"]) == (None, [])
    page = (await client.get(f"{V1}/workers")).json()
    assert [(w["id"], w["job_count"]) for w in page["items"]] == [(worker["id"], 0)]


async def test_a_job_without_an_executor_is_503(client: httpx.AsyncClient, job: dict[str, Any]) -> None:
    """The server writes no row."""
    expect_problem(await client.post(SUBMIT, json={}), 503, "internal-job-not-configured")
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0


async def test_an_internal_task_is_claimed_before_its_dispatch(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker, events: list[Any]
) -> None:
    """202 with `claimed` and no worker; one call of the broker; one event."""
    seen: list[dict[str, Any]] = []

    async def check_row(task_id: str) -> None:
        seen.append(await get_task(client, {"id": task_id}))

    broker.act = check_row
    events.clear()
    response = await client.post(SUBMIT, json={"payload": {"x": 1}})
    assert response.status_code == 202
    task = response.json()
    assert (task["status"], task["worker_id"], task["queue_position"], task["attempt"]) == (
        "claimed",
        None,
        None,
        1,
    )
    assert response.headers["location"] == f"/v1/joblib/tasks/{task['id']}"
    assert response.headers["retry-after"] == "1"
    assert broker.calls == [{"task_id": task["id"], "room_id": "lab", "payload": {"x": 1}}]
    assert seen == [task]
    [emission] = events
    assert isinstance(emission.event, TaskStatusEvent)
    assert (emission.event.status, emission.room) == ("claimed", "room:lab")


async def test_no_remote_worker_gets_an_internal_task(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker, events: list[Any]
) -> None:
    """No claim returns it, and no worker is notified of it."""
    remote = await register(client, "Remote")
    await submit(client, job)
    assert await claim(client, remote["worker_id"]) is None
    assert not [event for event, _ in events if isinstance(event, TaskAvailable)]


async def test_an_executor_may_finish_before_the_response(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker
) -> None:
    """It completes the task during the dispatch; the end stays."""

    async def execute(task_id: str) -> None:
        for status in ("running", "completed"):
            response = await report(client, {"id": task_id}, status, result="done")
            assert response.status_code == 200, response.text

    broker.act = execute
    task = await submit(client, job)
    assert task["status"] == "claimed"
    after = await get_task(client, task)
    assert (after["status"], after["result"]) == ("completed", "done")


async def test_a_failed_dispatch_fails_the_task(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker, events: list[Any]
) -> None:
    """202 with `failed` and the text of the contract, and an event; the next task is dispatched."""

    async def refuse(task_id: str) -> None:
        raise ConnectionError("secret address of the broker")

    broker.act = refuse
    events.clear()
    response = await client.post(SUBMIT, json={})
    assert response.status_code == 202
    task = response.json()
    assert (task["status"], task["error"]) == ("failed", "Failed to dispatch to internal executor")
    assert task["error_code"] == "dispatch-failed"
    assert (await client.get("/v1/problems/dispatch-failed")).status_code == 200
    assert task["completed_at"] is not None
    assert await get_task(client, task) == task
    assert [event.status for event, _ in events] == ["claimed", "failed"]
    assert response.headers["location"] == f"/v1/joblib/tasks/{task['id']}"
    broker.act = None
    assert (await submit(client, job))["status"] == "claimed"


async def test_a_late_error_of_the_broker_changes_no_task(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker
) -> None:
    """The executor has received and reported the task before."""

    async def execute_and_fail(task_id: str) -> None:
        await report(client, {"id": task_id}, "running")
        raise ConnectionError("after the fact")

    broker.act = execute_and_fail
    task = await submit(client, job)
    assert (task["status"], task["error"]) == ("running", None)
    assert (await report(client, task, "completed")).json()["status"] == "completed"


async def test_a_slow_broker_delays_no_other_request(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker
) -> None:
    """No transaction is open during the dispatch."""
    release, entered = asyncio.Event(), asyncio.Event()

    async def wait_for_release(task_id: str) -> None:
        entered.set()
        await release.wait()

    broker.act = wait_for_release
    slow = asyncio.ensure_future(submit(client, job))
    async with asyncio.timeout(30):
        await entered.wait()
        other = await register(client, "Other")
        await submit(client, other)
        assert await claim(client, other["worker_id"]) is not None
        assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 2
        release.set()
        assert (await slow)["status"] == "claimed"


async def test_an_internal_job_stays_without_workers(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker
) -> None:
    """The end of its tasks does not delete it."""
    task = await submit(client, job)
    await report(client, task, "cancelled")
    assert (await client.get(f"{V1}/rooms/lab/jobs/{NAME}")).status_code == 200


async def test_permissions_to_report_on_an_internal_task(
    client: httpx.AsyncClient, job: dict[str, Any], broker: Broker, as_user: AsUser
) -> None:
    """A superuser may report, the submitter may cancel, other users are refused."""
    ada, eve = await as_user("ada"), await as_user("eve")
    task = await submit(ada, job)
    body = expect_problem(await report(eve, task, "running"), 403, "forbidden")
    assert body["detail"] == "Task not claimed by any worker"
    expect_problem(await report(ada, task, "running"), 403, "forbidden")
    expect_problem(await report(client, task, "running", worker_id=UNKNOWN_ID), 409, "stale-report")
    assert (await report(client, task, "running", attempt=1)).status_code == 200
    assert (await report(ada, task, "cancelled")).json()["status"] == "cancelled"
