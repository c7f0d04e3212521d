"""Schedules: when they are due, and the transaction that submits their tasks, each due time once.

Due times are those of a `ScheduleTimes`, in UTC. A schedule's row has the next one. The transaction that
submits a task moves it on, and the task has the due time, which is unique for a schedule in the database.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic_core import to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import SCHEDULES_KEY, Identity, Page
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_jobs,
    rules_payloads,
    rules_queues,
    rules_tasks,
    rules_transitions,
    sql_jobs,
    sql_schedules,
)
from zndraw_joblib.server.queue.rules_queues import Needs
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.queue.sql_schedules import LiveTasks, ScheduleRecord
from zndraw_joblib.wire.masks import ALL_PATHS, joined_paths, without_secrets
from zndraw_joblib.wire.messages import JobResponse, PaginatedResponse, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, RESERVED, JobName
from zndraw_joblib.wire.problems import (
    Conflict,
    Forbidden,
    InvalidRequest,
    JobNotFound,
    ProblemException,
    ScheduleNotFound,
    ServiceUnavailable,
    TooManyRequests,
)
from zndraw_joblib.wire.schedules import CatchUp, Overlap, ScheduleResponse, ScheduleTimes
from zndraw_joblib.wire.scopes import Scope

# A due time that no server has submitted for so long is missed.
_MISSED = timedelta(seconds=60)
# How far back the last missed due times are looked for first; then twice as far, and so on.
_FIRST_WINDOW = timedelta(hours=1)
_MAX_ERROR_BYTES = 2000
_STEP = timedelta(microseconds=1)
Result = TypeVar("Result")
P = ParamSpec("P")


# Due times.


def check(times: ScheduleTimes) -> None:
    """Raise `InvalidRequest` for a time zone or a cron expression that does not exist, or is never due."""
    zone = _zone(times.time_zone)
    if times.cron is None:
        return
    try:
        next(CronSim(times.cron, datetime(2024, 1, 1, tzinfo=zone)))
    except (CronSimError, ValueError) as error:
        raise _invalid(
            "cron",
            f"{times.cron!r} is no cron expression: {error}. Write minute, hour, day of the month, month and "
            "weekday, as in '0 3 * * *'",
        ) from error
    except StopIteration as error:
        raise _invalid("cron", f"{times.cron!r} is never due, such as on 30 February") from error


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _invalid(
            "time_zone", f"{name!r} is no time zone of the IANA database, as 'Europe/Berlin' is"
        ) from error


def _invalid(field: str, text: str) -> InvalidRequest:
    error = {"loc": ["body", field], "message": text, "type": "value_error"}
    return InvalidRequest(f"{field}: {text}", errors=[error])


def due_times(times: ScheduleTimes, anchor: datetime, since: datetime) -> Iterator[datetime]:
    """Return the due times from `since` on, in order."""
    if times.starts_at is not None:
        since = max(since, times.starts_at)
    for due in _all_times(times, anchor, since):
        if times.ends_at is not None and due > times.ends_at:
            return
        yield due


def _all_times(times: ScheduleTimes, anchor: datetime, since: datetime) -> Iterator[datetime]:
    if times.at is not None:
        return iter([times.at] if times.at >= since else [])
    if times.every_seconds is not None:
        return _intervals(times.starts_at or anchor, times.every_seconds, since, times.starts_at is not None)
    return _cron_times(times, since)


def _intervals(anchor: datetime, seconds: float, since: datetime, is_first_due: bool) -> Iterator[datetime]:
    interval = timedelta(seconds=seconds)
    number = max(0 if is_first_due else 1, -((anchor - since) // interval))
    while True:
        try:
            yield anchor + number * interval
        except OverflowError:
            return
        number += 1


def _cron_times(times: ScheduleTimes, since: datetime) -> Iterator[datetime]:
    last, zone = since - timedelta(seconds=1), _zone(times.time_zone)
    try:
        for local in CronSim(times.cron or "", last.astimezone(zone)):
            due = local.astimezone(UTC)
            # In the hour that clocks repeat, times of the first hour come up once more.
            if due >= since and due > last:
                last = due
                yield due
    except (OverflowError, ValueError, RuntimeError):
        return  # the end of the calendar


class DueTimes(NamedTuple):
    """The due times that a schedule submits tasks for now, oldest first, and the one after them."""

    now: list[datetime]
    following: datetime | None


def due_now(schedule: ScheduleRecord, now: datetime) -> DueTimes:
    """Return the due times up to `now`: those of the last minute, and missed ones by `catch_up`."""
    first = schedule.next_due_at
    times = schedule.times
    following = next(due_times(times, schedule.anchor_at, max(now + _STEP, first or now)), None)
    if first is None or first > now:
        return DueTimes([], first)
    fresh_since = max(first, now - _MISSED + _STEP)
    fresh = []
    for due in due_times(times, schedule.anchor_at, fresh_since):
        if due > now:
            break
        fresh.append(due)
    count = {CatchUp.NONE: 0, CatchUp.LAST: int(not fresh), CatchUp.ALL: times.max_catch_up}[times.catch_up]
    missed = _last_times(schedule, first, fresh_since, count) if count else []
    return DueTimes([*missed, *fresh], following)


def _last_times(schedule: ScheduleRecord, first: datetime, until: datetime, count: int) -> list[datetime]:
    """Return the last `count` due times from `first` on and before `until`."""
    window, ends_at = _FIRST_WINDOW, schedule.times.ends_at
    until = until if ends_at is None else min(until, ends_at + _STEP)
    while True:
        since = max(first, until - window)
        last = deque[datetime](maxlen=count)
        for due in due_times(schedule.times, schedule.anchor_at, since):
            if due >= until:
                break
            last.append(due)
        if len(last) == count or since <= first:
            return list(last)
        window *= 2


# Write and read schedules.


class NewSchedule(NamedTuple):
    """A schedule to create or replace. `paused` None keeps its state.

    `add_schedule()`, for a new one, raises a problem if the caller may have no further one; so does a room
    that has `max_schedules`.
    """

    caller: Identity
    room_id: str
    name: str
    job: JobName
    times: ScheduleTimes
    paused: bool | None = None
    cross_room: bool = False
    max_schedules: int | None = None
    add_schedule: Callable[[], None] = lambda: None


async def put(tx: Transaction, item: NewSchedule) -> tuple[ScheduleResponse, bool]:
    """Create or replace a schedule. Return it, and whether it is new.

    The same times keep their next due time. Raises `JobNotFound`, and `Conflict` for a room with too many.
    The payload is validated again when a task is due.
    """
    rules_transitions.check_room(item.job, item.room_id, cross_room=item.cross_room)
    # Submits of due tasks lock the job, then the schedule.
    if item.job not in await sql_jobs.lock_by_names(tx, [item.job]):
        raise JobNotFound(f"Job {str(item.job)!r} not found: register it before its schedule")
    return await put_of_job(tx, item)


async def register_job(
    tx: Transaction, job: rules_jobs.JobToRegister, schedule: NewSchedule | None
) -> tuple[JobResponse, bool]:
    """Register a worker for a job, as `rules_jobs.register` does, and write its schedule, if it has one.

    A schedule that is written already stays. Raises `Conflict` if another job of the room has a schedule of
    this name, and `Forbidden` if the caller may not write it.
    """
    result = await rules_jobs.register(tx, job)
    if schedule is not None:
        current = await sql_schedules.get(tx, schedule.room_id, schedule.name, lock=True)
        if current is not None and current.job != schedule.job:
            raise Conflict(
                f"schedule: {schedule.name!r} of room {schedule.room_id!r} is a schedule of "
                f"{current.job_name!r}; delete it first, or name the job otherwise"
            )
        reason = _reason_to_refuse(schedule, current)
        if reason is None:
            await put_of_job(tx, schedule)
        elif current is None or current.spec != _spec(schedule.times):
            raise Forbidden(
                f"Not authorized: schedule: {reason}. Register the job without it. An operator of the room "
                f"may then write it, with 'zndraw-joblib schedules put {schedule.name} {schedule.job} --room "
                f"{schedule.room_id}' and the same times; after that the job may be registered with it"
            )
    return result


def _reason_to_refuse(item: NewSchedule, current: ScheduleRecord | None) -> str | None:
    """Return why the caller may not write the schedule of a job that it registers; None if it may.

    A role that serves ``@global`` writes those of its own jobs there: any user may submit their tasks.
    """
    caller, room_id = item.caller, item.room_id
    if caller.operates(room_id):
        return None
    if room_id in RESERVED and not (room_id == GLOBAL and caller.serves(GLOBAL)):
        return f"only operators of {room_id} may write its schedules"
    if caller.worker is not None:
        return "a token that was issued for workers writes no schedules, which would outlive it"
    if not caller.may(Scope.SUBMIT):
        return str(rules_transitions.missing_scope(caller, Scope.SUBMIT))
    if current is not None and current.owner_id != caller.id:
        return f"{item.name!r} of room {room_id!r} was written by another user, with other times"
    return None


async def put_of_job(tx: Transaction, item: NewSchedule) -> tuple[ScheduleResponse, bool]:
    """Do what `put` does for a job that the transaction has locked."""
    await _check_requirements(tx, item)
    now, job_name = await tx.now(), str(item.job)
    masked = (await sql_jobs.masks(tx, [job_name])).get(job_name)
    current = await sql_schedules.get(tx, item.room_id, item.name, lock=True)
    shown = masked if current is None else joined_paths([masked, current.masked])
    if fault := rules_payloads.mask_fault(item.times.payload, shown):
        raise fault
    schedule = _written(item, current, now, masked)
    if current is None and await sql_schedules.add(tx, schedule):
        if item.max_schedules is not None:
            await _check_room(tx, item.room_id, item.max_schedules)
        item.add_schedule()
    else:
        current = current or await sql_schedules.get(tx, item.room_id, item.name, lock=True)
        schedule = _written(item, current, now, masked)
        await sql_schedules.replace(tx, schedule)
    tx.wake(SCHEDULES_KEY)
    return await response(tx, schedule), current is None


async def _check_requirements(tx: Transaction, item: NewSchedule) -> None:
    """Raise `InvalidRequest` if tasks of the job cannot have the requirements of a schedule."""
    job = await sql_jobs.by_name(tx, item.job) if Needs.of(item.times).text or item.times.cost else None
    fault = None if job is None else rules_queues.fault(item.times, item.job, job.policy)
    if fault is not None:
        raise fault


def _written(
    item: NewSchedule, current: ScheduleRecord | None, now: datetime, masked: str | None
) -> ScheduleRecord:
    paused = item.paused if item.paused is not None else current is not None and current.paused
    who: dict[str, Any] = {
        "owner_id": item.caller.id,
        "job_name": str(item.job),
        "spec": _spec(item.times),
        "paused": paused,
        "masked": masked,
    }
    if current is not None and _dates(current.times) == _dates(item.times):
        return current._replace(**who, updated_at=now)
    first = next(due_times(item.times, now, now if item.times.at is None else item.times.at), None)
    new = ScheduleRecord(
        *(uuid4(), item.room_id, item.name),
        **who,
        created_at=now,
        updated_at=now,
        anchor_at=now,
        next_due_at=first,
        last_due_at=None,
        last_task_id=None,
        error=None,
        error_at=None,
    )
    if current is None:
        return new
    return new._replace(
        id=current.id,
        created_at=current.created_at,
        last_due_at=current.last_due_at,
        last_task_id=current.last_task_id,
    )


def _spec(times: ScheduleTimes) -> str:
    """Return what is stored of the times."""
    fields = set(ScheduleTimes.model_fields)
    return to_json(times.model_dump(mode="json", include=fields, exclude_defaults=True)).decode()


def _dates(times: ScheduleTimes) -> dict[str, Any]:
    """Return what decides when a schedule is due."""
    return times.model_dump(include={"cron", "every_seconds", "at", "time_zone", "starts_at", "ends_at"})


async def _check_room(tx: Transaction, room_id: str, limit: int) -> None:
    if await sql_schedules.count(tx, room_id) > limit:
        raise Conflict(
            f"Room {room_id!r} has {limit} schedules, which is the limit (max_schedules_per_room). "
            "Delete schedules that are not needed"
        )


def of_seen(
    work: Callable[Concatenate[Transaction, P], Awaitable[Result]], caller: Identity, room_id: str, name: str
) -> Callable[Concatenate[Transaction, P], Awaitable[Result]]:
    """Return a function like `work` on a schedule, which raises `Forbidden` if the caller may not see it."""
    if caller.sees(None):
        return work

    async def apply(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        check_sees(caller, await sql_schedules.get(tx, room_id, name, lock=True))
        return await work(tx, *args, **kwargs)

    return apply


def check_sees(caller: Identity, schedule: ScheduleRecord | None) -> None:
    """Raise `Forbidden` for a schedule that the caller may not see: tasks and responses have its payload."""
    if schedule is not None:
        what = f"schedule {schedule.name!r} of room {schedule.room_id!r}"
        rules_transitions.check_sees(caller, schedule.owner_id, what)


async def delete(tx: Transaction, room_id: str, name: str) -> None:
    """Delete a schedule; its tasks stay. Raises `ScheduleNotFound`."""
    if not await sql_schedules.delete(tx, room_id, name):
        raise _not_found(room_id, name)


async def pause(tx: Transaction, room_id: str, name: str, *, paused: bool) -> ScheduleResponse:
    """Pause or resume a schedule. Raises `ScheduleNotFound`."""
    schedule = await sql_schedules.pause(tx, room_id, name, paused=paused)
    if schedule is None:
        raise _not_found(room_id, name)
    if not paused:
        tx.wake(SCHEDULES_KEY)
    return await response(tx, schedule)


async def get(tx: Transaction, room_id: str, name: str, following: int = 0) -> ScheduleResponse:
    """Return a schedule, with its `following` next due times. Raises `ScheduleNotFound`."""
    schedule = await record(tx, room_id, name)
    times = None
    if following:
        first = schedule.next_due_at
        due = [] if first is None else due_times(schedule.times, schedule.anchor_at, first)
        times = list(islice(due, following))
    return (await response(tx, schedule)).model_copy(update={"next": times})


async def record(tx: Transaction, room_id: str, name: str) -> ScheduleRecord:
    """Return a schedule's row. Raises `ScheduleNotFound`."""
    schedule = await sql_schedules.get(tx, room_id, name)
    if schedule is None:
        raise _not_found(room_id, name)
    return schedule


