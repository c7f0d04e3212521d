"""Ended tasks are kept for as long as their job, or the settings, say for their status."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError
from rest import V1
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from sweeper.mounted_queue import MountedQueue
from zndraw_joblib import JobPolicy, Keep
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.queue import rules_task_retention, sql_recount, sql_task_retention
from zndraw_joblib.server.queue.rules_task_retention import PrunedTasks, TaskPruning
from zndraw_joblib.wire.operators import KeptTasks

Sessions = async_sessionmaker[AsyncSession]
tasks = Task.__table__
STATUSES = ("completed", "failed", "cancelled")
HOUR, DAY = 3600, 86_400


async def add(
    queue: MountedQueue, sessions: Sessions, job: Mapping[str, Any], *hours: float, **fields: Any
) -> None:
    """Add a task of each status that ended so many hours ago."""
    rows = []
    for age in hours:
        at = queue.clock.now - timedelta(hours=age)
        row = {"job_id": UUID(job["id"]), "room_id": "lab", "created_by": "ada", "payload": {}, "attempt": 0}
        row |= {"lane": 0, "failures": 0, "crashes": 0, "created_at": at, "started_at": at, **fields}
        rows += [row | {"id": uuid4(), "status": status, "completed_at": at} for status in STATUSES]
    async with sessions() as session:
        await (await session.connection()).execute(insert(tasks), rows)
        await session.commit()
    await sql_recount.repair(queue.joblib.runtime.database)


async def ages(queue: MountedQueue, sessions: Sessions, job: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return how many hours ago the tasks of a job ended, by their status."""
    async with sessions() as session:
        chosen = select(tasks.c.status, tasks.c.completed_at).where(tasks.c.job_id == UUID(job["id"]))
        rows = (await session.execute(chosen.order_by(tasks.c.completed_at.desc()))).all()
    return {
        status: [round((queue.clock.now - at).total_seconds() / HOUR) for of, at in rows if of == status]
        for status in STATUSES
    }


async def prune(queue: MountedQueue, settings: JobLibSettings) -> int:
    """Delete old tasks until no more are left, as a server with these settings does."""
    state, deleted, may_be_more = TaskPruning(), 0, True
    while may_be_more:
        work = partial(rules_task_retention.prune, settings=settings, state=state)
        pruned: PrunedTasks = await queue.joblib.runtime.write(work)
        deleted, may_be_more, state = deleted + pruned.deleted, pruned.may_be_more, pruned.state
    return deleted


async def test_each_status_has_its_time(queue: MountedQueue, sessions: Sessions) -> None:
    """That of the job first, then that of the status in the settings, then `keep_finished_days`."""
    settings = queue.joblib.settings
    plain = await queue.register("Plain")
    own = await queue.register("Own", keep={"completed": "2h", "failed": "forever"})
    for job in (plain, own):
        await add(queue, sessions, job, 1, 3, 30, 50, 80)
    settings.keep_finished_days, settings.keep_failed_days = 1, 2
    cycle = await queue.sweep()
    assert (cycle.pruned, cycle.errors) == (3 + 2 + 3 + 4 + 3, 0)
    assert await ages(queue, sessions, plain) == {
        "completed": [1, 3],
        "failed": [1, 3, 30],
        "cancelled": [1, 3],
    }
    assert await ages(queue, sessions, own) == {
        "completed": [1],
        "failed": [1, 3, 30, 50, 80],
        "cancelled": [1, 3],
    }
    settings.keep_failed_days = 0
    await add(queue, sessions, plain, 1000)
    assert (await queue.sweep()).pruned == 2


async def test_without_times_nothing_is_deleted(queue: MountedQueue, sessions: Sessions) -> None:
    """A mounted queue has no times; a job may have its own nevertheless."""
    plain, own = await queue.register("Plain"), await queue.register("Own", keep={"cancelled": 60})
    for job in (plain, own):
        await add(queue, sessions, job, 1, 100_000)
    assert (await queue.sweep()).pruned == 2
    assert (await ages(queue, sessions, plain))["cancelled"] == [1, 100_000]


