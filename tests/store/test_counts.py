"""Totals of lists are sums of counts that every writer of a task keeps."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import pytest
from databases import on_postgresql
from recovery.test_pausing import until_waiting
from replica import SUBMITTER, TIMEOUT, Replica
from seeds import prune_ended
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.server.db.tables import Job, QueueBlock, RoomCount, Task, TaskResult, TaskResultShare
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_task_actions, rules_tasks, sql_counts, sql_recount
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.statuses import TaskStatus

rooms, blocks, jobs = RoomCount.__table__, QueueBlock.__table__, Job.__table__
results, shares = TaskResult.__table__, TaskResultShare.__table__


async def totals(replica: Replica, room: str = "lab", job: UUID | None = None) -> dict[str, int]:
    """Return the totals of a room's lists, all and by status, without those that are 0."""
    found = {}
    for status in (None, *TaskStatus):
        job_ids = [job] if job else []
        page = partial(rules_tasks.page, room_id=room, status=status, part=Page(0, 0), jobs=job_ids)
        found[status or "all"] = (await replica.runtime.database.read(page)).total
    return {str(name): total for name, total in found.items() if total}


async def wrong(replica: Replica) -> list[str]:
    """Return the wrong counts."""
    return await replica.runtime.database.run_sync(sql_recount.wrong)


async def one_of_each(replica: Replica, job: JobResponse) -> None:
    """Submit tasks and bring them to every status."""
    for end in (None, None, TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED):
        await replica.submit(job)
        held = await replica.start(job.worker_id)
        if end is not None:
            await replica.report(held.id, end)
    await replica.submit(job)
    await replica.claim_task(job.worker_id)
    await replica.submit(job)
    await replica.submit(job, delay_seconds=1000)
    cancelled = await replica.submit(job)
    await replica.report(cancelled.id, TaskStatus.CANCELLED, by=SUBMITTER)


async def test_every_status_of_a_room_and_a_job_has_its_total(replica: Replica) -> None:
    """The totals of two rooms and of two jobs do not mix."""
    job, other = await replica.register("A"), await replica.register("B")
    await one_of_each(replica, job)
    await replica.submit(other)
    await replica.submit(other, room="elsewhere")
    of_job = {"pending": 2, "claimed": 1, "running": 2, "completed": 1, "failed": 1, "cancelled": 2}
    assert await totals(replica, job=job.id) == of_job | {"all": 9}
    assert await totals(replica, job=other.id) == {"all": 1, "pending": 1}
    assert await totals(replica) == of_job | {"all": 10, "pending": 3}
    assert await totals(replica, "elsewhere") == {"all": 1, "pending": 1}
    assert await totals(replica, "nowhere") == {}


async def test_a_retry_and_a_release_move_a_task_between_the_totals(replica: Replica) -> None:
    """Each status change is counted once, also back to pending."""
    job = await replica.register()
    await replica.submit(job)
    held = await replica.start(job.worker_id)
    await replica.report(held.id, TaskStatus.FAILED)
    assert await totals(replica) == {"all": 1, "failed": 1}
    await replica.act(rules_task_actions.retry, held.id)
    assert await totals(replica) == {"all": 1, "pending": 1}
    await replica.claim_task(job.worker_id)
    assert await totals(replica) == {"all": 1, "claimed": 1}
    await replica.act(rules_task_actions.release, held.id)
    assert await totals(replica) == {"all": 1, "pending": 1}


async def test_deleted_tasks_leave_no_counts(replica: Replica) -> None:
    """When the last task of a room is deleted, its rows are too; other rooms keep theirs."""
    job = await replica.register()
    for room in ("lab", "gone", "other"):
        for _ in range(2):
            await replica.submit(job, room=room)
            held = await replica.start(job.worker_id)
            await replica.report(held.id, TaskStatus.FAILED if room == "gone" else TaskStatus.COMPLETED)
    await replica.submit(job)
    assert sum(await prune_ended(replica.runtime.write)) == 6
    assert await totals(replica) == {"all": 1, "pending": 1}
    assert await totals(replica, "gone") == {}
    assert {row.room_id for row in await replica.rows(rooms)} == {"lab"}


@on_postgresql
async def test_an_end_without_the_lock_of_the_job_waits_for_no_submit(replica: Replica) -> None:
    """Failures are counted in other rows than submits and claims; completions in none."""
    job = await replica.register()
    for _ in range(8):
        await replica.submit(job)
        held = await replica.start(job.worker_id)
        await replica.report(held.id, TaskStatus.FAILED)
    found = {row.part: (row.total, row.pending, row.failed) for row in await replica.rows(rooms)}
    assert found.pop(0) == (8, 0, 0)
    assert set(found) == {1, 2, 3, 4}
    assert set(found.values()) == {(0, 0, 2)}


async def test_wrong_counts_are_found_and_corrected(replica: Replica) -> None:
    """A repair adds what is missing, and changes nothing else."""
    job = await replica.register()
    await one_of_each(replica, job)
    assert await wrong(replica) == []
    expected = await totals(replica)
    await replica.execute(update(rooms).values(total=rooms.c.total + 5, failed=rooms.c.failed - 1))
    await replica.execute(delete(blocks))
    await replica.execute(update(jobs).values(pending=7, scheduled=3))
    found = await wrong(replica)
    assert [line.partition(":")[0] for line in found] == ["room", "block of a queue", "job"]
    assert "queued=-6, scheduled=-2" in found[2]
    await replica.correct_counts()
    assert await wrong(replica) == []
    assert await totals(replica) == expected


