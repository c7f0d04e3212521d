"""Tasks that wait for others: when they run, with which results, and what they do if others fail."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import on_both
from replica import ADMIN, SUBMITTER, TIMEOUT, OpenReplica, Replica
from sqlalchemy import text as sql_text
from waiting import until

from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.background import successors
from zndraw_joblib.server.background.successors import Successors
from zndraw_joblib.server.db.tables import Edge, Successor, Task, Wave
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import (
    rules_groups,
    rules_history,
    rules_sweep,
    rules_task_actions,
    rules_task_retention,
    rules_waves,
)
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.groups import NewGroup
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest, TaskUpdateRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import BulkAction, TaskFilter
from zndraw_joblib.wire.problems import Conflict, InvalidPayload, InvalidRequest
from zndraw_joblib.wire.statuses import TaskStatus

pytestmark = on_both
OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}, "all": {"type": "array"}}}


async def handle(replica: Replica) -> None:
    """Handle all ends for which tasks wait, as the loop of a server does."""
    await Successors(replica.runtime).handle_all()
    assert await replica.rows(Wave.__table__) == []


async def end(replica: Replica, job: JobResponse, result: Any = None, status: str = "completed") -> UUID:
    """Run the first task of the queue; return its id."""
    task = await replica.claim(job.worker_id)
    assert task is not None, "no task is in the queue"
    await report(replica, task.id, result, status)
    await handle(replica)
    return task.id


async def report(replica: Replica, task_id: UUID, result: Any = None, status: str = "completed") -> None:
    """Report the start and the end of a task."""
    await replica.report(task_id, "running")
    await replica.report(task_id, status, **({"result": result} if status == "completed" else {}))


async def batch(
    replica: Replica, job: JobResponse, *options: dict[str, Any], room: str = "lab"
) -> list[TaskResponse]:
    """Submit tasks in one transaction."""
    runtime, name = replica.runtime, parse_job_name(job.full_name)
    items = [
        runtime.submission(SUBMITTER, room, name, TaskSubmitRequest.model_validate(each)) for each in options
    ]
    tasks = await runtime.submit_all(items)
    assert isinstance(tasks, list)
    return tasks


async def open_group(replica: Replica) -> UUID:
    """Create a group."""
    new = rules_groups.GroupToMake(SUBMITTER, "lab", NewGroup())
    return (await replica.runtime.write(rules_groups.create, new)).id


async def test_a_task_runs_after_the_last_of_its_predecessors(replica: Replica) -> None:
    """It is in no queue before, shows what it waits for, and has the highest priority of its chain.

    One of them belongs to a group: the statement that counts its end also looks whether a task waits for it.
    """
    job = await replica.register()
    group_id = await open_group(replica)
    first, second = await replica.submit(job, group=group_id), await replica.submit(job, priority=7)
    after = {"tasks": [first.id, second.id]}
    later = datetime.now(UTC) + timedelta(hours=1)
    task = await replica.submit(job, after=after)
    timed, own = (
        await replica.submit(job, after=after, run_at=later),
        await replica.submit(job, after=after, priority=2),
    )
    assert (task.status, task.waits, task.run_at, task.queue_position) == ("pending", True, None, None)
    assert (task.priority, timed.priority, own.priority) == (7, 7, 2)
    assert await replica.explain(task.id) == ["predecessor"]
    assert (await replica.get(task.id)).after.waits_for == [first.id, second.id]
    assert (await replica.get(first.id)).successors == [task.id, timed.id, own.id]
    assert await end(replica, job) == second.id
    assert (await replica.get(task.id)).after.waits_for == [first.id]
    assert await replica.claim(job.worker_id) is not None  # `first`
    assert await replica.claim(job.worker_id) is None
    await report(replica, first.id)
    await handle(replica)
    assert [(await replica.get(each.id)).waits for each in (task, timed, own)] == [None] * 3
    assert (await replica.get(timed.id)).run_at == later
    assert [await end(replica, job), await end(replica, job)] == [task.id, own.id]
    assert await replica.claim(job.worker_id) is None
    after_end = (await replica.get(task.id)).after
    assert (after_end.tasks, after_end.waits_for) == ([first.id, second.id], [])


async def test_predecessors_that_have_ended_before_the_submit_count(replica: Replica) -> None:
    """One that completed is waited for no longer, and one that failed fails the task."""
    job = await replica.register()
    done, failed = await replica.submit(job), await replica.submit(job)
    await end(replica, job, {"x": 3})
    await end(replica, job, status="failed")
    task = await replica.submit(
        job, {"x": {"$result": {"task": str(done.id), "pointer": "/x"}}}, after={"tasks": [done.id]}
    )
    fails = await replica.submit(job, after={"tasks": [done.id, failed.id]})
    await handle(replica)
    assert (await replica.get(task.id)).payload == {"x": 3}
    ended = await replica.get(fails.id)
    assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "predecessor-failed")
    assert str(failed.id) in (ended.error or "")


async def test_each_policy_decides_about_a_failed_predecessor(replica: Replica) -> None:
    """A failure spreads over the chain; another task runs, and a third one waits until a retry completes."""
    job = await replica.register()
    first = await replica.submit(job)
    after = {"tasks": [first.id]}
    fails = await replica.submit(job, after=after)
    follows = await replica.submit(job, after={"tasks": [fails.id]})
    runs = await replica.submit(job, after={**after, "on_failure": "run"})
    holds = await replica.submit(job, after={**after, "on_failure": "hold"})
    await end(replica, job, status="failed")
    for task in (fails, follows):
        ended = await replica.get(task.id)
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "predecessor-failed")
    assert str(fails.id) in ((await replica.get(follows.id)).error or "")
    assert await end(replica, job) == runs.id
    assert (await replica.get(holds.id)).waits
    explained = await replica.runtime.database.read(rules_history.explain, holds.id, replica.runtime.order)
    assert f"on_failure=hold), because task {first.id} did not" in explained.reasons[0].detail
    await replica.act(rules_task_actions.retry, first.id)
    assert [await end(replica, job), await end(replica, job)] == [first.id, holds.id]
    waited = [("pending", 0, "submitted"), ("pending", 0, "wait_ended"), ("claimed", 1, None)]
    assert (await replica.history(holds.id))[:3] == waited
    assert [reason for *_, reason in await replica.history(follows.id)] == ["submitted", "predecessor-failed"]
    assert await replica.claim(job.worker_id) is None


async def test_a_failed_task_waits_again_after_a_retry(replica: Replica) -> None:
    """Retried too early it fails again; after its predecessor was retried, it runs."""
    job = await replica.register()
    first = await replica.submit(job)
    fails = await replica.submit(job, after={"tasks": [first.id]})
    await end(replica, job, status="failed")
    assert (await replica.act(rules_task_actions.retry, fails.id)).waits
    await handle(replica)
    assert (await replica.get(fails.id)).status is TaskStatus.FAILED
    await replica.act(rules_task_actions.retry, first.id)
    await replica.act(rules_task_actions.retry, fails.id)
    await handle(replica)
    assert (await replica.get(fails.id)).waits
    assert [await end(replica, job), await end(replica, job)] == [first.id, fails.id]


async def test_a_bulk_retry_begins_with_the_predecessors(replica: Replica) -> None:
    """However few tasks it changes at once, and whatever is handled meanwhile, no task fails again.

    No old end is left that would be handled in place of a cancel with the tree.
    """
    job = await replica.register()
    chain = [await replica.submit(job)]
    for _ in range(4):
        chain.append(await replica.submit(job, after={"tasks": [chain[-1].id]}))
    await end(replica, job, status="failed")
    assert {(await replica.get(task.id)).status for task in chain} == {TaskStatus.FAILED}

    async def write(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = await replica.runtime.write(work, *args, **kwargs)
        await handle(replica)
        return result

    retry = rules_searches.Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 2**60)
    limits = rules_searches.BulkLimits(tasks=5, batch=2)
    done = await rules_searches.apply(replica.runtime.database.read, write, retry, None, limits)
    assert (done.affected, done.is_complete) == (5, True)
    assert [bool((await replica.get(task.id)).waits) for task in chain] == [False, True, True, True, True]
    assert [await end(replica, job) for _ in chain] == [task.id for task in chain]


async def test_repeats_of_a_bulk_retry_reach_the_end_of_a_long_chain(replica: Replica) -> None:
    """Each goes on behind the last, however long the chain is: none fails again."""
    job = await replica.register()
    chain = [await replica.submit(job)]
    for _ in range(6):
        chain.append(await replica.submit(job, after={"tasks": [chain[-1].id]}))
    await end(replica, job, status="failed")
    retry = rules_searches.Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 2**60)
    limits = rules_searches.BulkLimits(tasks=3, batch=2)
    affected = []
    for _ in range(3):
        read, write = replica.runtime.database.read, replica.runtime.write
        affected.append((await rules_searches.apply(read, write, retry, None, limits)).affected)
        await handle(replica)
    assert affected == [3, 3, 1]
    assert [await end(replica, job) for _ in chain] == [task.id for task in chain]


async def test_a_bulk_retry_ends_in_time_and_a_repeat_goes_on(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is not complete; what is left are the newest tasks, so the next one fits to it."""
    job = await replica.register()
    tasks = [await replica.submit(job) for _ in range(5)]
    for _ in tasks:
        await end(replica, job, status="failed")
    now = 0.0

    async def write(work: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal now
        now += 1.0
        return await replica.runtime.write(work, *args, **kwargs)

    monkeypatch.setattr(rules_searches, "time", SimpleNamespace(monotonic=lambda: now))
    retry = rules_searches.Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 2**60)
    limits = rules_searches.BulkLimits(tasks=5, batch=2, seconds=1.0)
    first = await rules_searches.apply(replica.runtime.database.read, write, retry, None, limits)
    assert (first.affected, first.is_complete) == (2, False)
    statuses = [(await replica.get(task.id)).status.value for task in tasks]
    assert statuses == ["pending"] * 2 + ["failed"] * 3
    rest = await rules_searches.apply(replica.runtime.database.read, replica.runtime.write, retry, None)
    assert (rest.affected, rest.is_complete) == (3, True)


