"""Whoever waits is woken by the commit itself, in turn, and costs nothing while nothing happens."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from replica import OWNER, SUBMITTER, HandClock, OpenReplica, Replica
from seeds import LONG_AGO, add_tasks, seconds, task
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.problems import ServiceUnavailable, WorkerNotFound
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.ports import job_key
from zndraw_joblib.server.store.tables import Task, Worker

LONG = 15.0
AT_ONCE = 2.0


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the slow re-check away: what it would mend is a lost wake-up, and shall show."""
    monkeypatch.setattr(Replica, "recheck_seconds", (3600.0, 3600.0))


async def soon(awaitable: Awaitable[Any]) -> Any:
    """Return a result that must be there at once."""
    async with asyncio.timeout(AT_ONCE):
        return await awaitable


async def asleep(replica: Replica, count: int) -> None:
    """Return once that many sleep."""
    async with asyncio.timeout(AT_ONCE):
        while len(replica.runtime.waiters) < count or any(  # noqa: ASYNC110 - nothing tells of a sleep
            waiter._future is None for queue in replica.runtime.waiters._queues.values() for waiter in queue
        ):
            await asyncio.sleep(0.002)


def waiting(replica: Replica, worker: UUID | None, **options: Any) -> "asyncio.Task[TaskResponse | None]":
    """Begin to wait for a task."""
    return asyncio.create_task(replica.claim(worker, **{"wait": LONG, **options}))


async def test_a_waiting_claim_gets_a_task_when_it_is_submitted(replica: Replica) -> None:
    """The submission's commit wakes the worker; nothing is polled."""
    job = await replica.register()
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    submitted = await replica.submit(job)
    claimed = await soon(claim)
    assert claimed.id == submitted.id
    assert len(replica.runtime.waiters) == 0


async def test_a_task_that_is_there_is_claimed_without_waiting(replica: Replica) -> None:
    """`wait` is for an empty queue alone."""
    job = await replica.register()
    await replica.submit(job)
    assert await soon(replica.claim(job.worker_id, wait=LONG)) is not None


async def test_a_wait_ends_at_its_time(replica: Replica) -> None:
    """Without a task the answer is none, with an unfinished task it is the task as it stands; in time."""
    job = await replica.register()
    begun = time.monotonic()
    assert await replica.claim(job.worker_id, wait=0.1) is None
    submitted = await replica.submit(job)
    assert (await replica.get(submitted.id, wait=0.1)).status is TaskStatus.PENDING
    assert 0.2 <= time.monotonic() - begun < AT_ONCE


async def test_waiting_workers_are_served_in_turn(replica: Replica) -> None:
    """Who has waited longest gets the next task."""
    job = await replica.register()
    served = [job.worker_id, *[(await replica.register()).worker_id for _ in range(3)]]
    claims = []
    for count, worker in enumerate(served, 1):
        claims.append(waiting(replica, worker))
        await asleep(replica, count)
    for turn, claim in enumerate(claims):
        submitted = await replica.submit(job)
        claimed = await soon(claim)
        assert (claimed.id, claimed.worker_id) == (submitted.id, served[turn])
        assert [other.done() for other in claims] == [True] * (turn + 1) + [False] * (3 - turn)


@pytest.mark.parametrize("count", [1, 30])
async def test_a_burst_serves_all_who_wait(replica: Replica, count: int) -> None:
    """As many tasks as waiters, submitted at once: everybody gets one, and nobody is forgotten."""
    job = await replica.register()
    for _ in range(3):
        claims = [waiting(replica, job.worker_id) for _ in range(count)]
        await asleep(replica, count)
        submitted = await asyncio.gather(*[replica.submit(job) for _ in range(count)])
        claimed = await soon(asyncio.gather(*claims))
        assert {one.id for one in claimed} == {one.id for one in submitted}


@every_kind
async def test_a_steady_stream_stalls_nowhere(replica: Replica) -> None:
    """Workers that wait again and again take whatever comes, without one wake-up being lost."""
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
    async with asyncio.timeout(10):
        await everything.wait()
    assert len(set(taken)) == 200
    replica.runtime.waiters.close()
    await soon(asyncio.gather(*workers))


