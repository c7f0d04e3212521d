"""Requests with an `Idempotency-Key` on two servers, beside a crash, and over time."""

import asyncio
import signal
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from databases import every_kind, killing_on_both
from replica import OWNER, SUBMITTER, TIMEOUT, InternalExecutor, ManualClock, OpenReplica, Replica, internal
from rest import V1, register
from servers import ServerProcess
from sqlalchemy import func, select

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import IdempotencyKey, Task, Worker
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import RequestKey
from zndraw_joblib.server.queue import (
    rules_idempotency,
    rules_internal,
    rules_retention,
    rules_tasks,
    rules_workers,
    sql_idempotency,
)
from zndraw_joblib.server.queue.rules_idempotency import Repeat
from zndraw_joblib.wire.messages import TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import JobName, parse_job_name
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import IdempotencyKeyReused, JobNotFound, RequestInProgress

DAY = timedelta(days=1)
JOB = parse_job_name("@global:modifiers:Rotate")


def new_key(fingerprint: UUID | None = None, user: str = "ada") -> RequestKey:
    """Return the key of one request."""
    return RequestKey(uuid4(), fingerprint or uuid4(), DAY, user)


async def submit(replica: Replica, key: RequestKey, job: JobName = JOB, **payload: Any) -> TaskResponse:
    """Submit a task with a key; send it again while the first request is in progress."""
    while True:
        try:
            async with asyncio.timeout(TIMEOUT):
                request = TaskSubmitRequest(payload=payload)
                item = replica.runtime.submission(SUBMITTER, "lab", job, request, key)
                return await replica.dispatcher.submit(item)
        except RequestInProgress:
            await asyncio.sleep(0)


async def count(replica: Replica, table: Any) -> int:
    """Return the number of rows of a table."""
    async with replica.engine.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


@every_kind
async def test_duplicates_on_two_servers_add_one_task(pair: list[Replica]) -> None:
    """Each key is applied once, whichever servers get its requests, in whatever batches."""
    await pair[0].register()
    keys = [new_key() for _ in range(10)]
    sent = [submit(replica, key, x=place) for place, key in enumerate(keys) for replica in pair * 4]
    found = await asyncio.gather(*sent)
    assert len({task.id for task in found}) == await count(pair[0], Task) == len(keys)
    for place in range(len(keys)):
        same = found[8 * place : 8 * place + 8]
        assert all(task == same[0] for task in same)
        assert same[0].payload == {"x": place}


async def test_a_batch_has_a_result_for_each_item(replica: Replica) -> None:
    """New keys, repeated ones, misused ones, errors and items without a key share a transaction."""
    await replica.register()
    old, twice, misused, failing = (new_key() for _ in range(4))

    def item(key: RequestKey | None, x: int, job: JobName = JOB) -> rules_tasks.Submission:
        return rules_tasks.Submission(SUBMITTER, "lab", job, {"x": x}, key=key)

    [first] = await replica.runtime.write(rules_idempotency.submit, [item(old, 0)])
    nope = parse_job_name("@global:modifiers:Nope")
    other = misused._replace(fingerprint=uuid4())
    items = [
        *(item(None, 1), item(old, 0), item(twice, 2), item(twice, 2), item(misused, 3), item(other, 4)),
        *(item(failing, 5, nope), item(failing, 5, nope), item(old._replace(fingerprint=uuid4()), 0)),
    ]
    got = await replica.runtime.write(rules_idempotency.submit, items)
    kinds = [type(one) for one in got]
    repeat, new = Repeat, TaskResponse
    reused, missing = IdempotencyKeyReused, JobNotFound
    assert kinds == [new, repeat, new, repeat, new, reused, missing, missing, reused]
    assert got[1].result == first
    assert got[3].result == got[2]
    assert await count(replica, Task) == 4
    # An error is not stored: its key is free.
    [corrected] = await replica.runtime.write(rules_idempotency.submit, [item(failing, 6)])
    assert isinstance(corrected, TaskResponse)


