"""Limits of jobs, for all tasks and per key, are never exceeded and block no other key."""

import asyncio
import gc
import time
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind
from replica import ADMIN, ManualClock, Replica, wait_until_waiting
from sqlalchemy import text

from zndraw_joblib.server.db.tables import metadata
from zndraw_joblib.server.queue import rules_history, rules_limits, rules_retention, rules_sweep, sql_limits
from zndraw_joblib.server.queue.rules_retention import RETENTIONS
from zndraw_joblib.wire.messages import EmptyReason, TaskResponse
from zndraw_joblib.wire.policy import LimitValues, Rate
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = every_kind


class Killed(Exception):
    """The server is killed."""


class KillAfter:
    """Kills the server after a number of statements."""

    allowed = statements = 0

    def allow_one_more(self) -> None:
        """Count from the beginning, to one more."""
        self.allowed, self.statements = self.allowed + 1, 0

    async def __call__(self, *_: Any) -> None:
        """Count a statement."""
        self.statements += 1
        if self.statements == self.allowed:
            raise Killed


async def claim_all(replica: Replica, worker: UUID | None, count: int, **options: Any) -> list[TaskResponse]:
    """Claim up to `count` tasks, one by one."""
    tasks = []
    for _ in range(count):
        task = await replica.claim(worker, **options)
        if task is None:
            break
        tasks.append(task)
    return tasks


async def claim_many(replica: Replica, worker: UUID | None, count: int) -> list[TaskResponse]:
    """Claim up to `count` tasks with one request."""
    return (await replica.claim_response(worker, max=count)).tasks or []


CLAIMS = pytest.mark.parametrize("claim", [claim_all, claim_many], ids=["single", "batch"])


def users(tasks: list[TaskResponse]) -> list[Any]:
    """Return the users in the payloads of tasks."""
    return [(task.payload or {}).get("user") for task in tasks]


@CLAIMS
@pytest.mark.parametrize("claim_order", ["fifo", "fair"])
@pytest.mark.parametrize("room_cap", [None, 100])
async def test_a_full_key_blocks_no_other_key(
    replica: Replica, claim: Any, claim_order: Any, room_cap: int | None
) -> None:
    """The first task of each key is claimed, in their order, and after its end the next one."""
    replica.runtime.settings.claim_order = claim_order
    replica.runtime.settings.room_max_in_flight = room_cap
    job = await replica.register(limits=[{"key": "/user", "max_in_flight": 1}])
    for user in ("a", "a", "b", "a", "c", "b"):
        await replica.submit(job, {"user": user})
    first = await claim(replica, job.worker_id, 9)
    assert users(first) == ["a", "b", "c"]
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.AT_CAPACITY
    await replica.report(first[1].id, TaskStatus.RUNNING)
    await replica.report(first[1].id, TaskStatus.COMPLETED)
    assert users(await claim(replica, job.worker_id, 9)) == ["b"]
    await replica.report(first[0].id, TaskStatus.CANCELLED)
    await replica.report(first[2].id, TaskStatus.CANCELLED)
    assert users(await claim(replica, job.worker_id, 9)) == ["a"]


@CLAIMS
async def test_a_rate(timed: Replica, clock: ManualClock, claim: Any) -> None:
    """After a pause `burst` tasks are claimed at once, then one in each interval."""
    rate = {"count": 6, "per_seconds": 60, "burst": 3}
    job = await timed.register(limits=[{"rate": rate}])
    for _ in range(9):
        await timed.submit(job)
    assert len(await claim(timed, job.worker_id, 9)) == 3
    clock.advance(9.9)
    assert await claim(timed, job.worker_id, 9) == []
    clock.advance(0.1)
    assert len(await claim(timed, job.worker_id, 9)) == 1
    clock.advance(1000)
    assert len(await claim(timed, job.worker_id, 9)) == 3


