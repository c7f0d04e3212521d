"""The modes of the sweeper: `observe` shows what `enforce` does, and changes nothing."""

import logging
from typing import Any
from uuid import UUID

import httpx
import pytest
from rest import V1
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.mounted_queue import MountedQueue, User
from zndraw_joblib.server.background.pruner import KEY_COUNT_SECONDS
from zndraw_joblib.server.db.tables import IdempotencyKey, Worker, WorkerJobLink, metadata
from zndraw_joblib.server.queue.rules_workers import Counts

Sessions = async_sessionmaker[AsyncSession]
SWEEPER = f"{V1}/admin/sweeper"


async def all_rows(sessions: Sessions) -> dict[str, list[Any]]:
    """Return all rows of all tables, except the runtime settings."""
    async with sessions() as session:
        return {
            name: sorted(map(repr, (await session.execute(select(table))).all()))
            for name, table in metadata.tables.items()
            if name not in {"joblib_switch", "joblib_server", "joblib_sweep_cycle"}
        }


async def set_mode(queue: MountedQueue, mode: str) -> dict[str, Any]:
    """Set the mode as a superuser."""
    state: dict[str, Any] = await queue.request("PATCH", "/admin/sweeper", json={"mode": mode})
    assert state["mode"] == mode
    return state


async def create_sweepable_tasks(queue: MountedQueue) -> dict[str, dict[str, Any]]:
    """Create a task for every action of the sweeper; return the tasks."""
    dead, retried = await queue.register(), await queue.register("Scale", max_attempts=3)
    alive = await queue.register("Alive", start_timeout_seconds=30, timeout_seconds=50)
    await queue.request("PUT", "/rooms/@global/jobs", json={"category": "modifiers", "name": "Unserved"})
    tasks = {
        "lost": await queue.submit_and_claim(dead, running=True),
        "released": await queue.submit_and_claim(retried),
        "unstarted": await queue.submit_and_claim(alive),
        "slow": await queue.submit_and_claim(alive, running=True),
        "expired": await queue.submit(alive, expires_in_seconds=20),
        "orphan": await queue.submit_and_claim(await queue.register("Orphan")),
        "fine": await queue.submit(alive),
    }
    removed = UUID(tasks["orphan"]["worker_id"])
    links, workers = WorkerJobLink.__table__, Worker.__table__
    await queue.execute(
        delete(links).where(links.c.worker_id == removed), delete(workers).where(workers.c.id == removed)
    )
    idle = [(await queue.request("POST", "/workers"))["id"] for _ in range(3)]
    queue.end_startup_grace()
    await queue.pass_time(61, alive=[alive["worker_id"], *idle])
    return tasks


EXPECTED = {
    "lost": ("failed", "worker-lost"),
    "released": ("pending", "worker-lost"),
    "unstarted": ("pending", "start-timeout"),
    "slow": ("failed", "run-timeout"),
    "expired": ("failed", "task-expired"),
    "orphan": ("failed", "worker-lost"),
}