async def test_a_retry_records_no_end_of_what_is_retried_too(replica: Replica) -> None:
    """It would be handled in place of a cancel with the tree, and fail what this cancels."""
    job = await replica.register()
    first = await replica.submit(job)
    second = await replica.submit(job, after={"tasks": [first.id]})
    await end(replica, job, status="failed")
    retry = rules_searches.Confirmed(ADMIN, BulkAction.RETRY, TaskFilter(room=["lab"]), 2**60)
    await rules_searches.apply(replica.runtime.database.read, replica.runtime.write, retry, None)
    assert await replica.rows(Wave.__table__) == []
    assert (await replica.get(second.id)).waits


async def test_run_now_releases_a_task_that_waits(replica: Replica) -> None:
    """Unless its payload needs a result that does not exist."""
    job = await replica.register()
    first = await replica.submit(job)
    task = await replica.submit(job, after={"tasks": [first.id]})
    value = {"$result": {"task": str(first.id)}}
    needs = await replica.submit(job, {"x": value}, after={"tasks": [first.id]})
    with pytest.raises(Conflict, match=f"needs the result of task {first.id}, which is pending"):
        await replica.act(rules_task_actions.run_now, needs.id)
    assert (await replica.act(rules_task_actions.run_now, task.id)).queue_position == 2
    assert await end(replica, job, 5) == first.id
    assert await end(replica, job) == task.id
    assert (await replica.get(needs.id)).payload == {"x": 5}


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_cancel_with_its_tree_cancels_what_waits(replica: Replica, *, has_ended: bool) -> None:
    """Also what waits for these; without the tree, the task counts as one that has not completed."""
    job = await replica.register()
    first = await replica.submit(job)
    options = {"on_failure": "hold"}
    second = await replica.submit(job, after={"tasks": [first.id], **options})
    third = await replica.submit(job, after={"tasks": [second.id]})
    other = await replica.submit(job)
    failed = await replica.submit(job, after={"tasks": [other.id]})
    if has_ended:
        await end(replica, job, status="failed")
    report = Report(SUBMITTER, first.id, TaskUpdateRequest(status=TaskStatus.CANCELLED, tree=True))
    await replica.runtime.cancel_tree(report)
    await replica.report(other.id, "cancelled", by=SUBMITTER)
    await handle(replica)
    assert [(await replica.get(each.id)).status for each in (second, third)] == ["cancelled", "cancelled"]
    assert (await replica.get(failed.id)).error_code == "predecessor-failed"


