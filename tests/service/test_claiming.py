"""A claim takes the oldest task that its worker may have, once, with a new fencing token."""

import asyncio
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest
from replica import ADMIN, OWNER, STRANGER, InternalExecutor, ManualClock, Replica, internal
from seeds import add_tasks, task
from sqlalchemy import insert, update

from zndraw_joblib.server.db.tables import Task, Worker, WorkerJobLink
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_claims
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult, PlainClaims
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import Forbidden, ProblemException, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__
workers = Worker.__table__


async def claim_all(replica: Replica, worker: UUID | None) -> list[UUID]:
    """Claim until nothing is left; return the ids in the order of the claims."""
    ids = []
    while (claimed := await replica.claim(worker)) is not None:
        ids.append(claimed.id)
    return ids


async def batch(replica: Replica, *requests: tuple[Identity, UUID]) -> list[ClaimResult | ProblemException]:
    """Claim for several workers in one transaction."""
    items = [Claim(caller, worker_id, 15) for caller, worker_id in requests]
    return await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))


async def test_the_oldest_task_of_a_job_comes_first(replica: Replica) -> None:
    """Tasks are claimed in the order of their arrival, also those with the same timestamp."""
    job = await replica.register()
    ids = [(await replica.submit(job)).id for _ in range(5)]
    ids += await add_tasks(replica, [task(job.id) for _ in range(5)])
    assert await claim_all(replica, job.worker_id) == ids


async def test_the_oldest_of_all_jobs_comes_first(replica: Replica) -> None:
    """A worker of several jobs gets their tasks in the order of arrival over all jobs."""
    served = [await replica.register("A")]
    served += [await replica.register(name, worker=served[0].worker_id) for name in ("B", "C")]
    other = await replica.register("D")
    ids = []
    for turn in (2, 0, 1, 1, 0, 2, 2):
        ids.append((await replica.submit(served[turn])).id)
        await replica.submit(other)
    assert await claim_all(replica, served[0].worker_id) == ids


async def test_a_claim_of_many_gets_the_oldest_of_all_jobs(replica: Replica) -> None:
    """By priority, then by arrival; expired tasks fail, and the worker gets later ones instead."""
    served = [await replica.register("A")]
    served.append(await replica.register("B", worker=served[0].worker_id))
    late = await replica.submit(served[0], expires_in_seconds=1e-6)
    ids = [(await replica.submit(served[turn % 2])).id for turn in range(6)]
    urgent = await replica.submit(served[1], priority=5)
    replica.events.clear()
    got = await replica.claim_response(served[0].worker_id, max=5, start=True)
    found = [task.id for task in got.tasks or []]
    assert found == [urgent.id, *ids][: len(found)]
    assert len(found) >= 4
    assert (await replica.get(late.id)).status == TaskStatus.FAILED
    assert [replica.statuses(task_id) for task_id in found] == [[TaskStatus.RUNNING]] * len(found)
    rest = await replica.claim_response(served[0].worker_id, max=50)
    assert [*found, *[task.id for task in rest.tasks or []]] == [urgent.id, *ids]


async def test_a_claim_fails_the_expired_tasks_of_its_jobs(replica: Replica) -> None:
    """Also those beyond the number that it asks for; then it gets the first task that has not expired."""
    job = await replica.register()
    late = [await replica.submit(job, expires_in_seconds=1e-6) for _ in range(3)]
    submitted = await replica.submit(job)
    assert (await replica.claim_task(job.worker_id)).id == submitted.id
    for expired in [await replica.get(each.id) for each in late]:
        assert (expired.status, expired.error_code) == (TaskStatus.FAILED, "task-expired")
        assert expired.completed_at is not None


