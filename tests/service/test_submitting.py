"""A submitted task enters the end of its queue, or is refused without an effect on its batch."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from databases import every_kind
from pydantic_core import to_json
from replica import ADMIN, SUBMITTER, InternalExecutor, Replica, internal

from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_tasks
from zndraw_joblib.server.queue.rules_payloads import UnvalidatedPayload
from zndraw_joblib.wire.events import TaskAvailable, TaskStatusEvent, room_of, workers_of
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import INTERNAL, parse_job_name
from zndraw_joblib.wire.problems import InternalJobNotConfigured, InvalidPayload, JobNotFound, TaskNotFound
from zndraw_joblib.wire.statuses import TaskStatus

NUMBERS = {"type": "object", "properties": {"n": {"type": "number"}}}


def submission(job: str, payload: dict[str, Any] | None = None, **fields: Any) -> rules_tasks.Submission:
    """Return one item of a batch."""
    values = {"caller": SUBMITTER, "room_id": "lab", "job": parse_job_name(job), "payload": payload or {}}
    return rules_tasks.Submission(**values | fields)


async def test_a_submitted_task_is_pending(replica: Replica) -> None:
    """The response has its position; its room gets an event, then its workers."""
    job = await replica.register()
    replica.events.clear()
    task = await replica.submit(job, {"angle": 3})
    assert (task.status, task.queue_position, task.attempt) == (TaskStatus.PENDING, 1, 0)
    assert (task.payload, task.created_by, task.room_id) == ({"angle": 3}, SUBMITTER.id, "lab")
    assert (task.started_at, task.completed_at, task.worker_id, task.error) == (None,) * 4
    (status, status_room), (available, available_room) = replica.events
    assert isinstance(status, TaskStatusEvent)
    assert (status.id, status.status, status.queue_position) == (task.id, TaskStatus.PENDING, 1)
    assert available == TaskAvailable(job_name=job.full_name, room_id="lab", task_id=task.id)
    assert (status_room, available_room) == (room_of("lab"), workers_of(job.full_name))
    assert await replica.get(task.id) == task


async def test_positions_within_a_batch_continue(replica: Replica) -> None:
    """Items of one batch follow the pending tasks of their jobs, in order."""
    names = [(await replica.register(name)).full_name for name in ("A", "B")]
    await replica.submit(names[0])
    batch = [submission(names[turn]) for turn in (0, 1, 0, 0, 1)]
    submitted = await replica.runtime.write(lambda tx: rules_tasks.submit(tx, batch))
    assert all(isinstance(task, TaskResponse) for task in submitted)
    assert [task.queue_position for task in submitted] == [2, 1, 3, 4, 2]
    for task in submitted:
        assert await replica.get(task.id) == task


async def test_invalid_items_of_a_batch_are_refused_alone(replica: Replica) -> None:
    """Each item gets its task or its problem, in order; refused items publish no event.

    No payload is validated in the transaction: one without a check against the current schema is refused.
    """
    job, checked = await replica.register("A"), await replica.register("B", schema=NUMBERS)
    deleted, foreign = await replica.register("C", "lab"), await replica.register("D", "elsewhere")
    await replica.leave(deleted.worker_id)
    await replica.register("Render", INTERNAL, by=ADMIN)
    replica.events.clear()
    batch: list[tuple[Any, type]] = [
        (submission(job.full_name), TaskResponse),
        (submission("@global:modifiers:Unknown"), JobNotFound),
        (submission(checked.full_name, {"n": "one"}), UnvalidatedPayload),
        (submission(checked.full_name, {"n": 1}, validated_schema="{}"), UnvalidatedPayload),
        (submission(checked.full_name, {"n": "one"}, validate_payload=False), TaskResponse),
        (submission(deleted.full_name), JobNotFound),
        (submission(foreign.full_name), JobNotFound),
        (submission(foreign.full_name, cross_room=True), TaskResponse),
        (submission(str(internal())), InternalJobNotConfigured),
        (submission(checked.full_name, {"n": 1}, validated_schema=to_json(NUMBERS).decode()), TaskResponse),
    ]
    results = await replica.runtime.write(lambda tx: rules_tasks.submit(tx, [item for item, _ in batch]))
    assert [type(answer) for answer in results] == [expected for _, expected in batch]
    submitted = [answer.id for answer in results if isinstance(answer, TaskResponse)]
    assert [row.id for row in await replica.rows(Task.__table__)] == submitted
    assert Counter(replica.statuses()) == {TaskStatus.PENDING: len(submitted)}


async def test_an_item_that_breaks_its_batch_fails_alone(replica: Replica) -> None:
    """An item that the database cannot store gets an error; the other items of the batch succeed."""
    job = await replica.register()
    payloads = [{"n": index} if index != 7 else {"n": object()} for index in range(16)]
    results = await asyncio.gather(
        *[replica.submit(job, payload) for payload in payloads], return_exceptions=True
    )
    broken = [answer for answer in results if isinstance(answer, Exception)]
    assert len(broken) == 1
    assert results[7] is broken[0]
    [row] = await replica.rows(Job.__table__)
    assert row.pending == 15
    positions = [answer.queue_position for answer in results if isinstance(answer, TaskResponse)]
    assert sorted(positions) == list(range(1, 16))


async def test_every_error_of_a_payload_is_returned(replica: Replica) -> None:
    """Each error has the JSON pointer of its location."""
    schema = {"properties": {"a/b": {"type": "integer"}, "c": {"items": {"type": "string"}}}}
    job = await replica.register(schema=schema)
    with pytest.raises(InvalidPayload) as refused:
        await replica.submit(job, {"a/b": "x", "c": ["ok", 5]})
    errors = refused.value.problem.model_dump()["errors"]
    assert sorted(error["pointer"] for error in errors) == ["/a~1b", "/c/1"]


async def test_json_values_are_kept(replica: Replica, subtests: pytest.Subtests) -> None:
    """Payload and result are stored as sent, with the order of their keys."""
    for value in ["\x00", "ä\U0001f600", 2**70, 1e300, [[]], {"": None}, True, "x" * 100_000]:
        with subtests.test(value=value):
            job = await replica.register()
            payload = {"z": value, "a": value}
            task = await replica.submit(job, payload)
            claimed = await replica.claim(job.worker_id)
            assert claimed is not None
            assert claimed.payload == payload
            await replica.report(task.id, TaskStatus.RUNNING)
            await replica.report(task.id, TaskStatus.COMPLETED, result=value)
            found = await replica.get(task.id)
            assert found.payload == payload
            assert list(found.payload) == ["z", "a"]
            assert found.result == value


async def test_an_unknown_task_is_not_found(replica: Replica) -> None:
    """An unknown id is a `TaskNotFound`."""
    with pytest.raises(TaskNotFound):
        await replica.get(UUID(int=0))


@pytest.fixture
async def executor(replica: Replica) -> InternalExecutor:
    """Return the executor of an internal job."""
    await replica.register("Render", INTERNAL, by=ADMIN)
    executor = InternalExecutor()
    replica.registry = InternalRegistry({str(internal()): executor})
    replica.events.clear()
    return executor


async def test_an_internal_task_is_committed_before_it_is_dispatched(
    replica: Replica, executor: InternalExecutor
) -> None:
    """It is committed as claimed, has one event, and wakes no remote worker."""

    async def check_row(task_id: UUID) -> None:
        assert (await replica.get(task_id)).status == TaskStatus.CLAIMED

    executor.on_call = check_row
    task = await replica.submit(str(internal()), {"frame": 1})
    assert (task.status, task.queue_position, task.worker_id) == (TaskStatus.CLAIMED, None, None)
    assert executor.calls == [{"task_id": str(task.id), "room_id": "lab", "payload": {"frame": 1}}]
    assert replica.statuses() == [TaskStatus.CLAIMED]
    assert not [event for event, _ in replica.events if isinstance(event, TaskAvailable)]


async def test_an_executor_may_report_before_the_submit_returns(
    replica: Replica, executor: InternalExecutor
) -> None:
    """Its reports stay."""

    async def run(task_id: UUID) -> None:
        for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
            await replica.report(task_id, status, by=ADMIN)

    executor.on_call = run
    task = await replica.submit(str(internal()))
    assert (await replica.get(task.id)).status == TaskStatus.COMPLETED
    assert replica.statuses() == [TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.COMPLETED]


async def test_a_refused_dispatch_fails_the_task(
    replica: Replica, executor: InternalExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """The submitter gets the failed task, an event is published, and the log has the reason."""

    async def refuse(_: UUID) -> None:
        raise ConnectionError("no broker")

    executor.on_call = refuse
    task = await replica.submit(str(internal()))
    assert (task.status, task.error) == (TaskStatus.FAILED, "Failed to dispatch to internal executor")
    assert task.completed_at is not None
    assert replica.statuses() == [TaskStatus.CLAIMED, TaskStatus.FAILED]
    assert "no broker" in caplog.text


async def test_a_broker_error_after_the_start_does_not_fail_the_task(
    replica: Replica, executor: InternalExecutor
) -> None:
    """A task that was started despite the error keeps its status."""

    async def run_and_break(task_id: UUID) -> None:
        await replica.report(task_id, TaskStatus.RUNNING, by=ADMIN)
        raise ConnectionError("the answer was lost")

    executor.on_call = run_and_break
    task = await replica.submit(str(internal()))
    assert task.status == TaskStatus.RUNNING
    await replica.report(task.id, TaskStatus.COMPLETED, by=ADMIN)


async def test_an_internal_job_without_an_executor_is_refused(replica: Replica) -> None:
    """The server responds with an error and stores nothing."""
    await replica.register("Render", INTERNAL, by=ADMIN)
    with pytest.raises(InternalJobNotConfigured):
        await replica.submit(str(internal()))
    assert await replica.rows(Task.__table__) == []


@every_kind
async def test_a_stop_waits_for_running_batches(replica: Replica) -> None:
    """Also for a batch whose callers have all disconnected."""
    job = await replica.register()
    submitting = asyncio.ensure_future(replica.submit(job))
    while not (batches := replica.runtime.submits.batches):  # noqa: ASYNC110 - it is about the very moment
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    submitting.cancel()
    await replica.runtime.finish()
    assert all(batch.done() for batch in batches)
