"""A commit wakes the requests that wait for it, in order; waiting costs no queries."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from replica import OWNER, SUBMITTER, TIMEOUT, ManualClock, OpenReplica, Replica, wait_until_waiting
from seeds import LONG_AGO, add_tasks, seconds, task
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.db.tables import Job, Task, Worker
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests, WorkerNotFound
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

LONG = 30.0
# Before the end of the wait, and before a recheck with a heartbeat.
AT_ONCE = TIMEOUT / 2


@pytest.fixture
def recheck_seconds() -> tuple[float, float]:
    """Disable the periodic recheck, which would hide a lost wake-up."""
    return 3600.0, 3600.0


async def soon(awaitable: Awaitable[Any]) -> Any:
    """Return a result that must be available at once."""
    async with asyncio.timeout(AT_ONCE):
        return await awaitable


def start_waiting(
    replica: Replica, worker: UUID | None, **options: Any
) -> "asyncio.Task[TaskResponse | None]":
    """Start to wait for a task."""
    return asyncio.create_task(replica.claim(worker, **{"wait": LONG, **options}))


async def test_a_waiting_claim_gets_a_task_when_it_is_submitted(replica: Replica) -> None:
    """The commit of the submit wakes the worker, without polling."""
    job = await replica.register()
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    submitted = await replica.submit(job)
    claimed = await soon(claim)
    assert claimed.id == submitted.id
    assert len(replica.runtime.waiters) == 0


async def test_a_pending_task_is_claimed_without_waiting(replica: Replica) -> None:
    """`wait` only applies to empty queues."""
    job = await replica.register()
    await replica.submit(job)
    assert await soon(replica.claim(job.worker_id, wait=LONG)) is not None


async def test_a_wait_ends_at_its_time(replica: Replica) -> None:
    """Without a task the claim returns none; a wait for a task's end returns the task as it is."""
    job = await replica.register()
    begun = time.monotonic()
    assert await replica.claim(job.worker_id, wait=0.1) is None
    submitted = await replica.submit(job)
    task = await replica.get(submitted.id, wait=0.1)
    assert (task.status, task.queue_position) == (TaskStatus.PENDING, submitted.queue_position)
    assert 0.2 <= time.monotonic() - begun < AT_ONCE


async def test_the_worker_that_waited_longest_is_served_first(replica: Replica) -> None:
    """It gets the next task."""
    job = await replica.register()
    served = [job.worker_id, *[(await replica.register()).worker_id for _ in range(3)]]
    claims = []
    for count, worker in enumerate(served, 1):
        claims.append(start_waiting(replica, worker))
        await wait_until_waiting(replica, count)
    for turn, claim in enumerate(claims):
        submitted = await replica.submit(job)
        claimed = await soon(claim)
        assert (claimed.id, claimed.worker_id) == (submitted.id, served[turn])
        assert [other.done() for other in claims] == [True] * (turn + 1) + [False] * (3 - turn)


async def test_a_burst_serves_all_waiters(replica: Replica, subtests: pytest.Subtests) -> None:
    """As many tasks as waiters, submitted at once: every waiter gets one."""
    for count in (1, 30):
        with subtests.test(count=count):
            job = await replica.register()
            for _ in range(3):
                claims = [start_waiting(replica, job.worker_id) for _ in range(count)]
                await wait_until_waiting(replica, count)
                submitted = await asyncio.gather(*[replica.submit(job) for _ in range(count)])
                claimed = await soon(asyncio.gather(*claims))
                assert {one.id for one in claimed} == {one.id for one in submitted}


