"""Schedules with `Queue` and `AsyncQueue`, and those that come with a job."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from waiting import until

from client.both import Both
from client.jobs import Area
from zndraw_joblib import Debounce, ScheduleNotFound, ScheduleTimes, Unique, job
from zndraw_joblib.wire.problems import InvalidPayload, JobNotFound
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


async def test_a_schedule_from_its_creation_to_its_deletion(queue: Both, worker: Make, room: str) -> None:
    """The job is that of a submit: a class's task, or a name; the room is that of the queue."""
    worker().register(Area, room=room)
    schedules = Both(queue.schedules)
    starts_at = datetime.now(UTC) + timedelta(days=1)
    schedule = await schedules.put("later", "Area", {"width": 3}, every_seconds=60, starts_at=starts_at)
    assert (schedule.room_id, schedule.job, schedule.payload) == (room, f"{room}:analysis:Area", {"width": 3})
    assert schedule.next_due_at == starts_at
    await schedules.put("nightly", Area(width=2, height=2), cron="0 3 * * *", paused=True)
    assert [(one.name, one.paused) for one in await schedules.all()] == [("later", False), ("nightly", True)]
    due = await schedules.next("later", 3)
    assert due[0] == starts_at
    assert [later - earlier for earlier, later in pairwise(due)] == [timedelta(minutes=1)] * 2
    assert (await schedules.pause("later")).paused
    assert not (await schedules.resume("later")).paused
    once = await schedules.put(
        "once", "Area", cron="0 3 * * *", unique={"key": "a"}, debounce={"seconds": 60}
    )
    assert (once.unique, once.debounce) == (Unique(key="a"), Debounce(seconds=60))
    tasks = [await schedules.run("once") for _ in range(2)]
    assert [(task.id, task.duplicate) for task in tasks] == [(tasks[0].id, None), (tasks[0].id, True)]
    await schedules.delete("once")
    task = await schedules.run("nightly")
    assert await (await queue.task(task.id)).result(timeout=30) == 4
    await schedules.delete("later")
    with pytest.raises(ScheduleNotFound, match="'later'"):
        await schedules.get("later")


async def test_wrong_schedules_raise(queue: Both, worker: Make, room: str) -> None:
    """Before a request for wrong fields, and with the server's problem for the rest."""
    worker().register(Area, room=room)
    schedules = Both(queue.schedules)
    with pytest.raises(ValueError, match="give one of cron"):
        await schedules.put("wrong", "Area")
    with pytest.raises(ValueError, match="overlap"):
        await schedules.put("wrong", "Area", every_seconds=5, overlap="maybe")
    with pytest.raises(InvalidPayload):
        await schedules.put("wrong", "Area", {"width": "wide"}, every_seconds=5)
    with pytest.raises(JobNotFound):
        await schedules.put("wrong", "Arae", every_seconds=5)
    assert await schedules.all() == []


async def test_a_job_brings_its_schedule(queue: Both, worker: Make, room: str) -> None:
    """A worker that registers it writes the schedule, whose tasks it runs."""
    ran = []

    @job(schedule=ScheduleTimes(every_seconds=1, payload={"number": 7}))
    def tick(number: int) -> None:
        """Count."""
        ran.append(number)

    worker().register(tick, room=room)
    await until(lambda: ran)
    schedules = Both(queue.schedules)
    assert (await schedules.get("tick")).every_seconds == 1
    await schedules.delete("tick")
    assert set(ran) == {7}


def test_a_schedule_of_a_job_is_checked() -> None:
    """A cron expression, or `ScheduleTimes`; anything else is a TypeError that says so."""

    def tick() -> None:
        """Count."""

    assert job(schedule="0 3 * * *")(tick).job_schedule == ScheduleTimes(cron="0 3 * * *")
    with pytest.raises(TypeError, match=r"@job: schedule of .* must be a cron expression or ScheduleTimes"):
        job(schedule=5)(tick)
    with pytest.raises(TypeError, match="croon"):
        ScheduleTimes(**{"croon": "0 3 * * *"})
