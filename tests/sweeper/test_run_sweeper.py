"""`run_sweeper`, which a host starts once and which runs until it is cancelled."""

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
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from waiting import TIMEOUT_SECONDS, until

from sweeper.mounted_queue import EventRecorder, MountedQueue
from zndraw_joblib import JobLibSettings, JobsInvalidate, TaskStatusEvent, run_sweeper

Sessions = async_sessionmaker[AsyncSession]
# The queue's clock in these tests is ahead of the database's clock, which `run_sweeper` uses.
EXPIRE_ALL = "UPDATE joblib_worker SET last_heartbeat = '2020-01-01 00:00:00+00:00'"


@pytest.fixture
def quick() -> JobLibSettings:
    """Return settings with short intervals."""
    return JobLibSettings(worker_timeout_seconds=0.1, sweeper_interval_seconds=0.2)


@asynccontextmanager
async def sweeping(
    get_session: Callable[[], Any], settings: JobLibSettings, tsio: Any = None
) -> AsyncIterator[Any]:
    """Run a sweeper; check that it still runs at the end."""
    task = asyncio.create_task(run_sweeper(get_session=get_session, settings=settings, tsio=tsio))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def claimed_by_a_silent_worker(queue: MountedQueue) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job, and a task that its worker has claimed before it became silent."""
    job = await queue.register()
    task = await queue.submit_and_claim(job)
    await queue.execute(EXPIRE_ALL)
    return job, task


async def wait_until_removed(queue: MountedQueue, worker_id: str) -> None:
    """Wait until a worker is removed."""

    async def is_removed() -> bool:
        return worker_id not in await queue.worker_ids()

    await until(is_removed, interval=0.01)


class CountingSessions:
    """An async generator function that counts its calls and its open sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.calls = self.open = self.most = 0
        self.failures = 0

    async def __call__(self) -> AsyncIterator[AsyncSession]:
        """Open a session, or raise the next planned failure."""
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("database unavailable")
        async with self.sessions() as session:
            self.open += 1
            self.most = max(self.most, self.open)
            try:
                yield session
            finally:
                self.open -= 1


class HeldRecorder(EventRecorder):
    """A recorder whose `emit` waits until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.released = asyncio.Event(), asyncio.Event()

    async def emit(self, model: BaseModel, *, room: str) -> None:
        """Record a model after the release."""
        self.held.set()
        await self.released.wait()
        await super().emit(model, room=room)


def generator_function(sessions: Sessions) -> Callable[[], AsyncIterator[AsyncSession]]:
    """Return a plain async generator function."""

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    return get_session


@pytest.mark.parametrize("source", ["generator", "object", "maker"])
async def test_it_accepts_each_kind_of_session_factory(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings, source: str
) -> None:
    """An async generator function, a callable that returns one, and an `async_sessionmaker`."""
    get_session = {
        "generator": generator_function(sessions),
        "object": CountingSessions(sessions),
        "maker": sessions,
    }[source]
    job, task = await claimed_by_a_silent_worker(queue)
    async with sweeping(get_session, quick):
        await wait_until_removed(queue, job["worker_id"])
    assert (await queue.get_task(task))["error"] == "Worker disconnected"


async def test_each_cycle_opens_its_sessions_in_sequence(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """For workers, for tasks, then for old rows; none is open between cycles or before the first one."""
    caplog.set_level(logging.DEBUG, "zndraw_joblib.server.background.sweeper")
    counted = CountingSessions(sessions)

    def cycles() -> int:
        return len([record for record in caplog.records if record.message.startswith("Swept")])

    started = time.monotonic()
    async with sweeping(counted, quick):
        await until(lambda: counted.calls)
        assert time.monotonic() - started >= quick.sweeper_interval_seconds * 0.9
        await until(lambda: cycles() >= 1 and not counted.open, interval=0)
        # The first cycle also restores rows that older servers did not write.
        first = counted.calls
        await until(lambda: cycles() >= 3 and not counted.open, interval=0)
        assert (counted.calls - first) % (cycles() - 1) == 0
        assert (counted.most, counted.open) == (1, 0)


async def test_no_error_ends_it(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures are logged, at most one line each 10 s, and later cycles do the work."""
    counted = CountingSessions(sessions)
    counted.failures = 5
    job = await queue.register()
    await queue.execute(EXPIRE_ALL)
    async with sweeping(counted, quick):
        await wait_until_removed(queue, job["worker_id"])
    assert counted.failures == 0
    assert "removing each alone: Database unavailable" in caplog.text


