"""Tasks that wait for others: no cycles, and no end is deleted, forgotten or undone that one waits for."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from databases import on_both, on_postgresql
from replica import SUBMITTER, TIMEOUT, OpenReplica, Replica
from sqlalchemy import delete, func, select, text, update
from waiting import until

from service.test_successors import batch, end, handle, handle_free, report
from zndraw_joblib.server.background.successors import Successors
from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.db.tables import Edge, Group, Task, TaskResult, Wave
from zndraw_joblib.server.host.mount import start, stop
from zndraw_joblib.server.queue import (
    rules_ends,
    rules_groups,
    rules_results,
    rules_task_actions,
    rules_waves,
    sql_groups,
    sql_transitions,
)
from zndraw_joblib.server.queue.rules_groups import GroupToMake
from zndraw_joblib.wire.groups import NewGroup
from zndraw_joblib.wire.problems import Conflict, InvalidRequest

LATER = datetime.now(UTC) + timedelta(days=3650)


async def make_group(replica: Replica) -> UUID:
    """Create an open group."""
    group = await replica.runtime.write(rules_groups.create, GroupToMake(SUBMITTER, "lab", NewGroup()))
    return group.id


@on_both
async def test_no_task_waits_for_itself(replica: Replica) -> None:
    """A group waits for its tasks, so what its tasks wait for must not wait for the group."""
    job = await replica.register()
    one, two = await make_group(replica), await make_group(replica)
    first = await replica.submit(job)
    after_one = await replica.submit(job, after={"groups": [one]})
    refused: list[tuple[str, dict[str, Any]]] = [
        ("seal it before", {"group": one, "after": {"groups": [one]}}),
        ("seal it before", {"group": two, "after": {"groups": [one]}}),
        ("tasks wait for group", {"group": one, "after": {"tasks": [after_one.id]}}),
        ("tasks wait for group", {"group": one, "after": {"tasks": [first.id]}}),
    ]
    for message, options in refused:
        with pytest.raises(InvalidRequest, match=message):
            await replica.submit(job, **options)
    with pytest.raises(InvalidRequest, match="tasks wait for group"):
        await batch(replica, job, {"after": {"groups": [two]}}, {"group": two, "after": {"tasks": [0]}})
    await replica.submit(job, group=one)  # one that waits for nothing may join
    await replica.runtime.write(rules_groups.seal, one)
    waiting = await replica.submit(job, group=two, after={"groups": [one]})
    await replica.runtime.write(rules_groups.seal, two)
    for _ in range(4):
        await end(replica, job)
    assert (await replica.get(waiting.id)).status == "completed"
    assert await replica.rows(Group.__table__, Group.__table__.c.ended_at.is_(None)) == []


@on_both
async def test_the_loop_goes_on_after_reads_that_fail(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the read that follows the error fails: else nothing would be released on this server again."""
    job = await replica.register()
    first = await replica.submit(job)
    second = await replica.submit(job, after={"tasks": [first.id]})
    database, failed = replica.runtime.database, 0

    async def fail(_: Any, statement: Any, __: Any) -> None:
        nonlocal failed
        if "joblib_wave" in str(statement):
            failed += 1
            raise LookupError("the index is damaged")

    database.on_statement = fail
    running = asyncio.create_task(Successors(replica.runtime).run())
    try:
        await until(lambda: failed == 2)
        database.on_statement = None
        claimed = await replica.claim_task(job.worker_id)
        await report(replica, claimed.id)
        assert (await replica.claim_task(job.worker_id, wait=20)).id == second.id
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert "the index is damaged" in caplog.text


async def test_a_loop_of_a_server_that_fails_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """No error ends it without a word; a loop that ends or is cancelled stays so."""
    runs, is_again = 0, asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise LookupError("a surprise")
        is_again.set()
        await asyncio.sleep(TIMEOUT)

    loop = start("surprises", run)
    await asyncio.wait_for(is_again.wait(), TIMEOUT)
    await stop([loop])
    assert (runs, loop.cancelled()) == (2, True)
    assert "The loop 'surprises' of this server has failed" in caplog.text