async def page(tx: Transaction, room_id: str, part: Page) -> PaginatedResponse[ScheduleResponse]:
    """Return one page of a room's schedules, by name."""
    schedules, total = await sql_schedules.page(tx, room_id, part.limit, part.offset)
    items = await responses(tx, schedules)
    return rules_answers.page_response(PaginatedResponse[ScheduleResponse], items, total, part)


def _not_found(room_id: str, name: str) -> ScheduleNotFound:
    hint = "a schedule of @job is in the room of its job: @global, or @internal if an app runs it"
    return ScheduleNotFound(f"Room {room_id!r} has no schedule {name!r}. Name its room; {hint}")


async def response(tx: Transaction, schedule: ScheduleRecord) -> ScheduleResponse:
    """Return a schedule as responses contain it."""
    [shown] = await responses(tx, [schedule])
    return shown


async def responses(tx: Transaction, schedules: Sequence[ScheduleRecord]) -> list[ScheduleResponse]:
    """Return schedules as responses contain them, without the secret values of their payloads.

    Secret is what the job's schemas mark now, and did when the payload was written; all if the job is gone.
    """
    masks = await sql_jobs.masks(tx, [schedule.job_name for schedule in schedules]) if schedules else {}
    shown = [ScheduleResponse.model_construct(**schedule.shown()) for schedule in schedules]
    for schedule, answer in zip(schedules, shown, strict=True):
        masked = joined_paths([schedule.masked, masks.get(schedule.job_name, ALL_PATHS)])
        answer.payload = without_secrets(answer.payload, masked)
    return shown


