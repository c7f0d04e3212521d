"""Passes count nothing twice and miss nothing: beside each other, after failures and absences."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import on_postgresql, on_sqlite
from replica import ManualClock, OpenReplica, Replica
from seeds import prune_ended
from sqlalchemy import insert
from waiting import until

from rollups.reading import NOW, intervals, summed, totals, update
from zndraw_joblib.server.admin import rules_statistics
from zndraw_joblib.server.background.loops import Rollups
from zndraw_joblib.server.db.tables import Statistic, StatisticPosition, Task
from zndraw_joblib.wire.statuses import TaskStatus

RETENTION = rules_statistics.StatisticsRetention(timedelta(days=2), timedelta(days=90))


async def finish(replica: Replica, number: int) -> None:
    """Submit and complete tasks."""
    job = await replica.register()
    for _ in range(number):
        running = await replica.running(job)
        await replica.report(running.id, TaskStatus.COMPLETED)


async def test_replicas_beside_each_other_count_each_task_once(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """While tasks are submitted and end, on real clocks."""
    replicas = [replica, open_replica(), open_replica()]
    await update(replica)
    working = asyncio.gather(*[finish(each, 8) for each in replicas])
    while not working.done():
        await asyncio.gather(*[update(each) for each in replicas])
    await working

    async def is_complete() -> bool:
        await asyncio.gather(*[update(each) for each in replicas])
        found = await totals(replica)
        assert max(found.submitted, found.completed) <= 24
        return found.completed == 24

    await until(is_complete)
    found = await totals(replica)
    assert (found.submitted, found.completed, found.waiting.count, found.running.count) == (24, 24, 24, 24)
    assert summed(await intervals(replica)) == summed([found])
    assert [await totals(each) for each in replicas] == [found] * 3


async def test_an_end_that_is_reported_late_is_counted(timed: Replica, clock: ManualClock) -> None:
    """A worker says for how long: the statistics have not read that time yet."""
    await update(timed, rules_statistics.SETTLE)
    clock.advance(20)
    job = await timed.register(max_attempts=2, retry_on=["error"])
    tasks = [await timed.running(job) for _ in range(4)]
    clock.advance(20)
    await update(timed, rules_statistics.SETTLE)
    for task, seconds in zip(tasks[:3], (0.5, 2, 600), strict=True):
        await timed.report(task.id, TaskStatus.COMPLETED, ended_ago=seconds)
    await timed.report(tasks[3].id, TaskStatus.FAILED, error="oh", ended_ago=2)
    clock.advance(4)
    await update(timed, rules_statistics.SETTLE)
    found = await totals(timed)
    assert (found.completed, found.retried, found.running.count) == (3, 1, 4)


async def test_a_pass_that_is_rolled_back_counts_nothing(timed: Replica, clock: ManualClock) -> None:
    """As after a kill: the next pass reads the same time again."""
    await update(timed)
    clock.advance(1)
    await finish(timed, 3)
    clock.advance(1)

    async def fail(tx: object) -> None:
        done = await rules_statistics.advance(tx, RETENTION, NOW)  # type: ignore[arg-type]
        assert done.number == 6
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        await timed.runtime.write(fail)
    assert (await totals(timed)).submitted == 0
    assert await update(timed) == 6
    assert (await totals(timed)).completed == 3


def row(job_id: UUID) -> dict[str, Any]:
    """Return the row of a cancelled task."""
    zeros = dict.fromkeys(("attempt", "lane", "failures", "crashes"), 0)
    names = {"room_id": "lab", "status": "cancelled", "created_by": "ada", "payload": {}}
    return {"id": uuid4(), "job_id": job_id, **zeros, **names}


@on_postgresql
async def test_a_transaction_that_commits_late_is_counted(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """Its tasks have earlier times than others that the statistics could read already."""
    other = open_replica()
    await update(replica)
    job = await replica.register()
    async with replica.engine.connect() as slow:
        started = await slow.exec_driver_sql("SELECT now()")
        time = started.scalar_one()
        await finish(other, 2)
        # The pass stops before the open transaction, however often it runs.
        await update(replica)
        [position] = await replica.rows(StatisticPosition.__table__)
        assert position.until <= time
        assert (await totals(replica)).completed == 0
        at = {"created_at": time, "completed_at": time}
        await slow.execute(insert(Task.__table__), [row(job.id) | at])
        await slow.commit()
    await replica.correct_counts()

    async def is_complete() -> bool:
        await update(replica)
        return (await totals(replica)).completed == 2

    await until(is_complete)
    found = await totals(replica)
    assert (found.submitted, found.cancelled) == (3, 1)


async def test_statistics_catch_up_after_a_long_absence(timed: Replica, clock: ManualClock) -> None:
    """Days in which nothing happened are skipped; each task is in the minute of its time."""
    await update(timed)
    for seconds in (30, 600, 90_000, 200, 86_400 * 3):
        clock.advance(seconds)
        await finish(timed, 2)
    clock.advance(7200)
    passes = 0
    rollups = Rollups(timed.runtime)
    while (await rollups.update(NOW)).is_behind:
        passes += 1
    assert 5 < passes < 40
    found = await totals(timed)
    assert (found.submitted, found.completed) == (10, 10)
    hours = await timed.rows(Statistic.__table__, Statistic.__table__.c.resolution == 3600)
    assert len({row.start for row in hours}) == 3
    [position] = await timed.rows(StatisticPosition.__table__)
    assert 0 < position.task_floor <= max(row.seq for row in await timed.rows(Task.__table__))
    # Later passes read no old tasks again.
    clock.advance(60)
    await finish(timed, 1)
    clock.advance(60)
    assert await update(timed) == 2


async def test_a_clock_that_was_far_ahead_does_not_end_the_statistics(
    timed: Replica, clock: ManualClock
) -> None:
    """They begin anew at the right time, and count nothing twice."""
    await update(timed)
    clock.advance(1)
    await finish(timed, 1)
    clock.advance(86_400 * 400)
    await update(timed)
    clock.advance(5 - 86_400 * 400)
    await update(timed)
    clock.advance(1)
    await finish(timed, 2)
    clock.advance(1)
    assert await update(timed) == 4
    found = await totals(timed)
    assert (found.submitted, found.completed) == (3, 3)


async def test_old_minutes_are_deleted_and_totals_stay(timed: Replica, clock: ManualClock) -> None:
    """Hours are kept longer; the limits are settings."""
    await update(timed)
    clock.advance(1)
    await finish(timed, 1)
    for days in (1, 2, 4):
        clock.advance(86_400 * days)
        await finish(timed, 1)
        clock.advance(1)
        await update(timed)
    rows = await timed.rows(Statistic.__table__)
    kept = {
        resolution: len({row.start for row in rows if row.resolution == resolution})
        for resolution in (60, 3600)
    }
    assert kept == {60: 1, 3600: 4}
    timed.runtime.settings.statistics_hours_days = 1
    clock.advance(60)
    await finish(timed, 1)
    clock.advance(1)
    for _ in range(5):
        await update(timed)
        clock.advance(31)
    rows = await timed.rows(Statistic.__table__)
    assert len({row.start for row in rows if row.resolution == 3600}) == 1
    assert (await totals(timed)).completed == 5


async def test_ended_tasks_are_deleted_after_they_were_read(timed: Replica, clock: ManualClock) -> None:
    """Unless the statistics have stopped. On SQLite new tasks get the numbers of deleted ones."""
    await update(timed)
    clock.advance(1)

    async def prune() -> int:
        return sum(await prune_ended(timed.runtime.write))

    for number in (3, 2):
        await finish(timed, number)
        clock.advance(1)
        assert await prune() == 0
        assert await update(timed) == 2 * number
        assert await prune() == number
        clock.advance(100)
        await update(timed)
    await finish(timed, 4)
    clock.advance(700)
    assert await prune() == 4
    assert (await totals(timed)).submitted == 5


@on_sqlite
async def test_an_idle_server_seldom_writes(timed: Replica, clock: ManualClock) -> None:
    """If nothing happens, the position moves every half minute."""
    await update(timed)
    moved = []
    for _ in range(13):
        clock.advance(5)
        await update(timed)
        [position] = await timed.rows(StatisticPosition.__table__)
        moved.append(position.until)
    assert len(set(moved)) == 3
