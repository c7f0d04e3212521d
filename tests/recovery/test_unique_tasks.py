"""Unique tasks: no key admits two tasks at once, and no end of a task leaves its key behind."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from databases import every_kind, on_postgresql
from replica import ADMIN, STRANGER, SUBMITTER, ManualClock, OpenReplica, Replica, internal
from waiting import until

from recovery.test_internal_dispatch import serve
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.queue import (
    rules_idempotency,
    rules_task_actions,
    rules_unique,
    sql_jobs,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.problems import DuplicateTask, InvalidRequest, ServiceUnavailable
from zndraw_joblib.wire.statuses import TaskStatus

RETRIED: dict[str, Any] = {
    "max_attempts": 2,
    "retry_on": ("error", "worker_lost"),
    "backoff": {"base_seconds": 10},
}
KEY = {"key": "report"}


async def submit_batch(
    replica: Replica, job: JobResponse, *options: dict[str, Any], room: str = "lab"
) -> list[Any]:
    """Submit tasks in one transaction."""
    name = parse_job_name(job.full_name)
    items = [replica.runtime.submission(SUBMITTER, room, name, TaskSubmitRequest(**each)) for each in options]
    return await replica.runtime.submit_many(items)


async def is_free(replica: Replica, job: JobResponse, **unique: Any) -> bool:
    """Return whether a submit with the key makes a task, which is cancelled then."""
    task = await replica.submit(job, unique={**KEY, **unique})
    if task.duplicate is None:
        await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    return task.duplicate is None


def test_a_payload_has_one_canonical_form() -> None:
    """Numbers are as ECMAScript writes them, names in the order of UTF-16; the RFC's examples."""
    numbers = {
        0.0: "0", 1.0: "1", 4.5: "4.5", 2e-3: "0.002", 1e-27: "1e-27", 1e21: "1e+21",
        1e20: "100000000000000000000", 333333333.33333329: "333333333.3333333", 1e30: "1e+30",
        5e-324: "5e-324", -1.7976931348623157e308: "-1.7976931348623157e+308", 1e-7: "1e-7",
        0.000001: "0.000001", 295147905179352830000.0: "295147905179352830000", 1.5e-10: "1.5e-10",
        9007199254740992.0: "9007199254740992", 123.456e5: "12345600",
    }  # fmt: skip
    for number, text in numbers.items():
        assert rules_unique.canonical_json(number) == text
        assert float(text) == number
    assert rules_unique.canonical_json(-0.0) == "0"
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert rules_unique.canonical_json(value) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    names = ["€", "\r", "\ufb33", "1", "😀", "\x80", "ö"]
    ordered = rules_unique.canonical_json(dict.fromkeys(names, 0))
    assert ordered == '{"\\r":0,"1":0,"\x80":0,"ö":0,"€":0,"😀":0,"\ufb33":0}'
    for wrong in (2**53, -(2**53), float("nan"), float("inf"), "\ud800"):
        with pytest.raises(InvalidRequest, match=r"body.unique: .*; give unique.key"):
            rules_unique.payload_key({"x": wrong})


@every_kind
async def test_a_second_submit_returns_the_task(replica: Replica) -> None:
    """Keys are those of a job, of a room unless the scope is the job; without a key it is the payload's."""
    job, other = await replica.register(), await replica.register("Other")
    first = await replica.submit(job, {"x": 1}, unique=KEY)
    assert (first.duplicate, first.unique_key, first.queue_position) == (None, "report", 1)
    again = await replica.submit(job, {"x": 2}, unique=KEY)
    assert again == first.model_copy(update={"duplicate": True})
    assert (await replica.submit(job, {"x": 2}, unique=KEY, room="attic")).duplicate is None
    assert (await replica.submit(other, {"x": 2}, unique=KEY)).duplicate is None
    assert (await replica.submit(job, {"x": 2}, unique={**KEY, "scope": "job"})).duplicate is None
    of_job = await replica.submit(job, {"x": 3}, unique={**KEY, "scope": "job"}, room="attic")
    assert (of_job.duplicate, of_job.room_id, of_job.payload) == (True, "lab", {"x": 2})
    by_payload = await replica.submit(job, {"b": 1.0, "a": "ö"}, unique={})
    same = await replica.submit(job, {"a": "ö", "b": 1}, unique={})
    assert (same.id, same.duplicate) == (by_payload.id, True)
    digest = rules_unique.payload_key({"a": "ö", "b": 1})
    assert (await replica.submit(job, unique={"key": digest})).id == by_payload.id
    assert (await replica.submit(job, {"a": "o", "b": 1}, unique={})).duplicate is None
    with pytest.raises(DuplicateTask) as refused:
        await replica.submit(job, unique={**KEY, "on_conflict": "reject"})
    assert refused.value.problem.model_extra == {"task_id": str(first.id)}
    assert (await replica.get(first.id)).unique_key == "report"
    assert (await replica.start(job.worker_id)).unique_key is None