Hook = Callable[[], Awaitable[None]]


def after_each_commit(replica: Replica, monkeypatch: pytest.MonkeyPatch, *hooks: Hook) -> None:
    """Run one hook after each of the next commits, before whoever committed hears of it."""
    left, write = list(hooks), replica.runtime.database.write_short

    async def write_and_hook(*work: Any, **given: Any) -> Any:
        answer = await write(*work, **given)
        if left:
            await left.pop(0)()
        return answer

    monkeypatch.setattr(replica.runtime.database, "write_short", write_and_hook)


async def test_a_task_that_is_submitted_while_a_woken_worker_looks_is_not_missed(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken for nothing, it looks again; what is committed after its look wakes it once more."""
    job = await replica.register()
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)

    async def submit() -> None:
        await replica.submit(job)

    after_each_commit(replica, monkeypatch, submit)
    replica.runtime.waiters.wake(job_key(job.full_name), 1)
    assert await soon(claim) is not None


async def test_a_worker_that_found_an_earlier_task_leaves_the_next_to_others(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake-up that comes while a task is taken is for another task, and goes to who still waits."""
    job, second = await replica.register(), await replica.register()

    async def somewhere_else() -> None:
        await add_tasks(replica, [task(job.id)])

    async def submit() -> None:
        await replica.submit(job)

    after_each_commit(replica, monkeypatch, somewhere_else, submit)
    claims = [waiting(replica, worker) for worker in (job.worker_id, second.worker_id)]
    assert None not in await soon(asyncio.gather(*claims))


@every_kind
async def test_a_client_that_is_gone_gets_no_task(replica: Replica) -> None:
    """It hung up while it slept: the task goes to the next who waits, and to nobody where nobody does."""
    job, second = await replica.register(), await replica.register()
    gone = asyncio.get_running_loop().create_future()
    left = waiting(replica, job.worker_id, disconnected=gone)
    await asleep(replica, 1)
    stays = waiting(replica, second.worker_id)
    await asleep(replica, 2)
    gone.set_result(None)
    replica.runtime.waiters.wake(job_key(job.full_name), 1)
    submitted = await replica.submit(job)
    assert await soon(left) is None
    assert (await soon(stays)).id == submitted.id
    gone = asyncio.get_running_loop().create_future()
    left = waiting(replica, job.worker_id, disconnected=gone)
    await asleep(replica, 1)
    gone.set_result(None)
    assert await soon(left) is None
    assert (await replica.get((await replica.submit(job)).id)).status is TaskStatus.PENDING


async def test_a_request_that_is_cancelled_leaves_no_sleeper(replica: Replica) -> None:
    """A server that drops a request forgets it; the task that comes is there for others."""
    job = await replica.register()
    submitted = await _submitted(replica)
    for request in (replica.claim(job.worker_id, wait=LONG), replica.get(submitted.id, LONG)):
        wait = asyncio.create_task(request)
        await asleep(replica, 1)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        assert len(replica.runtime.waiters) == 0
    await replica.submit(job)
    assert await replica.claim(job.worker_id) is not None


async def _submitted(replica: Replica) -> TaskResponse:
    return await replica.submit(await replica.register("Other"))


async def test_a_waiting_worker_learns_of_its_new_job(replica: Replica) -> None:
    """A job that it registers while it waits is one it waits for from then on."""
    job, other = await replica.register("A"), await replica.register("B")
    submitted = await replica.submit(other)
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    await replica.register("B", worker=job.worker_id)
    assert (await soon(claim)).id == submitted.id
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    submitted = await replica.submit(other)
    assert (await soon(claim)).id == submitted.id


async def test_a_worker_whose_job_is_taken_off_waits_for_it_no_more(replica: Replica) -> None:
    """Its sleep goes on for its other jobs alone."""
    job = await replica.register("A")
    other = await replica.register("B", worker=job.worker_id)
    await replica.register("A")
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    await replica.leave_job(job.worker_id, job)
    await replica.submit(job)
    submitted = await replica.submit(other)
    assert (await soon(claim)).id == submitted.id


@every_kind
async def test_a_request_that_is_given_up_happens_and_is_told_or_does_not_happen(
    replica: Replica, engine: AsyncEngine
) -> None:
    """A removal whose client goes while it is written wakes who waits for its tasks, if it is committed."""
    job = await replica.register()
    running = await replica.running(job)
    wait = asyncio.create_task(replica.get(running.id, LONG))
    await asleep(replica, 1)
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


async def test_a_worker_that_is_removed_while_it_waits_is_told(replica: Replica) -> None:
    """Its claim ends at once: the worker is not found."""
    job = await replica.register()
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    await replica.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await soon(claim)


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "left", "silent"])
async def test_a_waiting_submitter_hears_of_the_end(timed: Replica, clock: HandClock, ending: str) -> None:
    """Whoever ends the task, all who wait for it hear of it by that commit."""
    job = await timed.register()
    running = await timed.running(job)
    waits = [asyncio.create_task(timed.get(running.id, LONG)) for _ in range(3)]
    await asleep(timed, 3)
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


