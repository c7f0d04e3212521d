"""What superusers do with `Queue` and `AsyncQueue`: jobs without workers, and pauses."""

from datetime import UTC, datetime, timedelta

import pytest

from client.both import Both
from client.jobs import Area
from zndraw_joblib.wire.problems import Conflict, InvalidRequest, JobNotFound


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