@every_kind
async def test_items_of_a_batch_are_submits_in_their_order(replica: Replica) -> None:
    """An item finds the tasks of the items before it."""
    job = await replica.register()
    old = await replica.submit(job, {"x": 0}, unique={"key": "old"})
    replace = {**KEY, "on_conflict": "replace"}
    results = await submit_batch(
        replica,
        job,
        {"payload": {"x": 1}, "unique": KEY},
        {"payload": {"x": 2}},
        {"payload": {"x": 3}, "unique": KEY},
        {"payload": {"x": 4}, "unique": {**KEY, "on_conflict": "reject"}},
        {"payload": {"x": 5}, "unique": replace},
        {"payload": {"x": 6}, "unique": {"key": "old", "on_conflict": "replace"}},
    )
    first, plain, second, refused, replaced, of_old = results
    assert isinstance(refused, DuplicateTask)
    assert (first.duplicate, plain.duplicate) == (None, None)
    assert (second.id, second.duplicate, second.payload) == (first.id, True, {"x": 1})
    assert (replaced.id, replaced.duplicate, replaced.payload) == (first.id, True, {"x": 5})
    assert (of_old.id, of_old.payload, of_old.queue_position) == (old.id, {"x": 6}, 1)
    assert [task.queue_position for task in (first, plain, replaced)] == [2, 3, 2]
    claimed = [await replica.start(job.worker_id) for _ in range(3)]
    assert [task.payload for task in claimed] == [{"x": 6}, {"x": 5}, {"x": 2}]
    assert await replica.claim(job.worker_id) is None


Act = Callable[[Replica, JobResponse, TaskResponse], Awaitable[object]]


async def claim_and(replica: Replica, job: JobResponse, *statuses: str) -> None:
    """Claim a task, and report these statuses."""
    claimed = await replica.claim_task(job.worker_id)
    for status in statuses:
        await replica.report(claimed.id, status, attempt=claimed.attempt)


async def bulk(replica: Replica, action: BulkAction, task_filter: TaskFilter) -> tuple[int, int]:
    """Apply an action to many tasks; return how many were affected, and skipped."""
    read, write = replica.runtime.database.read, replica.runtime.write
    confirmed = rules_searches.Confirmed(ADMIN, action, task_filter, 2**60)
    result = await rules_searches.apply(read, write, confirmed, None)
    return result.affected, result.skipped


async def delete_ended(replica: Replica, task: TaskResponse) -> None:
    """Cancel a task and delete it."""
    await replica.report(task.id, TaskStatus.CANCELLED, by=SUBMITTER)
    await bulk(replica, BulkAction.PURGE, TaskFilter(room=["lab"]))


ENDS: dict[str, Act] = {
    "completed": lambda replica, job, _: claim_and(replica, job, "running", "completed"),
    "failed": lambda replica, job, _: claim_and(replica, job, "running", "failed"),
    "failed at its start": lambda replica, job, _: claim_and(replica, job, "failed"),
    "cancelled while it runs": lambda replica, job, _: claim_and(replica, job, "running", "cancelled"),
    "cancelled": lambda replica, _, task: replica.report(task.id, "cancelled", by=SUBMITTER),
    "failed by an operator": lambda replica, _, task: replica.act(rules_task_actions.fail, task.id),
    "all cancelled": lambda replica, *_: bulk(replica, BulkAction.CANCEL, TaskFilter(room=["lab"])),
    "deleted": lambda replica, _, task: delete_ended(replica, task),
}


@pytest.mark.parametrize("end", list(ENDS))
async def test_every_end_frees_the_key(replica: Replica, end: str) -> None:
    """Until then it is held, and after it a submit makes a task."""
    job = await replica.register()
    task = await replica.submit(job, unique=KEY)
    assert not await is_free(replica, job)
    await ENDS[end](replica, job, task)
    assert await is_free(replica, job)


