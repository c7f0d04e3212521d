"""The `socket.io-client` that browsers load, with this server."""

from collections.abc import Callable
from typing import Any

import pytest

from peers.conftest import TRANSPORTS, LiveServer
from peers.peer import Peer
from peers.watching import LIFE, run_task, statuses_seen
from zndraw_joblib.wire.messages import JobRegisterRequest


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_a_front_end_gets_the_events_of_a_task(
    server: LiveServer, room: str, front_end: Callable[..., Peer], transports: list[str]
) -> None:
    """Every status once, in order, with the same fields as the REST response."""
    watching = front_end(room, transports=transports)
    assert watching.events("connect")[0]["transport"] in transports
    task_id = run_task(server, room)
    watching.wait_for("task_status_event", 4)
    later = run_task(server, room)
    watching.wait_for("task_status_event", 8)
    assert statuses_seen(watching) == [(id_, status) for id_ in (task_id, later) for status in LIFE]
    last = watching.events("task_status_event")[3]["data"]
    task = server.client.get_task(task_id).model_dump(mode="json")
    assert last == {"name": task["job_name"], **{name: task[name] for name in last if name != "name"}}
    assert len(watching.events("connect")) == 1


def test_a_front_end_gets_no_events_of_other_rooms(
    server: LiveServer, room: str, front_end: Callable[..., Peer]
) -> None:
    """Only events of the rooms that it has joined and not left."""
    here, there = front_end(room), front_end(f"{room}-2")
    run_task(server, room)
    here.wait_for("task_status_event", 4)
    assert here.call("leave_room", room_id=room) == {}
    run_task(server, room)
    task_id = run_task(server, f"{room}-2")
    there.wait_for("task_status_event", 4)
    assert statuses_seen(there) == [(task_id, status) for status in LIFE]
    assert here.call("join_room", room_id=f"{room}-2") == {}
    assert len(statuses_seen(here)) == 4


@pytest.mark.parametrize(
    ("command", "status", "type_"),
    [
        ({"do": "join_room", "room_id": "a:b"}, 400, "/v1/problems/invalid-room-id"),
        ({"do": "join_room"}, 422, None),
        (
            {
                "do": "join_job_room",
                "job_name": "lab:analysis:Area",
                "worker_id": "00000000-0000-0000-0000-000000000000",
            },
            404,
            "/v1/problems/worker-not-found",
        ),
    ],
    ids=["bad room", "no room", "no such worker"],
)
def test_a_refused_join_returns_a_problem(
    front_end: Callable[..., Peer], command: dict[str, Any], status: int, type_: str | None
) -> None:
    """The acknowledgement and an event have the same problem, and the socket stays connected."""
    watching = front_end()
    answer = watching.call(**command)
    assert {"type", "title", "status", "detail"} <= answer.keys()
    assert (answer["status"], answer["type"]) == (status, type_ or answer["type"])
    [event] = watching.wait_for("problem")
    assert event["data"] == answer
    assert watching.call("join_room", room_id="lab") == {}


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_a_wrong_token_is_refused(front_end: Callable[..., Peer], transports: list[str]) -> None:
    """The connection is refused with a problem."""
    refused = front_end(token="an-unknown-token", transports=transports)
    [error] = refused.wait_for("connect_error")
    assert error["data"]["status"] == 401
    assert error["data"]["type"] == "/v1/problems/unauthorized"
    assert error["message"] == error["data"]["detail"]
    assert refused.events("connect") == []


def test_another_origin_may_connect(server: LiveServer, room: str, front_end: Callable[..., Peer]) -> None:
    """A page of another origin may connect with a token: there is no cookie that it could abuse."""
    watching = front_end(room, origin="https://lab.example")
    run_task(server, room)
    watching.wait_for("task_status_event", 4)


def test_a_front_end_gets_events_of_global_jobs(
    server: LiveServer, room: str, front_end: Callable[..., Peer]
) -> None:
    """A room's front-end gets events when the jobs of @global or of its room change, not of another room."""
    watching = front_end(room)
    request = JobRegisterRequest(category="analysis", name=f"Job-{room}")
    for job_room in ("@global", f"{room}-2"):
        job = server.rest.register(job_room, request)
        assert job.worker_id is not None
        server.rest.remove_worker(job.worker_id, 60)
    run_task(server, room)
    # A registration and a removal in @global, and the same in the room.
    watching.wait_for("jobs_invalidate", 4)
    assert watching.call("leave_room", room_id=room) == {}
    assert [line["data"] for line in watching.events("jobs_invalidate")] == [{}] * 4
