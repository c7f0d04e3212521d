"""Starts and ends take a shorter path, on which nothing else differs: not even while their task changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind, on_postgresql
from replica import OWNER, SUBMITTER, TIMEOUT, ManualClock, Replica
from sqlalchemy import select, update
from waiting import until

from zndraw_joblib.server.db.tables import Attempt, Task
from zndraw_joblib.server.queue import rules_idempotency, rules_tasks
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.problems import InvalidTaskTransition, StaleReport
from zndraw_joblib.wire.statuses import TaskStatus

TASKS = Task.__table__
RUNNING, COMPLETED = TaskStatus.RUNNING, TaskStatus.COMPLETED
Results = list[TaskResponse | Exception]


def report(task_id: UUID, status: TaskStatus, **fields: Any) -> rules_tasks.Report:
    """Return one item of a batch."""
    return rules_tasks.Report(OWNER, task_id, TaskUpdateRequest(status=status, **fields))


@pytest.fixture(autouse=True)
def no_batch_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No batch is split: after a fault the reports, written one by one, would hide it."""
    yield
    split = [each for each in caplog.get_records("call") if "committing each alone" in each.message]
    assert not split


async def many(replica: Replica, *items: rules_tasks.Report) -> Results:
    """Report as one request."""
    async with asyncio.timeout(TIMEOUT):
        return await replica.runtime.report_many(items, bodies=True)


async def claimed(replica: Replica, job: JobResponse) -> TaskResponse:
    """Submit and claim a task."""
    await replica.submit(job, {"text": 'a "quoted" \x00 text'})
    return await replica.claim_task(job.worker_id)


def without_times(task: TaskResponse) -> dict[str, Any]:
    """Return what two tasks with the same history have in common."""
    found = task.model_dump(exclude={"id", "created_at"})
    for name in ("started_at", "completed_at"):
        found[name] = found[name] is not None
    return found


@every_kind
async def test_it_equals_the_general_path(replica: Replica, subtests: pytest.Subtests) -> None:
    """Responses, rows and events are alike, also of a task with the error of an earlier attempt."""
    for is_retried in (False, True):
        for case, statuses in [("start", [RUNNING]), ("both", [RUNNING, COMPLETED]), ("end", [COMPLETED])]:
            with subtests.test(case, is_retried=is_retried):
                job = await replica.register(max_attempts=3, retry_on=["error"], backoff={"base_seconds": 0})

                async def run(
                    apply: Callable[[list[rules_tasks.Report]], Awaitable[Any]],
                ) -> tuple[Any, Any, Any]:
                    task = await claimed(replica, job)
                    if is_retried:
                        await replica.report(task.id, RUNNING)
                        await replica.report(task.id, TaskStatus.FAILED, error="first try")
                        task = await replica.claim_task(job.worker_id)
                    if statuses == [COMPLETED]:
                        await replica.report(task.id, RUNNING)
                    replica.events.clear()
                    given = {
                        "attempt": task.attempt,
                        "worker_id": job.worker_id,
                        "result": {"n": [1, "ä\x00"]},
                    }
                    answers = await apply([report(task.id, status, **given) for status in statuses])
                    events = [event.model_dump(exclude={"id"}) for event, _ in replica.events]
                    for event in events:
                        for name in ("created_at", "started_at", "completed_at"):
                            event[name] = event[name] is not None
                    assert await replica.get(task.id) == answers[-1]
                    [row] = await replica.rows(TASKS, TASKS.c.id == task.id)
                    kept = {
                        name: value
                        for name, value in row._mapping.items()
                        if not name.endswith(("_at", "id", "seq"))
                    }
                    return [without_times(answer) for answer in answers], events, kept

                plain = await run(lambda items: many(replica, *items))
                assert plain == await run(lambda items: replica.runtime.write(rules_tasks.report, items))
                assert [answer["status"] for answer in plain[0]] == statuses
                assert [event["status"] for event in plain[1]] == statuses