async def test_an_end_that_is_handled_late_does_not_fail_what_a_cancel_cancels(replica: Replica) -> None:
    """A server handles the old end of the task before it reaches the cancel."""
    job = await replica.register()
    first = await replica.submit(job)
    second = await replica.submit(job, after={"tasks": [first.id]})
    assert await replica.claim(job.worker_id) is not None
    await report(replica, first.id, status="failed")
    cancel = Report(SUBMITTER, first.id, TaskUpdateRequest(status=TaskStatus.CANCELLED, tree=True))
    await replica.runtime.cancel_tree(cancel)
    [old, _] = sorted(row.n for row in await replica.rows(Wave.__table__))
    await replica.runtime.write(rules_waves.handle, rules_waves.Rules(only=old))
    await handle(replica)
    assert (await replica.get(second.id)).status is TaskStatus.CANCELLED


async def test_a_bulk_cancel_with_trees_cancels_what_waits(replica: Replica) -> None:
    """As the cancel of one task does."""
    job, late = await replica.register(), await replica.register("Late")
    first = await replica.submit(job)
    second = await replica.submit(late, after={"tasks": [first.id]})
    chosen = TaskFilter(room=["lab"], job=[job.full_name])
    confirmed = rules_searches.Confirmed(ADMIN, BulkAction.CANCEL, chosen, 2**60, tree=True)
    await rules_searches.apply(replica.runtime.database.read, replica.runtime.write, confirmed, None)
    await handle(replica)
    assert (await replica.get(second.id)).status is TaskStatus.CANCELLED


