"""A worker without a socket is removed after a grace period, unless it connects or sends a request."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest
from rest import V1, claim, get_task, register, report, submit
from waiting import until

from realtime.sockets import LiveServer, Socket
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.realtime.rooms import DisconnectTracker

GRACE = 0.4
LONG = 30


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Shorten the grace period; the sweeper and the heartbeats keep their defaults."""
    settings.disconnect_grace_seconds = GRACE
    return settings


@pytest.fixture
async def rest(server: LiveServer) -> httpx.AsyncClient:
    """Return a superuser's client."""
    return await server.rest()


@pytest.fixture
def tracker(server: LiveServer) -> DisconnectTracker:
    """Return the server's tracker of disconnects."""
    assert server.rooms is not None
    return server.rooms.disconnects


async def connect_worker(server: LiveServer, job: dict[str, Any]) -> Socket:
    """Return a socket of a job's worker."""
    socket = await server.connect()
    join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
    assert await socket.call("join_job_room", **join) == {}
    return socket


async def worker_ids(rest: httpx.AsyncClient) -> list[str]:
    """Return the ids of all workers."""
    return [worker["id"] for worker in (await rest.get(f"{V1}/workers")).json()["items"]]


@pytest.mark.parametrize("grace", [0, GRACE])
async def test_a_disconnected_worker_is_removed(
    server: LiveServer, rest: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, grace: float
) -> None:
    """Its task fails as after a worker timeout, and the task's room gets the event. The log has its name."""
    caplog.set_level("INFO", "zndraw_joblib")
    server.runtime.settings.disconnect_grace_seconds = grace
    job = await register(rest, room="lab", worker={"name": "node7"})
    front, worker = await server.connect("lab"), await connect_worker(server, job)
    task = await submit(rest, job)
    await claim(rest, job["worker_id"])
    await worker.disconnect()
    await until(lambda: "failed" in str(front.received))
    task = await get_task(rest, task)
    assert (task["status"], task["error"]) == ("failed", "Worker disconnected")
    assert await worker_ids(rest) == []
    assert f"removed: worker_id={job['worker_id']} name=node7 " in caplog.text


async def test_a_negative_grace_period_removes_no_worker(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker
) -> None:
    """With -1 the sweeper alone removes workers."""
    server.runtime.settings.disconnect_grace_seconds = -1
    job = await register(rest)
    worker = await connect_worker(server, job)
    await worker.disconnect()
    await until(lambda: tracker.is_idle)
    assert await worker_ids(rest) == [job["worker_id"]]


async def test_a_worker_that_connects_again_stays(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker
) -> None:
    """It connects by a new socket within the grace period."""
    server.runtime.settings.disconnect_grace_seconds = LONG
    job = await register(rest)
    first = await connect_worker(server, job)
    await first.disconnect()
    await until(lambda: tracker.in_grace_period)
    await connect_worker(server, job)
    assert not tracker.in_grace_period
    assert await worker_ids(rest) == [job["worker_id"]]


async def test_a_worker_with_another_socket_stays(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker
) -> None:
    """The grace period begins when the last socket is closed."""
    job = await register(rest)
    first, second = await connect_worker(server, job), await connect_worker(server, job)
    await first.disconnect()
    await asyncio.sleep(2 * GRACE)
    assert not tracker.in_grace_period
    assert await worker_ids(rest) == [job["worker_id"]]
    await second.disconnect()
    await until(lambda: tracker.is_idle)
    assert await worker_ids(rest) == []


class GracePeriod:
    """A grace period that a test ends."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def sleep(self, _: float) -> None:
        """Wait for the test."""
        self.began.set()
        await self.ended.wait()


@pytest.mark.parametrize("sign", ["heartbeat", "claim", "report", "waiting claim"])
async def test_a_worker_that_sends_a_request_stays(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker, sign: str
) -> None:
    """Any request of its own during the grace period counts, and so does a claim that waits."""
    job, grace = await register(rest), GracePeriod()
    tracker.sleep = grace.sleep
    worker_id = job["worker_id"]
    task = await submit(rest, job)
    await claim(rest, worker_id)
    socket = await connect_worker(server, job)
    waiting = None
    if sign == "waiting claim":
        waiting = asyncio.create_task(claim(rest, worker_id, wait=LONG))
        await until(lambda: len(server.runtime.waiters) == 1)
    await socket.disconnect()
    await grace.began.wait()
    if sign == "heartbeat":
        await rest.patch(f"{V1}/workers/{worker_id}")
    elif sign == "claim":
        assert await claim(rest, worker_id) is None
    elif sign == "report":
        await report(rest, task, "running", worker_id=worker_id)
    grace.ended.set()
    await until(lambda: tracker.is_idle)
    assert await worker_ids(rest) == [worker_id]
    if waiting is not None:
        server.runtime.waiters.close()
        await waiting


async def test_a_worker_that_left_its_rooms_needs_no_socket(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker
) -> None:
    """No grace period begins for it when the socket is closed, but for another worker of the socket."""
    job, other = await register(rest), await register(rest)
    socket = await connect_worker(server, job)
    assert await socket.call("join_job_room", job_name=other["full_name"], worker_id=other["worker_id"]) == {}
    await socket.call("leave_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
    await socket.disconnect()
    assert await until(lambda: tracker.in_grace_period) == {UUID(other["worker_id"])}
    await until(lambda: tracker.is_idle)
    assert await worker_ids(rest) == [job["worker_id"]]


async def test_a_server_that_stops_removes_no_worker(
    server: LiveServer, rest: httpx.AsyncClient, tracker: DisconnectTracker
) -> None:
    """The server closes all sockets when it stops, so a closed socket does not mean a dead worker."""
    server.runtime.settings.disconnect_grace_seconds = 0
    job = await register(rest)
    await connect_worker(server, job)
    server.runtime.waiters.close()
    assert server.rooms is not None
    await server.rooms.close_sockets()
    await until(lambda: tracker.is_idle)
    assert await worker_ids(rest) == [job["worker_id"]]
