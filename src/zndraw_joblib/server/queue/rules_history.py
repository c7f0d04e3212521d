"""The explanation of a waiting task: why no worker claims it, and about how long it waits."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Page, version_of
from zndraw_joblib.server.queue import (
    rules_allocations,
    rules_details,
    rules_limits,
    rules_queues,
    rules_successors,
    rules_unique,
    sql_details,
    sql_executors,
    sql_jobs,
    sql_pauses,
    sql_slots,
    sql_successors,
    sql_tasks,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_pauses import ALL_ROOMS
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.queue.sql_tasks import AttemptRecord, positions
from zndraw_joblib.server.queue.sql_workers import WorkerLoad
from zndraw_joblib.wire.history import WAIT_ENDED, Reason, TaskExplanation, TaskHistory, Transition
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import TaskNotFound
from zndraw_joblib.wire.requirements import shown, shown_labels
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

# A worker that runs its jobs claims a task long before.
_UNCLAIMED_AFTER = timedelta(seconds=10)
# So does the dispatcher of a server with an executor of an internal job.
_UNDISPATCHED_AFTER = timedelta(seconds=30)
_INTERNAL_JOBS = 500


async def worker_reasons(
    tx: Transaction,
    task: TaskRecord,
    job: JobRecord | None,
    loads: Sequence[WorkerLoad],
    *,
    may_be_claimed: bool,
) -> list[Reason]:
    """Return why the workers of a task's job, with these `loads`, do not claim it.

    `may_be_claimed`: neither a pause nor a limit keeps them from it.
    """
    if not loads:
        return [await _unmatched(tx, task) or _unserved(task, job)]
    active = [load for load in loads if not load.is_draining]
    if not active:
        return [Reason(code="draining", detail=f"{_all_workers(task, loads)} draining")]
    fitting, too_late = await _in_time(tx, task, job, active)
    if too_late is not None or not may_be_claimed or not task.is_queued:
        return [] if too_late is None else [too_late]
    without_slots = await _in_slots(tx, task, fitting)
    if without_slots is not None or all(load.is_full for load in fitting):
        return [without_slots or _busy(task, fitting)]
    now = await tx.now()
    idle = [load for load in fitting if not load.held and now - load.created_at >= _UNCLAIMED_AFTER]
    waited = now - (task.queued_at or task.created_at)
    if not idle or waited < _UNCLAIMED_AFTER:
        return []
    detail = (
        f"Idle workers of {task.job}: {len(idle)} of {len(loads)}, but none has claimed this task for "
        f"{duration(waited)}: they may be registered without running their jobs (`execute` of a `JobManager`)"
    )
    return [Reason(code="not_claimed", detail=detail)]


async def _unmatched(tx: Transaction, task: TaskRecord) -> Reason | None:
    """Return that no registered worker has the labels that a task requires; None if there is none at all."""
    nearest = await rules_queues.nearest(tx, task)
    if nearest is None:
        return None
    count = nearest.workers
    wanted = [shown(*nearest.requirements)] if any(nearest.requirements) else []
    wanted += [f"{nearest.cost} slots"] if nearest.cost > 1 else []
    labels = shown_labels(nearest.labels)
    if nearest.cost > 1:
        labels += ", 1 slot" if nearest.slots == 1 else f", {nearest.slots} slots"
    which = "its only worker" if count == 1 else f"the nearest of its {count:,} workers"
    return Reason(
        code="no_matching_worker",
        detail=f"No worker of {task.job} has {' and '.join(wanted)}: {which}, {nearest.worker_id} "
        f"({labels}), lacks {' and '.join(nearest.missing)}.",
    )


async def _in_slots(tx: Transaction, task: TaskRecord, loads: Sequence[WorkerLoad]) -> Reason | None:
    """Return that no worker has as many free slots as a task takes; None for a task that takes one."""
    own = (await rules_queues.required(tx, [task])).get(task.id, rules_queues.Needs())
    cost = max(task.policy.cost, own.cost or 1)
    if cost == 1:
        return None
    of_queue = await sql_slots.of_workers(tx, task.job_id)
    ids = {load.id for load in loads}
    workers = sql_slots.most_free(
        [row for row in of_queue if row.worker_id in ids and row.may_serve(task.job.room_id)]
    )
    if not workers or workers[0].free >= cost:
        return None
    first = workers[0]
    which = "its only worker" if len(workers) == 1 else f"of its {len(workers):,} workers the one with most"
    return Reason(
        code="no_free_slots",
        detail=f"A task of {task.job} takes {cost} slots here: {which}, {first.worker_id}, has "
        f"{max(0, first.free)} of {first.slots} free. It keeps them free for the first of these tasks.",
    )


async def _in_time(
    tx: Transaction, task: TaskRecord, job: JobRecord | None, loads: Sequence[WorkerLoad]
) -> tuple[Sequence[WorkerLoad], Reason | None]:
    """Return the workers whose allocations last long enough for a task, or why there is none."""
    ends = [load.ends_at for load in loads if load.ends_at is not None]
    if not ends:
        return loads, None
    job_id = task.job_id if job is None else job.stable_id
    expected = (await rules_allocations.expected(tx, {job_id: task.policy})).get(job_id)
    if expected is None:
        return loads, None
    latest = await tx.now() + timedelta(seconds=expected.seconds)
    fitting = [load for load in loads if load.ends_at is None or load.ends_at > latest]
    if fitting:
        return fitting, None
    last = max(loads, key=lambda load: load.ends_at or latest)
    left = max(max(ends) - await tx.now(), timedelta())
    which = "its only worker" if len(loads) == 1 else f"of its {len(loads):,} workers the one with most"
    return [], Reason(
        code="no_worker_with_enough_time",
        detail=f"No worker of {task.job} has enough time: its tasks are expected to run for "
        f"{duration(timedelta(seconds=expected.seconds))} (by {expected.source}), and {which}, {last.id}, "
        f"has {duration(left)} left.",
    )


def _remedy(task: TaskRecord, job: JobRecord) -> str:
    if version_of(task.job_version) == job.job_version:
        return "Start a worker with the current code of the job, or cancel the task"
    return (
        f"Start a worker of this version, or cancel its tasks or move them to the current one: 'tasks bulk "
        f"retarget --all-rooms --job {task.job} --version {version_of(task.job_version)}'"
    )


def _unserved(task: TaskRecord, job: JobRecord | None) -> Reason:
    """Return since when no worker serves a job, or this version. `job` is None if it is soft-deleted."""
    detail = f"No worker serves {task.job}"
    version = version_of(task.job_version)
    if job is not None and job.unserved_since is None and (job.job_version, version) != (1, 1):
        return Reason(
            code="no_worker_of_version",
            detail=f"No worker of this version: the task is of version {version} of {task.job}, and "
            f"its workers serve other versions; the current one is {job.job_version}. {_remedy(task, job)}",
        )
    if job is None or job.unserved_since is None:
        return Reason(code="no_worker", detail=detail)
    waiting = "1 task waits" if job.pending == 1 else f"{job.pending:,} tasks wait"
    detail = f"{detail} since {job.unserved_since:%Y-%m-%d %H:%M:%S} UTC; {waiting} in its queue"
    return Reason(code="no_worker", detail=detail)


def _busy(task: TaskRecord, active: Sequence[WorkerLoad]) -> Reason:
    running, held = sum(load.running for load in active), sum(load.held for load in active)
    since = max(load.since for load in active if load.since is not None)
    slots = [load.max_tasks for load in active if load.max_tasks is not None]
    slots_text = f", slots: {sum(slots)}" if len(slots) == len(active) else ""
    detail = (
        f"{_all_workers(task, active)} busy since {since:%Y-%m-%d %H:%M:%S} UTC "
        f"(tasks held: {held:,}, running: {running:,}{slots_text})"
    )
    return Reason(code="workers_busy", detail=detail)


def _all_workers(task: TaskRecord, loads: Sequence[WorkerLoad]) -> str:
    count = len(loads)
    return f"The only worker of {task.job} is" if count == 1 else f"All {count:,} workers of {task.job} are"


async def estimate(tx: Transaction, task: TaskRecord, position: int) -> timedelta | None:
    """Return about how long a queued task waits at the current rate of its job; None if that is unknown.

    As many tasks as are held now end in the time that recent tasks took.
    """
    held = (await sql_tasks.held_of_jobs(tx, [task.job_id]))[task.job_id]
    durations = await sql_workers.recent_durations(tx, task.job_id) if held else []
    return position * sum(durations, timedelta()) / len(durations) / held if durations else None


def duration(time: timedelta) -> str:
    """Return a duration in words, in the unit that fits."""
    seconds = time.total_seconds()
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "1 s"


# The history of a task, and why it is in its present state.

# The tasks that are held now end, but no others begin.
_WITHOUT_RATE = {
    *("paused", "no_worker", "no_worker_of_version", "no_matching_worker", "draining", "not_claimed"),
    *("no_worker_with_enough_time", "not_dispatched"),
}


async def history(tx: Transaction, task_id: UUID) -> TaskHistory:
    """Return a task's transitions and the details of its attempts, oldest first. Raises `TaskNotFound`."""
    task = await _existing(tx, task_id)
    attempts = [rules_details.attempt_detail(detail) for detail in await sql_details.of_task(tx, task.seq)]
    transitions = [Transition(at=task.created_at, status=TaskStatus.PENDING, attempt=0, reason="submitted")]
    begun = 0
    for attempt in await sql_tasks.attempts_of(tx, task.seq):
        begun += attempt.started_at is not None
        number = None if attempt.started_at is None else begun
        transitions += _transitions(attempt, number)
        transitions.append(
            Transition(
                at=attempt.ended_at,
                status=TaskStatus.PENDING,
                attempt=attempt.attempt,
                attempt_number=number,
                worker_id=attempt.worker_id,
                reason=attempt.reason,
                error=None if attempt.status in TERMINAL else attempt.error,
                run_at=attempt.run_at,
            )
        )
    is_attempt = task.started_at is not None or task.status in HELD
    transitions += _transitions(task, begun + 1 if is_attempt else None)
    if (released_at := await sql_successors.released_at(tx, task.seq)) is not None:
        _add_release(transitions, released_at)
    return TaskHistory(id=task_id, transitions=transitions, attempts=attempts)


