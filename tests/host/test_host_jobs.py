"""`JobLib(jobs=…)`: an app runs the tasks of its functions itself, without a worker or a broker."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from waiting import until

from host.queues import ROOT, running_host
from zndraw_joblib import (
    Conflict,
    JobLib,
    JobLibSettings,
    JobNotFound,
    JobPolicy,
    ScheduleTimes,
    TaskContext,
    TaskResponse,
    job,
    register_internal_jobs,
)

NOW = datetime.now(UTC)
_GATES: dict[str, asyncio.Event] = {}
_MEETING: dict[str, int] = {}


@job(policy=JobPolicy(max_attempts=3, retry_on=("error",)))
def area(task: TaskContext, width: float, height: float = 1.0) -> dict[str, Any]:
    """Return the area, and where it ran."""
    if task.attempt == 1:
        raise RuntimeError("the first attempt fails")
    task.progress(1, 2, message="multiplying")
    print("multiplying")
    return {"area": width * height, "in_main": threading.current_thread() is threading.main_thread()}


@job
async def meet(name: str, count: int) -> int:
    """Wait until so many tasks run on this event loop; return the id of the loop."""
    event = _GATES.setdefault(name, asyncio.Event())
    _MEETING[name] = _MEETING.get(name, 0) + 1
    if _MEETING[name] == count:
        event.set()
    await event.wait()
    return id(asyncio.get_running_loop())


@job
async def endless(task: TaskContext) -> None:
    """Wait for ever, and note a cancellation."""
    try:
        await asyncio.Event().wait()
    finally:
        _GATES.setdefault(f"ended {task.task_id}", asyncio.Event()).set()


@on_both
async def test_an_app_runs_its_functions(async_url: str) -> None:
    """Functions in threads, coroutines on the app's loop; policy, progress, log and schema as in a worker."""
    async with running_host(async_url, jobs=[area, meet], concurrency=2) as host:
        first = await host.joblib.submit(area.task(width=3), room="lab")
        ended = await host.joblib.wait(first.id, 30)
        assert (ended.result, ended.attempt) == ({"area": 3.0, "in_main": False}, 2)
        assert ended.progress.message == "multiplying"
        assert '"multiplying"' in (await host.client.get(f"{V1}/tasks/{first.id}/log")).text
        path = f"{V1}/rooms/lab/tasks/@internal:jobs:area"
        refused = await host.client.post(path, json={"payload": {"width": "wide"}})
        assert (refused.status_code, "width" in refused.text) == (422, True)
        both = [await host.joblib.submit(meet, {"name": first.id.hex, "count": 2}) for _ in range(2)]
        results = {(await host.joblib.wait(task.id, 30)).result for task in both}
        assert results == {id(asyncio.get_running_loop())}


async def test_a_cancelled_coroutine_gets_cancelled_error(async_url: str) -> None:
    """When its task is cancelled, and when the app stops."""
    async with running_host(async_url, jobs=[endless]) as host:
        tasks = [await host.joblib.submit(endless.task()) for _ in range(2)]
        await until(lambda: are_running(host, tasks))
        await host.joblib.cancel(tasks[0].id)
        await until(lambda: f"ended {tasks[0].id}" in _GATES)
        host.app.state.internal_registry.executor.grace_seconds = 0.01
    await until(lambda: f"ended {tasks[1].id}" in _GATES)


async def are_running(host: Any, tasks: list[TaskResponse]) -> bool:
    """Return whether tasks run."""
    return {(await host.joblib.get(task.id)).status for task in tasks} == {"running"}


async def test_each_replica_runs_tasks(postgres_url: str) -> None:
    """A replica whose slots are taken leaves tasks to another one."""
    url = postgres_url.replace("postgresql:", "postgresql+asyncpg:")
    options: dict[str, Any] = {"jobs": [meet], "concurrency": 1}
    async with running_host(url, **options) as one, running_host(url, **options):
        tasks = [await one.joblib.submit(meet.task(name="replicas", count=2)) for _ in range(2)]
        ended = [await one.joblib.wait(task.id, 60) for task in tasks]
    assert [task.status for task in ended] == ["completed"] * 2
    assert len({task.worker_id for task in ended}) == 2


# Not while the tests run, nor while their clocks are ahead.
CRON = f"0 {(NOW.hour + 12) % 24} * * *"


@job(schedule=ScheduleTimes(cron=CRON, payload={"days": 7}))
def clean(days: int) -> int:
    """Run each night."""
    return days


@on_both
async def test_an_app_writes_the_schedules_of_its_jobs(async_url: str) -> None:
    """Each start of a replica does so, and leaves the state of a schedule as it is."""
    async with running_host(async_url, jobs=[clean]) as host:
        written = await host.joblib.get_schedule("clean", "@internal")
        assert (written.job, written.cron, written.payload) == ("@internal:jobs:clean", CRON, {"days": 7})
        task = await host.joblib.run_schedule("clean", "@internal")
        assert (await host.joblib.wait(task.id, 30)).result == 7
        await host.joblib.pause_schedule("clean", "@internal")
        async with running_host(async_url, jobs=[clean]):
            again = await host.joblib.get_schedule("clean", "@internal")
        assert (again.paused, again.next_due_at) == (True, written.next_due_at)