async def test_a_task_on_its_way_is_not_its_end(replica: Replica) -> None:
    """A claim and a start wake nobody who waits for the end."""
    job = await replica.register()
    submitted = await replica.submit(job)
    wait = asyncio.create_task(replica.get(submitted.id, LONG))
    await asleep(replica, 1)
    await replica.claim(job.worker_id)
    await replica.report(submitted.id, TaskStatus.RUNNING)
    assert not wait.done()
    await replica.report(submitted.id, TaskStatus.COMPLETED)
    assert (await soon(wait)).status is TaskStatus.COMPLETED


async def test_a_stop_lets_everybody_go(replica: Replica) -> None:
    """When the server stops, claims end without a task and waits with the task as it stands; none begins."""
    job, other = await replica.register(), await replica.register("Other")
    submitted = await replica.submit(other)
    waits = [waiting(replica, job.worker_id), asyncio.create_task(replica.get(submitted.id, LONG))]
    await asleep(replica, 2)
    replica.runtime.waiters.close()
    nothing, task_ = await soon(asyncio.gather(*waits))
    assert (nothing, task_) == (None, submitted)
    assert await soon(replica.claim(job.worker_id, wait=LONG)) is None
    assert await soon(replica.get(submitted.id, LONG)) == submitted


async def test_too_many_waiting_are_told(replica: Replica) -> None:
    """Beyond `max_waiting_requests` a wait is refused with 503; who does not wait is served."""
    job = await replica.register()
    submitted = await _submitted(replica)
    replica.runtime.settings.max_waiting_requests = 1
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    for refused in (replica.claim(job.worker_id, wait=LONG), replica.get(submitted.id, LONG)):
        with pytest.raises(ServiceUnavailable, match="max_waiting_requests"):
            await soon(refused)
    assert await soon(replica.claim(job.worker_id)) is None
    assert await soon(replica.get(submitted.id)) == submitted
    await replica.submit(job)
    assert await soon(claim) is not None


