"""The `socket.io-client` that browsers load, against this server."""

from collections.abc import Callable
from typing import Any

import pytest

from peers.conftest import TRANSPORTS, Place
from peers.peer import Peer
from peers.watching import LIFE, live, seen
from zndraw_joblib.contract.messages import JobRegisterRequest


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_it_watches_a_task(
    place: Place, room: str, front_end: Callable[..., Peer], transports: list[str]
) -> None:
    """It sees every status once, in the order in which they came, with what REST says of the task."""
    watching = front_end(room, transports=transports)
    assert watching.told("connect")[0]["transport"] in transports
    call = live(place, room)
    watching.wait_for("task_status_event", 4)
    later = live(place, room)
    watching.wait_for("task_status_event", 8)
    assert seen(watching) == [(id_, status) for id_ in (call, later) for status in LIFE]
    last = watching.told("task_status_event")[3]["data"]
    task = place.caller.get_task(call).model_dump(mode="json")
    assert last == {"name": task["job_name"], **{name: task[name] for name in last if name != "name"}}
    assert len(watching.told("connect")) == 1


def test_another_room_sees_nothing(place: Place, room: str, front_end: Callable[..., Peer]) -> None:
    """A front-end hears of the tasks of the rooms it is in, and of no others, not even after it left."""
    here, there = front_end(room), front_end(f"{room}-2")
    live(place, room)
    here.wait_for("task_status_event", 4)
    assert here.ask("leave_room", room_id=room) == {}
    live(place, room)
    call = live(place, f"{room}-2")
    there.wait_for("task_status_event", 4)
    assert seen(there) == [(call, status) for status in LIFE]
    assert here.ask("join_room", room_id=f"{room}-2") == {}
    assert len(seen(here)) == 4


@pytest.mark.parametrize(
    ("order", "status", "type_"),
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
def test_a_refused_join(
    front_end: Callable[..., Peer], order: dict[str, Any], status: int, type_: str | None
) -> None:
    """It is answered with a problem, and the socket hears the same; it stays connected."""
    watching = front_end()
    answer = watching.ask(**order)
    assert {"type", "title", "status", "detail"} <= answer.keys()
    assert (answer["status"], answer["type"]) == (status, type_ or answer["type"])
    [heard] = watching.wait_for("problem")
    assert heard["data"] == answer
    assert watching.ask("join_room", room_id="lab") == {}


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_a_wrong_token(front_end: Callable[..., Peer], transports: list[str]) -> None:
    """The connection is refused, and the client is told why by a problem."""
    refused = front_end(token="nobody-has-this-token", transports=transports)
    [error] = refused.wait_for("connect_error")
    assert error["data"]["status"] == 401
    assert error["data"]["type"] == "/v1/problems/unauthorized"
    assert error["message"] == error["data"]["detail"]
    assert refused.told("connect") == []


def test_from_another_origin(place: Place, room: str, front_end: Callable[..., Peer]) -> None:
    """A page from elsewhere may connect with a token: there is no cookie that a strange page could use."""
    watching = front_end(room, origin="https://lab.example")
    live(place, room)
    watching.wait_for("task_status_event", 4)


def test_jobs_of_all_rooms(place: Place, room: str, front_end: Callable[..., Peer]) -> None:
    """A room's front-end is told when the jobs of @global or of its room change, not of another room's."""
    watching = front_end(room)
    request = JobRegisterRequest(category="analysis", name=f"Job-{room}")
    for job_room in ("@global", f"{room}-2"):
        job = place.remote.register(job_room, request)
        assert job.worker_id is not None
        place.remote.remove_worker(job.worker_id, 10)
    live(place, room)
    # A registration and a departure in @global, the same in the room.
    watching.wait_for("jobs_invalidate", 4)
    assert watching.ask("leave_room", room_id=room) == {}
    assert [line["data"] for line in watching.told("jobs_invalidate")] == [{}] * 4
