"""Two hosts on one PostgreSQL database, whose Socket.IO servers know only the sockets of their process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from rest import claim, register, report, submit
from waiting import until

from realtime.sockets import LiveServer
from realtime.test_hosts import Host, Wrapper
from realtime.test_providers import URL, join, register_provider, upload, wait_for_requests
from zndraw_joblib import register_socketio_handlers

Pair = tuple[LiveServer, LiveServer]


@pytest.fixture(params=["plain", "wrapper"])
async def pair(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[Pair]:
    """Serve two hosts, which use no Redis."""
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(2):
            host = Host(postgres_url, (lambda sio: sio) if request.param == "plain" else Wrapper)
            register_socketio_handlers(host.sio, host.joblib)
            servers.append(await stack.enter_async_context(host.serve()))
        await until(lambda: all(server.runtime.pubsub.peers for server in servers))
        yield servers[0], servers[1]


async def test_events_reach_the_sockets_of_the_other_host(pair: Pair) -> None:
    """Each event arrives once and in order, at front-ends and at workers."""
    here, there = pair
    near, far, worker = await here.connect("lab"), await there.connect("lab"), await there.connect()
    rest = await here.rest()
    job = await register(rest)
    assert await worker.call("join_job_room", job_name=job["full_name"], worker_id=job["worker_id"]) == {}
    task = await submit(rest, job)
    await claim(rest, job["worker_id"])
    await report(rest, task, "cancelled")
    expected = ["pending", "claimed", "cancelled"]
    await until(lambda: "cancelled" in str(far.received) and "cancelled" in str(worker.received))
    assert await far.new_statuses() == await near.new_statuses() == expected
    received = await worker.new_events()
    assert [data.get("status", name) for name, data in received] == ["task_available", "cancelled"]


async def test_a_provider_request_reaches_a_worker_of_the_other_host(pair: Pair) -> None:
    """Its socket is in the room of the provider there."""
    here, there = pair
    rest, worker = await here.rest(), await there.connect()
    provider = await register_provider(rest)
    assert await join(worker, provider) == {}
    asking = asyncio.create_task(rest.get(URL, headers={"Prefer": "wait=20"}))
    [request] = await wait_for_requests(worker)
    await upload(rest, provider, request["request_id"], b"answer")
    assert (await asking).content == b"answer"


async def test_a_user_is_disconnected_on_both_hosts(pair: Pair) -> None:
    """The host calls `disconnect_user` on one of them."""
    here, there = pair
    sockets = [await server.connect("lab", token="eve") for server in pair]
    stays = await there.connect("lab", token="bob")
    here.joblib.disconnect_user("eve")
    await asyncio.wait_for(asyncio.gather(*[socket.client.wait() for socket in sockets]), 30)
    assert await stays.new_events() == []