@every_kind
async def test_a_rolled_back_request_leaves_its_key_free(replica: Replica) -> None:
    """The key is stored in the transaction of the request: both are committed, or neither."""
    key = new_key()

    async def fail_late(tx: Transaction) -> None:
        await rules_idempotency.once(key, rules_idempotency.WORKER, rules_workers.create)(
            tx, caller=OWNER, interval=15
        )
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        await replica.runtime.write(fail_late)
    assert await count(replica, IdempotencyKey) == 0
    create = rules_idempotency.once(key, rules_idempotency.WORKER, rules_workers.create)
    first, again = [await replica.runtime.write(create, caller=OWNER, interval=15) for _ in range(2)]
    assert first == again
    assert await count(replica, Worker) == 1


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
async def test_a_duplicate_of_a_stuck_request_waits_for_nothing(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """While the first request is stuck in its transaction, a duplicate is a 409 at once, and others go on."""
    await replica.register()
    stuck, key = asyncio.Event(), new_key()
    is_locked = asyncio.Event()

    async def hang(tx: Transaction) -> None:
        await sql_idempotency.lock(tx, [key.id])
        is_locked.set()
        await stuck.wait()

    first = asyncio.create_task(replica.runtime.write(hang))
    other = open_replica()
    async with asyncio.timeout(TIMEOUT):
        await is_locked.wait()
        item = rules_tasks.Submission(SUBMITTER, "lab", JOB, {}, key=key)
        results = await asyncio.gather(
            other.runtime.submit(item), submit(other, new_key()), return_exceptions=True
        )
        stuck.set()
        await first
    assert isinstance(results[0], RequestInProgress)
    assert isinstance(results[1], TaskResponse)
    assert isinstance(await other.runtime.submit(item), TaskResponse)


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
async def test_a_lost_race_for_a_key_is_rolled_back(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first request commits between the look-up and the lock of a second one, the second is a 409."""
    await replica.register()
    key = new_key()
    first = await submit(replica, key)

    async def find_nothing(*_: Any) -> tuple[dict[UUID, Any], set[UUID]]:
        return {}, set()

    with monkeypatch.context() as raced:
        # A statement that began before another stored the key: no lock can hold it at that moment.
        raced.setattr(sql_idempotency, "lock", find_nothing)
        with pytest.raises(RequestInProgress):
            await replica.runtime.submit(rules_tasks.Submission(SUBMITTER, "lab", JOB, {}, key=key))
    assert await count(replica, Task) == 1
    assert await submit(replica, key) == first


async def test_a_repeated_submit_of_an_internal_job_is_sent_once(replica: Replica) -> None:
    """The broker gets one message, also when the request is repeated."""
    executor = InternalExecutor()
    offer = rules_internal.InternalJob(internal(), {}, JobPolicy())
    await replica.runtime.write(rules_internal.register, jobs=[offer])
    replica.registry = InternalRegistry({str(internal()): executor})
    key = new_key()
    first, again = [await submit(replica, key, internal()) for _ in range(2)]
    assert first == again
    assert len(executor.calls) == 1


async def test_old_keys_are_pruned_in_batches(
    timed: Replica, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper removes keys that are older than the setting, a bounded number in each transaction."""
    # All rules of retention share it.
    monkeypatch.setattr(rules_retention, "BATCH", 3)
    await timed.register()
    old = [new_key() for _ in range(5)]
    for key in old:
        await submit(timed, key)
    clock.advance(DAY.total_seconds() - 1)
    fresh = new_key()
    await submit(timed, fresh)

    async def prune() -> int:
        keys = rules_retention.KEYS
        pruned, _ = await timed.runtime.write(rules_retention.prune, keys, DAY, keys.first)
        return int(pruned.deleted)

    assert await prune() == 0
    clock.advance(1)
    assert [await prune() for _ in range(3)] == [3, 2, 0]
    assert [row.id for row in await timed.rows(IdempotencyKey.__table__)] == [fresh.id]
    await submit(timed, fresh)
    assert await count(timed, Task) == 6


async def test_beyond_the_limit_the_users_with_most_keys_lose_their_oldest(
    timed: Replica, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 keys 9 stay, the newest of each user: 4 of 7, 4 of 4 and the only one."""
    # All rules of retention share it.
    monkeypatch.setattr(rules_retention, "BATCH", 3)
    await timed.register()
    keys: dict[str, list[RequestKey]] = {"ada": [], "bob": [], "eve": []}
    for user in ("eve", "ada", "bob", "ada", "ada", "bob", "ada", "ada", "bob", "ada", "bob", "ada"):
        keys[user].append(key := new_key(user=user))
        await submit(timed, key)
        clock.advance(1)
    assert await timed.runtime.write(partial(rules_retention.surplus_keys, limit=12)) is None
    surplus = await timed.runtime.write(partial(rules_retention.surplus_keys, limit=10))
    assert surplus is not None
    assert surplus.counts == {"ada": 3}
    assert await prune_surplus(timed, surplus) == 0, "a client may still repeat its request"
    clock.advance(rules_retention.KEPT_KEY_AGE.total_seconds())
    assert await prune_surplus(timed, surplus) == 3
    left = {row.id for row in await timed.rows(IdempotencyKey.__table__)}
    assert left == {key.id for user in keys.values() for key in user} - {key.id for key in keys["ada"][:3]}
    await submit(timed, keys["ada"][3])
    assert await count(timed, Task) == 12, "a repeat with a key that stays adds no task"


async def prune_surplus(replica: Replica, surplus: rules_retention.SurplusKeys | None) -> int:
    """Delete surplus keys until none is left. Return how many."""
    total = 0
    while surplus is not None:
        deleted, surplus = await replica.runtime.write(
            partial(rules_retention.prune_surplus_keys, surplus=surplus)
        )
        total += deleted
    return total


class DyingServer(ServerProcess):
    """A server that is killed between the commit of its first submit and the answer."""

    prelude = """
import os, signal
from zndraw_joblib.server.runtime.runtime import Runtime

submit = Runtime.submit
async def submit_and_die(runtime, item):
    answer = await submit(runtime, item)
    if item.caller.id:  # the health check has none
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
Runtime.submit = submit_and_die
"""


@pytest.mark.slow
@killing_on_both
@pytest.mark.processes
async def test_a_kill_between_commit_and_answer_adds_one_task(database_url: str, replica: Replica) -> None:
    """The next server on the same database gives the answer that the killed one could not give."""
    headers, ids = {"Idempotency-Key": str(uuid4())}, []
    with ServerProcess(database_url) as server:
        async with server.client() as client:
            job = await register(client)
        server.interrupt()
        server.process.wait(30)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    with DyingServer(database_url) as dying:
        async with dying.client() as client:
            with pytest.raises(httpx.TransportError):
                await client.post(url, json={"payload": {"x": 1}}, headers=headers)
        assert dying.process.wait(30) == -signal.SIGKILL
    assert await count(replica, Task) == 1
    with ServerProcess(database_url) as server:
        async with server.client() as client:
            for _ in range(2):
                response = await client.post(url, json={"payload": {"x": 1}}, headers=headers)
                assert (response.status_code, response.json()["payload"]) == (202, {"x": 1})
                ids.append(response.json()["id"])
    assert len(set(ids)) == await count(replica, Task) == 1