async def test_a_task_waits_for_groups(replica: Replica) -> None:
    """It runs after the end of the group; if one of the tasks did not complete, its policy decides."""
    job = await replica.register()
    runtime = replica.runtime
    new = rules_groups.GroupToMake(SUBMITTER, "lab", NewGroup())
    group = await runtime.write(rules_groups.create, new)
    members = [await replica.submit(job, group=group.id) for _ in range(2)]
    fails = await replica.submit(job, after={"groups": [group.id]})
    holds = await replica.submit(job, after={"groups": [group.id], "on_failure": "hold"})
    runs = await replica.submit(job, after={"groups": [group.id], "on_failure": "run"})
    await end(replica, job)
    await end(replica, job, status="failed")
    assert (await replica.get(fails.id)).waits, "the group is not sealed"
    await runtime.write(rules_groups.seal, group.id)
    await handle(replica)
    assert (await replica.get(fails.id)).error_code == "predecessor-failed"
    assert await end(replica, job) == runs.id
    assert await replica.claim(job.worker_id) is None
    await replica.act(rules_task_actions.retry, members[1].id)
    assert await end(replica, job) == members[1].id
    assert await end(replica, job) == holds.id
    late = await replica.submit(job, after={"groups": [group.id]})
    await handle(replica)
    assert await end(replica, job) == late.id


async def test_a_batch_names_earlier_items(replica: Replica) -> None:
    """Also in payloads, and one that holds a unique key already."""
    job = await replica.register(schema=OBJECT)
    held = await replica.submit(job, {"x": 1}, unique={"key": "a"})
    tasks = await batch(
        replica,
        job,
        {"payload": {"x": 1}, "unique": {"key": "a"}},
        {"payload": {"x": {"$result": {"task": 0}}}, "after": {"tasks": [0]}},
        {"payload": {"all": [{"$result": {"task": 1, "pointer": "/y/0"}}, 2]}, "after": {"tasks": [0, 1]}},
    )
    assert tasks[0].duplicate
    assert tasks[0].id == held.id
    assert await end(replica, job, 7) == held.id
    assert (await replica.get(tasks[1].id)).payload == {"x": 7}
    assert await end(replica, job, {"y": ["z"]}) == tasks[1].id
    assert (await replica.get(tasks[2].id)).payload == {"all": ["z", 2]}
    assert (await replica.get(tasks[2].id)).after.tasks == [held.id, tasks[1].id]