async def test_lost_workers_and_time_limits_free_the_key(timed: Replica, clock: ManualClock) -> None:
    """The sweeper's ends: a lost worker, in one statement or with a retry, an expired and an overdue task."""
    plain, retried = await timed.register("Plain"), await timed.register("Retried", **RETRIED)
    for job in (plain, retried):
        await timed.submit(job, unique=KEY)
        await timed.start(job.worker_id)
        assert not await is_free(timed, job)
        await timed.leave(job.worker_id)
    await timed.register("Plain")
    assert await is_free(timed, plain)
    assert not await is_free(timed, retried)
    job = await timed.register("Late", timeout_seconds=5)
    await timed.submit(job, unique=KEY)
    await timed.start(job.worker_id)
    clock.advance(6)
    assert await timed.recover_overdue() == 1
    assert await is_free(timed, job)
    await timed.submit(job, unique=KEY, expires_in_seconds=5)
    clock.advance(6)
    assert await timed.fail_expired() == 1
    assert await is_free(timed, job)


@every_kind
async def test_a_key_is_held_during_the_pause_before_a_retry(timed: Replica, clock: ManualClock) -> None:
    """It is held while the task waits, is released, and runs again."""
    job = await timed.register(**RETRIED)
    await timed.submit(job, unique=KEY)
    running = await timed.start(job.worker_id)
    assert (await timed.report(running.id, "failed", attempt=1)).status is TaskStatus.PENDING
    assert not await is_free(timed, job)
    clock.advance(1000)
    assert await timed.enqueue_due() == 1
    again = await timed.start(job.worker_id)
    await timed.act(rules_task_actions.release, again.id)
    assert not await is_free(timed, job)
    await timed.start(job.worker_id)
    await timed.report(running.id, "completed", attempt=3)
    assert await is_free(timed, job)


@every_kind
@pytest.mark.parametrize("start", [False, True])
async def test_a_key_may_be_held_until_the_task_starts(
    timed: Replica, clock: ManualClock, *, start: bool
) -> None:
    """A claim that does not start keeps it. After the first start it stays free, also before a retry."""
    job = await timed.register(**RETRIED)
    held = partial(is_free, timed, job, until="started")
    await timed.submit(job, unique={**KEY, "until": "started"})
    claimed = await timed.claim_task(job.worker_id)
    assert not await held()
    await timed.act(rules_task_actions.release, claimed.id)
    assert not await held()
    running = (
        (await timed.claim_response(job.worker_id, start=True)).task
        if start
        else await timed.start(job.worker_id)
    )
    assert running is not None
    assert await held()
    await timed.report(running.id, "failed", attempt=running.attempt)
    assert await held()
    clock.advance(1000)
    assert await timed.enqueue_due() == 1
    assert await held()


@every_kind
async def test_a_key_may_be_held_for_a_time(timed: Replica, clock: ManualClock) -> None:
    """The window begins with the first submit: neither a later one nor the end of the task changes it."""
    job = await timed.register()
    unique = {**KEY, "for_seconds": 60}
    first = await timed.submit(job, {"x": 1}, unique=unique)
    clock.advance(30)
    await claim_and(timed, job, "running", "completed")
    duplicate = await timed.submit(job, {"x": 2}, unique=unique)
    assert (duplicate.id, duplicate.status, duplicate.duplicate) == (first.id, TaskStatus.COMPLETED, True)
    clock.advance(29.9)
    assert not await is_free(timed, job)
    clock.advance(0.1)
    second = await timed.submit(job, {"x": 2}, unique=unique)
    assert second.duplicate is None
    clock.advance(59)
    assert (await timed.submit(job, unique=KEY)).id == second.id
    clock.advance(1)
    # The second task is still pending, but its window is over.
    assert (await timed.submit(job, unique=KEY)).duplicate is None