def _add_release(transitions: list[Transition], at: datetime) -> None:
    """Add when the task had waited for its predecessors: it stayed pending."""
    place = next((n for n, one in enumerate(transitions) if n and one.at >= at), len(transitions))
    before = transitions[place - 1]
    fields: dict[str, Any] = {"attempt": before.attempt, "attempt_number": before.attempt_number}
    transitions.insert(place, Transition(at=at, status=TaskStatus.PENDING, reason=WAIT_ENDED, **fields))


def _transitions(attempt: TaskRecord | AttemptRecord, number: int | None) -> list[Transition]:
    steps = [(attempt.claimed_at, TaskStatus.CLAIMED), (attempt.started_at, TaskStatus.RUNNING)]
    fields: dict[str, Any] = {
        "attempt": attempt.attempt,
        "attempt_number": number,
        "worker_id": attempt.worker_id,
    }
    transitions = [Transition(at=at, status=status, **fields) for at, status in steps if at is not None]
    if attempt.completed_at is not None:
        transitions.append(
            Transition(
                at=attempt.completed_at,
                status=TaskStatus(attempt.status),
                reason=attempt.error_code,
                error=attempt.error,
                **fields,
            )
        )
    return transitions


async def explain(tx: Transaction, task_id: UUID, order: ClaimOrder) -> TaskExplanation:
    """Return why a task is in its state, the most important reason first. Raises `TaskNotFound`."""
    task = await _existing(tx, task_id)
    position, expected = (await positions(tx, [task])).get(task_id), None
    if task.status in TERMINAL:
        reasons = [Reason(code=task.status, detail=f"It ended at {task.completed_at:%Y-%m-%d %H:%M:%S} UTC")]
        if task.error_code:
            reasons.append(Reason(code=task.error_code, detail=task.error or ""))
    elif task.status in HELD:
        since = task.started_at or task.claimed_at
        holder = "The server" if task.worker_id is None else f"Worker {task.worker_id}"
        does = "runs it" if task.status is TaskStatus.RUNNING else "has claimed it"
        state = f"{holder} {does}, attempt {task.attempts}"
        reasons = [Reason(code=task.status, detail=f"{state}, since {since:%Y-%m-%d %H:%M:%S} UTC")]
    else:
        reasons, expected = await _pending_reasons(tx, task, position, order)
    reasons += _key_reasons(task, await tx.now())
    seconds = None if expected is None else expected.total_seconds()
    return TaskExplanation(
        id=task_id, status=task.status, queue_position=position, reasons=reasons, wait_seconds=seconds
    )


