"""A worker of version 0.1.7, installed from PyPI, with this server."""

import signal
from collections.abc import Callable

import pytest
from waiting import wait_until

from peers.conftest import CLAIM, NOTHING, OLD, TRANSPORTS, V1, LiveServer, submit_until_woken
from peers.peer import CommandError, Peer


def test_the_old_worker_uses_the_old_package(old_worker: Callable[..., Peer]) -> None:
    """The worker does not import this repository."""
    about = old_worker().call("about")
    assert about["version"] == "0.1.7"
    assert about["file"].startswith(str(OLD))


@pytest.mark.parametrize("transports", TRANSPORTS, ids="+".join)
def test_an_event_wakes_an_old_worker(
    server: LiveServer, room: str, old_worker: Callable[..., Peer], transports: list[str]
) -> None:
    """It polls every ten minutes; a task runs at once, because of the server's event."""
    worker = old_worker(transports=transports)
    worker_id = worker.call("register", name="Sum", room=room)
    submit_until_woken(server, worker, room)
    task = server.client.wait_for(
        server.client.submit(f"{room}:analysis:Sum", {"numbers": [1, 2]}), timeout=30
    )
    assert (task.status, str(task.worker_id), task.error) == ("completed", worker_id, None)
    [ran] = worker.wait_for("ran", task_id=str(task.id))
    assert (ran["job_name"], ran["room_id"], ran["value"]) == (f"{room}:analysis:Sum", room, 3)
    moves = worker.wait_for(f"PATCH {V1}/tasks/{task.id}", 2)
    assert [(move["sent"]["status"], move["status"]) for move in moves] == [
        ("running", 200),
        ("completed", 200),
    ]


def test_an_old_worker_works_without_a_socket(
    server: LiveServer, room: str, old_worker: Callable[..., Peer]
) -> None:
    """Without Socket.IO it polls every 50 ms; each task runs once, in the order of submission."""
    worker = old_worker(polling_interval=0.05)
    worker.call("register", name="Sum", room=room)
    task_ids = [server.client.submit(f"{room}:analysis:Sum", {"numbers": [n]}) for n in range(5)]
    assert [server.client.wait_for(submitted_id, timeout=60).status for submitted_id in task_ids] == [
        "completed"
    ] * 5
    assert [(ran["task_id"], ran["value"]) for ran in worker.wait_for("ran", 5)] == list(
        zip(task_ids, range(5), strict=True)
    )