async def test_results_that_do_not_fit_fail_the_task(replica: Replica) -> None:
    """The error has the pointer. Long results become references, which no schema refuses."""
    job, source = await replica.register(schema=OBJECT), await replica.register("Source")
    first = await replica.submit(source)

    async def waiting(pointer: str, key: str = "x") -> TaskResponse:
        value = {"$result": {"task": str(first.id), "pointer": pointer}}
        return await replica.submit(job, {key: value}, after={"tasks": [first.id]})

    fits, nowhere, misfit, long = [await waiting(pointer) for pointer in ("/n", "/no/where", "/s", "")]
    await end(replica, source, {"n": 1, "s": "text"})
    assert (await replica.get(fits.id)).payload == {"x": 1}
    for task, text in (
        (nowhere, "has nothing at '/no/where'"),
        (misfit, "payload/x: "),
        (long, "payload/x: "),
    ):
        ended = await replica.get(task.id)
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, "predecessor-result-invalid")
        assert text in (ended.error or "")
        assert "payload/x" in (ended.error or "")
    with pytest.raises(InvalidPayload, match="payload/all"):
        await replica.submit(
            job, {"x": {"$result": {"task": str(first.id)}}, "all": 1}, after={"tasks": [first.id]}
        )
    first = await replica.submit(source)
    large = await waiting("/s")
    await end(replica, source, {"s": "x" * 70_000})
    reference = {"$result": {"task": str(first.id), "pointer": "/s"}, "id": str(first.id)}
    assert (await replica.get(large.id)).payload == {"x": reference}
    assert (await replica.get(large.id)).queue_position is not None


async def seq_of(replica: Replica, task: TaskResponse) -> int:
    """Return the number of a task."""
    [row] = await replica.rows(Task.__table__, Task.__table__.c.id == task.id)
    return int(row.seq)


async def test_a_value_that_cannot_be_handled_stops_no_other(replica: Replica) -> None:
    """Its own task fails, and what waits for other ends goes on, also if a whole transaction fails."""
    job, source = await replica.register(), await replica.register("Source")
    first = await replica.submit(source)
    deep: Any = {"$result": {"task": str(first.id)}}
    for _ in range(150):
        deep = [deep]
    poison = await replica.submit(job, {"x": deep}, after={"tasks": [first.id]})
    other = await replica.submit(job, after={"tasks": [first.id]})
    value: Any = 1
    for _ in range(150):
        value = [value]
    await end(replica, source, value)
    assert (await replica.get(poison.id)).error_code == "predecessor-result-invalid"
    assert (await replica.get(other.id)).queue_position == 1
    # Without its schema, a job cannot be handled: the transaction fails.
    ends = [await replica.submit(source) for _ in range(2)]
    tasks = [
        await replica.submit(job, {"x": {"$result": {"task": str(each.id)}}}, after={"tasks": [each.id]})
        for each in ends
    ]
    for each in ends:
        task = await replica.claim(source.worker_id)
        assert task is not None
        await report(replica, each.id, 1)
    await replica.execute(
        sql_text("UPDATE joblib_task SET payload = '{' WHERE seq = :seq").bindparams(
            seq=await seq_of(replica, tasks[0])
        )
    )
    loop = Successors(replica.runtime)
    with pytest.raises(ValueError, match="EOF"):
        await loop.handle_all()
    await loop._handle_others()
    assert (await replica.get(tasks[1].id)).payload == {"x": 1}


async def handle_free(replica: Replica) -> None:
    """Handle the ends that no other transaction has locked."""
    while (await replica.runtime.write(rules_waves.handle)).may_be_more:
        pass


@pytest.mark.parametrize("pointer", [None, "/x"])
async def test_long_fans_do_not_delay_others(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, pointer: str | None
) -> None:
    """Ends take turns, also if a transaction reads only the first two of them and fills two payloads."""
    monkeypatch.setattr(rules_waves, "_MAX_WAVES", 2)
    monkeypatch.setattr(rules_waves, "_MAX_FILLED", 2)
    job = await replica.register()
    firsts = [await replica.submit(job) for _ in range(4)]
    tasks = [
        await replica.submit(
            job,
            {} if pointer is None else {"x": {"$result": {"task": str(first.id), "pointer": pointer}}},
            after={"tasks": [first.id]},
        )
        for first, number in zip(firsts, (9, 9, 1, 1), strict=True)
        for _ in range(number)
    ]
    for first in firsts:
        assert await replica.claim(job.worker_id) is not None
        await report(replica, first.id, {"x": 1})
    for _ in range(2):
        await replica.runtime.write(rules_waves.handle, rules_waves.Rules(tasks=4))
    assert [(await replica.get(task.id)).waits for task in tasks[-2:]] == [None, None]
    await handle(replica)
    assert [(await replica.get(task.id)).waits for task in tasks] == [None] * len(tasks)