async def test_claims_in_one_transaction_get_a_bounded_number_of_tasks(replica: Replica) -> None:
    """Small claims get all they want, large ones the same share of the rest, and none is left out."""
    job = await replica.register()
    assert job.worker_id is not None
    ids = await add_tasks(replica, [task(job.id) for _ in range(2500)])
    items = [Claim(OWNER, job.worker_id, 15, task_limit=most) for most in (1000, 1, 1000, 20, 1000)]
    answers = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    found = [[task.id for task in answer.tasks] for answer in answers if isinstance(answer, ClaimResult)]
    assert [len(each) for each in found] == [659, 1, 660, 20, 660]
    assert [task_id for each in found for task_id in each] == ids[:2000]
    rest = await replica.claim_response(job.worker_id, max=1000)
    assert [task.id for task in rest.tasks or []] == ids[2000:]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("order", ["oldest", "fair"])
async def test_claims_of_large_tasks_get_a_bounded_number_of_bytes(
    replica: Replica, jobs: int, order: str
) -> None:
    """About 8 MiB of payloads in all, at least one task for each claim, and no task is passed over."""
    first = await replica.register("A")
    assert first.worker_id is not None
    served = [first, *[await replica.register("B", worker=first.worker_id) for _ in range(jobs - 1)]]
    large = {"x": "x" * (1024**2 - 100)}
    rows = [
        task(served[number % jobs].id, payload=payload, room_id=f"room {number:02}")
        for payload in (large, {})
        for number in range(12)
    ]
    ids = await add_tasks(replica, rows)
    by_fairness = ClaimOrder(is_fair=order == "fair")
    items = [Claim(OWNER, first.worker_id, 15, task_limit=most, order=by_fairness) for most in (11, 1)]
    found: dict[UUID, Any] = {}
    for sizes in ([8, 1], [11, 1]):
        answers = await replica.runtime.write(lambda tx: PlainClaims().claim(tx, items))
        got = [answer.tasks for answer in answers if isinstance(answer, ClaimResult)]
        assert [len(each) for each in got] == sizes
        found |= {each.id: each.payload for together in got for each in together}
    assert list(found)[:12] == [*ids[:8], ids[11], *ids[8:11]]
    assert found == {row["id"]: row["payload"] for row in rows if row["id"] in found}


@pytest.mark.parametrize("order", ["oldest", "fair"])
async def test_many_claims_of_one_large_task_get_a_bounded_number_of_bytes(
    replica: Replica, order: str
) -> None:
    """A transaction takes 32 MiB; the other claims get their tasks in the next ones, without a pause."""
    job = await replica.register()
    assert job.worker_id is not None
    rows = [task(job.id, payload={"x": "x" * 1_000_000}, room_id=f"room {n:02}") for n in range(36)]
    await add_tasks(replica, rows)
    by_fairness = ClaimOrder(is_fair=order == "fair")
    items = [Claim(OWNER, job.worker_id, 15, claim_id=uuid4(), order=by_fairness) for _ in range(36)]
    answers = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    got = [answer for answer in answers if isinstance(answer, ClaimResult)]
    assert [len(answer.tasks) for answer in got] == [1] * 33 + [0] * 3
    assert [answer.is_left_out for answer in got] == [False] * 33 + [True] * 3
    rest = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items[33:]))
    assert [len(answer.tasks) for answer in rest if isinstance(answer, ClaimResult)] == [1] * 3
    again = await replica.runtime.write(lambda tx: rules_claims.claim(tx, items))
    repeated = [answer for answer in again if isinstance(answer, ClaimResult)]
    assert [answer.tasks for answer in repeated[:33]] == [answer.tasks for answer in got[:33]]
    assert [answer.is_left_out for answer in repeated] == [False] * 33 + [True] * 3


async def test_a_claim_that_is_left_out_claims_again_at_once(replica: Replica) -> None:
    """Simultaneous requests for more bytes than a transaction takes all get a task."""
    job = await replica.register()
    await add_tasks(replica, [task(job.id, payload={"x": "x" * 1_000_000}) for _ in range(36)])
    replica.runtime.settings.claim_max_attempts = 1
    got = await asyncio.gather(*[replica.claim_response(job.worker_id, claim_id=uuid4()) for _ in range(36)])
    assert len({answer.task.id for answer in got if answer.task}) == 36


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_claim_of_many_does_not_run_on_the_event_loop(replica: Replica) -> None:
    """A claim of hundreds of tasks runs in a thread; small claims, also many at once, do not."""
    job = await replica.register()
    ran_in: list[bool] = []

    async def record(_: Any, statement: Any, __: Any) -> None:
        if "UPDATE joblib_task" in str(statement):
            ran_in.append(threading.current_thread() is threading.main_thread())

    replica.runtime.database.on_statement = record
    for most in (1, 500, 501, 1):
        await replica.submit(job)
        assert (await replica.claim_response(job.worker_id, max=most)).tasks
    assert ran_in == [True, True, False, True]