# Submit the tasks that are due.


class Plan(NamedTuple):
    """What a schedule does now: the due times to submit tasks for, which may be none, and the next one."""

    schedule: ScheduleRecord
    times: list[datetime]
    following: datetime | None


class Waiting(NamedTuple):
    """Schedules that are due, and in how many seconds the next one of all is; None without one.

    `faults` are why this server does not know when a schedule is due, by its id: such a plan has no times.
    """

    plans: list[Plan]
    seconds: float | None
    faults: dict[UUID, ProblemException]


async def waiting(tx: Transaction, limit: int, but: Collection[UUID] = ()) -> Waiting:
    """Return schedules that are due, the longest due first, without those in `but`."""
    now = await tx.now()
    due = [schedule for schedule in await sql_schedules.due(tx, limit + len(but)) if schedule.id not in but]
    plans, faults = list[Plan](), dict[UUID, ProblemException]()
    for schedule in due[:limit]:
        try:
            plans.append(Plan(schedule, *due_now(schedule, now)))
        except ProblemException as problem:
            plans.append(Plan(schedule, [], schedule.next_due_at))
            faults[schedule.id] = problem
    overlapping = [plan.schedule.id for plan in plans if plan.schedule.times.overlap != Overlap.ALLOW]
    live = await sql_schedules.live_tasks(tx, overlapping)
    plans = [
        plan._replace(times=_allowed(plan.times, plan.schedule.times.overlap, live.get(plan.schedule.id)))
        for plan in plans
    ]
    next_due_at = await sql_schedules.next_due(tx)
    return Waiting(plans, None if next_due_at is None else (next_due_at - now).total_seconds(), faults)