def _key_reasons(task: TaskRecord, now: datetime) -> list[Reason]:
    """Return what the task's unique key does, if it holds one."""
    if not rules_unique.holds_key(task) or rules_unique.is_over(task, now):
        return []
    if task.unique_expires_at is not None:
        end = f"until {task.unique_expires_at:%Y-%m-%d %H:%M:%S} UTC"
    else:
        end = f"until it has {task.unique_until}"
    detail = f"It holds the unique key {task.unique_text!r} {end}: submits with this key make no other task"
    return [Reason(code="unique_key", detail=detail)]


async def _pending_reasons(
    tx: Transaction, task: TaskRecord, position: int | None, order: ClaimOrder
) -> tuple[list[Reason], timedelta | None]:
    """Return the reasons, and about how long the task waits."""
    if task.is_waiting:
        return await rules_successors.reasons(tx, task), None
    job = await sql_jobs.by_name(tx, task.job)
    limits = await _limit_reasons(tx, task, position, order)
    reasons = []
    for pause in await sql_pauses.of_room(tx, task.room_id):
        what = "All rooms are" if pause.room_id == ALL_ROOMS else f"Room {task.room_id} is"
        reasons.append(
            Reason(code="paused", detail=f"{what} paused{_until(pause.until)} by {pause.paused_by}")
        )
    if job is not None and job.is_paused(await tx.now()):
        reasons.append(Reason(code="paused", detail=f"Job {task.job} is paused{_until(job.paused_until)}"))
    reasons += await _taker_reasons(tx, task, job, may_be_claimed=not reasons and not limits)
    if task.run_at is not None:
        cause = f" after: {task.error}" if task.error else ""
        detail = f"It waits until {task.run_at:%Y-%m-%d %H:%M:%S.%f} UTC{cause}"
        reasons.append(Reason(code="scheduled", detail=detail))
    reasons += limits
    if position is None:
        return reasons, None
    detail = f"It is {_place(position)}"
    has_rate = _WITHOUT_RATE.isdisjoint(reason.code for reason in reasons)
    expected = await estimate(tx, task, position) if has_rate else None
    if expected is not None:
        detail += f": about {duration(expected)} at the current rate"
    return [*reasons, Reason(code="queued", detail=detail)], expected


