"""A task that its living worker does not name in its heartbeats is released or fails."""

from collections.abc import Mapping
from typing import Any

import pytest
from rest import V1
from sqlalchemy import func, select

from sweeper.mounted_queue import MountedQueue, User
from zndraw_joblib import Forbidden, verify_writable_room
from zndraw_joblib.server.db.tables import UnnamedTask
from zndraw_joblib.server.http.access import WorkerRooms
from zndraw_joblib.server.queue import rules_workers
from zndraw_joblib.wire.messages import MAX_NAMED_TASKS

INTERVAL = 15.0  # of heartbeats
LIMIT = 45.0  # three of them


@pytest.fixture(autouse=True)
def after_startup_grace(queue: MountedQueue) -> None:
    """End the grace period."""
    queue.end_startup_grace()


async def name(queue: MountedQueue, worker_id: str, *tasks: Mapping[str, Any]) -> list[str]:
    """Send a heartbeat that names these tasks; return their verdicts."""
    body = {"tasks": [{"id": task["id"], "attempt": task["attempt"]} for task in tasks]}
    response = await queue.request("PATCH", f"/workers/{worker_id}", json=body)
    return [task["verdict"] for task in response["tasks"]]


async def omit(
    queue: MountedQueue, worker_id: str, *named: Mapping[str, Any], seconds: float = LIMIT
) -> None:
    """Let time pass while the worker's heartbeats name other tasks only."""
    await name(queue, worker_id, *named)
    for _ in range(int(seconds / INTERVAL)):
        queue.run_for(INTERVAL)
        await name(queue, worker_id, *named)


async def marks(queue: MountedQueue) -> int:
    """Count the tasks that are recorded as not named."""
    async with queue.sessions() as session:
        statement = select(func.count()).select_from(UnnamedTask.__table__)
        count: int = (await session.execute(statement)).scalar_one()
        return count


def refuse(queue: MountedQueue, refused: str) -> None:
    """Take the right to serve a room away from the user of the queue."""

    async def writable(room_id: str) -> str:
        if room_id == refused:
            raise Forbidden("The room is no longer yours")
        return room_id

    queue.app.dependency_overrides[verify_writable_room] = writable
    queue.joblib.worker_rooms = WorkerRooms(queue.joblib.guards, queue.joblib.runtime)


outcomes = pytest.mark.parametrize(
    ("policy", "running", "after"),
    [
        ({}, True, ("failed", "worker-lost")),
        ({"max_attempts": 2}, True, ("pending", "worker-lost")),
        ({}, False, ("pending", "released")),
    ],
    ids=["failed", "retried", "not started"],
)


@outcomes
async def test_a_task_that_its_worker_stops_naming_is_settled(
    queue: MountedQueue, policy: dict[str, Any], running: bool, after: tuple[str, str]
) -> None:
    """By its policy, after three heartbeats, with an event; the worker's other task continues."""
    job = await queue.register(**policy)
    stranded = await queue.submit_and_claim(job, running=running)
    kept = await queue.submit_and_claim(job, running=True)
    assert await name(queue, job["worker_id"], stranded, kept) == ["continue", "continue"]
    await omit(queue, job["worker_id"], kept, seconds=LIMIT - INTERVAL)
    assert (await queue.sweep()).counts.failed + (await queue.sweep()).counts.released == 0
    await omit(queue, job["worker_id"], kept, seconds=INTERVAL)
    await queue.sweep()
    task = await queue.get_task(stranded)
    assert (task["status"], task["error_code"]) == after
    assert "did not name the task in its heartbeats" in task["error"]
    assert queue.events.statuses(stranded)[-1] == task["status"]
    assert await name(queue, job["worker_id"], stranded, kept) == ["lost", "continue"]
    assert (await queue.get_task(kept))["status"] == "running"
    await queue.sweep()
    assert await marks(queue) == 0


@outcomes
async def test_a_task_of_a_removed_member_is_settled(
    queue: MountedQueue,
    monkeypatch: pytest.MonkeyPatch,
    policy: dict[str, Any],
    running: bool,
    after: tuple[str, str],
) -> None:
    """Its worker names it in each heartbeat; the task that it has in another room continues."""
    monkeypatch.setattr(User, "is_superuser", False)
    lost = await queue.register(room="lab", **policy)
    worker_id = lost["worker_id"]
    stranded = await queue.submit_and_claim(lost, running=running)
    await queue.submit(await queue.register("Move", room="den", worker_id=worker_id), "den")
    kept = await queue.report(await queue.claim(worker_id), "running")
    assert await name(queue, worker_id, stranded, kept) == ["continue", "continue"]
    refuse(queue, "lab")
    assert await name(queue, worker_id, stranded, kept) == ["lost", "continue"]
    await omit(queue, worker_id, stranded, kept, seconds=LIMIT - INTERVAL)
    await queue.sweep()
    assert (await queue.get_task(stranded))["status"] == ("running" if running else "claimed")
    await omit(queue, worker_id, stranded, kept, seconds=INTERVAL)
    await queue.sweep()
    task = await queue.get_task(stranded)
    assert (task["status"], task["error_code"]) == after
    response = await queue.client.post(f"{V1}/tasks/claim", json={"worker_id": worker_id})
    assert response.json()["task"] is None
    assert (await queue.get_task(kept))["status"] == "running"