def run_at(schedule: ScheduleRecord, due_at: datetime) -> datetime | None:
    """Return when a task enters its queue, by the jitter of its schedule; None for at once."""
    jitter = schedule.times.jitter_seconds
    return due_at + timedelta(seconds=random.uniform(0, jitter)) if jitter else None  # noqa: S311


def options(schedule: ScheduleRecord, due_at: datetime | None = None) -> TaskSubmitRequest:
    """Return the body of a submit of its task."""
    times = schedule.times
    names = (
        "payload",
        "priority",
        "expires_in_seconds",
        "max_attempts",
        "unique",
        "debounce",
        "tags",
        "requires",
        "cost",
        "prefer",
    )
    fields = {name: value for name in names if (value := getattr(times, name)) is not None}
    if due_at is not None and (moment := run_at(schedule, due_at)) is not None:
        fields["run_at"] = moment
    return TaskSubmitRequest(**fields)


# The result for a task that is not submitted: another server has the schedule, or `overlap` skips it.
FireResult = TaskResponse | Exception | None


async def fire(tx: Transaction, plans: Sequence[Plan], items: Sequence[Submission]) -> list[FireResult]:
    """Submit the due tasks of schedules, and move these on; a schedule that has changed stays.

    `items` are the tasks of all plans. The result of each is that of `rules_tasks.submit`, or None. A
    schedule with a payload that was not validated against the current schema stays as it was; and, for a
    minute, one of an internal job for which this server has no executor.
    """
    # In this order, which other transactions have too.
    wanted: dict[JobName, set[str]] = {plan.schedule.job: set() for plan in plans}
    for item in items:
        if (text := Needs.of(item.options).text) is not None:
            wanted.setdefault(item.job, set()).add(text)
    await rules_queues.lock(tx, wanted)
    locked = await sql_schedules.lock_free(tx, [plan.schedule.id for plan in plans])
    plans = [plan for plan in plans if locked.get(plan.schedule.id) == plan.schedule]
    ids = [plan.schedule.id for plan in plans]
    live = await sql_schedules.live_tasks(
        tx, [plan.schedule.id for plan in plans if plan.schedule.times.overlap != Overlap.ALLOW]
    )
    submitted = await sql_schedules.submitted(tx, ids) if ids else set()
    times_of: dict[tuple[str, str], list[datetime]] = {}
    for plan in plans:
        schedule = plan.schedule
        times = [due for due in plan.times if (schedule.id, due) not in submitted]
        times_of[schedule.room_id, schedule.name] = _allowed(
            times, schedule.times.overlap, live.get(schedule.id)
        )
    indexes = [
        index
        for index, item in enumerate(items)
        if item.due_at in times_of.get((item.room_id, item.schedule or ""), ())
    ]
    results: list[FireResult] = [None] * len(items)
    if indexes:
        answers = await rules_tasks.submit(tx, [items[index] for index in indexes])
        for index, submitted_or_fault in zip(indexes, answers, strict=True):
            results[index] = submitted_or_fault
    of_schedule: dict[tuple[str, str], list[tuple[Submission, FireResult]]] = {}
    for item, result in zip(items, results, strict=True):
        of_schedule.setdefault((item.room_id, item.schedule or ""), []).append((item, result))
    now = await tx.now()
    keys = [(plan.schedule.room_id, plan.schedule.name) for plan in plans]
    moved = [_moved(plan, of_schedule.get(key, []), now) for plan, key in zip(plans, keys, strict=True)]
    await sql_schedules.advance(tx, [schedule for schedule in moved if schedule is not None])
    return results


