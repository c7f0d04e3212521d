"""Apply plain reports: starts and ends without an error by the holder of the task, as nearly all are.

They are written with one statement that has all conditions. If a task is not as assumed, or a report is not
plain, `tasks.report` decides.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import serializers
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks.steps import Step, step

if TYPE_CHECKING:
    from zndraw_joblib.server.service.tasks import Report

_SOURCES = {TaskStatus.RUNNING: TaskStatus.CLAIMED, TaskStatus.COMPLETED: TaskStatus.RUNNING}
_MAX_ATTEMPT = 2**31 - 1


async def report(tx: Transaction, items: Sequence["Report"], most_bytes: int) -> dict[int, TaskResponse]:
    """Apply plain reports; return their results by the indexes of the items. The others were not applied.

    On PostgreSQL either all are applied or none. `most_bytes`: the size of the largest payload to read.
    """
    found = _steps(items)
    steps = [each for each in found.values() if each is not None]
    if not steps or not (tx.is_sqlite or len(steps) == len(found)):
        return {}
    written = {task.id: task for task in await step(tx, steps, most_bytes)}
    results = {
        index: serializers.stepped_response(written[item.task_id], item.update)
        for index, item in enumerate(items)
        if item.task_id in written
    }
    serializers.publish_changed(tx, list(results.values()))
    return results


def _steps(items: Sequence["Report"]) -> dict[UUID, Step | None]:
    """Return the step of each task, None if one of its reports is not plain."""
    steps: dict[UUID, Step | None] = {}
    for item in items:
        new = _step(item)
        if item.task_id in steps:
            new = _joined(steps[item.task_id], new)
        steps[item.task_id] = new
    return steps


def _step(item: "Report") -> Step | None:
    update = item.update
    if update.status not in _SOURCES or item.key is not None or update.error or update.has_details:
        return None
    if update.attempt is not None and not 0 <= update.attempt <= _MAX_ATTEMPT:
        return None
    result = None
    if update.status is TaskStatus.COMPLETED and update.result is not None:
        result = to_json(update.result).decode()
    return Step(
        item.task_id,
        item.caller.id,
        update.worker_id,
        update.attempt,
        _SOURCES[update.status],
        update.status,
        result,
    )


def _joined(first: Step | None, then: Step | None) -> Step | None:
    """Return the step of a start and an end together."""
    if first is None or then is None or first[:4] != then[:4]:
        return None
    return then._replace(source=first.source) if first.target is then.source else None
