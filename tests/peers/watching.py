"""What a front-end shall see: a task from its call to its end."""

from peers.conftest import Place
from peers.peer import Peer
from zndraw_joblib.contract.messages import JobRegisterRequest, TaskUpdateRequest

LIFE = ["pending", "claimed", "running", "completed"]


def live(place: Place, room: str, job_room: str | None = None) -> str:
    """Register a job, call it from a room, and run the task to its end, all over REST; return its id."""
    remote = place.remote
    job = remote.register(job_room or room, JobRegisterRequest(category="analysis", name="Area"))
    assert job.worker_id is not None
    call = str(remote.submit(room, job.full_name, {}).id)
    claimed, _ = remote.claim(job.worker_id)
    task = claimed.task
    assert task is not None
    assert str(task.id) == call
    for status in LIFE[2:]:
        remote.report(call, TaskUpdateRequest(status=status))
    remote.remove_worker(job.worker_id, 10)
    return call


def seen(peer: Peer) -> list[tuple[str, str]]:
    """Return which tasks a front-end has seen in which status."""
    return [(line["data"]["id"], line["data"]["status"]) for line in peer.told("task_status_event")]