@every_kind
async def test_no_wake_up_is_lost_in_a_steady_stream(replica: Replica) -> None:
    """Workers that claim again and again take every task."""
    job, other = await replica.register("A"), await replica.register("B")
    served = [other.worker_id]
    for _ in range(5):
        served.append((await replica.register("A")).worker_id)
    await replica.register("B", worker=served[-1])
    await replica.register("A", worker=other.worker_id)
    taken: list[UUID] = []
    everything = asyncio.Event()

    async def work(worker: UUID | None) -> None:
        while (claimed := await replica.claim(worker, wait=LONG)) is not None:
            taken.append(claimed.id)
            if len(taken) == 200:
                everything.set()

    workers = [asyncio.create_task(work(worker)) for worker in served]
    for turn in range(40):
        await asyncio.gather(*[replica.submit(job if turn % 3 else other) for _ in range(5)])
    async with asyncio.timeout(AT_ONCE):
        await everything.wait()
    assert len(set(taken)) == 200
    replica.runtime.waiters.close()
    await soon(asyncio.gather(*workers))


Hook = Callable[[], Awaitable[None]]


def after_each_commit(replica: Replica, monkeypatch: pytest.MonkeyPatch, *hooks: Hook) -> None:
    """Run one hook after each of the next commits, before its caller continues.

    It replaces a method, because no event of the server is between a commit and its caller.
    """
    left, write = list(hooks), replica.runtime.database.write_batch

    async def write_and_hook(*work: Any, **given: Any) -> Any:
        answer = await write(*work, **given)
        if left:
            await left.pop(0)()
        return answer

    monkeypatch.setattr(replica.runtime.database, "write_batch", write_and_hook)


