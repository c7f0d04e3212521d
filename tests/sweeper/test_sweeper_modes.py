"""Watch before acting: what `observe` shows is what `enforce` does, and it touches nothing. Seed 003."""

import logging
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.queue import V1, Person, Queue
from zndraw_joblib.server.service.workers import Counts
from zndraw_joblib.server.store.tables import Worker, WorkerJobLink, metadata

Sessions = async_sessionmaker[AsyncSession]
SWEEPER = f"{V1}/admin/sweeper"
pytestmark = pytest.mark.usefixtures("wall")


async def everything(sessions: Sessions) -> dict[str, list[Any]]:
    """Return all rows of all tables of ours, but for the switches."""
    async with sessions() as session:
        return {
            name: sorted(map(repr, (await session.execute(select(table))).all()))
            for name, table in metadata.tables.items()
            if name != "joblib_switch"
        }


async def set_mode(queue: Queue, mode: str) -> dict[str, Any]:
    """Change the mode as a superuser."""
    state: dict[str, Any] = await queue.ask("PATCH", "/admin/sweeper", json={"mode": mode})
    assert state["mode"] == mode
    return state


async def ruin(queue: Queue) -> dict[str, dict[str, Any]]:
    """Leave behind something of every kind that a sweeper cleans up; return the tasks."""
    dead, retried = await queue.register(), await queue.register("Scale", max_attempts=3)
    alive = await queue.register("Alive", start_timeout_seconds=30, timeout_seconds=50)
    await queue.ask("PUT", "/rooms/@global/jobs", json={"category": "modifiers", "name": "Nobody"})
    tasks = {
        "lost": await queue.hold(dead, running=True),
        "released": await queue.hold(retried),
        "unstarted": await queue.hold(alive),
        "slow": await queue.hold(alive, running=True),
        "expired": await queue.submit(alive, expires_in_seconds=20),
        "orphan": await queue.hold(await queue.register("Orphan")),
        "fine": await queue.submit(alive),
    }
    gone = UUID(tasks["orphan"]["worker_id"])
    links, workers = WorkerJobLink.__table__, Worker.__table__
    await queue.execute(
        delete(links).where(links.c.worker_id == gone), delete(workers).where(workers.c.id == gone)
    )
    queue.watch()
    await queue.silence(61, spare=[alive["worker_id"]])
    return tasks


AFTER = {
    "lost": ("failed", "worker-lost"),
    "released": ("pending", "worker-lost"),
    "unstarted": ("pending", "start-timeout"),
    "slow": ("failed", "run-timeout"),
    "expired": ("failed", "task-expired"),
    "orphan": ("failed", "worker-lost"),
}