async def test_a_claim_returns_worker_and_token(replica: Replica) -> None:
    """The response, the row and the one event agree; the queue position is null."""
    job = await replica.register()
    submitted = await replica.submit(job, {"angle": 3})
    replica.events.clear()
    claimed = await replica.claim(job.worker_id)
    assert claimed is not None
    assert (claimed.id, claimed.status, claimed.worker_id) == (
        submitted.id,
        TaskStatus.CLAIMED,
        job.worker_id,
    )
    assert (claimed.attempt, claimed.queue_position, claimed.payload) == (1, None, {"angle": 3})
    assert replica.statuses() == [TaskStatus.CLAIMED]
    assert await replica.get(submitted.id) == claimed
    [row] = await replica.rows(tasks)
    assert row.claimed_at is not None
    assert row.worker_owner_id == OWNER.id


async def test_the_token_grows_with_every_claim(replica: Replica) -> None:
    """A task that returns to its queue gets a token that it never had before."""
    job = await replica.register()
    await replica.submit(job)
    for attempt in range(1, 5):
        claimed = await replica.claim(job.worker_id)
        assert claimed is not None
        assert claimed.attempt == attempt
        free = dict.fromkeys(["worker_id", "worker_owner_id", "claimed_at", "deadline"])
        await replica.execute(update(tasks).values(status="pending", **free))
        await replica.correct_counts()


async def test_a_claim_of_empty_queues_returns_no_task(replica: Replica) -> None:
    """A worker without jobs and a worker with empty queues get no task, and no event is published."""
    job = await replica.register()
    replica.events.clear()
    assert await replica.claim(job.worker_id) is None
    assert await replica.claim(await replica.worker()) is None
    other = await replica.register("Other")
    await replica.submit(other)
    assert await replica.claim(job.worker_id) is None
    assert TaskStatus.CLAIMED not in replica.statuses()


async def test_only_the_owner_claims_for_a_worker(replica: Replica) -> None:
    """Other users are refused, superusers too; an unknown worker is not found."""
    job = await replica.register()
    await replica.submit(job)
    for other in (STRANGER, ADMIN):
        with pytest.raises(Forbidden):
            await replica.claim(job.worker_id, by=other)
    with pytest.raises(WorkerNotFound):
        await replica.claim(uuid4())
    assert await claim_all(replica, job.worker_id) != []


async def test_claims_of_a_batch_are_served_in_their_order(replica: Replica) -> None:
    """Each claim gets its own task or problem; a worker that claims twice gets two tasks."""
    job, other = await replica.register(), await replica.register("Other")
    second = await replica.register(by=STRANGER)
    ids = await add_tasks(replica, [task(job.id) for _ in range(3)])
    [last] = await add_tasks(replica, [task(other.id)])
    first, foreign, unknown = job.worker_id, second.worker_id, uuid4()
    assert first is not None
    assert foreign is not None
    assert other.worker_id is not None
    answers = await batch(
        replica,
        (OWNER, first),
        (OWNER, unknown),
        (STRANGER, foreign),
        (OWNER, foreign),
        (OWNER, other.worker_id),
        (OWNER, first),
        (OWNER, first),
    )
    assert results(answers) == [ids[0], WorkerNotFound, ids[1], Forbidden, last, ids[2], None]
    assert not any(answer.is_contended for answer in answers if isinstance(answer, ClaimResult))