@every_kind
async def test_a_submit_may_replace_a_pending_task(timed: Replica, clock: ManualClock) -> None:
    """Payload and options are the new ones; id, submitter, time of submit, priority and place stay."""
    job = await timed.register()
    replace = {**KEY, "on_conflict": "replace"}
    await timed.submit(job)
    first = await timed.submit(job, {"x": 1}, unique=KEY, priority=3, max_attempts=5)
    await timed.submit(job)
    clock.advance(5)
    second = await timed.submit(
        job, {"x": 2}, unique=replace, by=STRANGER, expires_in_seconds=60, priority=-9
    )
    changed = {"payload": {"x": 2}, "duplicate": True}
    assert second == first.model_copy(update={**changed, "expires_at": second.expires_at})
    assert second.expires_at is not None
    [row] = await timed.rows(Task.__table__, Task.__table__.c.id == first.id)
    assert (row.max_attempts, row.created_by) == (None, SUBMITTER.id)
    later = await timed.submit(job, {"x": 3}, unique=replace, delay_seconds=10)
    assert (later.id, later.queue_position, later.expires_at) == (first.id, None, None)
    assert later.run_at is not None
    soon = await timed.submit(job, {"x": 4}, unique=replace)
    assert (soon.id, soon.queue_position, soon.run_at) == (first.id, 1, None)
    running = await timed.start(job.worker_id)
    assert (running.id, running.payload) == (first.id, {"x": 4})
    assert (await timed.submit(job, {"x": 5}, unique=replace)).payload == {"x": 4}
    # One room may not write to the tasks of another.
    of_job = {**replace, "scope": "job", "key": "both"}
    await timed.submit(job, {"x": 1}, unique=of_job)
    assert (await timed.submit(job, {"x": 2}, unique=of_job, room="attic")).payload == {"x": 1}


@every_kind
@pytest.mark.parametrize("priority", [0, 3])
async def test_a_replaced_task_gets_the_current_version(timed: Replica, priority: int) -> None:
    """Its new payload was validated against that, and goes to no worker of an earlier version."""
    replace = {**KEY, "on_conflict": "replace"}
    old = await timed.register(schema={"properties": {"x": {"enum": [1]}}})
    queued = await timed.submit(old, {"x": 1}, unique=replace, priority=priority)
    later = {"unique": {"key": "later"}, "debounce": {"seconds": 30}}
    scheduled = await timed.submit(old, {"x": 1}, **later)
    new = await timed.register(schema={"properties": {"x": {"enum": [1, 2]}}})
    for task, options in ((queued, {"unique": replace}), (scheduled, later)):
        replaced = await timed.submit(new, {"x": 2}, **options)
        assert (replaced.id, replaced.version, replaced.payload) == (task.id, 2, {"x": 2})
        assert (await timed.get(task.id)).version == 2
    rows = await timed.rows(Job.__table__)
    assert {row.job_version: (row.pending, row.scheduled) for row in rows} == {1: (0, 0), 2: (1, 1)}
    assert await timed.claim(old.worker_id) is None
    claimed = await timed.claim_task(new.worker_id)
    assert (claimed.id, claimed.version, claimed.payload) == (queued.id, 2, {"x": 2})


@every_kind
async def test_a_replaced_task_counts_for_the_limit_of_its_new_key(timed: Replica) -> None:
    """With the key of a task that runs it waits; with another one it is claimed."""
    replace = {**KEY, "on_conflict": "replace"}
    job = await timed.register(limits=[{"key": "/u", "max_in_flight": 1}])
    await timed.submit(job, {"u": "b"})
    await timed.start(job.worker_id)
    task = await timed.submit(job, {"u": "a"}, unique=replace)
    for payload, is_claimed in (({"u": "b"}, False), ({"u": "c"}, True)):
        assert (await timed.submit(job, payload, unique=replace)).id == task.id
        claimed = await timed.claim(job.worker_id)
        assert (claimed is not None) is is_claimed
    assert claimed is not None
    assert claimed.payload == {"u": "c"}


async def test_a_replaced_task_keeps_its_pause_before_a_retry(timed: Replica, clock: ManualClock) -> None:
    """A new payload does not start the next attempt earlier, unless it has a time."""
    job = await timed.register(**RETRIED)
    await timed.submit(job, unique=KEY)
    running = await timed.start(job.worker_id)
    waiting = await timed.report(running.id, "failed", attempt=1)
    replaced = await timed.submit(job, {"x": 2}, unique={**KEY, "on_conflict": "replace"})
    assert (replaced.run_at, replaced.payload) == (waiting.run_at, {"x": 2})