@on_both
async def test_ends_that_no_transaction_recorded_are_found(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """A server of an older version writes an end without a wave. A warning counts those of long ago."""
    job = await replica.register()
    group = await make_group(replica)
    first, open_one = await replica.submit(job), await replica.submit(job, group=group)
    task = await replica.submit(job, after={"tasks": [first.id]})
    after_group = await replica.submit(job, after={"groups": [group]})
    await replica.runtime.write(rules_groups.seal, group)
    servers = Successors(replica.runtime)
    assert await servers.add_unrecorded() == 0
    for each in (first, open_one):
        await replica.report(each.id, "cancelled", by=SUBMITTER)
    await replica.execute(delete(Wave))
    assert await servers.add_unrecorded() == 2
    assert not caplog.messages, "they may have been recorded meanwhile"
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    await replica.execute(delete(Wave))
    await replica.execute(update(Task).where(Task.__table__.c.id == first.id).values(completed_at=long_ago))
    assert await servers.add_unrecorded() == 2
    assert caplog.messages == ["Found 1 ends of tasks and groups that no server has recorded for successors"]
    await handle(replica)
    ends = [await replica.get(each.id) for each in (task, after_group)]
    assert [each.error_code for each in ends] == ["predecessor-failed"] * 2
    assert await servers.add_unrecorded() == 0


@on_postgresql
async def test_a_retry_beside_the_end_of_the_predecessor_is_not_lost(open_replica: OpenReplica) -> None:
    """The end looks for tasks that wait before the retry commits, and commits after it."""
    server, other = open_replica(), open_replica()
    job = await server.register()
    first = await server.submit(job)
    task = await server.submit(job, after={"tasks": [first.id]})
    await end(server, job, status="failed")
    await server.act(rules_task_actions.retry, first.id)
    await server.start(job.worker_id)
    settled, commits = asyncio.Event(), asyncio.Event()

    async def settle(tx: Transaction, ended: Mapping[int, TaskEnd]) -> None:
        await rules_ends.settle(tx, ended)
        settled.set()
        await commits.wait()

    other.runtime.database.settle = settle
    ending = asyncio.create_task(other.report(first.id, "completed"))
    await settled.wait()
    # It is repeated while the end has not committed, and refused in the end.
    with pytest.raises(RepeatTransaction):
        await server.act(rules_task_actions.retry, task.id)
    await Successors(server.runtime).handle_all()
    commits.set()
    await ending
    await server.act(rules_task_actions.retry, task.id)
    await handle(server)
    assert not (await server.get(task.id)).waits


@on_both
async def test_content_that_a_waiting_task_will_read_is_kept(replica: Replica) -> None:
    """A stored result outlives its time while a task waits that needs it."""
    job = await replica.register()
    first, second = await replica.submit(job), await replica.submit(job)
    await replica.submit(job, after={"tasks": [first.id, second.id]})
    await end(replica, job)
    [row] = await replica.rows(Task.__table__, Task.__table__.c.id == first.id)
    content = {"attempt": 1, "content_key": "k", "size": 1, "content_type": "text/plain", "etag": "e"}
    late = datetime.now(UTC) - timedelta(days=1)
    await replica.add(TaskResult.__table__, [{"task_seq": row.seq, "expires_at": late, **content}])
    needed = await replica.runtime.database.read(rules_results.needed_content)
    assert len(needed) == 1
    await replica.runtime.write(rules_results.postpone, needed)
    assert await replica.runtime.database.read(rules_results.needed_content) == []
    assert await replica.runtime.database.read(rules_results.expired_content) == []


@on_both
async def test_run_now_leaves_a_task_whose_payload_does_not_fit(replica: Replica) -> None:
    """It ends no task; without validation such a payload runs, as it does after the predecessors."""
    job = await replica.register(schema={"properties": {"x": {"type": "integer"}}})
    first, second = await replica.submit(job), await replica.submit(job)
    payload = {"x": {"$result": {"task": str(first.id)}}}
    task = await replica.submit(job, payload, after={"tasks": [first.id, second.id]})
    await end(replica, job, "text")
    with pytest.raises(Conflict, match=r"payload/x: .*; cancel it"):
        await replica.act(rules_task_actions.run_now, task.id)
    assert (await replica.get(task.id)).waits
    await replica.act(partial(rules_task_actions.run_now, validate=False), task.id)
    assert (await replica.get(task.id)).payload == {"x": "text"}


@on_postgresql
async def test_a_task_is_kept_that_a_submit_names_while_it_is_to_be_deleted(
    open_replica: OpenReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that locks old tasks has its snapshot when the submit commits."""
    server, pruner = open_replica(), open_replica()
    job = await server.register()
    old = await server.submit(job)
    await end(server, job, {"x": 1})
    [row] = await server.rows(Task.__table__)
    # The statement waits for this lock after it has taken its snapshot, before it locks a row.
    source = sql_transitions._LOCK_ENDED.element.source
    waiting = source.replace("WHERE", "WHERE pg_advisory_xact_lock_shared(7) IS NOT NULL AND", 1)
    names = ("seq", "room_id", "job_id", "status", "has_tags", "linked")
    monkeypatch.setattr(sql_transitions, "_LOCK_ENDED", statement(waiting, *names))
    async with server.engine.connect() as connection:
        await connection.execute(select(func.pg_advisory_lock(7)))
        pruning = asyncio.create_task(pruner.runtime.write(sql_transitions.delete_ended, [row.seq], LATER))
        async with asyncio.timeout(30):
            while not (await connection.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted"))).all():  # noqa: ASYNC110 - PostgreSQL
                await asyncio.sleep(0.01)
        task = await server.submit(job, after={"tasks": [old.id]})
        await connection.execute(select(func.pg_advisory_unlock(7)))
    assert await pruning == 0
    await handle(server)
    assert (await server.get(task.id)).status == "pending"
    assert [edge.is_open for edge in await server.rows(Edge.__table__)] == [False]


@on_postgresql
async def test_a_group_is_kept_that_a_submit_has_locked(open_replica: OpenReplica) -> None:
    """It is deleted by a later call, unless a task waits for it."""
    server = open_replica()
    await server.register()
    group = await make_group(server)
    await server.runtime.write(rules_groups.seal, group)

    async def prune() -> int:
        number, _ = await server.runtime.write(sql_groups.prune, LATER, 0, 10)
        return number

    async with server.engine.begin() as connection:
        await connection.execute(select(Group.__table__.c.id).with_for_update(read=True))
        assert await prune() == 0
    assert await prune() == 1


@on_postgresql  # SQLite has one writer
@pytest.mark.parametrize("policy", ["hold", "fail"])
async def test_a_later_end_that_another_server_handled_is_not_undone(
    open_replica: OpenReplica, policy: str
) -> None:
    """A server that has read a failed predecessor, and gets the task late, sees its completion."""
    one, two = open_replica(), open_replica()
    job = await one.register()
    first, second = await one.submit(job), await one.submit(job)
    task = await one.submit(job, after={"tasks": [first.id, second.id], "on_failure": policy})
    assert await one.claim(job.worker_id) is not None
    await report(one, first.id, status="failed")

    async def meanwhile(_: Any, statement: Any, __: Any) -> None:
        if one.runtime.database.on_statement and "LATERAL" in str(statement):
            one.runtime.database.on_statement = None
            await two.act(rules_task_actions.retry, first.id)
            assert await two.claim(job.worker_id) is not None
            assert await two.claim(job.worker_id) is not None
            await report(two, first.id)
            await handle_free(two)

    one.runtime.database.on_statement = meanwhile
    await one.runtime.write(rules_waves.handle)
    assert one.runtime.database.on_statement is None, "the edges were not read"
    await handle(one)
    current = await one.get(task.id)
    assert (current.waits, current.after and current.after.waits_for) == (True, [second.id])
    await report(one, second.id)
    await handle(one)
    assert (await one.get(task.id)).queue_position == 1
