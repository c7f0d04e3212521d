"""A host's function is called after the end of a task: at least once, also after a crash."""

import asyncio
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from databases import on_both
from seeds import prune_ended
from sqlalchemy import func, select, text
from waiting import until

from host.queues import ROOT, Host, running_host
from zndraw_joblib import JobLib, JobLibSettings, Task, TaskResponse
from zndraw_joblib.server.queue import rules_details
from zndraw_joblib.wire.messages import TaskToSubmit

BOUND = 120
_PROCESS = """
import asyncio, sys
from pathlib import Path
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from zndraw_joblib import JobLib, JobLibSettings

async def main(url, path, mode):
    engine, app = create_async_engine(url), FastAPI()
    settings = JobLibSettings(on_end_timeout_seconds=1)
    joblib = JobLib(session_maker=async_sessionmaker(engine), identity=lambda: None, settings=settings)

    @joblib.on_end("record")
    async def record(task):
        print("called", flush=True)
        if mode == "block":
            await asyncio.sleep(3600)
        Path(path).write_text(f"{task.id} {task.status}")
        print("done", flush=True)

    joblib.mount(app)
    async with app.router.lifespan_context(app):
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


class Calls:
    """Functions of a host that record their calls; `faults` is how many of them fail."""

    def __init__(self) -> None:
        self.tasks: list[TaskResponse] = []
        self.faults = 0
        self.hanging: list[UUID] = []
        self.released = threading.Event()

    async def record(self, task: TaskResponse) -> None:
        """Record the task."""
        self.tasks.append(task)
        if self.faults:
            self.faults -= 1
            raise RuntimeError("the mail server is away")

    def in_thread(self, task: TaskResponse) -> None:
        """Record the task; there is no event loop in a thread."""
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        self.tasks.append(task)

    @property
    def functions(self) -> dict[str, Any]:
        """The functions by their names."""
        return {"record": self.record, "thread": self.in_thread}

    def hang(self, task: TaskResponse) -> None:
        """Occupy a thread until the test sets `released`; then fail at the first call of each task."""
        self.hanging.append(task.id)
        assert self.released.wait(BOUND)
        if self.hanging.count(task.id) == 1:
            raise RuntimeError("the disk was away")

    async def reach(self, count: int) -> None:
        """Wait for a number of calls."""
        await until(lambda: len(self.tasks) >= count)


@pytest.fixture
def calls() -> Calls:
    """Return functions."""
    return Calls()


@pytest.fixture
async def host(async_url: str, calls: Calls) -> AsyncIterator[Host]:
    """Run a host with these functions."""
    settings = JobLibSettings(on_end_max_attempts=2)
    async with (
        asyncio.timeout(BOUND),
        running_host(async_url, on_end=calls.functions, settings=settings) as host,
    ):
        yield host


async def left(host: Host) -> int:
    """Return how many tasks have a function that was not called."""
    async with host.engine.connect() as connection:
        found = await connection.execute(text("SELECT count(*) FROM joblib_task WHERE on_end IS NOT NULL"))
        return int(found.scalar_one())


async def due_at(host: Host) -> datetime:
    """Return when the first hanging call would be made again."""
    async with host.sessions() as session:
        earliest = select(func.min(Task.on_end_due_at)).where(Task.on_end_attempts > 0)
        found = (await session.execute(earliest)).scalar_one()
    assert isinstance(found, datetime)
    return found


async def due_after(host: Host, time: datetime) -> bool:
    """Return whether all leases of hanging calls end after a time."""
    return await due_at(host) > time


async def all_called(host: Host) -> bool:
    """Return whether no function is left to call."""
    return await left(host) == 0


@on_both
async def test_functions_are_called_once_with_the_ended_task(host: Host, calls: Calls) -> None:
    """After success, failure and cancellation; not for tasks that name none, and not before the end."""
    job = await host.register()
    submit, name = host.joblib.submit, job["full_name"]
    await submit(name, room="lab")
    done = await submit(name, room="lab", on_end="record")
    [failed] = await host.joblib.submit_many([TaskToSubmit(room_id="lab", job_name=name)], on_end="thread")
    async with host.sessions.begin() as session:
        cancelled = await submit(name, room="lab", on_end="record", session=session)
    await host.end(job)
    await host.end(job, result=7)
    await host.end(job, "failed", error="no")
    await host.joblib.cancel(cancelled.id)
    await calls.reach(3)
    await until(lambda: all_called(host))
    found = {task.id: (task.status.value, task.result, task.error) for task in calls.tasks}
    assert found == {
        done.id: ("completed", 7, None),
        failed.id: ("failed", None, "no"),
        cancelled.id: ("cancelled", None, None),
    }
    assert len(calls.tasks) == 3


@on_both
async def test_a_function_that_fails_is_called_again(
    host: Host, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """After a pause; after the last attempt one line of the log says so."""
    job = await host.register()
    calls.faults = 3
    for _ in range(2):
        await host.joblib.submit(job["full_name"], room="lab", on_end="record")
    await host.end(job)
    await calls.reach(2)
    await until(lambda: "Gave up on_end=record" in caplog.text)
    assert "Repeat on_end=record" in caplog.text
    assert caplog.text.count("Gave up on_end=record") == await left(host) == 1
    await host.end(job)
    await calls.reach(4)
    await until(lambda: all_called(host))
    assert caplog.text.count("Gave up on_end=record") == 1


async def test_unknown_names_and_wrong_functions_are_errors(host: Host) -> None:
    """The error lists the names that are known."""
    job = await host.register()
    with pytest.raises(ValueError, match="known are: record, thread"):
        await host.joblib.submit(job["full_name"], on_end="recrod")
    with pytest.raises(ValueError, match="already the name"):
        host.joblib.on_end("record")(print)
    with pytest.raises(TypeError, match="not a function"):
        host.joblib.on_end("other")(5)  # type: ignore[type-var]


async def test_a_function_that_is_added_later_is_called(host: Host, calls: Calls) -> None:
    """A process that does not know the name leaves the call to others."""
    job = await host.register()
    idle = JobLib(session_maker=host.sessions, identity=lambda: ROOT, on_end={"late": calls.record})
    await idle.submit(job["full_name"], room="lab", on_end="late")
    await host.end(job)
    await host.joblib.submit(job["full_name"], room="lab", on_end="record")
    await host.end(job)
    await calls.reach(1)
    assert await left(host) >= 1
    host.joblib.on_end("late")(calls.record)
    await calls.reach(2)
    await until(lambda: all_called(host))


@on_both
async def test_two_replicas_call_it_once(async_url: str, host: Host, calls: Calls) -> None:
    """Each call is leased by one of them."""
    job = await host.register()
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(running_host(async_url, on_end=calls.functions))
        made = [
            await each.joblib.submit(job["full_name"], room="lab", on_end="record")
            for each in (host, other) * 10
        ]
        for _ in made:
            await host.end(job)
        await calls.reach(len(made))
        await until(lambda: all_called(host))
    assert sorted(task.id for task in calls.tasks) == sorted(task.id for task in made)


@pytest.mark.slow
async def test_functions_that_hang_stop_no_others(async_url: str, calls: Calls) -> None:
    """They occupy no thread of the server, and none starts again beside its own thread, on any replica.

    A process has at most ten calls of one function, with those that exceed the time limit.
    """
    functions = {**calls.functions, "hang": calls.hang}
    settings = JobLibSettings(on_end_timeout_seconds=2, on_end_max_attempts=2)
    async with (
        asyncio.timeout(BOUND),
        running_host(async_url, on_end=functions, settings=settings) as host,
        running_host(async_url, on_end=functions, settings=settings),
    ):
        job = await host.register()
        names = ["hang"] * 25 + ["record", "thread"]
        for name in names:
            await host.joblib.submit(job["full_name"], room="lab", on_end=name)
        for _ in names:
            await host.end(job)
        await calls.reach(2)
        await until(lambda: len(calls.hanging) == 20)
        assert (await host.client.get("/v1/joblib/metrics")).status_code == 200
        first = await due_at(host)
        await until(lambda: due_after(host, first + timedelta(seconds=5)))  # a lease has 3 s
        assert (len(set(calls.hanging)), len(calls.hanging)) == (20, 20)
        calls.released.set()
        await until(lambda: all_called(host))
        assert (len(set(calls.hanging)), len(calls.hanging)) == (25, 50)


async def test_a_result_that_is_awaited_extends_the_lease(async_url: str) -> None:
    """A plain function may return an awaitable, which has the time limit once more after the thread."""
    started, released = threading.Event(), threading.Event()
    awaited, ended = asyncio.Event(), asyncio.Event()

    async def finish() -> None:
        awaited.set()
        await ended.wait()

    def begin(_: TaskResponse) -> Any:
        started.set()
        assert released.wait(BOUND)
        return finish()

    async with asyncio.timeout(BOUND), running_host(async_url, on_end={"begin": begin}) as host:
        job = await host.register()
        await host.joblib.submit(job["full_name"], room="lab", on_end="begin")
        await host.end(job)
        await until(started.is_set)
        of_thread = await due_at(host)
        released.set()
        await awaited.wait()
        assert await due_after(host, of_thread)
        ended.set()
        await until(lambda: all_called(host))


async def age(host: Host, days: int) -> None:
    """Let all tasks have ended some days ago, and be known to the statistics."""
    old = "UPDATE joblib_task SET created_at = '2020-01-01', completed_at = datetime('now', :age)"
    async with host.engine.begin() as connection:
        await connection.execute(text("DELETE FROM joblib_statistic_position"))
        await connection.execute(text(old), {"age": f"-{days} days"})


async def test_a_task_with_a_due_function_is_kept_for_a_week_longer(async_url: str, calls: Calls) -> None:
    """The sweeper deletes other old tasks."""
    async with asyncio.timeout(BOUND), running_host(async_url) as host:
        job = await host.register()
        idle = JobLib(session_maker=host.sessions, identity=lambda: ROOT, on_end=calls.functions)
        kept = await idle.submit(job["full_name"], room="lab", on_end="record")
        gone = await idle.submit(job["full_name"], room="lab")
        for _ in range(2):
            await host.end(job)
        write = host.joblib.runtime.write
        await age(host, 3)
        await prune_ended(write, days=1)
        assert [await host.exists(each.id) for each in (kept, gone)] == [True, False]
        await age(host, 9)
        await prune_ended(write, days=1)
        assert not await host.exists(kept.id)


async def test_a_lease_ends_and_a_new_end_is_a_new_call(async_url: str, calls: Calls) -> None:
    """Only the current lease can finish a call; it cannot if the task was retried since."""
    async with asyncio.timeout(BOUND), running_host(async_url) as host:
        job, write = await host.register(), host.joblib.runtime.write
        idle = JobLib(session_maker=host.sessions, identity=lambda: ROOT, on_end=calls.functions)
        task = await idle.submit(job["full_name"], room="lab", on_end="record")
        await host.end(job, "failed")
        [first] = (await write(rules_details.take, {"record": 10}, 10, 0)).leases
        [second] = (await write(rules_details.take, {"record": 10}, 10, 0)).leases
        assert (first.attempt, second.attempt) == (1, 2)
        await write(rules_details.finish, first)
        assert (await host.client.post(f"/v1/joblib/tasks/{task.id}/retry")).status_code == 200
        await write(rules_details.finish, second)
        assert (await write(rules_details.take, {"record": 10}, 10, 0)).leases == []
        await host.end(job)
        [third] = (await write(rules_details.take, {"record": 10}, 10, 60)).leases
        due = await write(rules_details.take, {"record": 10}, 10, 60)
        assert (due.leases, due.seconds) == ([], pytest.approx(60, abs=30))
        await write(rules_details.finish, third)
        assert (await write(rules_details.take, {"record": 10}, 10, 0)) == ([], None)


async def test_a_function_that_ends_its_process_is_given_up(
    async_url: str, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """No attempt was reported as failed, but each has been counted."""
    settings = JobLibSettings(on_end_max_attempts=2)
    async with asyncio.timeout(BOUND), running_host(async_url) as host:
        job = await host.register()
        idle = JobLib(
            session_maker=host.sessions, identity=lambda: ROOT, on_end=calls.functions, settings=settings
        )
        await idle.submit(job["full_name"], room="lab", on_end="record")
        await host.end(job)
        for attempt in (1, 2):
            [lease] = (await host.joblib.runtime.write(rules_details.take, {"record": 10}, 10, 0)).leases
            assert lease.attempt == attempt
        await idle.end_hooks.call_once()
        assert (calls.tasks, await left(host)) == ([], 0)
        assert caplog.text.count("Gave up on_end=record") == 1


@pytest.mark.slow
@pytest.mark.processes
@on_both
async def test_a_killed_host_calls_it_after_its_restart(async_url: str, tmp_path: Path) -> None:
    """The first process is killed between the end of the task and the work of its function."""
    path = tmp_path / "recorded"

    async def start(mode: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PROCESS, async_url, str(path), mode, stdout=PIPE
        )

    async def line(process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        return (await process.stdout.readline()).strip()

    async with asyncio.timeout(BOUND), running_host(async_url) as host:
        job = await host.register()
        idle = JobLib(session_maker=host.sessions, identity=lambda: ROOT, on_end={"record": print})
        task = await idle.submit(job["full_name"], room="lab", on_end="record")
        first = await start("block")
        await host.end(job, result=1)
        assert await line(first) == b"called"
        first.kill()
        await first.wait()
        assert not path.exists()
        second = await start("work")
        assert [await line(second) for _ in range(2)] == [b"called", b"done"]
        assert path.read_text() == f"{task.id} completed"
        await until(lambda: all_called(host))
        second.kill()
        await second.wait()
