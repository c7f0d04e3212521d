"""Retention of ended tasks: how long those of each job and status are kept, and what is older."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import sql_details, sql_jobs, sql_task_retention, sql_transitions
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.operators import KeptTasks, KeptTime
from zndraw_joblib.wire.policy import FOREVER, Keep
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

BATCH = 1000
# What was skipped, because others needed it, is looked at again once a day.
_PASS_TIME = timedelta(days=1)
# Default times apply a week after the first start with them: an upgrade deletes nothing by surprise.
_GRACE, _SINCE = timedelta(days=7), "keep_defaults_since"
_MAX_COUNTED = 10_000
_STATUSES = sorted(TERMINAL)
Place = tuple[datetime, int]


class KeepTimes(NamedTuple):
    """How many seconds ended tasks are kept, by status, and by what jobs say of them; None for ever."""

    default: Mapping[TaskStatus, float | None]
    jobs: Mapping[UUID, Keep]

    def of(self, job_id: UUID | None, status: TaskStatus) -> float | None:
        """Return for how many seconds the tasks of a job with a status are kept."""
        keep = None if job_id is None else self.jobs.get(job_id)
        own = None if keep is None else getattr(keep, status.value)
        return self.default[status] if own is None else None if own == FOREVER else own

    @property
    def distinct(self) -> list[float]:
        """The different times, the shortest first."""
        times = {self.of(job_id, status) for job_id in (None, *self.jobs) for status in _STATUSES}
        return sorted(time for time in times if time is not None)


class TaskPruning(NamedTuple):
    """Where the deletion of old tasks has got to.

    The ended tasks are read in the order of their ends, once for each different time: up to that time ago.
    Those with other times are passed over, so no task is read twice for one time; those that were locked are
    read again in the next cycle, from `skipped` on, and all once a day.
    """

    places: Mapping[float, Place] = MappingProxyType({})
    skipped: Mapping[float, Place] = MappingProxyType({})
    times: KeepTimes | None = None
    begun_at: datetime | None = None
    waiting: tuple[float, ...] = ()

    def begin(self, times: KeepTimes, now: datetime) -> "TaskPruning":
        """Return the beginning of a cycle. After a change of the times, all tasks are read again."""
        waiting = tuple(times.distinct)
        if times != self.times or self.begun_at is None or now - self.begun_at > _PASS_TIME:
            return TaskPruning(times=times, begun_at=now, waiting=waiting)
        return self._replace(places={**self.places, **self.skipped}, skipped={}, waiting=waiting)


class PrunedTasks(NamedTuple):
    """How many tasks a batch deleted, whether there may be more, and where the next batch begins."""

    deleted: int
    may_be_more: bool
    state: TaskPruning


async def keep_times(tx: Transaction, settings: JobLibSettings) -> tuple[KeepTimes, datetime | None]:
    """Return the times in force, and from when on default times apply; None if they do."""
    default = {status: _seconds(settings.keep_days(status.value)) for status in _STATUSES}
    times = KeepTimes(default, await sql_jobs.keeps(tx))
    if not settings.keeps_by_default:
        return times, None
    since = await runtime_settings.get(tx, _SINCE)
    now = await tx.now()
    applies_at = (now if since is None else datetime.fromisoformat(since)) + _GRACE
    return times, applies_at if applies_at > now else None


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400


async def announce(tx: Transaction, settings: JobLibSettings) -> KeptTasks:
    """Remember when default times were first in force; return them, and what is older."""
    if settings.keeps_by_default:
        await runtime_settings.add(tx, _SINCE, (await tx.now()).isoformat())
    return await read(tx, settings)


async def prune(tx: Transaction, settings: JobLibSettings, state: TaskPruning) -> PrunedTasks:
    """Delete a batch of old tasks.

    A batch reads up to 1,000 tasks. Tasks with long logs are deleted fewer at a time.
    """
    now = await tx.now()
    if not state.waiting:
        times, applies_at = await keep_times(tx, settings)
        if applies_at is not None:
            times = times._replace(default=_explicit(settings))
        state = state.begin(times, now)
    if not state.waiting or state.times is None:
        return PrunedTasks(0, False, state)
    seconds, times = state.waiting[0], state.times
    place, before = state.places.get(seconds, sql_task_retention.START), now - timedelta(seconds=seconds)
    tasks = await sql_task_retention.ended_after(tx, place, before, BATCH)
    old = {
        task.seq: task
        for task in tasks
        if not task.is_needed and times.of(task.job_id, TaskStatus(task.status)) == seconds
    }
    first = await sql_details.first_to_prune(tx, list(old)) if old else []
    deleted = await sql_transitions.delete_ended(tx, first, before) if first else 0
    if deleted < len(first):
        state = state._replace(skipped={seconds: place, **state.skipped})
    is_part = len(first) < len(old)
    if tasks:
        last = old[first[-1]] if is_part else tasks[-1]
        state = state._replace(places={**state.places, seconds: (last.completed_at, last.seq)})
    if len(tasks) < BATCH and not is_part:
        state = state._replace(waiting=state.waiting[1:])
    return PrunedTasks(deleted, bool(state.waiting), state)


def _explicit(settings: JobLibSettings) -> dict[TaskStatus, float | None]:
    """Return the times that an operator has set."""
    names = {status: f"keep_{status.value}_days" for status in _STATUSES}
    return {
        status: _seconds(settings.keep_days(status.value)) if name in settings.model_fields_set else None
        for status, name in names.items()
    }


async def read(
    tx: Transaction, settings: JobLibSettings, job: JobName | None = None, proposed: Keep | None = None
) -> KeptTasks:
    """Return how long ended tasks are kept, of a job or of those without times of their own, and count older.

    `proposed` replaces times. Up to 10,000 tasks are counted for each time. Raises `JobNotFound`.
    """
    times, applies_at = await keep_times(tx, settings)
    job_ids = [version.id for version in await sql_jobs.versions(tx, str(job))] if job is not None else []
    if job is not None and not job_ids:
        raise JobNotFound(f"Job {str(job)!r} not found")
    own = times.jobs.get(job_ids[0]) if job_ids else None
    kept: dict[TaskStatus, float | None] = {}
    sources: dict[TaskStatus, Literal["job", "settings", "proposed"]] = {}
    for status in _STATUSES:
        value, of_job = getattr(proposed, status.value, None), getattr(own, status.value, None)
        named = of_job if value is None else value
        kept[status] = times.default[status] if named is None else None if named == FOREVER else named
        sources[status] = "proposed" if value is not None else "settings" if of_job is None else "job"
    if job_ids:
        counts, is_complete = await _count_of_jobs(tx, kept, job_ids)
    else:
        counts, is_complete = await _count(tx, times._replace(default=kept))
    return KeptTasks(
        job=None if job is None else str(job),
        **{
            status.value: KeptTime(
                keep_seconds=kept[status], source=sources[status], older=counts.get(status, 0)
            )
            for status in _STATUSES
        },
        is_complete=is_complete,
        applies_at=applies_at,
    )


async def _count(tx: Transaction, times: KeepTimes) -> tuple[dict[TaskStatus, int], bool]:
    """Count old tasks of the jobs that have no times of their own."""
    now, counts, is_complete = await tx.now(), dict.fromkeys(_STATUSES, 0), True
    for seconds in sorted({time for time in times.default.values() if time is not None}):
        before = now - timedelta(seconds=seconds)
        ended, is_all = await sql_task_retention.count_ended(tx, before, _MAX_COUNTED)
        is_complete &= is_all
        for (job_id, status), count in ended.items():
            if times.default[status] == seconds and times.of(job_id, status) == seconds:
                counts[status] += count
    return counts, is_complete


async def _count_of_jobs(
    tx: Transaction, kept: Mapping[TaskStatus, float | None], job_ids: list[UUID]
) -> tuple[dict[TaskStatus, int], bool]:
    now, counts, is_complete = await tx.now(), dict.fromkeys(_STATUSES, 0), True
    for seconds in sorted({time for time in kept.values() if time is not None}):
        before = now - timedelta(seconds=seconds)
        old, is_all = await sql_task_retention.count_ended_of_jobs(tx, job_ids, before, _MAX_COUNTED)
        is_complete &= is_all
        counts |= {status: old.get(status, 0) for status in _STATUSES if kept[status] == seconds}
    return counts, is_complete
