"""The events that a front-end gets of one task."""

from peers.conftest import LiveServer
from peers.peer import Peer
from zndraw_joblib.client import calls
from zndraw_joblib.wire.messages import JobRegisterRequest, TaskUpdateRequest

LIFE = ["pending", "claimed", "running", "completed"]


def run_task(server: LiveServer, room: str, job_room: str | None = None) -> str:
    """Register a job, submit a task from a room, and complete it, all over REST; return its id."""
    rest = server.rest
    job = rest.register(job_room or room, JobRegisterRequest(category="analysis", name="Area"))
    assert job.worker_id is not None
    task_id = str(rest.send_call(calls.submit(room, job.full_name, {})).id)
    claimed, _ = rest.claim(job.worker_id)
    task = claimed.task
    assert task is not None
    assert str(task.id) == task_id
    for status in LIFE[2:]:
        rest.send_call(calls.update_task(task_id, TaskUpdateRequest(status=status)))
    rest.remove_worker(job.worker_id, 60)
    return task_id


def statuses_seen(peer: Peer) -> list[tuple[str, str]]:
    """Return the tasks and statuses of the events that a front-end got."""
    return [(line["data"]["id"], line["data"]["status"]) for line in peer.events("task_status_event")]