async def test_tasks_with_a_longer_time_are_read_once(queue: MountedQueue, sessions: Sessions) -> None:
    """The next cycle begins behind them; they are deleted when their own time has come."""
    long = await queue.register("Long", keep=dict.fromkeys(STATUSES, "10d"))
    short = await queue.register("Short")
    await add(queue, sessions, long, *range(30, 230))
    await add(queue, sessions, short, 30)
    queue.joblib.settings.keep_finished_days = 1
    assert (await queue.sweep()).pruned == 3
    places = queue.joblib.sweeper.pruner._tasks.places
    assert sorted(places) == [DAY]
    before = queue.clock.now - timedelta(days=1)
    read = partial(sql_task_retention.ended_after, after=places[DAY], before=before, limit=10)
    assert await queue.joblib.runtime.database.read(read) == []
    queue.clock.advance(2 * DAY)
    assert (await queue.sweep()).pruned == 3 * sum(age + 48 > 240 for age in range(30, 230))


async def test_a_changed_policy_applies_to_older_tasks(queue: MountedQueue, sessions: Sessions) -> None:
    """A shorter time deletes more, also in other versions of the job; a longer one keeps the rest."""
    job = await queue.register(keep={"completed": "10d"}, schema={"properties": {"a": {}}})
    newer = await queue.register(worker_id=job["worker_id"], schema={"properties": {"a": {}, "b": {}}})
    assert newer["keep"] == {"completed": 864_000, "failed": None, "cancelled": None}
    for version in (job, newer):
        await add(queue, sessions, version, 5, 50)
    assert (await queue.sweep()).pruned == 0
    await queue.register(worker_id=job["worker_id"], schema={"properties": {"a": {}, "b": {}}}, keep=None)
    queue.joblib.settings.keep_finished_days = 1
    assert (await queue.sweep()).pruned == 6


async def test_a_job_that_is_gone_keeps_its_times(queue: MountedQueue, sessions: Sessions) -> None:
    """Its worker has left, and the job is soft-deleted."""
    job = await queue.register(keep={"failed": "forever"})
    await add(queue, sessions, job, 100)
    await queue.request("DELETE", f"/workers/{job['worker_id']}")
    queue.joblib.settings.keep_finished_days = 1
    assert (await queue.sweep()).pruned == 2
    assert (await ages(queue, sessions, job))["failed"] == [100]


async def test_many_equal_times_are_read_in_batches(queue: MountedQueue, sessions: Sessions) -> None:
    """Tasks that ended at the same moment, of which some are kept."""
    long, short = await queue.register("Long", keep={"failed": "forever"}), await queue.register("Short")
    for job in (long, short):
        await add(queue, sessions, job, *[30] * 900)
    queue.joblib.settings.keep_finished_days = 1
    assert (await queue.sweep()).pruned == 5 * 900
    assert (await queue.sweep()).pruned == 0


async def test_a_task_that_is_needed_stays(queue: MountedQueue, sessions: Sessions) -> None:
    """Its function was not called yet: for a week, and the daily pass finds it then."""
    job = await queue.register()
    await add(queue, sessions, job, 30, on_end="billing")
    await add(queue, sessions, job, 30)
    queue.joblib.settings.keep_finished_days = 1
    assert (await queue.sweep()).pruned == 3
    queue.clock.advance(5 * DAY)
    assert (await queue.sweep()).pruned == 0
    queue.clock.advance(2 * DAY)
    assert (await queue.sweep()).pruned == 3


