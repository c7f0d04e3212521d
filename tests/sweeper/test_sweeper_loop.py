"""`run_sweeper`: what a host starts once and that never ends by itself."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import socketio
import uvicorn
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from waiting import until

from sweeper.queue import Queue, Wrapper
from zndraw_joblib import JobLibSettings, JobsInvalidate, TaskStatusEvent, run_sweeper

Sessions = async_sessionmaker[AsyncSession]
BOUND = 10
# The clock of the queue in these tests is far ahead of the database's own, by which `run_sweeper` goes.
LONG_SILENT = "UPDATE joblib_worker SET last_heartbeat = '2020-01-01 00:00:00+00:00'"


@pytest.fixture
def quick() -> JobLibSettings:
    """Return settings for a sweeper that needs a blink."""
    return JobLibSettings(worker_timeout_seconds=0.05, sweeper_interval_seconds=0.05)


@asynccontextmanager
async def sweeping(
    get_session: Callable[[], Any], settings: JobLibSettings, tsio: Any = None
) -> AsyncIterator[Any]:
    """Run a sweeper beside the test; it must still run in the end."""
    task = asyncio.create_task(run_sweeper(get_session=get_session, settings=settings, tsio=tsio))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def gone(queue: Queue, worker_id: str) -> float:
    """Wait until a worker is gone; return when that was seen."""
    async with asyncio.timeout(BOUND):
        while worker_id in await queue.workers():  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(0.01)
    return time.monotonic()


class Counted:
    """An async generator function as a host writes it, which counts how often it is called and used."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.calls = self.open = self.most = 0
        self.failures = 0

    async def __call__(self) -> AsyncIterator[AsyncSession]:
        """Open a session, unless it is time to fail."""
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no database today")
        async with self.sessions() as session:
            self.open += 1
            self.most = max(self.most, self.open)
            try:
                yield session
            finally:
                self.open -= 1


def generator_of(sessions: Sessions) -> Callable[[], AsyncIterator[AsyncSession]]:
    """Return a plain async generator function."""

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    return get_session


@pytest.mark.parametrize("source", ["generator", "object", "maker"])
async def test_it_takes_sessions_as_hosts_have_them(
    queue: Queue, sessions: Sessions, quick: JobLibSettings, source: str
) -> None:
    """From an async generator function, a callable that gives one, and an `async_sessionmaker`."""
    get_session = {"generator": generator_of(sessions), "object": Counted(sessions), "maker": sessions}[
        source
    ]
    job = await queue.register()
    task = await queue.hold(job)
    await queue.execute(LONG_SILENT)
    async with sweeping(get_session, quick):
        await gone(queue, job["worker_id"])
    assert (await queue.read(task))["error"] == "Worker disconnected"


