"""Who may join which room, and how a refusal is told."""

import asyncio

import pytest
import socketio
from rest import UNKNOWN_ID, claim, register, submit

from live.sockets import Live, names
from zndraw_joblib.server.realtime.rooms import MAX_ROOMS


@pytest.mark.parametrize("transport", ["websocket", "polling"])
@pytest.mark.parametrize("by", ["auth", "header"])
async def test_a_token_opens_a_connection(live: Live, by: str, transport: str) -> None:
    """In `auth` or in the header, by either transport."""
    header = {"Authorization": f"Bearer {live.token}"}
    how = {"auth": None, "headers": header} if by == "header" else {}
    front = await live.socket("lab", transports=[transport], **how)
    rest = await live.rest()
    await submit(rest, await register(rest))
    assert await front.statuses() == ["pending"]


@pytest.mark.parametrize("auth", [None, {}, {"token": ""}, {"token": "wrong"}, {"token": 7}, "text", ["x"]])
async def test_without_a_good_token_there_is_no_connection(live: Live, auth: object) -> None:
    """The refusal carries the problem."""
    client = socketio.AsyncClient(reconnection=False)
    refused: list[dict[str, object]] = []
    client.on("connect_error", refused.append)
    with pytest.raises(socketio.exceptions.ConnectionError):
        await client.connect(live.url, auth=auth, transports=["websocket"])
    [refusal] = refused
    assert refusal["data"]["type"] == "/v1/problems/unauthorized"
    assert refusal["data"]["status"] == 401
    await client.shutdown()


async def test_a_revoked_token_joins_nothing_more(live: Live) -> None:
    """Who a socket is, is asked at each join; a token is believed for some seconds after it was looked up."""
    front = await live.socket("lab", token=await live.user("ada"))
    await live.runtime.write(lambda tx: _revoke(tx, "ada"))
    async with asyncio.timeout(10):
        while (answer := await front.ask("join_room", room_id="attic")) == {}:
            await front.ask("leave_room", room_id="attic")
    assert answer["status"] == 401


async def _revoke(tx: object, name: str) -> None:
    from zndraw_joblib.server.store import tokens

    await tokens.remove(tx, name)


async def test_a_worker_joins_the_rooms_of_its_jobs(live: Live) -> None:
    """And hears of tasks from then on, until it leaves."""
    token = await live.user("ada")
    rest, worker = await live.rest(token), await live.socket(token=token)
    job = await register(rest, room="lab")
    join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
    assert await worker.ask("join_job_room", **join) == {}
    await submit(rest, job)
    assert names(await worker.settled()) == ["task_available"]
    assert await worker.ask("leave_job_room", **join) == {}
    await submit(rest, job)
    assert await worker.settled() == []


async def test_a_join_that_is_refused_says_why(live: Live) -> None:
    """By the acknowledgement, and by the event `problem` for those who asked for none; nothing is joined."""
    ada, bob = await live.user("ada"), await live.user("bob")
    rest = await live.rest(ada)
    job = await register(rest, room="lab")
    name, worker_id = job["full_name"], job["worker_id"]
    socket = await live.socket(token=bob)
    owner = await live.socket(token=ada)
    refusals = [
        (socket, {"job_name": name, "worker_id": worker_id}, 403, "forbidden"),
        (owner, {"job_name": "lab:modifiers:Other", "worker_id": worker_id}, 404, "job-not-found"),
        (owner, {"job_name": "nonsense", "worker_id": worker_id}, 404, "job-not-found"),
        (owner, {"job_name": name, "worker_id": UNKNOWN_ID}, 404, "worker-not-found"),
        (owner, {"job_name": name, "worker_id": "x"}, 422, "invalid-request"),
        (owner, {"job_name": name}, 422, "invalid-request"),
    ]
    for who, join, status, kind in refusals:
        answer = await who.ask("join_job_room", **join)
        assert (answer["status"], answer["type"]) == (status, f"/v1/problems/{kind}"), answer
        assert answer["detail"]
        await who.settled()
        assert who.refusals[-1] == answer
    await submit(rest, job)
    assert [await socket.settled(), await owner.settled()] == [[], []]


@pytest.mark.parametrize("room", ["", "a:b", "a@b", "@nowhere", "a/b", "x" * 200, None, 5, "@*"])
async def test_a_room_that_cannot_be(live: Live, room: object) -> None:
    """It is refused as over REST, with a problem."""
    front = await live.socket()
    assert (await front.ask("join_room", room_id=room))["status"] in {400, 422}


async def test_a_provider_that_nobody_has(live: Live) -> None:
    """The room of a provider is for the worker that has it."""
    rest = await live.rest()
    job = await register(rest)
    socket = await live.socket()
    join = {"provider_name": "@global:files:Disk", "worker_id": job["worker_id"]}
    assert (await socket.ask("join_provider_room", **join))["status"] == 404
    assert await socket.ask("leave_provider_room", **join) == {}


async def test_a_front_end_leaves_its_rooms(live: Live) -> None:
    """One after the other; what concerns all rooms comes until the last one."""
    rest, front = await live.rest(), await live.socket("lab", "attic")
    assert await front.ask("leave_room", room_id="lab") == {}
    job = await register(rest)
    await submit(rest, job)
    assert names(await front.settled()) == ["jobs_invalidate"]
    assert await front.ask("leave_room", room_id="attic") == {}
    await register(rest, "Other")
    assert await front.settled() == []


async def test_a_socket_joins_so_many_rooms_and_no_more(live: Live) -> None:
    """The bound is told; what it leaves makes place."""
    # The room of all rooms is among them.
    front = await live.socket("a", *[f"room-{number}" for number in range(MAX_ROOMS - 2)])
    assert (await front.ask("join_room", room_id="c"))["status"] == 429
    assert await front.ask("join_room", room_id="a") == {}
    await front.ask("leave_room", room_id="a")
    assert await front.ask("join_room", room_id="c") == {}


async def test_a_room_of_somebody_else_cannot_be_left_into(live: Live) -> None:
    """Leaving what one has not joined changes nothing, for nobody."""
    front, other = await live.socket("lab"), await live.socket()
    assert await other.ask("leave_room", room_id="lab") == {}
    rest = await live.rest()
    await submit(rest, await register(rest))
    assert await front.statuses() == ["pending"]
    assert await other.settled() == []


async def test_a_message_that_is_too_large_ends_the_connection(live: Live) -> None:
    """And nothing else: others go on."""
    front, other = await live.socket("lab"), await live.socket("lab")
    await front.client.emit("join_room", {"room_id": "x" * 200_000})
    await front.client.wait()
    rest = await live.rest()
    job = await register(rest)
    await submit(rest, job)
    assert await other.statuses() == ["pending"]
    assert await claim(rest, job["worker_id"]) is not None
