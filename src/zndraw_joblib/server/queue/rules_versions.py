"""Check versions of jobs, and retarget: move pending tasks of earlier versions to the current one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import version_of
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_queues,
    sql_jobs,
    sql_queues,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.masks import joined_paths
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.problems import InvalidRequest, TooManyRequests
from zndraw_joblib.wire.statuses import TaskStatus


async def check(tx: Transaction, names: Sequence[str], numbers: Sequence[int], *, earlier: bool) -> None:
    """Raise `InvalidRequest` for versions that none of these jobs has, or has as an `earlier` one.

    With `earlier`, also for the name of no job.
    """
    versions = {name: await sql_jobs.versions(tx, name) for name in sorted(set(names))}
    if earlier and (missing := [name for name, of_job in versions.items() if not of_job]):
        raise InvalidRequest(f"body.filter.job: there is no job {missing[0]!r}; 'GET /jobs' lists the jobs")
    versions = {
        name: [record for record in of_job if record.requires is None] for name, of_job in versions.items()
    }
    records = [record for of_job in versions.values() for record in of_job]
    usable = {record.job_version for record in records if record.superseded or not earlier}
    if unknown := sorted(set(numbers) - usable):
        listed = "; ".join(
            f"{name} has {', '.join(map(_described, of_job))}" for name, of_job in versions.items() if of_job
        )
        what = "no earlier version" if earlier else "no version"
        raise InvalidRequest(
            f"body.filter.version: there is {what} {', '.join(map(str, unknown))}: {listed or 'no job'}"
        )


def _described(version: JobRecord) -> str:
    return f"{version.job_version}{'' if version.superseded else ' (current)'}"


class Unchecked(NamedTuple):
    """A task of an earlier version, and the current schema of its job as JSON."""

    task: TaskRecord
    schema: str


async def unchecked(tx: Transaction, seqs: Sequence[int]) -> list[Unchecked]:
    """Return those of these tasks that are pending in an earlier version of their job."""
    records = await sql_tasks.pending(tx, seqs)
    current = await _current(tx, records)
    return [
        Unchecked(task, to_json(current[task.job_id].schema).decode())
        for task in records
        if task.job_id in current
    ]


async def retarget(
    tx: Transaction, tasks: Sequence[TaskRecord], schemas: Mapping[int, str]
) -> list[TaskRecord]:
    """Move tasks, which the caller has locked, to the current version of their job. Return those moved.

    The caller has locked all versions of the jobs. `schemas` has, by `seq`, the schema that each payload was
    validated against; a task stays if that is not the current one any longer.
    """
    current = await _current(tx, tasks)
    movable = [
        (task, job)
        for task in tasks
        if task.status is TaskStatus.PENDING
        and (job := current.get(task.job_id)) is not None
        and schemas.get(task.seq) == to_json(job.schema).decode()
    ]
    targets = await _queues(tx, movable)
    moves = [(task, task.changed(job_id=queue.id, job_version=queue.job_version)) for task, queue in targets]
    if not moves:
        return []
    await sql_transitions.retarget(tx, moves)
    await _keep_masks(tx, targets)
    moved = [after for _, after in moves]
    for job_id in sorted({task.job_id for task in moved if task.lane}):
        await sql_jobs.record_priorities(tx, job_id)
    queue_positions = await sql_tasks.positions(tx, moved)
    for task in moved:
        rules_answers.publish_status(tx, task, queue_positions.get(task.id))
    return moved


async def _keep_masks(tx: Transaction, targets: Sequence[tuple[TaskRecord, JobRecord]]) -> None:
    """Mask in the queues that tasks have got into what is secret in these tasks."""
    paths: dict[UUID, set[str | None]] = {}
    for task, queue in targets:
        paths.setdefault(queue.id, {queue.masked}).add(task.masked)
    for queue_id in sorted(paths):
        if len(paths[queue_id]) > 1:
            await sql_jobs.set_masked(tx, queue_id, joined_paths(paths[queue_id]))


async def _queues(
    tx: Transaction, tasks: Sequence[tuple[TaskRecord, JobRecord]]
) -> list[tuple[TaskRecord, JobRecord]]:
    """Return these tasks with the queues for their requirements; those without a queue are left out."""
    stored = await sql_queues.required(tx, {task.job_id for task, _ in tasks}) if tasks else {}
    if not stored:
        return list(tasks)
    wanted: dict[JobName, set[str]] = {}
    for task, job in tasks:
        wanted.setdefault(job.name, set()).update({stored[task.job_id]} if task.job_id in stored else ())
    _, queues = await rules_queues.lock(tx, wanted)
    found = []
    for task, job in tasks:
        needs = rules_queues.needs_of(stored.get(task.job_id))
        await queues.open(tx, job.name, job, needs)
        with suppress(TooManyRequests):
            found.append((task, queues.get(job.name, job, needs)))
    return found


async def _current(tx: Transaction, tasks: Sequence[TaskRecord]) -> dict[UUID, JobRecord]:
    """Return the current versions of the jobs of those tasks that are of earlier ones, by job id."""
    ids = sorted({task.job_id for task in tasks})
    versions = await sql_jobs.versions_of_jobs(tx, ids) if ids else {}
    numbers = {task.job_id: version_of(task.job_version) for task in tasks}
    return {
        job_id: job
        for job_id, of_job in versions.items()
        for job in of_job
        if not job.superseded and not job.deleted and job.job_version != numbers.get(job_id, job.job_version)
    }