@every_kind
async def test_sleepers_cost_no_queries_and_hold_no_connection(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More waiters than the pool has connections sleep without a word to the database; others work on."""
    replica.runtime.settings.max_claims_per_worker = 100
    job = await replica.register()
    claims = [waiting(replica, job.worker_id) for _ in range(100)]
    await asleep(replica, 100)
    asked = 0

    def counted(act: Any) -> Any:
        async def count(*work: Any, **given: Any) -> Any:
            nonlocal asked
            asked += 1
            return await act(*work, **given)

        return count

    database = replica.runtime.database
    for name in ("write", "write_short", "read", "read_short"):
        monkeypatch.setattr(database, name, counted(getattr(database, name)))
    await asyncio.sleep(0.2)
    assert asked == 0
    assert len(replica.runtime.waiters) == 100
    submitted = await replica.submit(job)
    done, _ = await asyncio.wait(claims, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().id for one in done] == [submitted.id]
    assert asked == 2
    replica.runtime.waiters.close()
    await soon(asyncio.gather(*claims))


async def test_a_worker_waits_so_often_and_no_more(replica: Replica) -> None:
    """A newer claim takes the place of its oldest, which ends with nothing; other workers wait on."""
    replica.runtime.settings.max_claims_per_worker = 2
    job, other = await replica.register(), await replica.register()
    others = waiting(replica, other.worker_id)
    await asleep(replica, 1)
    claims = []
    for count in (2, 3, 3, 3):
        claims.append(waiting(replica, job.worker_id))
        await asleep(replica, count)
    assert await soon(claims[0]) is None
    assert await soon(claims[1]) is None
    submitted = [await replica.submit(job) for _ in range(3)]
    claimed = [await soon(claim) for claim in (others, *claims[2:])]
    assert [one.id for one in claimed] == [one.id for one in submitted]


async def test_a_waiting_worker_lives(replica: Replica) -> None:
    """A claim that is held open is a sign of life: its worker is not silent, however long it waits."""
    replica.runtime.settings.worker_timeout_seconds = 0.2
    job = await replica.register()
    workers = Worker.__table__
    await replica.execute(update(workers).values(last_heartbeat=LONG_AGO))
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    await replica.execute(update(workers).values(last_heartbeat=LONG_AGO))
    async with asyncio.timeout(AT_ONCE):
        while (await replica.rows(workers))[0].last_heartbeat == LONG_AGO:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    replica.runtime.waiters.close()
    await soon(claim)


async def test_what_another_process_did_is_found_by_the_re_check(replica: Replica) -> None:
    """Wake-ups are hints: a look now and then finds a task, and an end, of which none told."""
    job, other = await replica.register("A"), await replica.register("B")
    running = await replica.running(other)
    claim, wait = waiting(replica, job.worker_id), asyncio.create_task(replica.get(running.id, LONG))
    await asleep(replica, 2)
    [task_id] = await add_tasks(replica, [task(job.id)])
    ended = {"status": "failed", "completed_at": LONG_AGO + seconds(1)}
    await replica.execute(update(Task.__table__).where(Task.__table__.c.id == running.id).values(ended))
    await replica.runtime.recheck()
    assert (await soon(claim)).id == task_id
    assert (await soon(wait)).status is TaskStatus.FAILED


async def test_the_re_check_goes_by_itself_while_somebody_sleeps(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter of one process gets what was submitted at another, without a wake-up; again and again."""
    monkeypatch.setattr(Replica, "recheck_seconds", (0.02, 0.02))
    here, there = open_replica(), open_replica()
    job = await here.register()
    for _ in range(2):
        claim = waiting(here, job.worker_id)
        await asleep(here, 1)
        submitted = await there.submit(job)
        assert (await soon(claim)).id == submitted.id


async def test_an_event_is_told_after_its_commit(replica: Replica) -> None:
    """Whoever hears of a task can read it as it was told."""
    seen: list[tuple[TaskStatus, TaskStatus]] = []

    async def look(emissions: Sequence[Emission]) -> None:
        for event, _ in emissions:
            if hasattr(event, "status"):
                seen.append((event.status, (await replica.get(event.id)).status))

    replica.publish = look
    job = await replica.register()
    running = await replica.running(job)
    await replica.report(running.id, TaskStatus.COMPLETED)
    assert [told for told, _ in seen] == list(TaskStatus)[:4]
    assert all(told is found for told, found in seen)


async def test_a_publisher_that_fails_turns_nothing_into_an_error(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """What is committed is answered as such, waiters are woken, and the log says what was lost."""

    async def fail(_: Sequence[Emission]) -> None:
        raise ConnectionError("no Socket.IO")

    replica.publish = fail
    job = await replica.register()
    claim = waiting(replica, job.worker_id)
    await asleep(replica, 1)
    submitted = await replica.submit(job)
    assert (await soon(claim)).id == submitted.id
    assert "no Socket.IO" in caplog.text