@CLAIMS
async def test_a_rate_with_a_large_burst(timed: Replica, claim: Any) -> None:
    """It is refused; one that was stored before works, with a burst of a year at most."""
    rate = {"count": 1, "per_seconds": 86_400, "burst": 1_000_000}
    with pytest.raises(InvalidRequest, match=r"limits\.0\.rate\.burst: .* at most 365$"):
        await timed.register(limits=[{"rate": rate}])
    with pytest.raises(InvalidRequest, match=r"rate\.burst: .* at most 365$"):
        await timed.runtime.write(rules_limits.put, ADMIN, "api", LimitValues(rate=Rate(**rate)))
    job = await timed.register(limits=[{"rate": rate | {"burst": 365}}])
    async with timed.engine.begin() as connection:
        await connection.execute(text("UPDATE joblib_job SET limits = replace(limits, '365', '1000000')"))
        await connection.execute(text("UPDATE joblib_job SET policy = replace(policy, '365', '1000000')"))
    for _ in range(3):
        task = await timed.submit(job)
    assert len(await claim(timed, job.worker_id, 2)) == 2
    explanation = await timed.runtime.database.read(rules_history.explain, task.id, timed.runtime.order)
    assert "rate_limited" not in {reason.code for reason in explanation.reasons}


async def test_keys_with_the_same_value(timed: Replica) -> None:
    """The order of the names in an object and the form of a number make no difference."""
    job = await timed.register(limits=[{"key": "/user", "max_in_flight": 1}])
    big = 10**20
    groups: list[list[Any]] = [
        [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}],
        [{"a": big, "b": 2}, {"b": 2, "a": big}],
        [1, 1.0],
    ]
    for user in (value for group in groups for value in group):
        await timed.submit(job, {"user": user})
    assert users(await claim_all(timed, job.worker_id, 9)) == [group[0] for group in groups]


@CLAIMS
async def test_all_limits_hold(timed: Replica, clock: ManualClock, claim: Any) -> None:
    """A task that waits for a rate holds no slot of another limit."""
    rate = {"count": 1, "per_seconds": 10}
    job = await timed.register(
        limits=[{"max_in_flight": 2}, {"key": "/user", "rate": rate}, {"key": "room", "max_in_flight": 1}]
    )
    for user, room in (("a", "r1"), ("a", "r2"), ("b", "r1"), ("b", "r3"), ("c", "r4")):
        await timed.submit(job, {"user": user}, room=room)
    first = await claim(timed, job.worker_id, 9)
    assert [(task.payload, task.room_id) for task in first] == [({"user": "a"}, "r1"), ({"user": "b"}, "r3")]
    await timed.report(first[0].id, TaskStatus.FAILED)
    second = await claim(timed, job.worker_id, 9)
    assert users(second) == ["c"]
    clock.advance(10)
    await timed.report(first[1].id, TaskStatus.FAILED)
    third = await claim(timed, job.worker_id, 9)
    assert [(task.payload, task.room_id) for task in third] == [({"user": "a"}, "r2")]


@pytest.mark.parametrize("hours", [1, -1])
async def test_steps_of_the_clock(timed: Replica, clock: ManualClock, hours: int) -> None:
    """A step back delays a task by at most one interval; a step forward allows at most `burst` at once."""
    job = await timed.register(limits=[{"key": "/user", "rate": {"count": 6, "per_seconds": 60, "burst": 2}}])
    for _ in range(9):
        await timed.submit(job, {"user": 1})
    assert len(await claim_all(timed, job.worker_id, 9)) == 2
    assert await timed.claim(job.worker_id) is None
    clock.advance(hours * 3600)
    assert len(await claim_all(timed, job.worker_id, 9)) == (2 if hours > 0 else 0)
    clock.advance(10)
    assert len(await claim_all(timed, job.worker_id, 9)) == 1


async def test_two_replicas_share_the_limits(pair: list[Replica]) -> None:
    """Claims on both at the same time exceed no limit, and get all that it allows."""
    job = await pair[0].register(limits=[{"key": "/user", "max_in_flight": 2}, {"max_in_flight": 5}])
    for number in range(20):
        await pair[number % 2].submit(job, {"user": number % 4})
    claimed = await asyncio.gather(*[pair[n % 2].claim(job.worker_id) for n in range(12)])
    tasks = [task for task in claimed if task is not None]
    assert len(tasks) == 5
    assert max(Counter(users(tasks)).values()) <= 2