@every_kind
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "general"])
@pytest.mark.parametrize(
    ("ages", "times"),
    [
        ((0.5, 0.25), (-0.5, -0.25)),
        ((None, None), (0, 0)),
        ((None, 0.25), (0, 0)),
        ((0.5, None), (-0.5, 0)),
        ((50, 0.25), (-30, -0.25)),
        ((0.25, 0.5), (-0.25, -0.25)),
        ((20, 15), (-7, -2)),
    ],
    ids=["run", "none", "end", "start", "before-claim", "end-first", "late"],
)
@pytest.mark.parametrize("is_joined", [True, False], ids=["together", "one-by-one"])
async def test_times_are_those_of_the_run(
    timed: Replica,
    clock: ManualClock,
    ages: tuple[float | None, float | None],
    times: tuple[float, float],
    *,
    is_plain: bool,
    is_joined: bool,
) -> None:
    """Not of the report: each task of a batch has its own. Nothing is before the claim or long ago."""
    job = await timed.register()
    tasks = [await claimed(timed, job) for _ in range(2)]
    clock.advance(30)
    of_run = dict(zip(("started_ago", "ended_ago"), ages, strict=True))
    starts = [report(tasks[0].id, RUNNING, **of_run), report(tasks[1].id, RUNNING)]
    ends = [report(tasks[0].id, COMPLETED, **of_run), report(tasks[1].id, COMPLETED)]
    for batch in [starts + ends] if is_joined else [starts, ends]:
        if is_plain:
            await many(timed, *batch)
        else:
            await timed.runtime.write(rules_tasks.report, batch)
    now = clock()
    [first, second] = [await timed.get(task.id) for task in tasks]
    expected = tuple(now + timedelta(seconds=seconds) for seconds in times)
    assert (first.started_at, first.completed_at) == expected
    assert (second.started_at, second.completed_at) == (now, now)


async def test_a_start_and_an_end_together_have_the_time_of_the_start(
    timed: Replica, clock: ManualClock
) -> None:
    """Where the end alone says nothing of it."""
    job = await timed.register()
    task = await claimed(timed, job)
    clock.advance(30)
    await many(timed, report(task.id, RUNNING, started_ago=2.0), report(task.id, COMPLETED, ended_ago=0.5))
    stored = await timed.get(task.id)
    times = (stored.started_at, stored.completed_at)
    assert times == (clock() - timedelta(seconds=2), clock() - timedelta(seconds=0.5))


@pytest.mark.parametrize("attempts", [1, 2])
async def test_an_attempt_ends_when_its_run_did(timed: Replica, clock: ManualClock, attempts: int) -> None:
    """And with its last attempt the task. It returns to its queue at the report."""
    job = await timed.register(max_attempts=attempts, retry_on=["error"], backoff={"base_seconds": 0})
    task = await claimed(timed, job)
    clock.advance(30)
    ages = {"started_ago": 1.5, "ended_ago": 0.5}
    await many(
        timed, report(task.id, RUNNING, **ages), report(task.id, TaskStatus.FAILED, error="oh", **ages)
    )
    [stored] = await timed.rows(TASKS)
    if attempts == 1:
        times = stored.started_at, stored.completed_at
    else:
        [row] = await timed.rows(Attempt.__table__)
        times = row.started_at, row.ended_at
        assert stored.queued_at == clock()
    assert [(clock() - at).total_seconds() for at in times] == [1.5, 0.5]


@on_postgresql
async def test_plain_reports_are_one_statement(replica: Replica) -> None:
    """It is a transaction of its own: no BEGIN, no COMMIT, for single reports and for batches."""
    job = await replica.register()
    held = [await claimed(replica, job) for _ in range(3)]
    statements = replica.record_statements()
    await replica.report(held[0].id, RUNNING, attempt=1)
    await replica.report(held[0].id, COMPLETED, attempt=1)
    items = [report(task.id, status) for task in held[1:] for status in (RUNNING, COMPLETED)]
    await replica.runtime.report_many(items)
    assert [statement.is_alone for statement in statements] == [True] * 3


async def test_a_report_that_is_not_plain_holds_no_other_up(replica: Replica) -> None:
    """Stale, repeated, failing and reordered reports of a batch get their own results."""
    job = await replica.register()
    held = [await claimed(replica, job) for _ in range(6)]
    for task in held[:5]:
        await replica.report(task.id, RUNNING)
    await replica.report(held[1].id, COMPLETED, result=1)
    got = await many(
        replica,
        report(held[0].id, COMPLETED, attempt=1, result=0),
        report(held[1].id, COMPLETED, attempt=1, result=2),
        report(held[2].id, COMPLETED, attempt=2),
        report(held[3].id, TaskStatus.FAILED, error="oh"),
        report(held[4].id, COMPLETED, worker_id=uuid4()),
        report(held[4].id, COMPLETED, attempt=2**40),
        report(held[5].id, COMPLETED),
        report(held[5].id, RUNNING),
        report(held[5].id, COMPLETED, result=5),
        rules_tasks.Report(SUBMITTER, held[2].id, TaskUpdateRequest(status=TaskStatus.CANCELLED)),
    )
    kinds = [type(each).__name__ if isinstance(each, Exception) else each.status.value for each in got]
    assert kinds == [
        *("completed", "completed", "StaleReport", "failed", "StaleReport", "StaleReport"),
        *("InvalidTaskTransition", "running", "completed", "cancelled"),
    ]
    assert [(await replica.get(task.id)).result for task in held] == [0, 1, None, None, None, 5]
    assert (await replica.get(held[4].id)).status is RUNNING