async def test_a_failing_socket_server_does_not_end_it(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """The changes are committed, and the sweeper tries to send each event."""

    class Broken(EventRecorder):
        async def emit(self, model: Any, *, room: str) -> None:
            await super().emit(model, room=room)
            raise ConnectionError("no connection")

    job, task = await claimed_by_a_silent_worker(queue)
    broken = Broken()
    async with sweeping(sessions, quick, broken):
        await wait_until_removed(queue, job["worker_id"])
        await until(lambda: len(broken.emitted) == 2)
    assert (await queue.get_task(task))["status"] == "failed"


async def test_a_typed_wrapper_receives_models(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """The sweeper calls `emit(model, room=…)`."""
    job, task = await claimed_by_a_silent_worker(queue)
    recorder = EventRecorder()
    async with sweeping(sessions, quick, recorder):
        await wait_until_removed(queue, job["worker_id"])
        await until(lambda: len(recorder.emitted) == 2)
    failed, invalidated = recorder.emitted
    assert isinstance(failed[0], TaskStatusEvent)
    assert (str(failed[0].id), failed[0].status, failed[1]) == (task["id"], "failed", "room:lab")
    assert invalidated == (JobsInvalidate(), "room:@global")


@asynccontextmanager
async def socket_server() -> AsyncIterator[tuple[socketio.AsyncServer, str]]:
    """Serve Socket.IO on a port; each client joins the room `room:lab`."""
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


async def test_a_socketio_client_receives_the_event(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """A client in the room receives the event by its name, as JSON, with ids and times as strings."""
    _, task = await claimed_by_a_silent_worker(queue)
    async with socket_server() as (tsio, url):
        front_end = socketio.SimpleClient(request_timeout=TIMEOUT_SECONDS)
        await asyncio.to_thread(front_end.connect, url, wait_timeout=TIMEOUT_SECONDS)
        async with sweeping(sessions, quick, tsio):
            name, event = await asyncio.to_thread(front_end.receive, timeout=TIMEOUT_SECONDS)
        await asyncio.to_thread(front_end.disconnect)
    after = await queue.get_task(task)
    assert name == "task_status_event"
    same = ("id", "room_id", "status", "created_at", "started_at", "completed_at", "worker_id", "error")
    assert event == {
        "name": task["job_name"],
        "queue_position": None,
        **{field: after[field] for field in same},
    }
    assert (event["status"], event["error"]) == ("failed", "Worker disconnected")


async def test_changed_settings_apply_to_the_next_cycle(queue: MountedQueue, sessions: Sessions) -> None:
    """A shorter timeout applies without a restart."""
    settings = JobLibSettings(worker_timeout_seconds=3600, sweeper_interval_seconds=0.2)
    job = await queue.register()
    await queue.execute(EXPIRE_ALL)
    counted = CountingSessions(sessions)
    async with sweeping(counted, settings):
        await until(lambda: counted.calls >= 4)
        assert await queue.worker_ids() == {job["worker_id"]}
        settings.worker_timeout_seconds = 0.1
        await wait_until_removed(queue, job["worker_id"])


async def test_a_cancellation_ends_it(sessions: Sessions, quick: JobLibSettings) -> None:
    """It ends at once and leaves no session open."""
    counted = CountingSessions(sessions)
    task = asyncio.create_task(run_sweeper(get_session=counted, settings=quick))
    await until(lambda: counted.calls)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert counted.open == 0


async def test_a_cancellation_waits_for_the_events_of_a_commit(
    queue: MountedQueue, sessions: Sessions, quick: JobLibSettings
) -> None:
    """The events of a task that it has failed are sent to the end."""
    _, task = await claimed_by_a_silent_worker(queue)
    recorder = HeldRecorder()
    sweeper = asyncio.create_task(run_sweeper(get_session=sessions, settings=quick, tsio=recorder))
    await until(recorder.held.is_set)
    sweeper.cancel()
    await asyncio.sleep(0)
    recorder.released.set()
    with pytest.raises(asyncio.CancelledError):
        await sweeper
    assert recorder.statuses(task) == ["failed"]
    assert recorder.emitted[-1] == (JobsInvalidate(), "room:@global")


async def test_a_tight_timeout_is_logged_as_a_warning(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, with the names and values of both settings."""
    settings = JobLibSettings(worker_timeout_seconds=10, sweeper_interval_seconds=30)
    async with sweeping(sessions, settings):
        await until(lambda: caplog.records)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "sweeper_interval_seconds (30)" in record.message
    assert "worker_timeout_seconds (10)" in record.message
