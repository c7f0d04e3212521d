"""The audit trail: operators' actions are recorded in their transactions and logged after the commit."""

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import sql_audit
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord

Result = TypeVar("Result")
P = ParamSpec("P")
_MAX_REQUEST_ID = 128


async def record(
    tx: Transaction,
    caller: Identity,
    action: str,
    target: str,
    room_id: str | None = None,
    detail: dict[str, Any] | None = None,
) -> int:
    """Record an action in its transaction, and log it after the commit. Return the number of the entry."""
    number = await sql_audit.add_audit(
        tx,
        at=await tx.now(),
        actor=caller.id,
        action=action,
        room_id=room_id,
        target=target,
        detail=detail,
        request_id=tx.request_id and tx.request_id[:_MAX_REQUEST_ID],
    )
    tx.record_action(f"action={action} actor={caller.id} target={target}")
    return number


async def update(tx: Transaction, number: int, detail: dict[str, Any]) -> None:
    """Replace the detail of an entry while its action continues."""
    await sql_audit.set_audit_detail(tx, number, detail)


def recorded(
    work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
    caller: Identity,
    action: str,
    target: str,
    room_id: str | None = None,
    detail: dict[str, Any] | None = None,
) -> Callable[Concatenate[Transaction, P], Awaitable[Result]]:
    """Return a function like `work` that also records the action."""

    async def apply(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        result = await work(tx, *args, **kwargs)
        await record(tx, caller, action, target, room_id, detail)
        return result

    return apply


def of_operator(
    work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
    caller: Identity,
    action: str,
    target: str,
    room_id: str | None = None,
) -> Callable[Concatenate[Transaction, P], Awaitable[Result]]:
    """Return a function like `work` that also records the action of a superuser."""
    return recorded(work, caller, action, target, room_id) if caller.is_operator else work


def is_by_operator(caller: Identity, task: TaskRecord) -> bool:
    """Return whether a caller acts on a task only as a superuser: neither as its submitter nor its holder."""
    return caller.is_operator and caller.id not in {task.created_by, task.worker_owner_id}
