"""Joining and leaving rooms, and the problems of refused joins."""

from typing import Any

import pytest
import socketio
from rest import UNKNOWN_ID, V1, claim, register, submit

from realtime.sockets import LiveServer, names
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.realtime.rooms import MAX_ROOMS


@pytest.mark.parametrize("transport", ["websocket", "polling"])
@pytest.mark.parametrize("by", ["auth", "header"])
async def test_a_connection_needs_a_token(server: LiveServer, by: str, transport: str) -> None:
    """The token may be in `auth` or in the header, with either transport."""
    header = {"Authorization": f"Bearer {server.token}"}
    options = {"auth": None, "headers": header} if by == "header" else {}
    front = await server.connect("lab", transports=[transport], **options)
    rest = await server.rest()
    await submit(rest, await register(rest))
    assert await front.new_statuses() == ["pending"]


async def test_a_connection_without_a_valid_token_is_refused(
    server: LiveServer, subtests: pytest.Subtests
) -> None:
    """The refusal carries the problem."""
    for auth in [None, {}, {"token": ""}, {"token": "wrong"}, {"token": 7}, "text", ["x"]]:
        with subtests.test(auth=auth):
            client = socketio.AsyncClient(reconnection=False, request_timeout=30)
            refused: list[dict[str, object]] = []
            client.on("connect_error", refused.append)
            with pytest.raises(socketio.exceptions.ConnectionError):
                await client.connect(server.url, auth=auth, transports=["websocket"], wait_timeout=30)
            [refusal] = refused
            assert refusal["data"]["type"] == "/v1/problems/unauthorized"
            assert refusal["data"]["status"] == 401
            await client.shutdown()


async def test_roles_and_rooms_hold_for_sockets(server: LiveServer) -> None:
    """A socket joins rooms of its caller with `read`, and rooms of jobs with `work`, also of `@global`."""
    rights = {"viewer": ["viewer"], "worker": ["worker"], "monitor": ["metrics"]}
    rooms = ["lab", "@global"]
    tokens = {name: await server.create_user(name, roles, rooms) for name, roles in rights.items()}
    front, monitor = (
        await server.connect("lab", token=tokens["viewer"]),
        await server.connect(token=tokens["monitor"]),
    )
    for socket, room, missing in ((front, "vault", "--rooms vault"), (monitor, "lab", "--role viewer")):
        refusal = await socket.call("join_room", room_id=room)
        assert (refusal["status"], missing in refusal["detail"]) == (403, True)
    worker_rest = await server.rest(tokens["worker"])
    job = await register(worker_rest)
    worker = await server.connect(token=tokens["worker"])
    join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
    assert await worker.call("join_job_room", **join) == {}
    assert (await front.call("join_job_room", **join))["status"] == 403
    # The same user with fewer rights serves the job no longer.
    await server.runtime.write(sql_operators.remove_token, name="worker")
    narrow = await server.connect(token=await server.create_user("worker", ["worker"], ["lab"]))
    refusal = await narrow.call("join_job_room", **join)
    assert (refusal["status"], "--rooms @global" in refusal["detail"]) == (403, True)


async def test_the_token_of_a_task_opens_no_socket(server: LiveServer) -> None:
    """While its task runs; the refusal says what to use instead."""
    rest = await server.rest(server.token)
    job = await register(rest)
    await submit(rest, job)
    body = {"worker_id": job["worker_id"], "tokens": True}
    task = (await rest.post(f"{V1}/tasks/claim", json=body)).json()["task"]
    client = socketio.AsyncClient(reconnection=False, request_timeout=30)
    refused: list[dict[str, Any]] = []
    client.on("connect_error", refused.append)
    with pytest.raises(socketio.exceptions.ConnectionError):
        await client.connect(
            server.url, auth={"token": task["token"]}, transports=["websocket"], wait_timeout=30
        )
    [refusal] = refused
    assert (refusal["data"]["status"], "over HTTP" in refusal["data"]["detail"]) == (403, True)
    await client.shutdown()


async def test_a_worker_in_the_room_of_its_job_gets_events(server: LiveServer) -> None:
    """It gets `task_available` until it leaves the room."""
    token = await server.create_user("ada")
    rest, worker = await server.rest(token), await server.connect(token=token)
    job = await register(rest, room="lab")
    join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
    assert await worker.call("join_job_room", **join) == {}
    await submit(rest, job)
    assert names(await worker.new_events()) == ["task_available"]
    assert await worker.call("leave_job_room", **join) == {}
    await submit(rest, job)
    assert await worker.new_events() == []