async def test_a_freed_slot_and_a_token_wake_a_claim(pair: list[Replica]) -> None:
    """Also on another replica, and without the re-check."""
    job = await pair[0].register(limits=[{"key": "/user", "max_in_flight": 1}])
    for _ in range(2):
        await pair[0].submit(job, {"user": 1})
    first = await pair[0].start(job.worker_id)
    waiting = asyncio.create_task(pair[1].claim_response(job.worker_id, wait=20))
    await wait_until_waiting(pair[1], 1)
    await pair[0].report(first.id, TaskStatus.COMPLETED)
    assert (await waiting).task is not None


OLD = {"type": "object", "properties": {"user": {"type": "integer"}}}
NEW = {"type": "object", "properties": {"user": {"type": "integer"}, "size": {"type": "integer"}}}


@CLAIMS
async def test_a_slot_that_a_task_of_another_version_frees(replica: Replica, claim: Any) -> None:
    """It opens the queue of its key in each version."""
    limits = [{"key": "/user", "max_in_flight": 1}]
    old = await replica.register(schema=OLD, limits=limits)
    await replica.submit(old, {"user": 1})
    held = await replica.start(old.worker_id)
    new = await replica.register(schema=NEW, limits=limits)
    await replica.submit(new, {"user": 1})
    assert await claim(replica, new.worker_id, 9) == []
    await replica.report(held.id, TaskStatus.COMPLETED)
    assert [task.version for task in await claim(replica, new.worker_id, 9)] == [2]


@CLAIMS
async def test_a_slot_that_a_task_of_another_job_frees(replica: Replica, claim: Any) -> None:
    """It opens the queue of its key in each job with the limit."""
    values = LimitValues(max_in_flight=1)
    await replica.runtime.write(rules_limits.put, ADMIN, "users", values)
    limits = [{"key": "/user", "name": "users"}]
    one, two = [await replica.register(name, limits=limits) for name in ("One", "Two")]
    await replica.submit(one, {"user": 1})
    held = await replica.start(one.worker_id)
    await replica.submit(two, {"user": 1})
    assert await claim(replica, two.worker_id, 9) == []
    await replica.report(held.id, TaskStatus.COMPLETED)
    assert len(await claim(replica, two.worker_id, 9)) == 1


async def test_waits_whose_end_was_lost(replica: Replica) -> None:
    """A cycle of the sweeper ends all for slots that no task holds, however many there are."""
    job = await replica.register(limits=[{"key": "/user", "max_in_flight": 1}])
    for user in [*range(30), *range(30)]:
        await replica.submit(job, {"user": user})
    for task in await claim_many(replica, job.worker_id, 60):
        await replica.report(task.id, TaskStatus.RUNNING)
        await replica.report(task.id, TaskStatus.COMPLETED)
    async with replica.engine.begin() as connection:
        await connection.execute(text("DELETE FROM joblib_limit_slot"))
    assert await claim_many(replica, job.worker_id, 60) == []
    kind = next(kind for kind in RETENTIONS if kind.rows == "limit_wait")
    await replica.runtime.write(rules_retention.prune, kind, timedelta(hours=1), kind.first)
    assert len(await claim_many(replica, job.worker_id, 60)) == 30


@pytest.mark.parametrize("recheck_seconds", [(60.0, 60.0)])
async def test_a_claim_waits_for_the_next_token(replica: Replica) -> None:
    """The scheduler wakes it when the rate allows the task; a recheck comes with a heartbeat, after 15 s."""
    running = asyncio.create_task(replica.scheduler.run())
    job = await replica.register(limits=[{"rate": {"count": 2, "per_seconds": 1}}])
    for _ in range(2):
        await replica.submit(job)
    started = time.monotonic()
    first = await replica.claim_task(job.worker_id)
    second = (await replica.claim_response(job.worker_id, wait=30)).task
    assert second is not None
    assert second.id != first.id
    assert 0.3 < time.monotonic() - started < 14
    running.cancel()