async def test_reports_with_the_same_values_are_fenced_alike(replica: Replica) -> None:
    """Values that all reports share are compared with those of each task."""
    job, other = await replica.register(), await replica.register()
    held = [await claimed(replica, job) for _ in range(3)]
    for wrong in ({"attempt": 2}, {"attempt": 1, "worker_id": other.worker_id}):
        got = await many(replica, *[report(task.id, RUNNING, **wrong) for task in held])
        assert {type(each) for each in got} == {StaleReport}
    for status, result in ((RUNNING, None), (COMPLETED, 7)):
        common = {"attempt": 1, "worker_id": job.worker_id, "result": result}
        got = await many(replica, *[report(task.id, status, **common) for task in held])
        assert [each.status for each in got if isinstance(each, TaskResponse)] == [status] * 3
    assert [(await replica.get(task.id)).result for task in held] == [7] * 3


@every_kind
@pytest.mark.parametrize(
    ("attempts", "status"), [((1, 2), RUNNING), ((2, 1), TaskStatus.CLAIMED)], ids=["end", "start"]
)
async def test_a_start_and_an_end_that_do_not_agree_are_no_pair(
    replica: Replica, attempts: tuple[int, int], status: TaskStatus
) -> None:
    """Each has its own attempt: the stale one is refused, and no end is applied without its start."""
    held = await claimed(replica, await replica.register())
    items = [report(held.id, RUNNING, attempt=attempts[0]), report(held.id, COMPLETED, attempt=attempts[1])]
    got = await many(replica, *items)
    assert [type(each) for each in got if isinstance(each, StaleReport)] == [StaleReport]
    assert (await replica.get(held.id)).status is status


async def test_an_attempt_that_no_column_can_store_is_stale(
    replica: Replica, subtests: pytest.Subtests
) -> None:
    """It is compared without the database."""
    for attempt in (2**31, 2**70, -1):
        with subtests.test(attempt=attempt):
            held = await replica.running(await replica.register())
            with pytest.raises(StaleReport):
                await replica.report(held.id, COMPLETED, attempt=attempt)


async def test_the_start_of_a_job_with_a_time_limit_sets_the_deadline(replica: Replica) -> None:
    """The end, with or without a start in the same request, removes it."""
    job = await replica.register(timeout_seconds=60)
    held = [await claimed(replica, job) for _ in range(2)]
    await replica.report(held[0].id, RUNNING)
    [row] = await replica.rows(TASKS, TASKS.c.id == held[0].id)
    assert row.deadline.replace(tzinfo=None) > row.started_at.replace(tzinfo=None)
    await replica.report(held[0].id, COMPLETED)
    await many(replica, report(held[1].id, RUNNING), report(held[1].id, COMPLETED))
    assert [row.deadline for row in await replica.rows(TASKS)] == [None, None]


@every_kind
@pytest.mark.parametrize("policy", [{"max_in_flight": 1}, {}], ids=["job", "worker"])
@pytest.mark.parametrize("recheck_seconds", [(3600.0, 3600.0)], ids=["no-recheck"])
async def test_an_end_wakes_a_claim_that_waits_for_a_slot(replica: Replica, policy: dict[str, Any]) -> None:
    """Of a job with a concurrency limit, or of a worker that holds as many tasks as it may."""
    job = await replica.register(**policy)
    assert job.worker_id is not None
    if not policy:
        await replica.runtime.heartbeat(OWNER, job.worker_id, max_tasks=1)
    held = await replica.running(job)
    other = await replica.submit(job)
    waiting = asyncio.create_task(replica.claim(job.worker_id, wait=TIMEOUT))
    await until(lambda: len(replica.runtime.waiters))
    await replica.report(held.id, COMPLETED)
    async with asyncio.timeout(TIMEOUT / 2):
        got = await waiting
    assert got is not None
    assert got.id == other.id