def _allowed(times: list[datetime], overlap: Overlap, live: LiveTasks | None) -> list[datetime]:
    """Return the last of these due times that may have tasks beside those that have not ended."""
    if live is None:
        return times
    free = 1 - live.number
    if overlap is Overlap.QUEUE_ONE:
        free = 0 if live.waiting else 2 - live.number
    return times[-free:] if free > 0 else []


def _moved(
    plan: Plan, results: Sequence[tuple[Submission, FireResult]], now: datetime
) -> ScheduleRecord | None:
    """Return a schedule after its due times; None if it stays as it was."""
    moved = plan.schedule._replace(next_due_at=plan.following, error=None, error_at=None)
    for item, result in results:
        if isinstance(result, rules_payloads.UnvalidatedPayload):
            return None
        # Another server may have an executor for its job, or this one a moment later.
        # Or the job has fewer pending tasks then.
        is_late = isinstance(result, ServiceUnavailable | TooManyRequests)
        if is_late and not _is_missed(plan.schedule, now):
            return None
        if isinstance(result, Exception):
            moved = moved._replace(error=_text(result), error_at=now)
        elif result is not None and result.room_id == item.room_id:
            # With `unique` it may be a task that held the key, also one of another room.
            moved = moved._replace(last_due_at=item.due_at, last_task_id=result.id)
    return moved


def _is_missed(schedule: ScheduleRecord, now: datetime) -> bool:
    return schedule.next_due_at is not None and schedule.next_due_at <= now - _MISSED


async def fail(tx: Transaction, plans: Sequence[Plan], problem: ProblemException) -> None:
    """Move schedules on whose tasks cannot be submitted, with the reason."""
    locked = await sql_schedules.lock_free(tx, [plan.schedule.id for plan in plans])
    now = await tx.now()
    moved = [
        plan.schedule._replace(next_due_at=plan.following, error=_text(problem), error_at=now)
        for plan in plans
        if locked.get(plan.schedule.id) == plan.schedule
    ]
    await sql_schedules.advance(tx, moved)


def _text(problem: Exception) -> str | None:
    name = problem.problem_id() if isinstance(problem, ProblemException) else type(problem).__name__
    return rules_transitions.truncate_error(f"{name}: {problem}", _MAX_ERROR_BYTES)