@pytest.mark.parametrize("recheck_seconds", [(60.0, 60.0)])
async def test_a_burst_wakes_a_claim_for_each_token(timed: Replica, clock: ManualClock) -> None:
    """The wait for the rate ends once, when several tasks are allowed."""
    limits = [{"rate": {"count": 1, "per_seconds": 1, "burst": 5}}]
    jobs = [await timed.register(limits=limits) for _ in range(5)]
    for _ in range(8):
        await timed.submit(jobs[0])
    assert len(await claim_many(timed, jobs[0].worker_id, 9)) == 5
    claims = [asyncio.create_task(timed.claim(job.worker_id, wait=20)) for job in jobs[1:4]]
    await wait_until_waiting(timed, 3)
    clock.advance(5)
    await timed.runtime.write(rules_sweep.next_due)
    async with asyncio.timeout(10):
        assert None not in await asyncio.gather(*claims)


async def test_a_wait_that_is_locked(timed: Replica, clock: ManualClock) -> None:
    """The server looks again soon, and knows when the next wait ends."""
    for name, seconds in (("One", 10), ("Two", 20)):
        job = await timed.register(name, limits=[{"rate": {"count": 1, "per_seconds": seconds}}])
        for _ in range(2):
            await timed.submit(job)
        await timed.claim_task(job.worker_id)
        assert await timed.claim(job.worker_id) is None
    assert await timed.runtime.write(rules_sweep.next_due) == (10, False)
    clock.advance(11)
    if timed.engine.dialect.name == "postgresql":
        async with timed.engine.begin() as connection:
            await connection.execute(
                text("SELECT * FROM joblib_limit_wait ORDER BY ready_at LIMIT 1 FOR UPDATE")
            )
            assert await timed.runtime.write(rules_sweep.next_due) == (9, True)
    assert await timed.runtime.write(rules_sweep.next_due) == (9, False)


async def test_a_repeated_claim_takes_nothing_more(timed: Replica) -> None:
    """It gets the task of the first one, and no second token."""
    job = await timed.register(limits=[{"rate": {"count": 2, "per_seconds": 60, "burst": 2}}])
    for _ in range(3):
        await timed.submit(job)
    claim_id = uuid4()
    first, again = [
        (await timed.claim_response(job.worker_id, claim_id=claim_id, start=True)).task for _ in range(2)
    ]
    assert first is not None
    assert again is not None
    assert first.id == again.id
    assert await timed.claim(job.worker_id) is not None
    assert await timed.claim(job.worker_id) is None


@pytest.mark.parametrize(
    "is_report", [pytest.param(False, marks=pytest.mark.slow), True], ids=["claim", "report"]
)
async def test_a_transaction_that_ends_after_any_statement(timed: Replica, is_report: bool) -> None:
    """A server that is killed between two statements leaves no slot and no token behind."""
    per_user = {"key": "/user", "max_in_flight": 1}
    per_room = {"key": "room", "rate": {"count": 1, "per_seconds": 1, "burst": 2}}
    job = await timed.register(limits=[per_user, per_room])
    for user in (1, 1, 2):
        await timed.submit(job, {"user": user})
    held = await timed.start(job.worker_id) if is_report else None
    killer = timed.runtime.database.on_statement = KillAfter()
    gc.freeze()  # the collections below look at what this test makes
    for _ in range(60):
        killer.allow_one_more()
        try:
            if held is not None:
                await timed.report(held.id, TaskStatus.COMPLETED)
            else:
                assert await timed.claim(job.worker_id) is not None
            break
        except Killed as killed:
            killed.__traceback__ = None  # it has the cursor of a statement of SQLite
            del killed
            gc.collect()
    timed.runtime.database.on_statement = None
    assert killer.allowed > 3
    assert users(await claim_all(timed, job.worker_id, 9)) == [1 if is_report else 2]


async def test_explain_names_the_limits(timed: Replica) -> None:
    """The slots that are held, and when the rate allows the next task."""
    job = await timed.register(
        limits=[{"key": "/user", "max_in_flight": 1}, {"rate": {"count": 1, "per_seconds": 10}}]
    )
    first, second = [await timed.submit(job, {"user": 1}) for _ in range(2)]
    await timed.claim_task(job.worker_id)
    reasons = await _reasons(timed, second)
    assert reasons["limit_at_capacity"] == (
        "1 task is claimed or running, and max_in_flight of limit `/user` is 1"
    )
    assert reasons["rate_limited"].startswith("rate limit of the job: next at 2030-01-01 00:00:10")
    assert first.queue_position == 1