async def test_a_worker_that_names_no_task_at_all_is_not_judged(queue: MountedQueue) -> None:
    """Clients of version 0.1.x send heartbeats without a body; others may only change `max_tasks`."""
    job = await queue.register()
    task = await queue.submit_and_claim(job, running=True)
    for number in range(20):
        queue.run_for(INTERVAL)
        body = {"max_tasks": 5} if number % 2 else None
        await queue.request("PATCH", f"/workers/{job['worker_id']}", json=body)
        await queue.sweep()
    assert (await queue.get_task(task))["status"] == "running"
    assert await marks(queue) == 0


async def test_a_task_that_is_named_again_continues(queue: MountedQueue) -> None:
    """The response to its claim was under way, or heartbeats got lost: the time counts anew."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    for _ in range(4):
        await omit(queue, job["worker_id"], seconds=LIMIT - INTERVAL)
        await queue.sweep()
        assert await name(queue, job["worker_id"], task) == ["continue"]
        assert await marks(queue) == 0
    assert (await queue.get_task(task))["status"] == "claimed"


async def test_a_new_attempt_starts_anew(queue: MountedQueue) -> None:
    """What a worker omitted of an earlier attempt does not count for the next one."""
    job = await queue.register()
    first = await queue.submit_and_claim(job)
    await omit(queue, job["worker_id"], seconds=LIMIT - INTERVAL)
    await queue.request("POST", f"/tasks/{first['id']}/release")
    second = await queue.claim(job["worker_id"])
    assert second["id"] == first["id"]
    await omit(queue, job["worker_id"], seconds=LIMIT - INTERVAL)
    await queue.sweep()
    assert (await queue.get_task(second))["status"] == "claimed"


async def test_an_absence_of_the_server_settles_nothing(queue: MountedQueue) -> None:
    """Heartbeats could not arrive meanwhile; the worker gets a full timeout to name its task."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    await name(queue, job["worker_id"])
    await queue.sweep()
    queue.clock.advance(3600)
    await queue.sweep()
    assert await name(queue, job["worker_id"], task) == ["continue"]
    for _ in range(4):
        queue.run_for(30)
        await name(queue, job["worker_id"], task)
        await queue.sweep()
    assert (await queue.get_task(task))["status"] == "claimed"


async def test_a_silent_worker_is_left_to_the_worker_timeout(queue: MountedQueue) -> None:
    """Only a living worker is believed to have lost its task."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    await name(queue, job["worker_id"])
    queue.run_for(LIMIT + 1)
    assert (await queue.sweep()).counts.released == 0
    assert (await queue.get_task(task))["status"] == "claimed"


async def test_a_clock_that_is_set_back_delays_it_by_one_limit(queue: MountedQueue) -> None:
    """A time in the future is replaced by the next heartbeat."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    await name(queue, job["worker_id"])
    queue.clock.advance(-3600)
    await queue.sweep()
    await omit(queue, job["worker_id"])
    await queue.sweep()
    assert (await queue.get_task(task))["status"] == "pending"


@pytest.mark.parametrize(("limit", "status"), [(0, "running"), (10, "failed"), (600, "running")])
async def test_the_limit_is_a_setting(queue: MountedQueue, limit: float, status: str) -> None:
    """`unnamed_task_timeout_seconds`; 0 turns it off."""
    queue.joblib.settings.unnamed_task_timeout_seconds = limit
    job = await queue.register()
    task = await queue.submit_and_claim(job, running=True)
    await omit(queue, job["worker_id"])
    assert await marks(queue) == (limit > 0)
    preview = await queue.request("GET", "/admin/sweeper/preview")
    assert len(preview["tasks"]) == (status == "failed")
    await queue.sweep()
    assert (await queue.get_task(task))["status"] == status


async def test_a_worker_with_more_tasks_than_a_heartbeat_names_is_not_judged(queue: MountedQueue) -> None:
    """It names others each time."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    many = [{"id": f"00000000-0000-0000-0000-{n:012}", "attempt": 1} for n in range(MAX_NAMED_TASKS)]
    await omit(queue, job["worker_id"], *many)
    await queue.sweep()
    assert (await queue.get_task(task))["status"] == "claimed"
    assert await marks(queue) == 0


async def test_a_named_task_continues_however_many_tasks_are_held(
    queue: MountedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats compare a limited number of held tasks, but each task that they name counts as named."""
    job = await queue.register()
    stranded, own = [await queue.submit_and_claim(job, running=True) for _ in range(2)]
    await name(queue, job["worker_id"])
    assert await marks(queue) == 2
    # A worker would have to hold 2,000 tasks.
    monkeypatch.setattr(rules_workers, "MAX_HELD", 0)
    await omit(queue, job["worker_id"], own)
    assert await marks(queue) == 1
    await queue.sweep()
    assert [(await queue.get_task(task))["status"] for task in (stranded, own)] == ["failed", "running"]


async def test_a_list_that_is_full_by_now_ends_the_check(queue: MountedQueue) -> None:
    """It may be incomplete: what earlier lists omitted does not count any more."""
    job = await queue.register()
    await queue.submit_and_claim(job)
    await name(queue, job["worker_id"])
    assert await marks(queue) == 1
    many = [{"id": f"00000000-0000-0000-0000-{n:012}", "attempt": 1} for n in range(MAX_NAMED_TASKS)]
    await name(queue, job["worker_id"], *many)
    assert await marks(queue) == 0
