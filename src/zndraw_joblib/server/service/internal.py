"""Tasks that run inside the server: claimed at once, handed to a broker after the commit."""

from dataclasses import replace
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.problems import TaskNotFound
from zndraw_joblib.contract.status import Role, TaskStatus, may_move
from zndraw_joblib.server.service import views
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.database import Transaction

DISPATCH_FAILED = "Failed to dispatch to internal executor"
_SERVER = frozenset({Role.SERVER})


async def fail_dispatch(tx: Transaction, task_id: UUID) -> TaskResponse:
    """Fail a task that the broker did not take; one that has gone on all the same stays as it is."""
    task = (await store.lock(tx, [task_id])).get(task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    if task.status == TaskStatus.CLAIMED and may_move(_SERVER, task.status, TaskStatus.FAILED):
        failed = replace(task, status=TaskStatus.FAILED, completed_at=await tx.now(), error=DISPATCH_FAILED)
        await store.move(tx, [(task, failed)])
        views.tell(tx, failed)
        task = failed
    return views.response(task)
