"""A worker whose socket is gone is removed after a grace, unless it shows that it lives."""

import asyncio
from typing import Any

import httpx
import pytest
from rest import V1, claim, get_task, register, report, submit
from waiting import until

from live.sockets import Live, Socket
from zndraw_joblib.server.settings import ServerSettings

GRACE = 0.4
LONG = 30


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Shorten the grace; the sweeper and the heartbeats are as slow as ever."""
    settings.disconnect_grace_seconds = GRACE
    return settings


@pytest.fixture
async def rest(live: Live) -> httpx.AsyncClient:
    """Return a superuser's client."""
    return await live.rest()


async def connected(live: Live, job: dict[str, Any]) -> Socket:
    """Return a socket of a job's worker."""
    socket = await live.socket()
    answer = await socket.ask("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
    assert answer == {}
    return socket


async def workers(rest: httpx.AsyncClient) -> list[str]:
    """Return the ids of all workers."""
    return [worker["id"] for worker in (await rest.get(f"{V1}/workers")).json()["items"]]


async def settled(live: Live) -> None:
    """Wait until nobody's grace runs any more."""
    assert live.rooms is not None
    leaving = live.rooms.disconnects._leaving
    await until(lambda: not leaving)


@pytest.mark.parametrize("grace", [0, GRACE])
async def test_a_worker_whose_socket_is_gone_goes(live: Live, rest: httpx.AsyncClient, grace: float) -> None:
    """Its task fails as if it had been silent for long, and its room hears of it."""
    live.runtime.settings.disconnect_grace_seconds = grace
    job = await register(rest, room="lab")
    front, worker = await live.socket("lab"), await connected(live, job)
    task = await submit(rest, job)
    await claim(rest, job["worker_id"])
    await worker.close_sockets()
    await until(lambda: "failed" in str(front.heard))
    task = await get_task(rest, task)
    assert (task["status"], task["error"]) == ("failed", "Worker disconnected")
    assert await workers(rest) == []


async def test_a_grace_that_is_off_takes_nobody(live: Live, rest: httpx.AsyncClient) -> None:
    """-1 leaves it to the sweeper."""
    live.runtime.settings.disconnect_grace_seconds = -1
    job = await register(rest)
    worker = await connected(live, job)
    await worker.close_sockets()
    await until(lambda: live.rooms is not None and not live.rooms.disconnects._sockets)
    await settled(live)
    assert await workers(rest) == [job["worker_id"]]


async def test_a_worker_that_comes_back_stays(live: Live, rest: httpx.AsyncClient) -> None:
    """By a new socket, within the grace."""
    job = await register(rest)
    first = await connected(live, job)
    await first.close_sockets()
    await connected(live, job)
    await asyncio.sleep(2 * GRACE)
    assert await workers(rest) == [job["worker_id"]]


async def test_a_worker_with_another_socket_stays(live: Live, rest: httpx.AsyncClient) -> None:
    """Until the last one is gone."""
    job = await register(rest)
    first, second = await connected(live, job), await connected(live, job)
    await first.close_sockets()
    await asyncio.sleep(2 * GRACE)
    assert await workers(rest) == [job["worker_id"]]
    await second.close_sockets()
    await settled(live)
    await until(lambda: live.rooms is not None and not live.rooms.disconnects._sockets)
    await settled(live)
    assert await workers(rest) == []


@pytest.mark.parametrize("sign", ["heartbeat", "claim", "report", "an open claim"])
async def test_a_worker_that_shows_that_it_lives_stays(
    live: Live, rest: httpx.AsyncClient, sign: str
) -> None:
    """Any request of its own since the socket went saves it."""
    job = await register(rest)
    worker_id = job["worker_id"]
    task = await submit(rest, job)
    await claim(rest, worker_id)
    socket = await connected(live, job)
    waiting = None
    if sign == "an open claim":
        waiting = asyncio.create_task(claim(rest, worker_id, wait=LONG))
        await until(lambda: len(live.runtime.waiters) == 1)
    await socket.close_sockets()
    assert live.rooms is not None
    await until(lambda: live.rooms.disconnects._leaving)
    await asyncio.sleep(GRACE / 4)
    if sign == "heartbeat":
        await rest.patch(f"{V1}/workers/{worker_id}")
    elif sign == "claim":
        assert await claim(rest, worker_id) is None
    elif sign == "report":
        await report(rest, task, "running", worker_id=worker_id)
    await settled(live)
    assert await workers(rest) == [worker_id]
    if waiting is not None:
        live.runtime.waiters.close()
        await waiting


async def test_a_worker_that_left_its_rooms_needs_no_socket(live: Live, rest: httpx.AsyncClient) -> None:
    """It said that it does without; its heartbeats count alone."""
    job = await register(rest)
    socket = await connected(live, job)
    await socket.ask("leave_job_room", job_name=job["full_name"], worker_id=job["worker_id"])
    await socket.close_sockets()
    await asyncio.sleep(2 * GRACE)
    assert await workers(rest) == [job["worker_id"]]


async def test_a_server_that_stops_takes_nobody_with_it(live: Live, rest: httpx.AsyncClient) -> None:
    """All its sockets are gone then, and none of its workers is to blame."""
    live.runtime.settings.disconnect_grace_seconds = 0
    job = await register(rest)
    await connected(live, job)
    live.runtime.waiters.close()
    assert live.rooms is not None
    await live.rooms.close_sockets()
    await until(lambda: live.rooms is not None and not live.rooms.disconnects._sockets)
    await settled(live)
    assert await workers(rest) == [job["worker_id"]]