async def test_a_submit_during_the_check_of_a_woken_worker_is_not_missed(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit after its check wakes it again."""
    job = await replica.register()
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)

    async def submit() -> None:
        await replica.submit(job)

    after_each_commit(replica, monkeypatch, submit)
    replica.runtime.waiters.wake(job_key(job.full_name), 1)
    assert await soon(claim) is not None


async def test_a_worker_that_found_an_earlier_task_passes_its_wake_up_on(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake-up that comes while it claims is passed on to another waiter."""
    job, second = await replica.register(), await replica.register()

    async def somewhere_else() -> None:
        await add_tasks(replica, [task(job.id)])

    async def submit() -> None:
        await replica.submit(job)

    after_each_commit(replica, monkeypatch, somewhere_else, submit)
    claims = [start_waiting(replica, worker) for worker in (job.worker_id, second.worker_id)]
    assert None not in await soon(asyncio.gather(*claims))


@every_kind
async def test_a_disconnected_client_gets_no_task(replica: Replica) -> None:
    """The task goes to the next waiter, or stays pending if there is none."""
    job, second = await replica.register(), await replica.register()
    gone = asyncio.get_running_loop().create_future()
    left = start_waiting(replica, job.worker_id, disconnected=gone)
    await wait_until_waiting(replica, 1)
    stays = start_waiting(replica, second.worker_id)
    await wait_until_waiting(replica, 2)
    gone.set_result(None)
    replica.runtime.waiters.wake(job_key(job.full_name), 1)
    submitted = await replica.submit(job)
    assert await soon(left) is None
    assert (await soon(stays)).id == submitted.id
    gone = asyncio.get_running_loop().create_future()
    left = start_waiting(replica, job.worker_id, disconnected=gone)
    await wait_until_waiting(replica, 1)
    gone.set_result(None)
    assert await soon(left) is None
    assert (await replica.get((await replica.submit(job)).id)).status is TaskStatus.PENDING


async def test_a_cancelled_request_leaves_no_waiter(replica: Replica) -> None:
    """A later task is available to other workers."""
    job = await replica.register()
    submitted = await _submitted(replica)
    for request in (replica.claim(job.worker_id, wait=LONG), replica.get(submitted.id, LONG)):
        wait = asyncio.create_task(request)
        await wait_until_waiting(replica, 1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert len(replica.runtime.waiters) == 0
    await replica.submit(job)
    assert await replica.claim(job.worker_id) is not None


async def _submitted(replica: Replica) -> TaskResponse:
    return await replica.submit(await replica.register("Other"))


async def test_a_waiting_worker_also_waits_for_its_new_job(replica: Replica) -> None:
    """A job that it registers meanwhile is added to its waiting claim."""
    job, other = await replica.register("A"), await replica.register("B")
    submitted = await replica.submit(other)
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    await replica.register("B", worker=job.worker_id)
    assert (await soon(claim)).id == submitted.id
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    submitted = await replica.submit(other)
    assert (await soon(claim)).id == submitted.id


async def test_a_waiting_worker_stops_waiting_for_a_removed_job(replica: Replica) -> None:
    """It keeps waiting for its other jobs."""
    job = await replica.register("A")
    other = await replica.register("B", worker=job.worker_id)
    await replica.register("A")
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    await replica.unlink_job(job.worker_id, job)
    await replica.submit(job)
    submitted = await replica.submit(other)
    assert (await soon(claim)).id == submitted.id


@every_kind
async def test_a_cancelled_request_is_complete_or_has_no_effect(
    replica: Replica, engine: AsyncEngine
) -> None:
    """A removal that commits after its client left still wakes the waiters of its tasks."""
    job = await replica.register()
    running = await replica.running(job)
    wait = asyncio.create_task(replica.get(running.id, LONG))
    await wait_until_waiting(replica, 1)
    async with engine.connect() as other:
        if other.dialect.name == "sqlite":
            await other.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await other.execute(select(Worker.__table__).with_for_update())
        leaving = asyncio.create_task(replica.leave(job.worker_id))
        await asyncio.wait({leaving}, timeout=0.1)
        leaving.cancel()
        await asyncio.wait({leaving}, timeout=0.1)
        await other.rollback()
    await asyncio.gather(leaving, return_exceptions=True)
    await replica.runtime.finish()
    if await replica.rows(Worker.__table__, Worker.__table__.c.id == job.worker_id):
        await replica.leave(job.worker_id)
    assert (await soon(wait)).status is TaskStatus.FAILED


async def test_removing_a_waiting_worker_ends_its_claim(replica: Replica) -> None:
    """The claim ends at once: the worker is not found."""
    job = await replica.register()
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    await replica.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await soon(claim)


async def test_the_end_of_a_task_wakes_all_its_waiters(
    timed: Replica, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    """The commit of any status change to an end wakes them."""
    for ending in ("completed", "failed", "cancelled", "left", "silent"):
        with subtests.test(ending=ending):
            job = await timed.register()
            running = await timed.running(job)
            waits = [asyncio.create_task(timed.get(running.id, LONG)) for _ in range(3)]
            await wait_until_waiting(timed, 3)
            if ending == "left":
                await timed.leave(job.worker_id)
            elif ending == "silent":
                clock.advance(3600)
                await timed.retire_stale()
            else:
                await timed.report(running.id, ending, by=SUBMITTER if ending == "cancelled" else OWNER)
            for ended in await soon(asyncio.gather(*waits)):
                assert ended.status in TERMINAL
                assert ended == await timed.get(running.id)


async def test_a_claim_and_a_start_wake_no_waiter_for_the_end(replica: Replica) -> None:
    """They do not end the task."""
    job = await replica.register()
    submitted = await replica.submit(job)
    wait = asyncio.create_task(replica.get(submitted.id, LONG))
    await wait_until_waiting(replica, 1)
    await replica.claim(job.worker_id)
    await replica.report(submitted.id, TaskStatus.RUNNING)
    assert not wait.done()
    await replica.report(submitted.id, TaskStatus.COMPLETED)
    assert (await soon(wait)).status is TaskStatus.COMPLETED


async def test_a_stop_ends_all_waits(replica: Replica) -> None:
    """Claims end without a task, waits with the task as it is; no new wait begins."""
    job, other = await replica.register(), await replica.register("Other")
    submitted = await replica.submit(other)
    waits = [start_waiting(replica, job.worker_id), asyncio.create_task(replica.get(submitted.id, LONG))]
    await wait_until_waiting(replica, 2)
    replica.runtime.waiters.close()
    nothing, task_ = await soon(asyncio.gather(*waits))
    assert (nothing, task_) == (None, submitted)
    assert await soon(replica.claim(job.worker_id, wait=LONG)) is None
    assert await soon(replica.get(submitted.id, LONG)) == submitted


async def test_too_many_waiting_requests_are_refused(replica: Replica) -> None:
    """Beyond `max_waiting_requests` a wait gets a 503; a request without a wait is served."""
    job = await replica.register()
    submitted = await _submitted(replica)
    replica.runtime.settings.max_waiting_requests = 1
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    for refused in (replica.claim(job.worker_id, wait=LONG), replica.get(submitted.id, LONG)):
        with pytest.raises(ServiceUnavailable, match="max_waiting_requests"):
            await soon(refused)
    assert await soon(replica.claim(job.worker_id)) is None
    assert await soon(replica.get(submitted.id)) == submitted
    await replica.submit(job)
    assert await soon(claim) is not None


async def test_one_user_leaves_waiting_requests_to_others(replica: Replica) -> None:
    """A user whose requests are its share of `max_waiting_requests` gets a 429; another user waits."""
    job = await replica.register()
    submitted = await _submitted(replica)
    replica.runtime.settings.max_waiting_requests = 2
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    with pytest.raises(TooManyRequests, match="max_share_per_user"):
        await soon(replica.claim(job.worker_id, wait=LONG))
    read = asyncio.create_task(replica.get(submitted.id, LONG))
    await wait_until_waiting(replica, 2)
    replica.runtime.waiters.close()
    assert await soon(asyncio.gather(claim, read)) == [None, submitted]


@every_kind
async def test_waiters_cost_no_queries_and_hold_no_connection(replica: Replica) -> None:
    """More waiters than pooled connections send no query, and do not block other requests.

    A submit wakes one of them: it runs as many statements as with one waiter.
    """
    replica.runtime.settings.max_claims_per_worker = 100
    job = await replica.register()
    # The shares of users are counted now, and not again during the test.
    await replica.runtime.stored.pending_tasks.prepare("ada", 10**9)
    replica.runtime.stored.pending_tasks.retry_seconds = 3600
    statements = replica.record_statements()
    counts = []
    for number in (1, 1, 100):
        claims = [start_waiting(replica, job.worker_id) for _ in range(number)]
        await wait_until_waiting(replica, number)
        statements.clear()
        await asyncio.sleep(0.2 if number > 1 else 0)
        assert statements == []
        assert len(replica.runtime.waiters) == number
        submitted = await replica.submit(job)
        done, _ = await asyncio.wait(claims, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().id for one in done] == [submitted.id]
        counts.append(len(statements))
    assert counts[1] == counts[2] > 0
    replica.runtime.waiters.close()
    await soon(asyncio.gather(*claims))


@every_kind
async def test_a_client_that_waits_reads_its_task_with_one_statement(replica: Replica) -> None:
    """The position of a queued task is read only for a response: other requests wait for these statements."""
    job = await replica.register()
    submitted = await replica.submit(job)
    statements = replica.record_statements()
    waiting = asyncio.create_task(replica.get(submitted.id, wait=LONG))
    await wait_until_waiting(replica, 1)
    assert len(statements) == 1
    await replica.report(submitted.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert (await soon(waiting)).status is TaskStatus.CANCELLED


async def test_waiting_claims_of_one_worker_are_bounded(replica: Replica) -> None:
    """A new claim replaces the worker's oldest, which ends with no task; other workers keep waiting."""
    replica.runtime.settings.max_claims_per_worker = 2
    job, other = await replica.register(), await replica.register()
    others = start_waiting(replica, other.worker_id)
    await wait_until_waiting(replica, 1)
    claims = []
    for count in (2, 3, 3, 3):
        claims.append(start_waiting(replica, job.worker_id))
        await wait_until_waiting(replica, count)
    assert await soon(claims[0]) is None
    assert await soon(claims[1]) is None
    submitted = [await replica.submit(job) for _ in range(3)]
    claimed = [await soon(claim) for claim in (others, *claims[2:])]
    assert {one.id for one in claimed} == {one.id for one in submitted}


async def test_a_waiting_claim_counts_as_a_heartbeat(replica: Replica) -> None:
    """A worker with an open claim does not expire, however long it waits."""
    replica.runtime.settings.worker_timeout_seconds = 0.2
    job = await replica.register()
    workers = Worker.__table__
    await replica.execute(update(workers).values(last_heartbeat=LONG_AGO))
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    await replica.execute(update(workers).values(last_heartbeat=LONG_AGO))
    async with asyncio.timeout(AT_ONCE):
        while (await replica.rows(workers))[0].last_heartbeat == LONG_AGO:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    replica.runtime.waiters.close()
    await soon(claim)


async def test_the_re_check_finds_what_another_process_did(replica: Replica) -> None:
    """It finds a task, and the end of a task, without a wake-up."""
    job, other = await replica.register("A"), await replica.register("B")
    running = await replica.running(other)
    claim, wait = start_waiting(replica, job.worker_id), asyncio.create_task(replica.get(running.id, LONG))
    await wait_until_waiting(replica, 2)
    [task_id] = await add_tasks(replica, [task(job.id)])
    ended = {"status": "failed", "completed_at": LONG_AGO + seconds(1)}
    await replica.execute(update(Task.__table__).where(Task.__table__.c.id == running.id).values(ended))
    await replica.correct_counts()
    await replica.runtime.recheck.run()
    assert (await soon(claim)).id == task_id
    assert (await soon(wait)).status is TaskStatus.FAILED


@pytest.mark.parametrize("recheck_seconds", [(0.02, 0.02)])
async def test_the_recheck_runs_while_a_request_waits(open_replica: OpenReplica) -> None:
    """A waiter gets what another process submitted without a wake-up, again and again."""
    here, there = open_replica(), open_replica()
    job = await here.register()
    for _ in range(2):
        claim = start_waiting(here, job.worker_id)
        await wait_until_waiting(here, 1)
        submitted = await there.submit(job)
        assert (await soon(claim)).id == submitted.id


@pytest.mark.parametrize("recheck_seconds", [(0.01, 0.01)])
async def test_no_error_ends_the_recheck(open_replica: OpenReplica, caplog: pytest.LogCaptureFixture) -> None:
    """A failure of the database is logged, and a later round checks again."""
    here, there = open_replica(), open_replica()
    job = await here.register()
    claim = start_waiting(here, job.worker_id)
    await wait_until_waiting(here, 1)
    async with here.missing(Job.__table__):
        await until(lambda: "Did not re-check waiting requests" in caplog.text)
    submitted = await there.submit(job)
    assert (await soon(claim)).id == submitted.id


async def test_an_event_is_published_after_its_commit(replica: Replica) -> None:
    """A client that gets an event can read the task in that status, or in a later one."""
    seen: list[tuple[TaskStatus, TaskStatus]] = []

    async def read_task(emissions: Sequence[Any]) -> None:
        for event, _ in emissions:
            if hasattr(event, "status"):
                seen.append((event.status, (await replica.get(event.id)).status))

    replica.publish = read_task
    job = await replica.register()
    running = await replica.running(job)
    await replica.report(running.id, TaskStatus.COMPLETED)
    await until(lambda: len(seen) == 4)
    order = list(TaskStatus)[:4]
    assert [published for published, _ in seen] == order
    assert all(order.index(found) >= order.index(published) for published, found in seen)


async def test_a_failing_publisher_fails_no_request(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """The request succeeds, waiters are woken, and the log names the lost events."""

    async def fail(_: Sequence[Emission]) -> None:
        raise ConnectionError("no Socket.IO")

    replica.publish = fail
    job = await replica.register()
    claim = start_waiting(replica, job.worker_id)
    await wait_until_waiting(replica, 1)
    submitted = await replica.submit(job)
    assert (await soon(claim)).id == submitted.id
    assert "no Socket.IO" in caplog.text
