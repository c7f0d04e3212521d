"""A publisher that hangs or fails never delays or fails committed work."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import socketio
from databases import only_sqlite  # noqa: F401 - a fixture, found by its name
from fastapi import FastAPI
from replica import SUBMITTER, Replica
from rest import claim, register, report, submit
from servers import free_port
from waiting import until

from realtime.sockets import LiveServer, serve
from realtime.test_hosts import KEY, current_user
from zndraw_joblib import JobLib, TaskSubmitRequest, emit, register_socketio_handlers
from zndraw_joblib.server.db.engine import open_engine, open_sessions
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire.events import Emission, JobsInvalidate
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.statuses import TaskStatus

ENOUGH = 30.0
STATUSES = [TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING, TaskStatus.COMPLETED]


class HangingPublisher:
    """A publisher that waits for `released`, then records events."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.begun = 0
        self.events: list[Any] = []

    async def __call__(self, emissions: Sequence[Emission]) -> None:
        """Wait, then record."""
        self.begun += 1
        await self.released.wait()
        self.events += emissions


@pytest.fixture
def hanging(replica: Replica) -> Iterator[HangingPublisher]:
    """Let the replica's publisher hang."""
    publisher = HangingPublisher()
    replica.publish = publisher
    replica.runtime.settings.publish_timeout_seconds = ENOUGH
    yield publisher
    publisher.released.set()


async def test_responses_do_not_wait_for_a_publisher(replica: Replica, hanging: HangingPublisher) -> None:
    """Every request is answered while the first event is being sent; then all events come in order."""
    async with asyncio.timeout(ENOUGH):
        job = await replica.register()
        submitted = await asyncio.gather(*[replica.submit(job) for _ in range(5)])
        task = await replica.running(job)
        await replica.report(task.id, TaskStatus.COMPLETED)
    assert (hanging.begun, hanging.events) == (1, [])
    hanging.released.set()
    await until(lambda: len(hanging.events) >= 1 + 2 * 5 + 3)
    statuses = [event.status for event, _ in hanging.events if getattr(event, "id", None) == task.id]
    assert statuses == STATUSES
    assert task.id in {each.id for each in submitted}


async def test_one_event_has_a_time_limit(
    replica: Replica, hanging: HangingPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    """The next event is sent after it; the log names the setting once."""
    replica.runtime.settings.publish_timeout_seconds = 0.05
    await replica.register()
    await replica.register("Other")
    await until(lambda: hanging.begun == 2)
    hanging.released.set()
    await replica.register("Third")
    await until(lambda: hanging.events)
    assert caplog.text.count("publish_timeout_seconds") == 1


@pytest.mark.parametrize("bound", ["max_queued_events", "max_queued_event_bytes"])
async def test_the_queue_of_events_is_bounded(
    replica: Replica, hanging: HangingPublisher, caplog: pytest.LogCaptureFixture, bound: str
) -> None:
    """The oldest events are dropped and counted; the log has one line at the start and one at the end."""
    setattr(replica.runtime.settings, bound, 3 if bound == "max_queued_events" else 3000)
    caplog.set_level(logging.WARNING)
    job = await replica.register()
    await until(lambda: hanging.begun == 1)
    last = [await replica.submit(job) for _ in range(30)][-1]
    hanging.released.set()
    await until(lambda: last.id in {getattr(event, "id", None) for event, _ in hanging.events})
    assert len(hanging.events) < 30
    dropped = replica.runtime.events.dropped
    assert dropped + len(hanging.events) == 1 + 2 * 30
    logged = [record.getMessage() for record in caplog.records if "drop" in record.getMessage().lower()]
    assert [str(dropped) in line for line in logged] == [False, True]
    assert bound in logged[0]


async def test_a_large_batch_waits_for_its_events(
    replica: Replica, hanging: HangingPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    """None is dropped, however many tasks a client submits; its workers get one event for each batch."""
    replica.runtime.settings.max_queued_events = 500
    hanging.released.set()
    job = await replica.register()
    name, request = parse_job_name(job.full_name), TaskSubmitRequest()
    for _ in range(8):
        items = [replica.runtime.submission(SUBMITTER, "lab", name, request) for _ in range(201)]
        await replica.dispatcher.submit_many(items)
    await until(lambda: len(hanging.events) == 1 + 8 * (201 + 1))
    assert replica.runtime.events.dropped == 0
    assert "dropping" not in caplog.text


async def test_a_batch_does_not_wait_for_a_publisher_that_fails(
    replica: Replica, hanging: HangingPublisher
) -> None:
    """Nor for one that hangs, beyond its time limit for one event."""
    replica.runtime.settings.publish_timeout_seconds = 0.05
    replica.runtime.settings.max_queued_events = 2
    job = await replica.register()
    await replica.submit(job)
    async with asyncio.timeout(ENOUGH), replica.runtime.events.room(1000):
        assert not hanging.events


async def test_a_stop_does_not_wait_for_a_publisher(replica: Replica, hanging: HangingPublisher) -> None:
    """It waits a little, and gives up."""
    await replica.register()
    async with asyncio.timeout(ENOUGH):
        await replica.runtime.finish()
    assert hanging.events == []


async def test_emit_of_a_host_has_a_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    """The sweeper that a host runs by itself sends its events with `emit`."""

    class Hanging:
        async def emit(self, event: Any, *, room: str) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(ENOUGH):
        await emit(Hanging(), [Emission(JobsInvalidate(), "room:lab")] * 1000, seconds=0.05)
    assert "Events not sent" in caplog.text


@pytest.fixture(params=["refused", "silent"])
def broken_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of a Redis that is stopped, or that accepts connections and never answers."""
    if request.param == "refused":
        yield f"redis://127.0.0.1:{free_port()}"
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
async def host(tmp_path: Path, broken_redis_url: str) -> AsyncIterator[LiveServer]:
    """Serve a host whose Socket.IO server uses python-socketio's manager for Redis."""
    engine = open_engine(f"sqlite:///{tmp_path}/host.db")
    manager = socketio.AsyncRedisManager(broken_redis_url)
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=manager)
    app = FastAPI()
    joblib = JobLib(
        session_maker=open_sessions(engine), identity=current_user, settings=JobLibSettings(), tsio=sio
    )
    joblib.mount(app)
    register_socketio_handlers(sio, joblib)
    async with serve(socketio.ASGIApp(sio, app), app, KEY) as server:
        yield server
    await engine.dispose()


async def test_a_hosts_redis_manager_without_redis_stops_no_request(host: LiveServer) -> None:
    """Tasks are submitted, claimed and reported; the sockets of this process get their events."""
    async with asyncio.timeout(ENOUGH):
        rest = await host.rest()
        front = await host.connect("lab")
        job = await register(rest)
        task = await submit(rest, job)
        assert (await claim(rest, job["worker_id"]) or {})["id"] == task["id"]
        assert (await report(rest, task, "cancelled")).status_code == 200
    await until(lambda: ("jobs_invalidate", None) in front.received or front.received)