async def test_a_preview_counts_and_changes_nothing(queue: MountedQueue, sessions: Sessions) -> None:
    """Of a job, or of all jobs without times of their own."""
    settings = queue.joblib.settings
    plain, own = await queue.register("Plain"), await queue.register("Own", keep={"completed": "2h"})
    for job in (plain, own):
        await add(queue, sessions, job, 1, 3, 30)
    settings.keep_failed_days = 1

    async def shown(**query: str) -> dict[str, Any]:
        body = await queue.request("GET", "/admin/retention", params=query)
        assert body["is_complete"]
        return {name: tuple(body[name].values()) for name in STATUSES}

    assert await shown() == {
        "completed": (None, "settings", 0),
        "failed": (DAY, "settings", 2),
        "cancelled": (None, "settings", 0),
    }
    # A status that the job leaves out has the time of the settings, and counts there too.
    assert (await shown(cancelled="2h", failed="forever")) == {
        "completed": (None, "settings", 0),
        "failed": (None, "proposed", 0),
        "cancelled": (2 * HOUR, "proposed", 4),
    }
    assert await shown(job=own["full_name"], completed="7200", cancelled="1d") == {
        "completed": (2 * HOUR, "proposed", 2),
        "failed": (DAY, "settings", 1),
        "cancelled": (DAY, "proposed", 1),
    }
    assert len((await ages(queue, sessions, plain))["failed"]) == 3
    for query, status, text in (
        (
            {"completed": "soon"},
            422,
            "query.completed: 'soon' is no time to keep tasks: pass seconds, or 90s",
        ),
        ({"job": "@global:modifiers:Unknown"}, 404, "Job '@global:modifiers:Unknown' not found"),
    ):
        response = await queue.client.get(f"{V1}/admin/retention", params=query)
        assert (response.status_code, text in response.json()["detail"]) == (status, True), response.text


async def test_default_times_apply_a_week_after_the_first_start(
    queue: MountedQueue, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    """So an upgrade deletes nothing by surprise; times that were set apply at once."""
    job = await queue.register()
    await add(queue, sessions, job, 24 * 31, 24 * 91)
    standalone = ServerSettings()
    announce = partial(rules_task_retention.announce, settings=standalone)
    first: KeptTasks = await queue.joblib.runtime.write(announce)
    assert first.applies_at == queue.clock.now + timedelta(days=7)
    assert (first.completed.older, first.failed.older, first.cancelled.older) == (2, 1, 2)
    assert await prune(queue, standalone) == 0
    assert await prune(queue, ServerSettings(keep_cancelled_days=90)) == 1
    queue.clock.advance(6 * DAY)
    again: KeptTasks = await queue.joblib.runtime.write(announce)
    assert again.applies_at == first.applies_at
    assert await prune(queue, standalone) == 0
    queue.clock.advance(DAY)
    assert await prune(queue, standalone) == 4
    assert await prune(queue, ServerSettings(keep_finished_days=1)) == 1
    with caplog.at_level(logging.INFO):
        queue.joblib.settings.keep_failed_days = 0.5
        await queue.sweep()
    assert "Ended tasks are kept: completed for ever, failed 0.5 days, cancelled for ever" in caplog.text


def test_the_times_of_the_settings() -> None:
    """A mounted queue has none; what is set for all statuses replaces the defaults of `serve`."""
    assert [JobLibSettings().keep_days(status) for status in STATUSES] == [None] * 3
    assert [ServerSettings().keep_days(status) for status in STATUSES] == [30, 90, 30]
    week = ServerSettings(keep_finished_days=7, keep_failed_days=8)
    assert [week.keep_days(status) for status in STATUSES] == [7, 8, 7]
    for_ever = ServerSettings(keep_completed_days=0, keep_failed_days=0, keep_cancelled_days=0)
    assert [for_ever.keep_days(status) for status in STATUSES] == [None] * 3
    assert [one.keeps_by_default for one in (ServerSettings(), week, for_ever)] == [True, False, False]


def test_times_may_have_a_unit() -> None:
    """Seconds, text or a `timedelta`; anything else is refused."""
    keep = Keep(completed="1.5h", failed=timedelta(days=2), cancelled="forever")
    assert (keep.completed, keep.failed, keep.cancelled) == (5400, 2 * DAY, "forever")
    assert JobPolicy(keep={"failed": "90s"}).keep == Keep(failed=90)
    for wrong in (0, -1, "1y", "soon", 1e12, float("nan")):
        with pytest.raises(ValidationError):
            Keep(completed=wrong)
    with pytest.raises(TypeError, match="did you mean 'failed'"):
        Keep(faild=3)  # type: ignore[call-arg]