async def _taker_reasons(
    tx: Transaction, task: TaskRecord, job: JobRecord | None, *, may_be_claimed: bool
) -> list[Reason]:
    """Return why no worker takes a task, or no process of the server's side an internal one."""
    if task.job.room_id != INTERNAL:
        loads = await sql_workers.of_workers(tx, task.job_id)
        return await worker_reasons(tx, task, job, loads, may_be_claimed=may_be_claimed)
    return await _undispatched(tx, task) if may_be_claimed and task.is_queued else []


async def _undispatched(tx: Transaction, task: TaskRecord) -> list[Reason]:
    """Return that no process takes an internal task, because no server that runs has an executor for its job.

    If that is not known, as with servers of an earlier release: if none of them runs another internal task.
    """
    waited = await tx.now() - (task.queued_at or task.created_at)
    if waited < _UNDISPATCHED_AFTER:
        return []
    executors = await sql_executors.known(tx)
    if executors is not None:
        if str(task.job) in executors:
            return []
        detail = (
            f"No process has dispatched it for {duration(waited)}: no server that runs has an executor for "
            f"{task.job}"
        )
        return [Reason(code="not_dispatched", detail=detail)]
    jobs, _ = await sql_jobs.page(tx, INTERNAL, Page(_INTERNAL_JOBS, 0))
    if await sql_tasks.held_of_jobs(tx, [job.id for job in jobs if job.room_id == INTERNAL]):
        return []
    detail = (
        f"No process has dispatched it for {duration(waited)}, and none runs another internal task: "
        f"no process that runs has an executor for {task.job}"
    )
    return [Reason(code="not_dispatched", detail=detail)]


def _place(position: int) -> str:
    if position == 1:
        return "first in its queue"
    others = "1 other task" if position == 2 else f"{position - 1:,} other tasks"
    return f"at position {position:,} of its queue, after {others}"


def _until(end: datetime | None) -> str:
    return "" if end is None else f" until {end:%Y-%m-%d %H:%M:%S} UTC"


async def _limit_reasons(
    tx: Transaction, task: TaskRecord, position: int | None, order: ClaimOrder
) -> list[Reason]:
    reasons = []
    limit = task.policy.max_in_flight
    if limit is not None:
        versions = await sql_jobs.versions_of(tx, [task.job_id])
        held = (await sql_tasks.held_of_jobs(tx, versions[task.job_id])).total()
        if held >= limit:
            detail = f"{_held(held, task.job)} claimed or running, and max_in_flight is {limit}"
            reasons.append(Reason(code="job_at_capacity", detail=detail))
    reasons += await rules_limits.reasons(tx, task, position)
    if order.room_cap is not None:
        held = (await sql_tasks.held_in_rooms(tx, [task.room_id]))[task.room_id]
        if held >= order.room_cap:
            what = _held(held, f"room {task.room_id!r}")
            detail = f"{what} claimed or running, and room_max_in_flight is {order.room_cap}"
            reasons.append(Reason(code="room_at_capacity", detail=detail))
    return reasons


async def _existing(tx: Transaction, task_id: UUID) -> TaskRecord:
    task = await sql_tasks.by_id(tx, task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    return task


def _held(number: int, what: object) -> str:
    return f"1 task of {what} is" if number == 1 else f"{number:,} tasks of {what} are"