async def test_a_refused_join_gets_a_problem(server: LiveServer) -> None:
    """The problem is the acknowledgement, and also the event `problem`; the socket joins no room."""
    ada, bob = await server.create_user("ada"), await server.create_user("bob")
    rest = await server.rest(ada)
    job = await register(rest, room="lab")
    name, worker_id = job["full_name"], job["worker_id"]
    socket = await server.connect(token=bob)
    owner = await server.connect(token=ada)
    cases = [
        (socket, {"job_name": name, "worker_id": worker_id}, 403, "forbidden"),
        (owner, {"job_name": "lab:modifiers:Other", "worker_id": worker_id}, 404, "job-not-found"),
        (owner, {"job_name": "nonsense", "worker_id": worker_id}, 404, "job-not-found"),
        (owner, {"job_name": name, "worker_id": UNKNOWN_ID}, 404, "worker-not-found"),
        (owner, {"job_name": name, "worker_id": "x"}, 422, "invalid-request"),
        (owner, {"job_name": name}, 422, "invalid-request"),
    ]
    for caller, join, status, kind in cases:
        response = await caller.call("join_job_room", **join)
        assert (response["status"], response["type"]) == (status, f"/v1/problems/{kind}"), response
        assert response["detail"]
        await caller.new_events()
        assert caller.problems[-1] == response
    await submit(rest, job)
    assert [await socket.new_events(), await owner.new_events()] == [[], []]


async def test_an_invalid_room_is_refused(server: LiveServer, subtests: pytest.Subtests) -> None:
    """The room names that REST refuses are refused here too."""
    for room in ["", "a:b", "a@b", "@nowhere", "a/b", "x" * 200, None, 5, "@*"]:
        with subtests.test(room=room):
            front = await server.connect()
            assert (await front.call("join_room", room_id=room))["status"] in {400, 422}


async def test_the_room_of_an_unknown_provider_is_refused(server: LiveServer) -> None:
    """Leaving such a room is acknowledged and changes nothing."""
    rest = await server.rest()
    job = await register(rest)
    socket = await server.connect()
    join = {"provider_name": "@global:files:Disk", "worker_id": job["worker_id"]}
    assert (await socket.call("join_provider_room", **join))["status"] == 404
    assert await socket.call("leave_provider_room", **join) == {}


async def test_a_front_end_that_left_a_room_gets_no_events_of_it(server: LiveServer) -> None:
    """Events for all rooms come until it leaves its last room."""
    rest, front = await server.rest(), await server.connect("lab", "attic")
    assert await front.call("leave_room", room_id="lab") == {}
    job = await register(rest)
    await submit(rest, job)
    assert names(await front.new_events()) == ["jobs_invalidate"]
    assert await front.call("leave_room", room_id="attic") == {}
    await register(rest, "Other")
    assert await front.new_events() == []


async def test_the_rooms_of_a_socket_are_limited(server: LiveServer) -> None:
    """Over the limit a join gets a 429; leaving a room makes room for another."""
    # The first join also joins the room for events of all rooms.
    front = await server.connect("a", *[f"room-{number}" for number in range(MAX_ROOMS - 2)])
    assert (await front.call("join_room", room_id="c"))["status"] == 429
    assert await front.call("join_room", room_id="a") == {}
    await front.call("leave_room", room_id="a")
    assert await front.call("join_room", room_id="c") == {}


async def test_leaving_a_room_that_was_not_joined_changes_nothing(server: LiveServer) -> None:
    """Neither this socket nor another one is affected."""
    front, other = await server.connect("lab"), await server.connect()
    assert await other.call("leave_room", room_id="lab") == {}
    rest = await server.rest()
    await submit(rest, await register(rest))
    assert await front.new_statuses() == ["pending"]
    assert await other.new_events() == []


async def test_a_message_over_the_limit_ends_the_connection(server: LiveServer) -> None:
    """Other sockets stay connected."""
    front, other = await server.connect("lab"), await server.connect("lab")
    await front.client.emit("join_room", {"room_id": "x" * 200_000})
    await front.client.wait()
    rest = await server.rest()
    job = await register(rest)
    await submit(rest, job)
    assert await other.new_statuses() == ["pending"]
    assert await claim(rest, job["worker_id"]) is not None