async def test_rooms_take_turns(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A room with many ends, and with a long fan, delays no other; of more rooms each gets its turn."""
    monkeypatch.setattr(rules_waves, "_MAX_WAVES", 4)
    job = await replica.register()
    fans = {"many": [1] * 12, "fan": [40], "other": [1], "last": [1], "one more": [1]}
    firsts = [(await replica.submit(job, room=room), number) for room in fans for number in fans[room]]
    tasks = {
        room: [
            await replica.submit(job, room=room, after={"tasks": [first.id]})
            for first, number in firsts
            if first.room_id == room
            for _ in range(number)
        ]
        for room in fans
    }
    for _ in firsts:
        task = await replica.claim(job.worker_id)
        assert task is not None
        await report(replica, task.id)

    async def released(room: str) -> int:
        return sum([(await replica.get(task.id)).waits is None for task in tasks[room]])

    handled = await replica.runtime.write(rules_waves.handle, rules_waves.Rules(tasks=8))
    # The first four by name: each has a quarter of the transaction.
    assert [await released(room) for room in fans] == [1, 5, 0, 1, 1]
    rules = rules_waves.Rules(tasks=8, first_room=handled.next_room)
    handled = await replica.runtime.write(rules_waves.handle, rules)
    assert await released("other") == 1
    await handle(replica)
    assert [await released(room) for room in fans] == [12, 40, 1, 1, 1]


async def test_a_plain_task_is_released_before_the_checks_of_those_in_front(replica: Replica) -> None:
    """The loop looks behind those that wait for checks, and at them again."""
    job, plain = await replica.register(), await replica.register("Plain")
    first = await replica.submit(plain)
    value = {"x": {"$result": {"task": str(first.id)}}}
    others = [await replica.submit(job, value, after={"tasks": [first.id]}) for _ in range(25)]
    task = await replica.submit(plain, after={"tasks": [first.id]})
    assert await replica.claim(plain.worker_id) is not None
    await report(replica, first.id, 1)
    passed: dict[int, int] = {}
    for _ in range(3):
        rules = rules_waves.Rules(tasks=10, busy=[job.id], passed=passed)
        handled = await replica.runtime.write(rules_waves.handle, rules)
        passed |= handled.passed
    assert (await replica.get(task.id)).waits is None
    assert (await replica.get(others[0].id)).waits
    await handle(replica)
    assert [(await replica.get(other.id)).waits for other in others] == [None] * len(others)


async def test_a_fan_with_results_does_not_delay_the_plain_ones_of_its_predecessor(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction passes over the payloads that it does not fill."""
    monkeypatch.setattr(rules_waves, "_MAX_FILLED", 2)
    job = await replica.register()
    first = await replica.submit(job)
    value = {"x": {"$result": {"task": str(first.id)}}}
    for payload in (value, value, value, {}):
        task = await replica.submit(job, payload, after={"tasks": [first.id]})
    assert await replica.claim(job.worker_id) is not None
    await report(replica, first.id, 1)
    handled = await replica.runtime.write(rules_waves.handle)
    assert (handled.number, handled.may_be_more) == (3, True)
    assert (await replica.get(task.id)).waits is None
    await handle(replica)


async def test_ends_that_were_not_read_are_kept(replica: Replica) -> None:
    """A transaction whose bound ends within one predecessor leaves all others to the next."""
    job = await replica.register()
    firsts = [await replica.submit(job) for _ in range(4)]
    tasks = [await replica.submit(job, after={"tasks": [each.id]}) for each in firsts for _ in range(3)]
    for each in firsts:
        assert await replica.claim(job.worker_id) is not None
        await report(replica, each.id)
    handled = rules_waves.Handled(may_be_more=True)
    while handled.may_be_more:
        handled = await replica.runtime.write(rules_waves.handle, rules_waves.Rules(tasks=2))
    assert [(await replica.get(each.id)).waits for each in tasks] == [None] * len(tasks)


async def test_slow_checks_of_filled_payloads_run_before_the_release(replica: Replica) -> None:
    """In the process of the validator, not in the transaction."""
    schema = {"properties": {"x": {"pattern": "^a+$", "type": "string"}}}
    job, source = await replica.register(schema=schema), await replica.register("Source")
    tasks = []
    for text in ("aaa", "b"):
        first = await replica.submit(source)
        value = {"$result": {"task": str(first.id)}}
        tasks.append(await replica.submit(job, {"x": value}, after={"tasks": [first.id]}))
        await end(replica, source, text)
    assert (await replica.get(tasks[0].id)).payload == {"x": "aaa"}
    assert (await replica.get(tasks[0].id)).queue_position == 1
    assert (await replica.get(tasks[1].id)).error_code == "predecessor-result-invalid"
    await replica.runtime.payload_validator.close()


async def test_slow_checks_delay_no_other(replica: Replica) -> None:
    """They run beside the loop, a few of each job; what waits for other ends goes on."""
    schema = {"properties": {"x": {"items": {"anyOf": [{"pattern": f"^b{n}+$"} for n in range(300)]}}}}
    job, source = await replica.register(schema=schema), await replica.register("Source")
    plain = await replica.register("Plain")
    slow = []
    for n in range(4):
        first = await replica.submit(source)
        value = {"x": {"$result": {"task": str(first.id)}}}
        slow.append(await replica.submit(job, value, after={"tasks": [first.id]}))
        assert await replica.claim(source.worker_id) is not None
        await report(replica, first.id, ["a"] * 15_000 + [str(n)])
    first = await replica.submit(plain)
    task = await replica.submit(plain, after={"tasks": [first.id]})
    loop = Successors(replica.runtime)
    work = asyncio.create_task(loop.run())
    await until(loop._checks.jobs)
    assert await replica.claim(plain.worker_id) is not None
    await report(replica, first.id)

    async def is_queued() -> bool:
        return (await replica.get(task.id)).queue_position == 1

    await until(is_queued)
    assert (await replica.get(slow[-1].id)).waits
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert loop._checks.jobs() == frozenset()
    await replica.runtime.payload_validator.close()


async def test_many_slow_checks_of_one_predecessor_are_made_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is released right after its check. Else so many others are checked before its turn that its
    result is forgotten: of 6,000 tasks none was ever released.
    """
    monkeypatch.setattr(successors, "_MAX_CHECKED", 4)
    monkeypatch.setattr(successors, "Rules", partial(rules_waves.Rules, tasks=4))
    schema = {"properties": {"x": {"pattern": "^a+$", "type": "string"}}}
    job, source = await replica.register(schema=schema), await replica.register("Source")
    first = await replica.submit(source)
    value, after = {"$result": {"task": str(first.id)}}, {"tasks": [first.id]}
    await batch(replica, job, *({"payload": {"x": value, "n": n}, "after": after} for n in range(40)))
    assert await replica.claim(source.worker_id) is not None
    await report(replica, first.id, "aaa")
    validator, checked = replica.runtime.payload_validator, list[dict[str, Any]]()
    fault = validator.fault

    async def counted(schema: str, payload: dict[str, Any], user: str = "") -> InvalidPayload | None:
        checked.append(payload)
        return await fault(schema, payload, user)

    monkeypatch.setattr(validator, "fault", counted)
    await asyncio.wait_for(handle(replica), TIMEOUT)
    assert 40 <= len(checked) < 60
    await validator.close()


async def test_what_cannot_be_waited_for_is_refused(replica: Replica) -> None:
    """With the field and what to do."""
    job = await replica.register()
    other = await replica.submit(job, room="other")
    group = await replica.runtime.write(
        rules_groups.create, rules_groups.GroupToMake(SUBMITTER, "other", NewGroup())
    )
    own = await replica.submit(job)
    for after, payload, text in (
        ({"tasks": [uuid4()]}, {}, "after.tasks: room 'lab' has no task"),
        ({"tasks": [own.id, other.id]}, {}, "after.tasks: room 'lab' has no task"),
        ({"groups": [group.id]}, {}, "after.groups: room 'lab' has no group"),
        (
            {"tasks": [own.id]},
            {"a": [{"$result": {"task": str(other.id)}}]},
            "payload/a/0/.result: task .* is not",
        ),
        ({"tasks": [own.id]}, {"a": {"$result": {"pointer": "x"}}}, 'must be an object with "task"'),
        ({"tasks": [own.id]}, {"a": {"$result": {"task": str(own.id), "pointer": "x"}}}, "JSON pointer"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            await replica.submit(job, payload, after=after)
    assert await replica.rows(Edge.__table__) == []
    assert await replica.rows(Successor.__table__) == []


async def test_nothing_is_deleted_that_a_task_still_needs(replica: Replica) -> None:
    """Neither by the retention nor by a purge. Afterwards its edges go with it."""
    job = await replica.register()
    first, second = await replica.submit(job), await replica.submit(job)
    task = await replica.submit(job, after={"tasks": [first.id, second.id]})
    await end(replica, job)
    settings = JobLibSettings(keep_finished_days=1e-9)

    async def prune() -> int:
        state, deleted, may_be_more = TaskPruning(), 0, True
        while may_be_more:
            number, may_be_more, state = await replica.runtime.write(
                rules_task_retention.prune, settings, state
            )
            deleted += number
        confirmed = rules_searches.Confirmed(ADMIN, BulkAction.PURGE, TaskFilter(room=["lab"]), 2**60)
        read, write = replica.runtime.database.read, replica.runtime.write
        return deleted + (await rules_searches.apply(read, write, confirmed, None)).affected

    assert await prune() == 0
    await end(replica, job)
    assert await prune() == 0
    assert await end(replica, job) == task.id
    await asyncio.sleep(0)
    assert await prune() == 3
    assert await replica.rows(Edge.__table__) == []
    assert await replica.rows(Successor.__table__) == []


async def test_waiting_tasks_expire_and_keep_their_keys(replica: Replica) -> None:
    """A submit that replaces one changes its payload, and it waits as before."""
    job = await replica.register()
    first = await replica.submit(job)
    expires = await replica.submit(job, after={"tasks": [first.id]}, expires_in_seconds=0.001)
    task = await replica.submit(job, {"a": 1}, after={"tasks": [first.id]}, unique={"key": "k"})
    replaced = await replica.submit(job, {"a": 2}, unique={"key": "k", "on_conflict": "replace"})
    assert (replaced.id, replaced.waits) == (task.id, True)
    await replica.runtime.write(rules_sweep.fail_expired)
    assert (await replica.get(expires.id)).error_code == "task-expired"
    assert await replica.runtime.write(rules_sweep.enqueue_due) == 0
    assert (await replica.runtime.write(rules_sweep.next_due)).seconds is None
    await end(replica, job)
    assert await end(replica, job) == task.id
    assert (await replica.get(task.id)).payload == {"a": 2}


async def test_the_last_ends_at_the_same_time_release_a_task_once(open_replica: OpenReplica) -> None:
    """Two servers report the ends, submit after them, and handle the ends together."""
    servers = [open_replica(), open_replica()]
    job = await servers[0].register()
    for _ in range(5):
        ids = [(await servers[0].submit(job)).id for _ in range(4)]
        for id_ in ids:
            assert await servers[0].claim(job.worker_id) is not None
            await servers[0].report(id_, "running")
        work = [servers[index % 2].report(id_, "completed") for index, id_ in enumerate(ids)]
        submits = [servers[index % 2].submit(job, after={"tasks": ids}) for index in range(4)]
        results = await asyncio.gather(*work, *submits)
        await asyncio.gather(*(Successors(server.runtime).handle_all() for server in servers))
        await handle(servers[0])
        waiting = {task.id for task in results[4:]}
        assert {await end(servers[0], job) for _ in waiting} == waiting
        assert await servers[1].claim(job.worker_id) is None


async def test_a_transaction_handles_a_part_and_leaves_the_rest(replica: Replica) -> None:
    """A fan and a chain that are longer than its bounds end after several."""
    job = await replica.register()
    first = await replica.submit(job)
    fan = [await replica.submit(job, after={"tasks": [first.id], "on_failure": "run"}) for _ in range(7)]
    chain = [first.id]
    for _ in range(7):
        chain.append((await replica.submit(job, after={"tasks": [chain[-1]]})).id)
    task = await replica.claim(job.worker_id)
    assert task is not None
    await replica.report(task.id, "failed", error="no")
    rules, handled = rules_waves.Rules(tasks=3), rules_waves.Handled(may_be_more=True)
    numbers = []
    while handled.may_be_more or handled.number:
        handled = await replica.runtime.write(rules_waves.handle, rules)
        numbers.append(handled.number)
    assert max(numbers) == 3
    assert sum(numbers) >= 14
    assert {(await replica.get(id_)).status for id_ in chain} == {TaskStatus.FAILED}
    assert {await end(replica, job) for _ in fan} == {each.id for each in fan}
    assert not [row for row in await replica.rows(Task.__table__) if row.status == "pending"]
