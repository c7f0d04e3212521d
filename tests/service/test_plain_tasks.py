"""Plain tasks take a shorter path, on which nothing else differs: not even while their job changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind, on_postgresql
from replica import SUBMITTER, TIMEOUT, Replica, wait_until_waiting
from sqlalchemy import delete, insert, select

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.tables import IdempotencyKey, Job, RoomQueue, Task
from zndraw_joblib.server.process.ports import RequestKey, job_key
from zndraw_joblib.server.queue import rules_tasks, sql_jobs, sql_tasks, sql_transitions
from zndraw_joblib.server.queue.rules_tasks import KnownJobs, Submission
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import IdempotencyKeyReused, InvalidPayload, JobNotFound

NUMBERS = {"type": "object", "properties": {"n": {"type": "number"}}}


def item(
    replica: Replica, job: JobResponse, room: str = "lab", key: RequestKey | None = None, **options: Any
) -> Submission:
    """Return one item of a batch."""
    request, name = TaskSubmitRequest(**options), parse_job_name(job.full_name)
    return replica.runtime.submission(SUBMITTER, room, name, request, key)


async def submit_many(replica: Replica, items: list[Submission]) -> list[TaskResponse]:
    """Submit tasks, all of which must be added."""
    async with asyncio.timeout(TIMEOUT):
        results = await replica.dispatcher.submit_many(items)
    made = [result for result in results if isinstance(result, TaskResponse)]
    assert len(made) == len(items), results
    return made


def new_key() -> RequestKey:
    """Return the key of one request."""
    return RequestKey(uuid4(), uuid4(), timedelta(days=1), "ada")


@every_kind
async def test_a_later_submit_equals_the_first(replica: Replica) -> None:
    """The first submit reads the job, later ones assume it: responses, rows and events are alike."""
    job = await replica.register()
    first = await replica.submit(job, {"text": 'a "quoted" \x00 text'})
    events = [(type(event), room) for event, room in replica.events]
    replica.events.clear()
    second = await replica.submit(job, {"text": 'a "quoted" \x00 text'})
    changed = {"id": second.id, "created_at": second.created_at, "queue_position": 2}
    assert second == first.model_copy(update=changed)
    assert second.created_at >= first.created_at
    assert await replica.get(second.id) == second
    assert second.model_dump_json() == TaskResponse(**second.model_dump()).model_dump_json()
    assert [(type(event), room) for event, room in replica.events] == events[-2:]
    rows = [dict(row._mapping) for row in await replica.rows(Task)]
    for row in rows:
        row.update(seq=0, id=None, created_at=None)
    assert rows[0] == rows[1]


@every_kind
@pytest.mark.parametrize("recheck_seconds", [(3600.0, 3600.0)], ids=["no-recheck"])
async def test_a_later_submit_wakes_the_claims_of_its_job(replica: Replica) -> None:
    """Also a batch, and a waiting claim gets the task; those of another job wait on."""
    job, other = await replica.register(), await replica.register("Other")
    await replica.submit(job)
    await replica.claim_task(job.worker_id)
    woken: list[str] = []
    replica.runtime.waiters.subscribe("job:", woken.append)
    claims = [asyncio.create_task(replica.claim(each.worker_id, wait=TIMEOUT)) for each in (job, other)]
    await wait_until_waiting(replica, 2)
    submitted = await replica.submit(job)
    task = await claims[0]
    assert task is not None
    assert task.id == submitted.id
    await submit_many(replica, [item(replica, job) for _ in range(2)])
    assert woken == [job_key(job.full_name)] * 2
    assert not claims[1].done()
    claims[1].cancel()
    await asyncio.wait(claims)


async def test_a_server_knows_the_jobs_of_the_last_submits(replica: Replica) -> None:
    """At most a thousand: then it forgets the one that was used longest ago. A job may be forgotten twice."""
    name = parse_job_name((await replica.register()).full_name)

    async def read(tx: Transaction) -> JobRecord:
        return (await sql_jobs.lock_by_names(tx, [name]))[name]

    first = await replica.runtime.write(read)
    others = [first._replace(short_name=f"Job{number}") for number in range(1_000)]
    known = KnownJobs()
    known.learn([first, *others[:-1]])
    assert known.get(name) is not None
    known.learn(others[-1:])
    assert [job.short_name for job in (first, *others) if known.get(job.name) is None] == ["Job0"]
    assert known.forget(name) is not None
    assert known.forget(name) is None
    assert known.get(name) is None


async def test_batches_of_several_rooms_keep_order_and_rooms(replica: Replica) -> None:
    """Positions continue, tasks are claimed in order, and every room of the queue has its row."""
    job = await replica.register()
    await replica.submit(job)
    rooms = ["b", "a", "b", "lab", "c"]
    made = await submit_many(replica, [item(replica, job, room) for room in rooms])
    assert [task.queue_position for task in made] == [2, 3, 4, 5, 6]
    assert [task.room_id for task in made] == rooms
    seqs = {row.id: row.seq for row in await replica.rows(Task)}
    bounds = {row.room_id: row.seq for row in await replica.rows(RoomQueue)}
    assert bounds == {
        "lab": min(seqs.values()),
        "b": seqs[made[0].id],
        "a": seqs[made[1].id],
        "c": seqs[made[4].id],
    }
    claimed = [await replica.claim_task(job.worker_id) for _ in range(6)]
    assert [task.id for task in claimed[1:]] == [task.id for task in made]


@every_kind
async def test_a_change_of_the_job_holds_at_once_on_every_server(pair: list[Replica]) -> None:
    """A server that knows an earlier state of the job applies the new schema, priority and deletion."""
    first, second = pair
    job = await first.register()
    for replica in pair * 2:
        await replica.submit(job, {"n": "no number"})
    await first.leave(job.worker_id)
    await first.execute(delete(RoomQueue))
    await first.execute(delete(Task))
    await first.execute(Job.__table__.update().values(pending=0, deleted=True))
    await first.correct_counts()
    with pytest.raises(JobNotFound):
        await second.submit(job)
    job = await first.register(schema=NUMBERS, priority=5)
    with pytest.raises(InvalidPayload):
        await second.submit(job, {"n": "no number"})
    assert (await second.submit(job, {"n": 1})).priority == 5
    with pytest.raises(InvalidPayload):
        await second.submit(job, {"n": "no number"})


@every_kind
async def test_a_first_priority_on_another_server_is_seen(pair: list[Replica]) -> None:
    """Positions take it into account."""
    job = await pair[0].register()
    for replica in pair:
        await replica.submit(job)
    await pair[0].submit(job, priority=-3)
    assert (await pair[1].submit(job)).queue_position == 3


@every_kind
async def test_keys_of_a_batch_are_applied_once(pair: list[Replica]) -> None:
    """A repeat gets the same response from every server, alone and among new ones; misuse is refused."""
    job = await pair[0].register()
    for replica in pair:
        await replica.submit(job)
    keys = [new_key() for _ in range(3)]
    made = await submit_many(pair[0], [item(pair[0], job, key=key) for key in keys])
    assert [task.queue_position for task in made] == [3, 4, 5]
    repeats = [item(pair[1], job, key=key) for key in keys]
    assert await submit_many(pair[1], repeats) == made
    mixed = await submit_many(pair[0], [item(pair[0], job), *repeats, item(pair[0], job, key=new_key())])
    assert mixed[1:4] == made
    twice = new_key()
    first, again = await submit_many(pair[0], [item(pair[0], job, key=twice) for _ in range(2)])
    assert first == again
    misused = keys[0]._replace(fingerprint=uuid4())
    with pytest.raises(IdempotencyKeyReused):
        await pair[0].dispatcher.submit(item(pair[0], job, key=misused))
    assert len(await pair[0].rows(Task)) == 8


@asynccontextmanager
async def locked(replica: Replica, job_id: UUID, change: Any) -> AsyncIterator[None]:
    """Change something in another transaction that has locked the job; commit at the end."""
    async with replica.engine.connect() as other:
        await other.execute(select(Job).where(Job.__table__.c.id == job_id).with_for_update())
        await other.execute(change)
        yield
        await other.commit()


async def wait_for_lock(replica: Replica) -> None:
    """Wait until a statement waits for a lock."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(TIMEOUT), replica.engine.connect() as other:
        while not (await other.exec_driver_sql(waiting)).scalar_one():
            await other.rollback()


