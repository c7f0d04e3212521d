"""Write events for webhooks into the outbox, in the transaction that causes them.

A room with webhooks is a watched room: its row in `joblib_room_stream` names the events that they want, and
`Transaction.append_events` writes those of its tasks here. So other rooms cost no statement.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.room_events import EventRow, Execute
from zndraw_joblib.server.db.statements import INTEGER, TEXT, listed_rows, one_row, statement
from zndraw_joblib.wire.history import EventKind
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.webhooks import WebhookEvent

_BOUNDS = {"most_characters": 2000, "most_bytes": 4096}
EVENTS = {
    TaskStatus.RUNNING: WebhookEvent.TASK_STARTED,
    TaskStatus.COMPLETED: WebhookEvent.TASK_COMPLETED,
    TaskStatus.FAILED: WebhookEvent.TASK_FAILED,
    TaskStatus.CANCELLED: WebhookEvent.TASK_CANCELLED,
}
_STATUSES = {event: status for status, event in EVENTS.items()}


class Target(NamedTuple):
    """A webhook that gets events; `key` is the room or the task that it gets them of."""

    n: int
    key: Any
    room_id: str
    name: str | None
    events: str
    due_at: datetime | None


class NewDelivery(NamedTuple):
    """An event for a target. A repeat has the `message` of the first."""

    target: Target
    event: str
    body: str
    task_id: UUID | None = None
    message: UUID | None = None


class TaskFacts(NamedTuple):
    """What a delivery says about a task. A long error is cut, and a result of more than 4 KiB left out."""

    id: UUID
    job_name: str
    room_id: str
    status: str
    attempt: int
    created_by: str
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    error_code: str | None
    error: str | None
    result: Any


_OF_ROOMS = statement(
    """
SELECT n, room_id AS key, room_id, name, events, due_at FROM joblib_webhook
WHERE room_id = ANY (:all_room_id) AND name IS NOT NULL AND disabled_at IS NULL
ORDER BY n
FOR KEY SHARE
""",
    *Target._fields,
    key=TEXT,
)
_FACTS = statement(
    """
SELECT joblib_task.id, joblib_job.full_name AS job_name, joblib_task.room_id, joblib_task.status,
    joblib_task.attempt, joblib_task.created_by, joblib_task.created_at, joblib_task.started_at,
    joblib_task.completed_at, joblib_task.error_code, substr(joblib_task.error, 1, :most_characters) AS error,
    CASE WHEN octet_length(joblib_task.result) <= :most_bytes THEN joblib_task.result END AS result
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
WHERE joblib_task.id = ANY (:all_id)
""",
    *TaskFacts._fields,
    most_characters=INTEGER,
)
_COLUMNS = ("webhook_n", "room_id", "webhook", "message", "event", "task_id", "body", "created_at")
_ADD = statement(f"INSERT INTO joblib_outbox {one_row(_COLUMNS)}")
_ADD_LISTED = statement(f"INSERT INTO joblib_outbox {listed_rows(_COLUMNS)}")
_SET_DUE = statement("UPDATE joblib_webhook SET due_at = :at WHERE n = ANY (:all_n) AND due_at IS NULL")


async def targets_of_rooms(execute: Execute, rooms: Iterable[str]) -> list[Target]:
    """Return the webhooks of rooms, locked so that none of them is taken for one without waiting rows."""
    rows = await execute(_OF_ROOMS, {"all_room_id": padded(sorted(set(rooms)))})
    return [Target(*row) for row in rows]


async def add_room_events(
    execute: Execute, events_of: Mapping[str, Sequence[EventRow]], at: datetime, *, is_sqlite: bool
) -> bool:
    """Add the events of tasks that the webhooks of rooms want. Return whether a server has to be woken."""
    changes = [
        (room_id, event.task_id, EVENTS[status])
        for room_id, events in events_of.items()
        for event in events
        if event.kind == EventKind.STATUS and (status := _status(event.data)) in EVENTS
    ]
    if not changes:
        return False
    targets = await targets_of_rooms(execute, [room_id for room_id, _, _ in changes])
    return await add_task_events(
        execute,
        [
            (target, task_id, event)
            for room_id, task_id, event in changes
            for target in targets
            if target.key == room_id
        ],
        at,
        is_sqlite=is_sqlite,
    )


def _status(data: str) -> TaskStatus:
    return TaskStatus(from_json(data)["status"])


async def add_task_events(
    execute: Execute, changes: Iterable[tuple[Target, UUID, WebhookEvent]], at: datetime, *, is_sqlite: bool
) -> bool:
    """Add the events of tasks that their targets want, as the tasks are now. Return as `add` does."""
    wanted = [change for change in changes if change[2] in change[0].events.split()]
    if not wanted:
        return False
    ids = sorted({task_id for _, task_id, _ in wanted})
    facts = {row.id: TaskFacts(*row) for row in await execute(_FACTS, {"all_id": padded(ids), **_BOUNDS})}
    new = [
        NewDelivery(target, event, task_body(event, facts[task_id], at), task_id)
        for target, task_id, event in wanted
        if task_id in facts
    ]
    return await add(execute, new, at, is_sqlite=is_sqlite)


def task_body(event: WebhookEvent, facts: TaskFacts, at: datetime) -> str:
    """Return the body of an event of a task, which may have moved on in the same transaction."""
    status = _STATUSES[event]
    data = facts._replace(status=status)._asdict()
    if status is TaskStatus.RUNNING:
        data |= dict.fromkeys(("completed_at", "error_code", "error", "result"))
    return body(event, data, at)


def body(event: str, data: dict[str, Any], at: datetime) -> str:
    """Return the body of a delivery, as Standard Webhooks 1.0 recommends."""
    return to_json({"type": event, "timestamp": at, "data": data}).decode()


async def add(execute: Execute, new: Sequence[NewDelivery], at: datetime, *, is_sqlite: bool) -> bool:
    """Add deliveries. Return whether a target had none waiting: then a server has to be woken.

    The targets are locked with FOR KEY SHARE.
    """
    if not new:
        return False
    rows = [
        dict(
            zip(
                _COLUMNS,
                (
                    *(item.target.n, item.target.room_id, item.target.name, item.message or uuid4()),
                    *(str(item.event), item.task_id, item.body, at),
                ),
                strict=True,
            )
        )
        for item in new
    ]
    if is_sqlite:
        await execute(_ADD, rows)
    else:
        await execute(_ADD_LISTED, by_column(rows))
    idle = sorted({item.target.n for item in new if item.target.due_at is None})
    if idle:
        await execute(_SET_DUE, {"all_n": padded(idle), "at": at})
    return bool(idle)
