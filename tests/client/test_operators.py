"""What superusers do with `Queue` and `AsyncQueue`: jobs without workers, pauses, and limits."""

from datetime import UTC, datetime, timedelta

import pytest

from client.both import Both
from client.jobs import Area
from zndraw_joblib import Rate
from zndraw_joblib.wire.problems import Conflict, InvalidRequest, JobNotFound, LimitNotFound


async def test_a_job_waits_for_its_worker_and_is_forgotten(queue: Both, room: str) -> None:
    """Registered by name or class; omitted fields keep their value; tasks wait, and keep it."""
    operator, name = Both(queue.operator), f"{room}:jobs:early"
    schema = {"type": "object", "required": ["width"]}
    job = await operator.register_job(name, schema, max_attempts=3)
    assert (job.full_name, job.workers, job.max_attempts) == (name, [], 3)
    changed = await operator.register_job(name, priority=2)
    assert (changed.schema_, changed.max_attempts, changed.priority) == (schema, 3, 2)
    task = await queue.submit(name, {"width": 1})
    with pytest.raises(Conflict, match="pending"):
        await operator.forget_job(name)
    await task.cancel()
    await operator.forget_job(name)
    with pytest.raises(JobNotFound):
        await operator.forget_job(name)
    with pytest.raises(ValueError, match="max_attempts"):
        await operator.register_job(name, max_attempts=0)
    registered = await operator.register_job(Area)
    assert registered.schema_ == Area.model_json_schema()
    await operator.forget_job(Area)


async def test_tasks_are_moved_to_the_current_version(queue: Both, room: str) -> None:
    """A job has its versions; tasks whose payloads do not match stay, and unknown versions are errors."""
    operator, name = Both(queue.operator), f"{room}:jobs:grows"
    schema = {"properties": {"x": {"type": "integer", "maximum": 5}}}
    await operator.register_job(name, schema)
    tasks = [await queue.submit(name, {"x": x}) for x in (3, 4)]
    await operator.register_job(name, {"properties": {"x": {"type": "integer"}}})
    versions = (await operator.job(name)).versions
    assert [(one.version, one.current, one.pending) for one in versions] == [(2, True, 0), (1, False, 2)]
    result = await operator.retarget(name, [1])
    assert (result.affected, result.is_complete) == (2, True)
    assert [(await task.refresh()).version for task in tasks] == [2, 2]
    assert (await operator.retarget(name)).affected == 0
    with pytest.raises(InvalidRequest, match="no earlier version 7"):
        await operator.retarget(name, [7])
    with pytest.raises(JobNotFound):
        await operator.job(f"{room}:jobs:nope")
    for task in tasks:
        await task.cancel()


async def test_jobs_and_rooms_are_paused(queue: Both, room: str) -> None:
    """Until a time or a resume; the list has the rooms."""
    operator, name = Both(queue.operator), f"{room}:jobs:later"
    await operator.register_job(name)
    until = datetime.now(UTC) + timedelta(days=1)
    assert (await operator.pause_job(name, until)).paused_until == until
    assert not (await operator.resume_job(name)).paused
    [pause] = (await operator.pause_room(room, until)).pauses
    assert (pause.room, pause.until) == (room, until)
    assert room in [entry.room for entry in await operator.pauses()]
    assert not (await operator.resume_room(room)).paused
    assert (await operator.pause_room(None)).paused
    assert not (await operator.resume_room(None)).paused
    with pytest.raises(InvalidRequest, match="until"):
        await operator.pause_room(room, datetime(2020, 1, 1, tzinfo=UTC))


async def test_limits_that_jobs_share(queue: Both, room: str) -> None:
    """Defined, replaced, listed and deleted, unless a job has one; wrong names and values are errors."""
    operator, name = Both(queue.operator), f"{room}.api"
    limit = await operator.put_limit(name, rate=Rate(count=100, per_seconds=60))
    assert (limit.name, limit.max_in_flight, limit.rate) == (name, None, Rate(count=100, per_seconds=60))
    assert (await operator.put_limit(name, max_in_flight=2)).rate is None
    assert (await operator.get_limit(name)).max_in_flight == 2
    assert name in [entry.name for entry in await operator.limits()]
    job = f"{room}:jobs:limited"
    await operator.register_job(job, limits=[{"name": name}])
    with pytest.raises(Conflict, match=job):
        await operator.delete_limit(name)
    await operator.register_job(job, limits=[])
    await operator.delete_limit(name)
    with pytest.raises(LimitNotFound, match=name):
        await operator.get_limit(name)
    with pytest.raises(InvalidRequest, match="max_in_flight, or rate"):
        await operator.put_limit(name)
    with pytest.raises(ValueError, match="per_seconds"):
        await operator.put_limit(name, rate={"count": 1})
    with pytest.raises(ValueError, match="'a b' is no name of a limit"):
        await operator.put_limit("a b", max_in_flight=1)
    await operator.forget_job(job)