@every_kind
async def test_debounced_submits_are_one_task_after_the_last(timed: Replica, clock: ManualClock) -> None:
    """Each submit postpones it and replaces the payload, but not beyond the longest time."""
    job = await timed.register()
    send = partial(timed.submit, job, unique=KEY, debounce={"seconds": 2, "max_seconds": 5})
    first = await send({"x": 0})
    assert (first.run_at, first.queue_position) == (clock.now.replace(second=2), None)
    for x, due in ((1, 3), (2, 4), (3, 5), (4, 5)):
        clock.advance(1)
        task = await send({"x": x})
        assert (task.id, task.duplicate, task.payload) == (first.id, True, {"x": x})
        assert task.run_at == clock.now.replace(second=due)
    clock.advance(1)
    assert await timed.enqueue_due() == 1
    last = await send({"x": 5})
    assert (last.run_at, last.queue_position) == (None, 1)
    running = await timed.start(job.worker_id)
    assert running.payload == {"x": 5}
    assert (await send({"x": 6})).payload == {"x": 5}
    # Without a longest time a task that is due already is postponed too.
    endless = partial(timed.submit, job, unique={"key": "endless"}, debounce={"seconds": 2})
    task = await endless()
    clock.advance(3)
    assert await timed.enqueue_due() == 1
    assert (await timed.get(task.id)).queue_position == 1
    assert (await endless()).queue_position is None
    assert await timed.claim(job.worker_id) is None


@every_kind
async def test_a_retry_by_hand_takes_the_key_again(timed: Replica, clock: ManualClock) -> None:
    """It is refused while another task holds the key; a time that is over does not refuse it."""
    job = await timed.register()
    old = await timed.submit(job, unique=KEY)
    await timed.report(old.id, "cancelled", by=SUBMITTER)
    new = await timed.submit(job, unique=KEY)
    with pytest.raises(DuplicateTask) as refused:
        await timed.act(rules_task_actions.retry, old.id)
    assert refused.value.problem.model_extra == {"task_id": str(new.id)}
    assert await bulk(timed, BulkAction.RETRY, TaskFilter(room=["lab"])) == (0, 1)
    await timed.report(new.id, "cancelled", by=SUBMITTER)
    # Of two tasks of one key, one is retried.
    assert await bulk(timed, BulkAction.RETRY, TaskFilter(room=["lab"])) == (1, 1)
    assert not await is_free(timed, job)
    [row] = await timed.rows(Task.__table__, Task.__table__.c.status == "pending")
    await timed.report(row.id, "cancelled", by=SUBMITTER)
    window = await timed.submit(job, unique={**KEY, "for_seconds": 5})
    with pytest.raises(DuplicateTask):
        await timed.act(rules_task_actions.retry, old.id)
    clock.advance(5)
    assert (await timed.act(rules_task_actions.retry, old.id)).status is TaskStatus.PENDING
    assert (await timed.submit(job, unique=KEY)).id == old.id
    await timed.report(window.id, "cancelled", by=SUBMITTER)
    assert (await timed.act(rules_task_actions.retry, window.id)).status is TaskStatus.PENDING


@on_postgresql
async def test_a_retry_of_many_locks_the_version_that_submits_lock(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """So that no submit takes the key of a task of an earlier version at the same time."""
    old = await replica.register(schema={"properties": {"x": {"enum": [1]}}})
    task = await replica.submit(old, {"x": 1}, unique=KEY)
    await replica.report(task.id, "cancelled", by=SUBMITTER)
    # The first version has a task, so this one is its second.
    new = await replica.register(schema={"properties": {"x": {"enum": [1, 2]}}})
    [current] = [row.id for row in await replica.rows(Job.__table__) if row.job_version == new.version]
    other, is_locked = open_replica(), list[bool]()

    async def is_taken(tx: Transaction) -> bool:
        return not await sql_jobs.lock(tx, [current], skip_locked=True)

    async def write(work: Any, *args: Any) -> Any:
        async def checked(tx: Transaction) -> Any:
            result = await work(tx, *args)
            is_locked.append(await other.runtime.write(is_taken))
            return result

        return await replica.runtime.write(checked)

    confirmed = rules_searches.Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 2**60)
    result = await rules_searches.apply(replica.runtime.database.read, write, confirmed, None)
    assert (result.affected, any(is_locked)) == (1, True)
    assert (await replica.submit(new, {"x": 2}, unique=KEY)).id == task.id