@on_both
async def test_what_an_app_leaves_behind_without_its_job_is_found(async_url: str) -> None:
    """Its schedule and its tasks, with the commands that remove them; other internal jobs still run."""
    settings = JobLibSettings(sweeper_interval_seconds=1)
    async with running_host(async_url, jobs=[clean, area], settings=settings) as host:
        task = await host.joblib.submit(clean, {"days": 3}, delay_seconds=60)

    ahead = [timedelta(minutes=2)]

    def later() -> datetime:
        return datetime.now(UTC) + ahead[0]

    async with running_host(async_url, jobs=[area], settings=settings, clock=later) as host:

        async def found(number: int) -> dict[str, dict[str, Any]]:
            overview = (await host.client.get(f"{V1}/overview")).json()
            named = {finding["code"]: finding for finding in overview["findings"] if finding["job"]}
            return named if (len(named), overview["queued"]) == (number, 1) else {}

        await until(partial(found, 1))
        ahead[0] += timedelta(minutes=3)
        named = await until(partial(found, 2))
        job = named["job-without-executor"]
        assert (job["job"], job["count"], job["severity"]) == ("@internal:jobs:clean", 1, "critical")
        assert "No server that runs has an executor for @internal:jobs:clean: 1 task" in job["detail"]
        assert "--all-rooms --status pending --job @internal:jobs:clean)" in job["remedy"]
        schedule = named["schedule-without-executor"]
        assert (schedule["job"], schedule["room"]) == ("@internal:jobs:clean", "@internal")
        assert "zndraw-joblib schedules delete clean --room @internal." in schedule["remedy"]
        assert "not_dispatched" in (await host.client.get(f"{V1}/tasks/{task.id}/explain")).text
        assert (await host.client.delete(f"{V1}/rooms/@internal/schedules/clean")).is_success
        await host.joblib.cancel(task.id)
        findings = (await host.client.get(f"{V1}/overview")).json()["findings"]
        assert [finding for finding in findings if finding["job"]] == []


async def test_the_app_does_not_start_with_a_wrong_schedule(async_url: str) -> None:
    """The error names the job and the field."""

    @job(schedule="0 3 * * *")
    def hungry(days: int) -> None: ...

    with pytest.raises(ValueError, match=r"schedule of job '@internal:jobs:hungry': .*days"):
        async with running_host(async_url, jobs=[hungry]):
            pass


async def test_the_app_names_its_own_jobs(async_url: str) -> None:
    """A class means the internal job in each method; before the queue's start the error says why it fails."""
    engine = create_async_engine(async_url)
    joblib = JobLib(session_maker=async_sessionmaker(engine), identity=lambda: ROOT, jobs=[area])
    await joblib.prepare_tables()
    for early in (
        joblib.submit(area.task(width=3)),
        joblib.put_schedule("early", area, {"width": 1}, at=NOW),
    ):
        with pytest.raises(JobNotFound, match=r"@internal:jobs:area.* at the end of the app's start"):
            await early
    await engine.dispose()
    async with running_host(async_url, jobs=[area]) as host:
        assert (await host.joblib.get_job(area)).full_name == "@internal:jobs:area"
        assert (await host.joblib.pause_job(area)).paused is True
        schedule = await host.joblib.put_schedule("soon", area, {"width": 3}, every_seconds=3600)
        assert (schedule.job, schedule.room_id) == ("@internal:jobs:area", "default")
        group = await host.joblib.create_group("lab", on_end=area, payload={"width": 3})
        assert group.on_end.job == "@internal:jobs:area"
        with pytest.raises(Conflict, match="declared by the server"):
            await host.joblib.register_job(area)


async def test_jobs_are_checked_at_once(sessions: Any, tmp_path: Any) -> None:
    """Modules and names of files count too; the error names what is no job."""
    module = ModuleType("some_jobs")
    exec("from zndraw_joblib import job\n@job\ndef one() -> None: ...", vars(module))  # noqa: S102 - a module
    (tmp_path / "more_jobs_of_an_app.py").write_text(
        "from zndraw_joblib import job\n@job\ndef two() -> None: ..."
    )

    def queue(*jobs: Any, **options: Any) -> JobLib:
        return JobLib(session_maker=sessions, identity=lambda: ROOT, jobs=jobs, **options)

    queue(module, str(tmp_path / "more_jobs_of_an_app.py"), area)
    with pytest.raises(TypeError, match="decorate it with @job"):
        queue(lambda: None)
    with pytest.raises(ValueError, match="concurrency=0"):
        queue(area, concurrency=0)
    app = FastAPI()
    queue(area).mount(app)
    with pytest.raises(RuntimeError, match="add these to the list"):
        await register_internal_jobs(app, None, [area], None, sessions)