@on_postgresql
async def test_a_room_that_is_removed_meanwhile_is_added(replica: Replica) -> None:
    """The statement began while the row existed, and waited for the transaction that deletes it."""
    job = await replica.register()
    await replica.submit(job)
    await replica.claim_task(job.worker_id)
    async with locked(replica, job.id, delete(RoomQueue)):
        submit = asyncio.create_task(replica.submit(job))
        await wait_for_lock(replica)
    task = await submit
    [room] = await replica.rows(RoomQueue)
    [row] = await replica.rows(Task, Task.__table__.c.id == task.id)
    assert (room.room_id, room.seq) == ("lab", row.seq)


@on_postgresql
async def test_a_job_that_changes_meanwhile_is_read_again(replica: Replica) -> None:
    """The statement began before the change, and waited for it: it writes nothing by the old state."""
    job = await replica.register()
    await replica.submit(job)
    change = Job.__table__.update().values(schema=NUMBERS)
    async with locked(replica, job.id, change):
        submit = asyncio.create_task(replica.submit(job, {"n": "no number"}))
        await wait_for_lock(replica)
    with pytest.raises(InvalidPayload):
        await submit
    assert len(await replica.rows(Task)) == 1
    [row] = await replica.rows(Job)
    assert row.pending == 1


@every_kind
async def test_a_repeated_submit_names_the_version_of_its_task(pair: list[Replica]) -> None:
    """Also if other submits of the batch have no key, and the task itself has the version."""
    await pair[0].register(schema={"type": "object", "properties": {"x": {"type": "integer"}}})
    properties = {"x": {"type": "integer"}, "y": {"type": "integer"}}
    job = await pair[0].register(schema={"type": "object", "properties": properties})
    assert job.version == 2
    for replica in pair:
        await replica.submit(job)
    keys = [new_key(), None, new_key()]
    made = await submit_many(pair[0], [item(pair[0], job, key=key) for key in keys])
    again = await submit_many(pair[1], [item(pair[1], job, key=key) for key in keys if key])
    assert again == [made[0], made[2]]
    assert [task.version for task in made] == [2, 2, 2]