async def test_observe_touches_nothing_and_enforce_does_what_it_showed(
    queue: Queue, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps 1 to 6: the same decisions, without a row, an event or a wake-up; then with them."""
    caplog.set_level(logging.INFO, "zndraw_joblib")
    tasks = await ruin(queue)
    await set_mode(queue, "observe")
    before, told = await everything(sessions), len(queue.told.sent)
    preview = await queue.ask("GET", "/admin/sweeper/preview")
    cycles = [await queue.sweep() for _ in range(3)]
    assert (await everything(sessions), len(queue.told.sent)) == (before, told)
    for cycle in cycles:
        assert (cycle.scanned, cycle.stale, cycle.expired) == (4, 3, 3)
        assert cycle.counts == Counts(released=2, failed=4)
    assert "mode=observe" in caplog.text
    shown = {change["id"]: change for change in preview["tasks"]}
    assert {tasks[name]["id"]: result for name, result in AFTER.items()} == {
        task: (change["after"], change["reason"]) for task, change in shown.items()
    }
    assert len(preview["workers"]) == 3

    await set_mode(queue, "enforce")
    cycle = await queue.sweep()
    assert (cycle.expired, cycle.counts) == (3, cycles[0].counts)
    for name, (status, reason) in AFTER.items():
        after = await queue.read(tasks[name])
        assert after["status"] == status, name
        told_last = (await queue.ask("GET", f"/tasks/{after['id']}/history"))["transitions"][-1]
        assert (told_last["status"], told_last["reason"]) == (status, reason)
    assert (await queue.read(tasks["fine"]))["status"] == "pending"
    assert not set(preview["workers"]) & await queue.workers()
    assert (await queue.ask("GET", "/admin/sweeper/preview"))["tasks"] == []


async def test_off_is_off(queue: Queue, sessions: Sessions) -> None:
    """Nothing is looked at, nothing is done; the server is ready all the same."""
    await ruin(queue)
    await set_mode(queue, "off")
    before = await everything(sessions)
    cycle = await queue.sweep()
    assert await everything(sessions) == before
    assert (cycle.scanned, cycle.stale, cycle.errors) == (0, 0, 0)
    assert not queue.joblib.sweeper.is_late


async def test_the_mode_is_that_of_all_servers(queue: Queue) -> None:
    """It is kept in the database, and stands above the settings of each."""
    queue.joblib.settings.sweeper_mode = "observe"  # type: ignore[assignment]
    assert (await queue.ask("GET", "/admin/sweeper"))["mode"] == "observe"
    await set_mode(queue, "enforce")
    queue.restart()
    queue.watch()
    assert (await queue.sweep()).mode == "enforce"


async def test_the_last_cycles_are_shown(queue: Queue) -> None:
    """The latest first, with what held it back, and from when on somebody may be judged."""
    for _ in range(6):
        await queue.ask("POST", "/workers")
    state = await queue.ask("GET", "/admin/sweeper")
    assert (state["cycles"], state["grace_remaining_seconds"]) == ([], 60)
    queue.watch()
    await queue.silence()
    await queue.sweep()
    await queue.sweep()
    state = await queue.ask("GET", "/admin/sweeper")
    assert state["grace_remaining_seconds"] == 0
    assert [(each["expired"], each["held_back"]) for each in state["cycles"]] == [(6, False), (0, True)]
    for _ in range(30):
        await queue.sweep()
    assert len((await queue.ask("GET", "/admin/sweeper"))["cycles"]) == 20


@pytest.mark.parametrize(
    ("method", "url"), [("GET", SWEEPER), ("GET", f"{SWEEPER}/preview"), ("PATCH", SWEEPER)]
)
async def test_it_is_for_superusers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, method: str, url: str
) -> None:
    """Nobody else sees it, or changes it."""
    monkeypatch.setattr(Person, "is_superuser", False)
    answer: httpx.Response = await queue.client.request(method, url, json={"mode": "off"})
    assert (answer.status_code, answer.json()["type"]) == (403, "/v1/problems/forbidden")


async def test_a_mode_that_is_none_is_refused(queue: Queue) -> None:
    """With the ones there are."""
    answer = await queue.client.patch(SWEEPER, json={"mode": "perhaps"})
    assert answer.status_code == 422
    assert "enforce" in answer.text


async def test_old_tasks_are_removed_where_that_is_wanted(queue: Queue, sessions: Sessions) -> None:
    """Those that ended long enough ago, with their history; never one that has not ended."""
    job = await queue.register(max_attempts=2, retry_on=["error"], backoff={"base_seconds": 0})
    old = await queue.hold(job, running=True)
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
    await queue.beat(job["worker_id"])
    assert (await queue.sweep()).pruned == 0
    queue.joblib.settings.keep_finished_days = 1
    queue.clock.advance(1)
    assert (await queue.sweep()).pruned == 1
    assert (await queue.client.get(f"{V1}/tasks/{old['id']}")).status_code == 404
    rows = await everything(sessions)
    assert (len(rows["joblib_task"]), rows["joblib_attempt"]) == (2, [])
    assert [(await queue.read(task))["status"] for task in (late, fresh)] == ["completed", "pending"]