async def test_enforce_does_what_observe_shows(
    queue: MountedQueue, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    """`observe` makes the same decisions without changing a row or emitting an event."""
    caplog.set_level(logging.INFO, "zndraw_joblib")
    tasks = await create_sweepable_tasks(queue)
    await set_mode(queue, "observe")
    before, emitted = await all_rows(sessions), len(queue.events.emitted)
    preview = await queue.request("GET", "/admin/sweeper/preview")
    cycles = [await queue.sweep() for _ in range(3)]
    assert (await all_rows(sessions), len(queue.events.emitted)) == (before, emitted)
    for cycle in cycles:
        assert (cycle.scanned, cycle.stale, cycle.expired) == (7, 3, 3)
        assert cycle.counts == Counts(released=2, failed=4)
    assert "3 of 7 workers would be removed for silence" in caplog.text
    shown = {change["id"]: change for change in preview["tasks"]}
    assert {tasks[name]["id"]: result for name, result in EXPECTED.items()} == {
        task: (change["after"], change["reason"]) for task, change in shown.items()
    }
    assert len(preview["workers"]) == 3

    await set_mode(queue, "enforce")
    cycle = await queue.sweep()
    assert (cycle.expired, cycle.counts) == (3, cycles[0].counts)
    for name, (status, reason) in EXPECTED.items():
        after = await queue.get_task(tasks[name])
        assert after["status"] == status, name
        last = (await queue.request("GET", f"/tasks/{after['id']}/history"))["transitions"][-1]
        assert (last["status"], last["reason"]) == (status, reason)
    assert (await queue.get_task(tasks["fine"]))["status"] == "pending"
    assert not set(preview["workers"]) & await queue.worker_ids()
    assert (await queue.request("GET", "/admin/sweeper/preview"))["tasks"] == []


async def test_off_changes_nothing(queue: MountedQueue, sessions: Sessions) -> None:
    """The sweeper checks no worker and changes nothing; the server stays ready."""
    await create_sweepable_tasks(queue)
    await set_mode(queue, "off")
    before = await all_rows(sessions)
    cycle = await queue.sweep()
    assert await all_rows(sessions) == before
    assert (cycle.scanned, cycle.stale, cycle.errors) == (0, 0, 0)
    assert not queue.joblib.sweeper.is_late


async def test_all_servers_share_the_mode(queue: MountedQueue) -> None:
    """The database stores it, and it overrides the setting of each server."""
    queue.joblib.settings.sweeper_mode = "observe"  # type: ignore[assignment]
    assert (await queue.request("GET", "/admin/sweeper"))["mode"] == "observe"
    await set_mode(queue, "enforce")
    queue.restart_sweeper()
    queue.end_startup_grace()
    assert (await queue.sweep()).mode == "enforce"


async def test_the_state_lists_the_last_cycles(queue: MountedQueue) -> None:
    """The latest first, with the mass-expiry guard and the remaining grace period."""
    for _ in range(6):
        await queue.request("POST", "/workers")
    state = await queue.request("GET", "/admin/sweeper")
    assert (state["cycles"], state["grace_remaining_seconds"]) == ([], 60)
    queue.end_startup_grace()
    await queue.pass_time()
    await queue.sweep()
    await queue.sweep()
    state = await queue.request("GET", "/admin/sweeper")
    assert state["grace_remaining_seconds"] == 0
    assert [(each["expired"], each["held_back"]) for each in state["cycles"]] == [(6, False), (0, True)]
    for _ in range(30):
        await queue.sweep()
    assert len((await queue.request("GET", "/admin/sweeper"))["cycles"]) == 20


@pytest.mark.parametrize(
    ("method", "url"), [("GET", SWEEPER), ("GET", f"{SWEEPER}/preview"), ("PATCH", SWEEPER)]
)
async def test_only_superusers_have_access(
    queue: MountedQueue, monkeypatch: pytest.MonkeyPatch, method: str, url: str
) -> None:
    """Every other user gets 403."""
    monkeypatch.setattr(User, "is_superuser", False)
    response: httpx.Response = await queue.client.request(method, url, json={"mode": "off"})
    assert (response.status_code, response.json()["type"]) == (403, "/v1/problems/forbidden")


async def test_an_unknown_mode_is_rejected(queue: MountedQueue) -> None:
    """The error lists the valid modes."""
    response = await queue.client.patch(SWEEPER, json={"mode": "perhaps"})
    assert response.status_code == 422
    assert "enforce" in response.text


async def test_old_tasks_are_removed_if_configured(queue: MountedQueue, sessions: Sessions) -> None:
    """Tasks that ended long enough ago are removed with their history; other tasks stay."""
    job = await queue.register(max_attempts=2, retry_on=["error"], backoff={"base_seconds": 0})
    old = await queue.submit_and_claim(job, running=True)
    await queue.report(old, "failed")
    assert (await queue.sweep()).counts == Counts()
    again = await queue.claim(job["worker_id"])
    assert again["id"] == old["id"]
    for status in ("running", "completed"):
        await queue.report(old, status)
    waiting = await queue.submit(job)
    queue.clock.advance(86400)
    late = await queue.claim(job["worker_id"])
    assert late["id"] == waiting["id"]
    for status in ("running", "completed"):
        await queue.report(late, status)
    fresh = await queue.submit(job)
    await queue.heartbeat(job["worker_id"])
    assert (await queue.sweep()).pruned == 0
    queue.joblib.settings.keep_finished_days = 1
    queue.clock.advance(1)
    assert (await queue.sweep()).pruned == 1
    assert (await queue.client.get(f"{V1}/tasks/{old['id']}")).status_code == 404
    rows = await all_rows(sessions)
    assert (len(rows["joblib_task"]), rows["joblib_attempt"]) == (2, [])
    assert [(await queue.get_task(task))["status"] for task in (late, fresh)] == ["completed", "pending"]


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
async def test_a_cycle_removes_old_idempotency_keys(
    queue: MountedQueue, sessions: Sessions, mode: str
) -> None:
    """A key is removed in the first cycle after `idempotency_key_hours`, whatever the mode; a task is not."""
    await set_mode(queue, mode)
    queue.joblib.settings.idempotency_key_hours = 1
    response = await queue.client.post(f"{V1}/workers", headers={"Idempotency-Key": "one"})
    assert response.status_code == 201
    left = []
    for seconds in (3599, 1):
        queue.clock.advance(seconds)
        await queue.sweep()
        left.append(len((await all_rows(sessions))["joblib_idempotency_key"]))
    assert left == [1, 0]


async def test_cycles_remove_the_oldest_keys_beyond_the_limit(
    queue: MountedQueue, sessions: Sessions
) -> None:
    """The sweeper counts all keys every ten minutes, and leaves 95 % of `max_idempotency_keys`."""
    queue.joblib.settings.max_idempotency_keys = 20
    await queue.sweep()
    for number in range(21):
        response = await queue.client.post(f"{V1}/workers", headers={"Idempotency-Key": f"key-{number}"})
        assert response.status_code == 201
        queue.clock.advance(1)
    left = []
    for seconds in (KEY_COUNT_SECONDS - 1, 1):
        queue.clock.advance(seconds)
        queue.monotonic.advance(seconds)
        await queue.sweep()
        async with sessions() as session:
            left.append(list((await session.execute(select(IdempotencyKey.user_id))).scalars()))
    assert left == [["ada"] * 21, ["ada"] * 19]