@asynccontextmanager
async def changed(replica: Replica, task_id: UUID, **values: Any) -> AsyncIterator[None]:
    """Change a task in another transaction; commit at the end, after a statement waits for the lock."""
    async with replica.engine.connect() as other:
        await other.execute(select(TASKS).where(TASKS.c.id == task_id).with_for_update())
        await other.execute(update(TASKS).where(TASKS.c.id == task_id).values(**values))
        yield
        await wait_for_lock(replica)
        await other.commit()


async def wait_for_lock(replica: Replica) -> None:
    """Wait until a statement waits for a lock."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(TIMEOUT), replica.engine.connect() as watcher:
        while not (await watcher.exec_driver_sql(waiting)).scalar_one():
            await watcher.rollback()


@on_postgresql
async def test_a_task_that_changes_meanwhile_is_read_again(replica: Replica) -> None:
    """The statement began before the change, and waited for it: it writes nothing by the old state."""
    job = await replica.register()
    taken, kept = [await replica.running(job) for _ in range(2)]
    async with changed(replica, taken.id, attempt=2):
        reporting = asyncio.create_task(
            many(replica, report(kept.id, COMPLETED), report(taken.id, COMPLETED, attempt=1))
        )
    done, stale = await reporting
    assert isinstance(done, TaskResponse)
    assert isinstance(stale, StaleReport)
    assert (await replica.get(taken.id)).status is RUNNING
    assert (await replica.get(kept.id)).status is COMPLETED


@on_postgresql
async def test_a_change_that_does_not_matter_delays_a_report(replica: Replica) -> None:
    """The statement began before the change, and is applied to the newest version, of all tasks."""
    job = await replica.register()
    first, second = [await replica.running(job) for _ in range(2)]
    async with changed(replica, first.id, crashes=7):
        reporting = asyncio.create_task(
            many(replica, report(first.id, COMPLETED), report(second.id, COMPLETED))
        )
    assert [task.status for task in await reporting if isinstance(task, TaskResponse)] == [COMPLETED] * 2
    rows = await replica.rows(TASKS)
    assert [(row.status, row.crashes) for row in sorted(rows, key=lambda row: row.seq)] == [
        ("completed", 7),
        ("completed", 0),
    ]


@on_postgresql
async def test_tasks_are_locked_in_their_order(replica: Replica) -> None:
    """While a batch waits for the first of its tasks, it has locked none of the others."""
    job = await replica.register()
    first, second = [await replica.running(job) for _ in range(2)]
    free = select(TASKS.c.id).where(TASKS.c.id == second.id).with_for_update(nowait=True)
    async with replica.engine.connect() as other:
        await other.execute(select(TASKS).where(TASKS.c.id == first.id).with_for_update())
        items = [report(task.id, COMPLETED) for task in (second, first)]
        reporting = asyncio.create_task(many(replica, *items))
        await wait_for_lock(replica)
        async with replica.engine.connect() as third:
            assert (await third.execute(free)).scalar_one() == second.id
            await third.rollback()
        await other.rollback()
    assert [task.status for task in await reporting if isinstance(task, TaskResponse)] == [COMPLETED] * 2


@every_kind
async def test_a_repeat_after_a_lost_connection_is_applied_once(replica: Replica) -> None:
    """The transaction runs again although its statement was applied: the report is a repeat."""
    held = await replica.running(await replica.register())
    items = [report(held.id, COMPLETED, attempt=1, result=1)]
    for _ in range(2):
        [done] = await replica.runtime.write(rules_idempotency.report, items)
        assert (done.status, done.result) == (COMPLETED, 1)
    [refused] = await replica.runtime.write(rules_idempotency.report, [report(held.id, RUNNING, attempt=1)])
    assert isinstance(refused, InvalidTaskTransition)


@on_postgresql
async def test_a_task_runs_while_another_transaction_makes_it_a_parent(replica: Replica) -> None:
    """A host may submit a child and commit late: neither claims nor starts nor ends of the parent wait."""
    job = await replica.register()
    task = await replica.submit(job)
    async with replica.engine.connect() as connection:
        await connection.execute(
            select(TASKS.c.seq).where(TASKS.c.id == task.id).with_for_update(read=True, key_share=True)
        )
        await replica.start(job.worker_id)
        assert (await replica.report(task.id, COMPLETED)).status is COMPLETED
        await connection.rollback()
