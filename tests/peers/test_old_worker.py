"""A worker of version 0.1.7, installed from PyPI, with this server."""

import signal
from collections.abc import Callable

import pytest
from waiting import wait_until

from peers.conftest import CLAIM, NOTHING, OLD, TRANSPORTS, V1, Place, submit_until_woken
from peers.peer import Peer, Refused


def test_it_is_the_other_package(old_worker: Callable[..., Peer]) -> None:
    """The worker does not import this repository."""
    about = old_worker().ask("about")
    assert about["version"] == "0.1.7"
    assert about["file"].startswith(str(OLD))


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_an_event_wakes_it(
    place: Place, room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """It polls every ten minutes; a task runs at once, because of the server's event."""
    worker = old_worker(transports=transports)
    worker_id = worker.ask("register", name="Sum", room=room)
    submit_until_woken(place, worker, room)
    task = place.client.wait_for(place.client.submit(f"{room}:analysis:Sum", {"numbers": [1, 2]}), timeout=10)
    assert (task.status, str(task.worker_id), task.error) == ("completed", worker_id, None)
    [ran] = worker.events("ran", task_id=str(task.id))
    assert (ran["job_name"], ran["room_id"], ran["value"]) == (f"{room}:analysis:Sum", room, 3)
    moves = worker.wait_for(f"PATCH {V1}/tasks/{task.id}", 2)
    assert [(move["sent"]["status"], move["status"]) for move in moves] == [
        ("running", 200),
        ("completed", 200),
    ]


def test_it_works_without_a_socket(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """Without Socket.IO it polls every 50 ms; each task runs once, in the order of submission."""
    worker = old_worker(polling_interval=0.05)
    worker.ask("register", name="Sum", room=room)
    calls = [place.client.submit(f"{room}:analysis:Sum", {"numbers": [n]}) for n in range(5)]
    assert [place.client.wait_for(call, timeout=10).status for call in calls] == ["completed"] * 5
    assert [(ran["task_id"], ran["value"]) for ran in worker.events("ran")] == list(
        zip(calls, range(5), strict=True)
    )


def test_one_job_and_two_workers(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """A task goes to one of the two workers of a job; both get some of many."""
    workers = [old_worker(transports=["websocket"]) for _ in range(2)]
    for worker in workers:
        worker.ask("register", name="Sum", room=room)
        worker.wait_for(CLAIM, body=NOTHING)
    calls: list[str] = []

    def both_run() -> bool:
        calls.append(place.client.submit(f"{room}:analysis:Sum"))
        return all(worker.events("ran") for worker in workers)

    wait_until(both_run)
    assert {place.client.wait_for(call, timeout=10).status for call in calls} == {"completed"}
    assert sorted(ran["task_id"] for worker in workers for ran in worker.events("ran")) == sorted(calls)


def test_a_task_that_fails(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """The extension's exception is the task's error; the worker continues."""
    worker = old_worker(polling_interval=0.05)
    worker.ask("register", name="Break", room=room)
    worker.ask("register", name="Sum", room=room)
    failed = place.client.wait_for(place.client.submit(f"{room}:modifiers:Break"), timeout=10)
    assert failed.status == "failed"
    assert "it broke" in str(failed.error)
    after = place.client.wait_for(place.client.submit(f"{room}:analysis:Sum"), timeout=10)
    assert (after.status, after.worker_id) == ("completed", failed.worker_id)


def test_by_hand(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """Without `execute` its program claims, starts and completes tasks; `submit` submits one."""
    worker = old_worker(serves=False)
    worker_id = worker.ask("create_worker")
    assert worker.ask("register", name="Sum", room=room) == worker_id
    assert worker.ask("claim") is None
    call = worker.ask("submit", name="Sum", payload={"numbers": [4]}, room=room, job_room=room)
    claimed = worker.ask("claim")
    expected = {"id": call, "job_name": f"{room}:analysis:Sum", "room_id": room, "fields": {"numbers": [4]}}
    assert claimed == expected
    assert worker.ask("claim") is None
    worker.ask("report", how="start", task_id=call)
    assert place.client.get_task(call).status == "running"
    worker.ask("report", how="complete", task_id=call)
    task = place.client.get_task(call)
    assert (task.status, str(task.worker_id)) == ("completed", worker_id)


def test_ends_by_hand(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """A task from `listen` is completed, failed or cancelled; that status is final."""
    worker = old_worker(serves=False)
    worker.ask("register", name="Sum", room=room)
    for how, details, status in [
        ("complete", {}, "completed"),
        ("fail", {"error": "no"}, "failed"),
        ("cancel", {}, "cancelled"),
    ]:
        call = place.client.submit(f"{room}:analysis:Sum")
        assert worker.ask("listen")["id"] == call
        worker.ask("report", how="start", task_id=call)
        worker.ask("report", how=how, task_id=call, **details)
        task = place.client.get_task(call)
        assert (task.status, task.error) == (status, details.get("error"))
        with pytest.raises(Refused, match="ValueError: /v1/problems/invalid-task-transition"):
            worker.ask("report", how="start", task_id=call)


def test_it_fails_a_task_by_its_id(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """A claimed task that has not started can be failed."""
    worker = old_worker(serves=False)
    worker.ask("register", name="Sum", room=room)
    call = place.client.submit(f"{room}:analysis:Sum")
    worker.ask("claim")
    worker.ask("fail_by_id", task_id=call, error="not today")
    task = place.client.get_task(call)
    assert (task.status, task.error) == ("failed", "not today")


def test_a_global_job(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """A superuser registers it without a room; a user of any room submits tasks to it."""
    worker = old_worker(token=place.server.token, transports=["websocket"], polling_interval=0.05)
    worker.ask("register", name="Sum")
    user = old_worker()
    call = user.ask("submit", name="Sum", payload={"numbers": [2, 3]}, room=room)
    task = place.client.wait_for(call, timeout=10)
    assert (task.status, task.job_name, task.room_id) == ("completed", "@global:analysis:Sum", room)
    assert worker.wait_for("ran", task_id=call)[0]["value"] == 5
    assert worker.end() == 0  # otherwise its removal would send an event to every room later


def test_another_schema_is_a_conflict(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """While a job is served, another schema for its name is a ValueError; afterwards it is accepted."""
    first, second = old_worker(), old_worker()
    worker_id = first.ask("register", name="Sum", room=room)
    with pytest.raises(Refused, match="ValueError: /v1/problems/schema-conflict"):
        second.ask("register", name="OtherSum", room=room)
    assert place.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}
    first.wait_for(CLAIM, body=NOTHING)
    assert first.end() == 0
    worker_id = second.ask("register", name="OtherSum", room=room)
    assert place.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}


def test_refusals(place: Place, room: str, old_worker: Callable[..., Peer]) -> None:
    """Each problem of the server becomes the exception that users of version 0.1.7 know."""
    worker = old_worker(serves=False)
    for kind, problem, order in [
        ("PermissionError", "forbidden", {"do": "register", "name": "Wait"}),
        ("KeyError", "job-not-found", {"do": "submit", "name": "Wait", "payload": {}, "room": room}),
    ]:
        with pytest.raises(Refused) as refused:
            worker.ask(**order)
        assert (refused.value.kind, problem in refused.value.text) == (kind, True)
    worker.ask("register", name="Sum", room=room)
    with pytest.raises(Refused, match="ValueError: /v1/problems/invalid-payload"):
        worker.ask("submit", name="OtherSum", payload={"numbers": "1"}, room=room, job_room=room)
    with pytest.raises(Refused, match="PermissionError: /v1/problems/unauthorized"):
        old_worker(token="an-unknown-token").ask("create_worker")


@pytest.mark.parametrize("number", [None, signal.SIGTERM], ids=["end", "SIGTERM"])
def test_it_disconnects(
    place: Place,
    room: str,
    old_worker: Callable[..., Peer],
    front_end: Callable[..., Peer],
    number: signal.Signals | None,
) -> None:
    """By itself or after a signal, its worker and its job are removed; the room gets an event."""
    worker, watching = old_worker(transports=["websocket"]), front_end(room)
    worker_id = worker.ask("register", name="Sum", room=room)
    watching.wait_for("jobs_invalidate")
    assert worker_id in place.workers()
    assert place.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}
    worker.wait_for(CLAIM, body=NOTHING)
    assert worker.end(number) == 0
    assert worker.events("left")
    assert worker_id not in place.workers()
    assert place.jobs(room) == {}
    watching.wait_for("jobs_invalidate", 2)


def test_heartbeats_keep_it(
    own_place: Callable[..., Place], room: str, old_worker: Callable[..., Peer]
) -> None:
    """The sweeper removes a silent worker, and keeps one that sends heartbeats."""
    place = own_place(WORKER_TIMEOUT_SECONDS="1", SWEEPER_INTERVAL_SECONDS="0.2")
    beating, silent = old_worker(at=place, heartbeat_interval=0.2), old_worker(at=place, serves=False)
    kept = beating.ask("register", name="Sum", room=room)
    silent.ask("register", name="Break", room=room)
    silent.ask("heartbeat")
    wait_until(lambda: place.workers() == {kept})
    beating.wait_for(f"PATCH {V1}/workers/{kept}", 8, status=200)
    assert place.workers() == {kept}
    with pytest.raises(Refused, match=r"KeyError: ./v1/problems/worker-not-found"):
        silent.ask("heartbeat")


@pytest.mark.parametrize(
    ("transports", "settings"),
    [
        (None, {"WORKER_TIMEOUT_SECONDS": "1", "SWEEPER_INTERVAL_SECONDS": "0.2"}),
        (["websocket"], {"DISCONNECT_GRACE_SECONDS": "0.2"}),
    ],
    ids=["sweeper", "lost socket"],
)
def test_it_is_killed(
    own_place: Callable[..., Place],
    room: str,
    old_worker: Callable[..., Peer],
    transports: list[str] | None,
    settings: dict[str, str],
) -> None:
    """Its task fails: by the sweeper, or sooner by the lost socket."""
    place = own_place(**settings)
    worker = old_worker(at=place, transports=transports, polling_interval=0.05, heartbeat_interval=0.2)
    worker_id = worker.ask("register", name="Wait", room=room)
    call = place.client.submit(f"{room}:selections:Wait")
    worker.wait_for("waits")
    worker.end(signal.SIGKILL)
    task = place.client.wait_for(call, timeout=10)
    assert (task.status, task.error, str(task.worker_id)) == ("failed", "Worker disconnected", worker_id)
    assert place.workers() == set()