async def _reasons(replica: Replica, task: TaskResponse) -> dict[str, str]:
    explanation = await replica.runtime.database.read(rules_history.explain, task.id, replica.runtime.order)
    return {reason.code: reason.detail for reason in explanation.reasons}


@pytest.mark.parametrize("key", [None, "/user"])
async def test_explain_says_when_a_rate_allows_each_task(
    timed: Replica, clock: ManualClock, key: str | None
) -> None:
    """Those before it take the next tokens; tasks that a burst allows now do not wait for the rate."""
    rate = {"count": 1, "per_seconds": 10, "burst": 2}
    job = await timed.register(limits=[{"key": key, "rate": rate}])
    tasks = [await timed.submit(job, {"user": 1}) for _ in range(4)]
    texts = [(await _reasons(timed, task)).get("rate_limited") for task in tasks]
    label = "limit of the job" if key is None else "limit `/user`"
    times = ("00:00:10.000000 UTC, after 2 other tasks", "00:00:20.000000 UTC, after 3 other tasks")
    assert texts == [None, None, *(f"rate {label}: next at about 2030-01-01 {text}" for text in times)]
    for _ in range(2):
        await timed.claim_task(job.worker_id)
    clock.advance(5)
    assert (await _reasons(timed, tasks[2]))["rate_limited"].endswith(
        ": next at 2030-01-01 00:00:10.000000 UTC"
    )
    assert "00:00:20.000000 UTC, after 1 other task" in (await _reasons(timed, tasks[3]))["rate_limited"]
    slow = {"count": 1, "per_seconds": 31_536_000}
    yearly = await timed.register("Yearly", limits=[{"key": key, "rate": slow}])
    tasks = [await timed.submit(yearly, {"user": 1}) for _ in range(3)]
    assert (await _reasons(timed, tasks[2]))["rate_limited"].endswith(
        "not within a year, after 2 other tasks"
    )


async def test_limits_that_a_job_gets_while_tasks_wait(timed: Replica) -> None:
    """Tasks that were submitted before count as tasks without a value of the key."""
    job = await timed.register()
    for user in (1, 2):
        await timed.submit(job, {"user": user})
    await timed.register(worker=job.worker_id, limits=[{"key": "/user", "max_in_flight": 1}])
    await timed.submit(job, {"user": 3})
    assert users(await claim_all(timed, job.worker_id, 9)) == [1, 3]
    await timed.register(worker=job.worker_id, limits=[])
    assert users(await claim_all(timed, job.worker_id, 9)) == [2]


async def test_what_limits_nothing_is_deleted(timed: Replica, clock: ManualClock) -> None:
    """Once no task of a key waits or is held, and its rate was not used for an hour."""
    job = await timed.register(
        limits=[{"key": "/user", "max_in_flight": 1}, {"key": "room", "rate": {"count": 9, "per_seconds": 1}}]
    )
    for user in range(4):
        await timed.submit(job, {"user": user})
        await timed.submit(job, {"user": user})
    for _ in range(9):
        clock.advance(1)
        for task in await claim_all(timed, job.worker_id, 9):
            await timed.report(task.id, TaskStatus.FAILED)
    await timed.register(worker=job.worker_id, limits=[])
    clock.advance(7200)
    kinds = [kind for kind in RETENTIONS if kind.rows.startswith("limit_")]
    for kind in kinds:
        await timed.runtime.write(rules_retention.prune, kind, timedelta(hours=1), kind.first)
    for kind in kinds:
        assert await timed.rows(metadata.tables[f"joblib_{kind.rows}"]) == []


async def test_slots_are_deleted_in_batches(timed: Replica) -> None:
    """One transaction deletes the slots of a limited number of tasks."""
    limits = [{"key": "/user", "max_in_flight": 1}]
    job = await timed.register(limits=limits)
    for user in range(5):
        await timed.submit(job, {"user": user})
    for task in await claim_many(timed, job.worker_id, 5):
        await timed.report(task.id, TaskStatus.FAILED)
    await timed.register(worker=job.worker_id, limits=[])
    counts, after = [], 0
    for _ in range(3):
        deleted, after = await timed.runtime.write(sql_limits.prune_slots, after, 2)
        counts.append(deleted)
    assert (counts, after) == ([2, 2, 1], 0)
