"""`JobLib(jobs=…)`: an app runs the tasks of its functions itself, without a worker or a broker."""

import asyncio
import threading
from types import ModuleType
from typing import Any

import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1
from waiting import until

from host.queues import ROOT, running_host
from zndraw_joblib import JobLib, JobPolicy, TaskContext, TaskResponse, job, register_internal_jobs

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

    @job(schedule="* * * * *")
    def regular() -> None:
        pass

    with pytest.raises(ValueError, match="regular has a schedule"):
        queue(regular)
    app = FastAPI()
    queue(area).mount(app)
    with pytest.raises(RuntimeError, match="add these to the list"):
        await register_internal_jobs(app, None, [area], None, sessions)
