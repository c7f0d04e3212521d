"""Records as the messages and events that tell of them."""

from zndraw_joblib.contract.events import Emission, TaskStatusEvent, room_of
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TERMINAL
from zndraw_joblib.server.ports import task_key
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import Record


def response(task: Record, position: int | None = None) -> TaskResponse:
    """Return a task as an answer shows it."""
    return TaskResponse.model_construct(
        id=task.id,
        job_name=str(task.job),
        room_id=task.room_id,
        status=task.status,
        created_at=task.created_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        worker_id=task.worker_id,
        error=task.error,
        payload=task.payload,
        queue_position=position,
        attempt=task.attempt,
        created_by=task.created_by,
        result=task.result,
    )


def tell(tx: Transaction, task: Record, position: int | None = None) -> None:
    """Let the room know of a task's new status, and its waiters of its end, after the commit."""
    event = TaskStatusEvent.model_construct(
        id=task.id,
        name=str(task.job),
        room_id=task.room_id,
        status=task.status,
        created_at=task.created_at,
        started_at=task.started_at,
        completed_at=task.completed_at,
        queue_position=position,
        worker_id=task.worker_id,
        error=task.error,
    )
    tx.emit(Emission(event, room_of(task.room_id)))
    if task.status in TERMINAL:
        tx.wake(task_key(task.id))