async def test_a_retry_by_hand_of_a_started_task_needs_no_key(replica: Replica) -> None:
    """It has let its key go at its start, and does not take it again."""
    job = await replica.register()
    unique = {**KEY, "until": "started"}
    started = await replica.submit(job, unique=unique)
    await claim_and(replica, job, "running", "failed")
    assert (await replica.submit(job, unique=unique)).duplicate is None
    assert (await replica.act(rules_task_actions.retry, started.id)).status is TaskStatus.PENDING


@every_kind
async def test_submits_at_the_same_time_make_one_task(pair: list[Replica]) -> None:
    """On two servers, alone and in batches, beside claims and reports that free the keys."""
    job = await pair[0].register()
    keys = [f"key {number}" for number in range(5)]
    running: set[str] = set()

    async def work(replica: Replica) -> None:
        while (task := await replica.claim(job.worker_id)) is not None:
            name = task.payload["key"]
            assert name not in running, "two tasks of one key at once"
            running.add(name)
            await replica.report(task.id, "running", attempt=task.attempt)
            running.discard(name)
            await replica.report(task.id, "completed", attempt=task.attempt)

    async def send(replica: Replica, number: int) -> list[TaskResponse]:
        rng = random.Random(number)
        results = []
        for _ in range(6):
            unique = {"key": rng.choice(keys), "on_conflict": rng.choice(["return", "replace"])}
            options = {"payload": {"key": unique["key"]}, "unique": unique}
            results += await submit_batch(replica, job, *[options] * rng.choice([1, 3]))
        return results

    sends = asyncio.gather(*[send(replica, number) for number, replica in enumerate(pair * 4)])
    sent, *_ = await asyncio.gather(sends, *map(work, pair))
    tasks = [task for results in sent for task in results]
    rows = await pair[0].rows(Task.__table__)
    assert len(rows) == sum(task.duplicate is None for task in tasks) == len({task.id for task in tasks})
    await work(pair[0])
    assert [await is_free(pair[0], job, key=key) for key in keys] == [True] * len(keys)


@on_postgresql
async def test_a_task_that_is_being_claimed_is_not_replaced(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """The submit tries again until the other transaction is over, and then finds the task as it is."""
    job = await replica.register()
    task = await replica.submit(job, {"x": 1}, unique=KEY)
    is_locked, is_over = asyncio.Event(), asyncio.Event()

    async def cancel(tx: Transaction) -> None:
        before = (await sql_tasks.lock(tx, [task.id]))[task.id]
        is_locked.set()
        await is_over.wait()
        now = await tx.now()
        await sql_transitions.move(
            tx, [(before, before.changed(status=TaskStatus.CANCELLED, completed_at=now))]
        )

    cancelling = asyncio.create_task(open_replica().runtime.write(cancel))
    await is_locked.wait()
    unique = {**KEY, "on_conflict": "replace"}

    async def replace() -> TaskResponse:
        while True:
            try:
                return await replica.submit(job, {"x": 2}, unique=unique)
            except ServiceUnavailable:  # the other transaction took longer than the submit tries
                continue

    replacing = asyncio.create_task(replace())
    statements = replica.record_statements()
    await until(lambda: sum("SKIP LOCKED" in statement.sql for statement in statements) >= 2)
    is_over.set()
    await cancelling
    replaced = await replacing
    assert (replaced.duplicate, replaced.id == task.id, replaced.payload) == (None, False, {"x": 2})


async def test_an_internal_task_is_dispatched_once(replica: Replica) -> None:
    """A submit that returns a claimed task does not send it to the broker again."""
    name, executor = internal(), await serve(replica)
    first = await replica.submit(str(name), unique=KEY)
    assert (await replica.submit(str(name), unique=KEY)).id == first.id
    [result] = await replica.dispatcher.submit_many(
        [replica.runtime.submission(SUBMITTER, "lab", name, TaskSubmitRequest(unique=KEY))]
    )
    assert isinstance(result, TaskResponse)
    assert (result.id, result.duplicate, len(executor.calls)) == (first.id, True, 1)


async def test_a_lost_answer_finds_the_same_task(replica: Replica) -> None:
    """The transaction of a submit that runs again after its commit returns the task as the new one."""
    job = await replica.register()
    item = replica.runtime.submission(
        SUBMITTER, "lab", parse_job_name(job.full_name), TaskSubmitRequest(unique=KEY)
    )
    [first] = await replica.runtime.write(rules_idempotency.submit, [item])
    [again] = await replica.runtime.write(rules_idempotency.submit, [item])
    assert again == first
    assert again.duplicate is None
