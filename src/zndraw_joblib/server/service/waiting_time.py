"""Why the workers of a job do not claim a waiting task, and about how long it waits."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from zndraw_joblib.contract.history import Reason
from zndraw_joblib.server.store import load
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.load import WorkerLoad
from zndraw_joblib.server.store.tasks import TaskRecord, read

# A worker that runs its jobs claims a task long before.
_UNCLAIMED_AFTER = timedelta(seconds=10)


async def worker_reasons(
    tx: Transaction, task: TaskRecord, loads: Sequence[WorkerLoad], *, may_be_claimed: bool
) -> list[Reason]:
    """Return why the workers of a task's job, with these `loads`, do not claim it.

    `may_be_claimed`: neither a pause nor a limit keeps them from it.
    """
    if not loads:
        return [Reason(code="no_worker", detail=f"No worker serves {task.job}")]
    active = [each for each in loads if not each.is_draining]
    if not active:
        return [Reason(code="draining", detail=f"{_all_workers(task, loads)} draining")]
    if not may_be_claimed or not task.is_queued:
        return []
    if all(each.is_full for each in active):
        return [_busy(task, active)]
    now = await tx.now()
    idle = [each for each in active if not each.held and now - each.created_at >= _UNCLAIMED_AFTER]
    waited = now - await _queued_at(tx, task)
    if not idle or waited < _UNCLAIMED_AFTER:
        return []
    detail = (
        f"Idle workers of {task.job}: {len(idle)} of {len(loads)}, but none has claimed this task for "
        f"{duration(waited)}: they may be registered without running their jobs (`execute` of a `JobManager`)"
    )
    return [Reason(code="not_claimed", detail=detail)]


def _busy(task: TaskRecord, active: Sequence[WorkerLoad]) -> Reason:
    running, held = sum(each.running for each in active), sum(each.held for each in active)
    since = max(each.since for each in active if each.since is not None)
    slots = [each.max_tasks for each in active if each.max_tasks is not None]
    known = f", slots: {sum(slots)}" if len(slots) == len(active) else ""
    detail = (
        f"{_all_workers(task, active)} busy since {since:%Y-%m-%d %H:%M:%S} UTC "
        f"(tasks held: {held}, running: {running}{known})"
    )
    return Reason(code="workers_busy", detail=detail)


def _all_workers(task: TaskRecord, loads: Sequence[WorkerLoad]) -> str:
    count = len(loads)
    return f"The only worker of {task.job} is" if count == 1 else f"All {count} workers of {task.job} are"


async def _queued_at(tx: Transaction, task: TaskRecord) -> datetime:
    earlier = await store.attempts_of(tx, task.seq)
    return max([task.created_at, *(each.run_at or each.ended_at for each in earlier[-1:])])


async def estimate(tx: Transaction, task: TaskRecord, position: int) -> timedelta | None:
    """Return about how long a queued task waits at the current rate of its job; None if that is unknown.

    As many tasks as are held now end in the time that recent tasks took.
    """
    held = (await read.held_of_jobs(tx, [task.job_id]))[task.job_id]
    durations = await load.recent_durations(tx, task.job_id) if held else []
    return position * sum(durations, timedelta()) / len(durations) / held if durations else None


def duration(time: timedelta) -> str:
    """Return a duration in words, in the unit that fits."""
    seconds = time.total_seconds()
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