async def test_a_repair_counts_what_older_servers_do_not(replica: Replica) -> None:
    """The bytes of results whose content they delete, and claims that they requeue before their start."""
    job = await replica.register()
    for _ in range(2):
        await replica.submit(job)
    first, _ = [await replica.claim_task(job.worker_id) for _ in range(2)]
    for _ in range(2):
        await replica.act(rules_task_actions.release, first.id)
        await replica.claim_task(job.worker_id)
    result = {"attempt": 1, "content_type": "", "etag": "", "expires_at": datetime.now(UTC), "size": 10}
    stored = [("ada", "a", 1), ("ada", "b", None), ("bob", None, 2), (None, "c", None)]
    for user_id, key, seq in stored:
        row = {**result, "user_id": user_id, "content_key": key, "task_seq": seq}
        await replica.execute(insert(results).values(row))
    await replica.execute(insert(shares).values(user_id="ada", size=2 * 1034))
    assert await wrong(replica) == []
    await replica.execute(update(Task.__table__).values(unstarted=0))
    await replica.execute(update(results).where(results.c.content_key == "b").values(content_key=None))
    await replica.execute(insert(shares).values(user_id="bob", size=1034))
    await replica.execute(insert(results).values({**result, "user_id": "eve", "content_key": "d"}))
    found = await wrong(replica)
    assert [line.partition(":")[0] for line in found] == ["user"] * 3 + ["task"]
    assert found[-1].endswith(", unstarted=2")
    await replica.correct_counts()
    assert await wrong(replica) == []
    kept = {row.user_id: row.size for row in await replica.rows(shares)}
    assert kept == {"ada": 1034, "eve": 1034}
    assert sorted(row.unstarted for row in await replica.rows(Task.__table__)) == [0, 2]


@on_postgresql
async def test_a_repair_follows_the_lock_order(replica: Replica) -> None:
    """While it waits for a job, the holder of the job's lock can write the other counts."""
    job = await replica.register()
    await replica.submit(job)
    await replica.execute(update(rooms).values(total=rooms.c.total + 5))
    await replica.execute(update(blocks).values(queued=7))
    await replica.execute(update(jobs).values(pending=7))
    async with replica.engine.begin() as claim:
        await claim.execute(select(jobs.c.id).where(jobs.c.id == job.id).with_for_update())
        repairing = asyncio.create_task(replica.correct_counts())
        await until_waiting(replica)
        await claim.execute(update(blocks).values(queued=blocks.c.queued))
        await claim.execute(update(rooms).values(total=rooms.c.total))
    async with asyncio.timeout(TIMEOUT):
        await repairing
    assert await wrong(replica) == []


@on_postgresql
async def test_a_repair_runs_again_after_a_deadlock(replica: Replica) -> None:
    """With a writer that locks the same rows in the opposite order."""
    job = await replica.register()
    for room in ("a", "b"):
        await replica.submit(job, room=room)
    await replica.execute(update(rooms).values(total=rooms.c.total + 5))
    nothing = {
        "job_id": job.id,
        "part": sql_counts.PRUNED,
        "total": 0,
        "pending": 0,
        "failed": 0,
        "cancelled": 0,
    }
    async with replica.engine.begin() as writer:
        await writer.execute(insert(rooms).values(room_id="b", **nothing))
        repairing = asyncio.create_task(replica.correct_counts())
        await until_waiting(replica)
        # After a second the repair finds the deadlock, or later the writer.
        async with asyncio.timeout(TIMEOUT):
            with suppress(DBAPIError):
                await writer.execute(insert(rooms).values(room_id="a", **nothing))
    async with asyncio.timeout(TIMEOUT):
        await repairing
    assert await wrong(replica) == []


@on_postgresql
@pytest.mark.parametrize("what", ["job", "block of a queue", "room"])
async def test_two_repairs_at_once_correct_a_count_once(replica: Replica, what: str) -> None:
    """Both start while the wrong row is locked; only the first one to get it finds a difference."""
    job = await replica.register()
    await replica.submit(job)
    table = {"job": jobs, "block of a queue": blocks, "room": rooms}[what]
    nothing = {
        "job_id": job.id,
        "part": sql_counts.PRUNED,
        "total": 0,
        "pending": 0,
        "failed": 0,
        "cancelled": 0,
    }
    await replica.execute(insert(rooms).values(room_id="lab", **nothing))
    for column in (rooms.c.total, blocks.c.queued, jobs.c.pending):
        if column.table is table:
            await replica.execute(update(table).values({column.name: column + 5}))
    assert [line.partition(":")[0] for line in await wrong(replica)] == [what]
    async with replica.engine.begin() as writer:
        await writer.execute(select(table).with_for_update())
        repairing = [asyncio.create_task(replica.correct_counts()) for _ in range(2)]
        await until_waiting(replica, 2)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*repairing)
    assert await wrong(replica) == []