async def test_a_batch_over_several_jobs_leaves_no_task_unclaimed(replica: Replica) -> None:
    """Workers of one job and of several jobs share the queues without taking a task twice."""
    served = [await replica.register("A")]
    served.append(await replica.register("B", worker=served[0].worker_id))
    only = await replica.register("B")
    first, second = served[0].worker_id, only.worker_id
    assert first is not None
    assert second is not None
    ids = await add_tasks(replica, [task(served[turn].id) for turn in (1, 0, 1)])
    answers = await batch(replica, (OWNER, first), (OWNER, second), (OWNER, first), (OWNER, second))
    assert results(answers) == [ids[0], ids[2], ids[1], None]


def results(answers: list[ClaimResult | ProblemException]) -> list[Any]:
    """Return each result: the id of the claimed task, None, or the class of the problem."""
    found: list[Any] = []
    for result in answers:
        if isinstance(result, ProblemException):
            found.append(type(result))
        else:
            found.append(result.tasks[0].id if result.tasks else None)
    return found


async def test_an_empty_claim_returns_the_jobs_to_wait_for(replica: Replica) -> None:
    """An empty response names the worker's jobs, without internal ones."""
    worker = (await replica.register("A")).worker_id
    await replica.register("B", "lab", worker=worker)
    await replica.register("Render", INTERNAL, by=ADMIN)
    assert worker is not None
    [result] = await batch(replica, (OWNER, worker))
    assert isinstance(result, ClaimResult)
    assert sorted(map(str, result.jobs.names)) == ["@global:modifiers:A", "lab:modifiers:B"]
    assert not result.is_contended


async def test_an_internal_task_is_never_claimed(replica: Replica) -> None:
    """Not even a pending one, and not by a worker that is linked to the job in the database."""
    job = await replica.register("Render", INTERNAL, by=ADMIN)
    remote = await replica.register()
    link = {"worker_id": remote.worker_id, "job_id": job.id}
    await replica.execute(insert(WorkerJobLink.__table__).values(link))
    await add_tasks(replica, [task(job.id)])
    assert await replica.claim(remote.worker_id) is None
    wanted = await replica.submit(remote)
    assert await claim_all(replica, remote.worker_id) == [wanted.id]
    replica.registry = InternalRegistry({str(internal()): InternalExecutor()})
    await replica.submit(str(internal()))
    assert await replica.claim(remote.worker_id) is None


@pytest.mark.parametrize("has_task", [False, True])
async def test_a_claim_counts_as_a_heartbeat(timed: Replica, clock: ManualClock, has_task: bool) -> None:
    """The server does not write a heartbeat for every claim."""
    job = await timed.register()
    interval = timed.runtime.settings.heartbeat_seconds
    born = clock.now
    for late, noted in ((interval * 0.24, 0), (interval * 0.26, interval * 0.26)):
        clock.now = born
        clock.advance(late)
        if has_task:
            await timed.submit(job)
        await timed.claim(job.worker_id)
        [row] = await timed.rows(workers)
        assert (row.last_heartbeat - born).total_seconds() == pytest.approx(noted)


async def test_tasks_wait_for_the_next_worker_of_the_job(replica: Replica) -> None:
    """The queue belongs to the job: its next worker gets the task."""
    job = await replica.register()
    submitted = await replica.submit(job)
    await replica.leave(job.worker_id)
    back = await replica.register()
    assert await claim_all(replica, back.worker_id) == [submitted.id]


@pytest.mark.parametrize("says_who", [True, False])
async def test_a_report_counts_as_a_heartbeat(timed: Replica, clock: ManualClock, says_who: bool) -> None:
    """Also from clients that send no worker id. A cancellation does not count."""
    job = await timed.register()
    running, other = await timed.running(job), await timed.running(job)
    born, interval = clock.now, timed.runtime.settings.heartbeat_seconds
    clock.advance(interval)
    timed.runtime.force_heartbeat(job.worker_id)
    await timed.report(other.id, TaskStatus.CANCELLED)
    assert [row.last_heartbeat for row in await timed.rows(workers)] == [born]
    done = TaskUpdateRequest(status=TaskStatus.COMPLETED, worker_id=job.worker_id if says_who else None)
    await timed.runtime.report(Report(OWNER, running.id, done))
    assert [row.last_heartbeat for row in await timed.rows(workers)] == [clock.now]