async def test_each_cycle_opens_two_sessions_one_after_the_other(
    queue: Queue, sessions: Sessions, quick: JobLibSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """One for the workers, one for the internal tasks; none is open between or before the first tick."""
    caplog.set_level(logging.DEBUG, "zndraw_joblib.server.background.sweeper")
    counted = Counted(sessions)

    def cycles() -> int:
        return len([record for record in caplog.records if record.message.startswith("swept")])

    started = time.monotonic()
    async with sweeping(counted, quick):
        await until(lambda: counted.calls)
        assert time.monotonic() - started >= quick.sweeper_interval_seconds * 0.9
        await until(lambda: cycles() >= 3 and not counted.open, interval=0)
        assert counted.calls == 2 * cycles()
        assert (counted.most, counted.open) == (1, 0)


async def test_no_error_ends_it(
    queue: Queue, sessions: Sessions, quick: JobLibSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails is logged, in either pass, and the next cycles do the work."""
    counted = Counted(sessions)
    counted.failures = 5
    job = await queue.register()
    await queue.execute(LONG_SILENT)
    async with sweeping(counted, quick):
        await gone(queue, job["worker_id"])
    assert counted.failures == 0
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) >= 3


async def test_a_socket_that_fails_ends_nothing(
    queue: Queue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """What was swept is committed; each event that cannot be sent is tried by itself."""

    class Broken(Wrapper):
        async def emit(self, model: Any, *, room: str) -> None:
            await super().emit(model, room=room)
            raise ConnectionError("nobody there")

    job = await queue.register()
    task = await queue.hold(job)
    await queue.execute(LONG_SILENT)
    broken = Broken()
    async with sweeping(sessions, quick, broken):
        await gone(queue, job["worker_id"])
        await until(lambda: len(broken.sent) == 2)
    assert (await queue.read(task))["status"] == "failed"


async def test_a_typed_wrapper_gets_models(queue: Queue, sessions: Sessions, quick: JobLibSettings) -> None:
    """`emit(model, room=…)`: the event itself first, the room as a keyword."""
    job = await queue.register()
    task = await queue.hold(job)
    await queue.execute(LONG_SILENT)
    wrapper = Wrapper()
    async with sweeping(sessions, quick, wrapper):
        await gone(queue, job["worker_id"])
        await until(lambda: len(wrapper.sent) == 2)
    failed, invalidated = wrapper.sent
    assert isinstance(failed[0], TaskStatusEvent)
    assert (str(failed[0].id), failed[0].status, failed[1]) == (task["id"], "failed", "room:lab")
    assert invalidated == (JobsInvalidate(), "room:@global")


@asynccontextmanager
async def socket_server() -> AsyncIterator[tuple[socketio.AsyncServer, str]]:
    """Serve Socket.IO on a real port; who connects joins the room `room:lab`."""
    tsio = socketio.AsyncServer(async_mode="asgi")

    @tsio.event
    async def connect(sid: str, environ: dict[str, Any]) -> None:
        await tsio.enter_room(sid, "room:lab")

    config = uvicorn.Config(socketio.ASGIApp(tsio), log_level="warning", lifespan="off", ws="wsproto")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        yield tsio, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


async def test_a_front_end_hears_of_it_over_socket_io(
    queue: Queue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """A real client in the room gets the event by its name, as JSON, with ids and times as text."""
    job = await queue.register()
    task = await queue.hold(job)
    await queue.execute(LONG_SILENT)
    async with socket_server() as (tsio, url):
        front_end = socketio.SimpleClient()
        await asyncio.to_thread(front_end.connect, url)
        async with sweeping(sessions, quick, tsio):
            name, event = await asyncio.to_thread(front_end.receive, timeout=BOUND)
        await asyncio.to_thread(front_end.disconnect)
    after = await queue.read(task)
    assert name == "task_status_event"
    same = ("id", "room_id", "status", "created_at", "started_at", "completed_at", "worker_id", "error")
    assert event == {
        "name": task["job_name"],
        "queue_position": None,
        **{field: after[field] for field in same},
    }
    assert (event["status"], event["error"]) == ("failed", "Worker disconnected")


async def test_settings_hold_while_it_runs(queue: Queue, sessions: Sessions) -> None:
    """A shorter timeout counts from the next cycle on."""
    settings = JobLibSettings(worker_timeout_seconds=3600, sweeper_interval_seconds=0.05)
    job = await queue.register()
    await queue.execute(LONG_SILENT)
    counted = Counted(sessions)
    async with sweeping(counted, settings):
        await until(lambda: counted.calls >= 4)
        assert await queue.workers() == {job["worker_id"]}
        settings.worker_timeout_seconds = 0.05
        await gone(queue, job["worker_id"])


async def test_it_is_stopped_by_cancelling(sessions: Sessions, quick: JobLibSettings) -> None:
    """As a host does when it shuts down: it ends at once, and leaves no session open."""
    counted = Counted(sessions)
    task = asyncio.create_task(run_sweeper(get_session=counted, settings=quick))
    async with asyncio.timeout(BOUND):
        await until(lambda: counted.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert counted.open == 0


async def test_a_margin_that_is_too_tight_is_warned_of(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, in one sentence with both settings: dead workers would be noticed late."""
    settings = JobLibSettings(worker_timeout_seconds=10, sweeper_interval_seconds=30)
    async with sweeping(sessions, settings):
        await until(lambda: caplog.records)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "sweeper_interval_seconds (30)" in record.message
    assert "worker_timeout_seconds (10)" in record.message