@on_postgresql
async def test_a_key_that_is_stored_meanwhile_is_found(replica: Replica) -> None:
    """The statement began before the key was stored: it writes nothing, and the repeat is found."""
    job = await replica.register()
    key = new_key()
    [first] = await submit_many(replica, [item(replica, job, key=key)])
    [row] = await replica.rows(IdempotencyKey)
    await replica.execute(delete(IdempotencyKey))
    store = insert(IdempotencyKey).values(**row._mapping)
    async with locked(replica, job.id, store):
        submit = asyncio.create_task(submit_many(replica, [item(replica, job, key=key)]))
        await wait_for_lock(replica)
    assert await submit == [first]
    assert len(await replica.rows(Task)) == 1


@on_postgresql
@pytest.mark.parametrize("is_keyed", [False, True])
async def test_a_plain_submit_is_one_statement(replica: Replica, is_keyed: bool) -> None:
    """It is a transaction of its own: no BEGIN, no COMMIT."""
    job = await replica.register()
    await replica.submit(job)
    statements = replica.record_statements()
    await submit_many(replica, [item(replica, job, key=new_key() if is_keyed else None)])
    assert [statement.is_alone for statement in statements] == [True]


@every_kind
async def test_servers_that_submit_at_once_share_one_order(pair: list[Replica]) -> None:
    """Positions have no gaps and no repeats, whichever path each task takes."""
    job = await pair[0].register()
    tasks = [replica.submit(job, room=f"room{place % 3}") for place in range(20) for replica in pair]
    made = await asyncio.gather(*tasks)
    assert sorted(task.queue_position or 0 for task in made) == list(range(1, 41))
    [row] = await pair[0].rows(Job)
    assert row.pending == 40


@on_postgresql
async def test_tasks_that_exist_already_repeat_their_transaction(replica: Replica) -> None:
    """An earlier attempt, whose connection was lost, may insert the same tasks at any time."""
    made = await replica.submit(await replica.register())
    existing = await replica.runtime.database.read(sql_tasks.by_id, made.id)
    assert existing is not None
    with pytest.raises(RepeatTransaction):
        await replica.runtime.write(sql_transitions.add, [existing])


async def test_a_trace_context_does_not_change_the_path(replica: Replica) -> None:
    """Tasks with a context are plain, also in a batch with others and with keys."""
    job, known = await replica.register(), KnownJobs()
    await replica.runtime.write(partial(rules_tasks.submit, items=[item(replica, job)], learn=known.learn))
    context = f"00-{1:032x}-{1:016x}-01"
    for key in (None, new_key()):
        batch = [item(replica, job), item(replica, job, key=key)]
        batch[1].traceparent = context
        assert await replica.runtime.write(partial(rules_tasks.submit_plain, items=batch, jobs=known))
    kept = [row.traceparent for row in sorted(await replica.rows(Task), key=lambda row: row.seq)]
    assert kept == [None, None, context, None, context]