def test_two_old_workers_share_a_job(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """A task goes to one of the two workers of a job; both get some of many."""
    workers = [old_worker(transports=["websocket"]) for _ in range(2)]
    for worker in workers:
        worker.call("register", name="Sum", room=room)
        worker.wait_for(CLAIM, body=NOTHING)
    task_ids: list[str] = []

    def both_run() -> bool:
        task_ids.append(server.client.submit(f"{room}:analysis:Sum"))
        return all(worker.events("ran") for worker in workers)

    wait_until(both_run)
    assert {server.client.wait_for(submitted_id, timeout=60).status for submitted_id in task_ids} == {
        "completed"
    }

    def ran() -> list[str]:
        return sorted(ran["task_id"] for worker in workers for ran in worker.events("ran"))

    wait_until(lambda: ran() == sorted(task_ids))


def test_an_exception_fails_the_task(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """The extension's exception is the task's error; the worker continues."""
    worker = old_worker(polling_interval=0.05)
    worker.call("register", name="Break", room=room)
    worker.call("register", name="Sum", room=room)
    failed = server.client.wait_for(server.client.submit(f"{room}:modifiers:Break"), timeout=60)
    assert failed.status == "failed"
    assert "it broke" in str(failed.error)
    after = server.client.wait_for(server.client.submit(f"{room}:analysis:Sum"), timeout=60)
    assert (after.status, after.worker_id) == ("completed", failed.worker_id)


def test_a_program_runs_tasks_itself(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """Without `execute` its program claims, starts and completes tasks; `submit` submits one."""
    worker = old_worker(serves=False)
    worker_id = worker.call("create_worker")
    assert worker.call("register", name="Sum", room=room) == worker_id
    assert worker.call("claim") is None
    submitted_id = worker.call("submit", name="Sum", payload={"numbers": [4]}, room=room, job_room=room)
    claimed = worker.call("claim")
    expected = {
        "id": submitted_id,
        "job_name": f"{room}:analysis:Sum",
        "room_id": room,
        "fields": {"numbers": [4]},
    }
    assert claimed == expected
    assert worker.call("claim") is None
    worker.call("report", how="start", task_id=submitted_id)
    assert server.client.get_task(submitted_id).status == "running"
    worker.call("report", how="complete", task_id=submitted_id)
    task = server.client.get_task(submitted_id)
    assert (task.status, str(task.worker_id)) == ("completed", worker_id)


def test_a_program_ends_tasks_itself(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """A task from `listen` is completed, failed or cancelled; that status is final."""
    worker = old_worker(serves=False)
    worker.call("register", name="Sum", room=room)
    for how, details, status in [
        ("complete", {}, "completed"),
        ("fail", {"error": "no"}, "failed"),
        ("cancel", {}, "cancelled"),
    ]:
        submitted_id = server.client.submit(f"{room}:analysis:Sum")
        assert worker.call("listen")["id"] == submitted_id
        worker.call("report", how="start", task_id=submitted_id)
        worker.call("report", how=how, task_id=submitted_id, **details)
        task = server.client.get_task(submitted_id)
        assert (task.status, task.error) == (status, details.get("error"))
        with pytest.raises(CommandError, match="ValueError: /v1/problems/invalid-task-transition"):
            worker.call("report", how="start", task_id=submitted_id)


def test_a_task_is_failed_by_its_id(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """A claimed task that has not started can be failed."""
    worker = old_worker(serves=False)
    worker.call("register", name="Sum", room=room)
    submitted_id = server.client.submit(f"{room}:analysis:Sum")
    worker.call("claim")
    worker.call("fail_by_id", task_id=submitted_id, error="not today")
    task = server.client.get_task(submitted_id)
    assert (task.status, task.error) == ("failed", "not today")


def test_an_old_worker_serves_a_global_job(
    server: LiveServer, room: str, old_worker: Callable[..., Peer]
) -> None:
    """A superuser registers it without a room; a user of any room submits tasks to it."""
    worker = old_worker(token=server.running_server.token, transports=["websocket"], polling_interval=0.05)
    worker.call("register", name="Sum")
    user = old_worker()
    submitted_id = user.call("submit", name="Sum", payload={"numbers": [2, 3]}, room=room)
    task = server.client.wait_for(submitted_id, timeout=60)
    assert (task.status, task.job_name, task.room_id) == ("completed", "@global:analysis:Sum", room)
    assert worker.wait_for("ran", task_id=submitted_id)[0]["value"] == 5
    assert worker.end() == 0  # otherwise its removal would send an event to every room later


def test_another_schema_is_a_conflict(server: LiveServer, room: str, old_worker: Callable[..., Peer]) -> None:
    """While a job is served, another schema for its name is a ValueError; afterwards it is accepted."""
    first, second = old_worker(), old_worker()
    worker_id = first.call("register", name="Sum", room=room)
    with pytest.raises(CommandError, match="ValueError: /v1/problems/schema-conflict"):
        second.call("register", name="OtherSum", room=room)
    assert server.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}
    first.wait_for(CLAIM, body=NOTHING)
    assert first.end() == 0
    worker_id = second.call("register", name="OtherSum", room=room)
    assert server.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}


def test_problems_become_the_old_exceptions(
    server: LiveServer, room: str, old_worker: Callable[..., Peer]
) -> None:
    """Each problem of the server becomes the exception that users of version 0.1.7 know."""
    worker = old_worker(serves=False)
    for kind, problem, command in [
        ("PermissionError", "forbidden", {"do": "register", "name": "Wait"}),
        ("KeyError", "job-not-found", {"do": "submit", "name": "Wait", "payload": {}, "room": room}),
    ]:
        with pytest.raises(CommandError) as refused:
            worker.call(**command)
        assert (refused.value.kind, problem in refused.value.text) == (kind, True)
    worker.call("register", name="Sum", room=room)
    with pytest.raises(CommandError, match="ValueError: /v1/problems/invalid-payload"):
        worker.call("submit", name="OtherSum", payload={"numbers": "1"}, room=room, job_room=room)
    with pytest.raises(CommandError, match="PermissionError: /v1/problems/unauthorized"):
        old_worker(token="an-unknown-token").call("create_worker")


@pytest.mark.parametrize("number", [None, signal.SIGTERM], ids=["end", "SIGTERM"])
def test_a_disconnected_worker_is_removed(
    server: LiveServer,
    room: str,
    old_worker: Callable[..., Peer],
    front_end: Callable[..., Peer],
    number: signal.Signals | None,
) -> None:
    """By itself or after a signal, its worker and its job are removed; the room gets an event."""
    worker, watching = old_worker(transports=["websocket"]), front_end(room)
    worker_id = worker.call("register", name="Sum", room=room)
    watching.wait_for("jobs_invalidate")
    assert worker_id in server.workers()
    assert server.jobs(room) == {f"{room}:analysis:Sum": [worker_id]}
    worker.wait_for(CLAIM, body=NOTHING)
    assert worker.end(number) == 0
    assert worker.events("left")
    assert worker_id not in server.workers()
    assert server.jobs(room) == {}
    watching.wait_for("jobs_invalidate", 2)


def test_heartbeats_keep_an_old_worker(
    own_server: Callable[..., LiveServer], room: str, old_worker: Callable[..., Peer]
) -> None:
    """The sweeper removes a silent worker, and keeps one that sends heartbeats."""
    server = own_server("--test-clock", WORKER_TIMEOUT_SECONDS="1000", SWEEPER_INTERVAL_SECONDS="0.2")
    beating, silent = old_worker(at=server, heartbeat_interval=0.2), old_worker(at=server, serves=False)
    kept = beating.call("register", name="Sum", room=room)
    silent.call("register", name="Break", room=room)
    silent.call("heartbeat")
    beats = f"PATCH {V1}/workers/{kept}"
    for _ in range(2):
        server.advance(600)
        # One may have been sent before.
        beating.wait_for(beats, len(beating.events(beats, status=200)) + 2, status=200)
    wait_until(lambda: server.workers() == {kept})
    with pytest.raises(CommandError, match=r"KeyError: ./v1/problems/worker-not-found"):
        silent.call("heartbeat")


@pytest.mark.parametrize(
    ("transports", "settings"),
    [
        (None, {"WORKER_TIMEOUT_SECONDS": "4", "SWEEPER_INTERVAL_SECONDS": "0.2"}),
        (["websocket"], {"DISCONNECT_GRACE_SECONDS": "0.2"}),
    ],
    ids=["sweeper", "lost socket"],
)
def test_the_task_of_a_killed_worker_fails(
    own_server: Callable[..., LiveServer],
    room: str,
    old_worker: Callable[..., Peer],
    transports: list[str] | None,
    settings: dict[str, str],
) -> None:
    """The sweeper fails it, or the server does so sooner because of the closed socket."""
    server = own_server(**settings)
    worker = old_worker(at=server, transports=transports, polling_interval=0.05, heartbeat_interval=0.2)
    worker_id = worker.call("register", name="Wait", room=room)
    submitted_id = server.client.submit(f"{room}:selections:Wait")
    worker.wait_for("waits")
    worker.end(signal.SIGKILL)
    task = server.client.wait_for(submitted_id, timeout=60)
    assert (task.status, task.error, str(task.worker_id)) == ("failed", "Worker disconnected", worker_id)
    assert server.workers() == set()
