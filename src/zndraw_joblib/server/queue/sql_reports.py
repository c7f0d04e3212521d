"""Report starts and completions of held tasks with one statement, a transaction of its own on PostgreSQL.

The statement has all conditions: the fence, which a stale worker does not pass, and what the task must be.
Reports that need more, such as a deadline, are left to `sql_transitions.move`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import TEXT, UUID_TYPE, statement
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.statuses import TaskStatus


class FencedReport(NamedTuple):
    """A report that moves a held task from `source` to `target`, by the owner of its worker.

    From claimed to completed it starts and ends at the same time. `worker` and `attempt` are those of the
    claim, or None for any. `result` is JSON.
    """

    id: UUID
    owner: str
    worker: UUID | None
    attempt: int | None
    source: TaskStatus
    target: TaskStatus
    result: str | None


class ReportedTask(NamedTuple):
    """A task after its report. `error` and `error_code` are those of its earlier attempt.

    `payload` is None if it is not needed or too large.
    """

    id: UUID
    job_name: str
    room_id: str
    created_by: str
    created_at: datetime
    started_at: datetime
    completed_at: datetime | None
    worker_id: UUID | None
    attempt: int
    unstarted: int
    lane: int
    error: str | None
    error_code: str | None
    max_in_flight: int | None
    payload: dict[str, Any] | None = None


async def report_single_statement(
    tx: Transaction, reports: Sequence[FencedReport], most_bytes: int = 0
) -> list[ReportedTask]:
    """Write reports of different tasks; return the tasks that were written, with payloads up to `most_bytes`.

    A report whose task is not as assumed writes nothing. On PostgreSQL then none does, so that the caller can
    lock all tasks in their order; nor if a task is of a watched room.
    """
    if tx.is_sqlite:
        rows = await _report_on_sqlite(tx, reports, most_bytes)
    else:
        columns = zip(FencedReport._fields, zip(*reports, strict=True), strict=True)
        params: dict[str, Any] = {f"all_{name}": list(values) for name, values in columns}
        params |= {"at": await tx.now() if tx.has_own_clock else None, "count": len(reports)}
        rows = await tx.execute_alone(_REPORT, {**params, "most_bytes": most_bytes})
        if rows:
            tx.record_watched(is_watched=False)
    tasks = [ReportedTask(*row) for row in rows]
    for task in tasks:
        if task.completed_at is not None:
            tx.record_freed(task.room_id, task.worker_id)
            if task.max_in_flight is not None:
                tx.wake(job_key(parse_job_name(task.job_name)), 1)
    return tasks


async def _report_on_sqlite(
    tx: Transaction, reports: Sequence[FencedReport], most_bytes: int
) -> Sequence[Any]:
    params = {"at": await tx.now(), "most_bytes": most_bytes}
    if len(reports) == 1:
        return (await tx.execute(_REPORT_ONE_ON_SQLITE, reports[0]._asdict() | params)).all()
    rows = [
        (task_id.hex, owner, worker and worker.hex, *others) for task_id, owner, worker, *others in reports
    ]
    return (await tx.execute(_REPORT_MANY_ON_SQLITE, {**params, "rows": to_json(rows).decode()})).all()


# The fence: only the owner of the worker that holds this attempt may report it. Then the guard on the status.
_FENCE = """joblib_task.worker_owner_id = reports.owner
        AND joblib_task.worker_id = coalesce(reports.worker, joblib_task.worker_id)
        AND joblib_task.attempt = coalesce(reports.attempt, joblib_task.attempt)
        AND joblib_task.status = reports.source"""
_COLUMNS = """joblib_task.room_id, joblib_task.created_by, joblib_task.created_at, joblib_task.started_at,
    joblib_task.completed_at, joblib_task.worker_id, joblib_task.attempt, joblib_task.unstarted,
    joblib_task.lane"""
_PAYLOAD_IF_SMALL = """CASE WHEN :most_bytes > 0 AND octet_length(joblib_task.payload)
        + coalesce(octet_length(joblib_task.result), 0) <= :most_bytes THEN joblib_task.payload END"""
_TYPES = {"id": UUID_TYPE, "owner": TEXT, "worker": UUID_TYPE, "source": TEXT, "target": TEXT, "result": TEXT}


def _allows(policy: str) -> str:
    """Return the condition that the task needs no deadline when it starts."""
    return f"(reports.target = '{TaskStatus.COMPLETED}' OR ({policy} ->> 'timeout_seconds') IS NULL)"


def _write(reports: str, at: str) -> str:
    return f"""
UPDATE joblib_task SET
    status = {reports}.target,
    started_at = coalesce(joblib_task.started_at, {at}),
    completed_at = CASE WHEN {reports}.target = '{TaskStatus.COMPLETED}' THEN {at} END,
    error = CASE WHEN {reports}.target <> '{TaskStatus.COMPLETED}' THEN joblib_task.error END,
    error_code = CASE WHEN {reports}.target <> '{TaskStatus.COMPLETED}' THEN joblib_task.error_code END,
    deadline = NULL,
    result = {reports}.result
FROM {reports}"""


# It locks the tasks in their order. The lock reads the newest version of a row that another transaction has
# changed meanwhile. The UPDATE must not compare more than the key: it compares the older version first.
_REPORT = statement(
    f"""
WITH locked AS (
    SELECT joblib_task.seq, reports.target, reports.result, joblib_job.full_name, joblib_job.max_in_flight,
        joblib_task.error, joblib_task.error_code, {_PAYLOAD_IF_SMALL} AS payload
    FROM unnest(
        (SELECT :all_id), (SELECT :all_owner), (SELECT :all_worker), (SELECT :all_attempt),
        (SELECT :all_source), (SELECT :all_target), (SELECT :all_result)
    ) AS reports (id, owner, worker, attempt, source, target, result)
    JOIN joblib_task ON joblib_task.id = reports.id
    JOIN joblib_job ON joblib_job.id = joblib_task.job_id
    WHERE {_FENCE} AND {_allows("CAST(joblib_job.policy AS json)")}
        AND NOT {is_watched("joblib_task.room_id")}
    ORDER BY joblib_task.seq
    FOR UPDATE OF joblib_task
)
{_write("locked", "coalesce(:at, now())")}
WHERE joblib_task.seq = locked.seq AND (SELECT count(*) FROM locked) = :count
RETURNING joblib_task.id, locked.full_name, {_COLUMNS}, locked.error, locked.error_code,
    locked.max_in_flight, locked.payload
""",
    *ReportedTask._fields,
    **_TYPES,
)


def _report_on(reports: str) -> Any:
    """Return SQLite's statement. RETURNING sees the new row, so a start and end must replace no error."""
    # Without the plus sign a subquery of RETURNING scans all jobs.
    policy, full_name, max_in_flight = (
        f"(SELECT {column} FROM joblib_job WHERE joblib_job.id = +joblib_task.job_id)"
        for column in ("policy", "full_name", "max_in_flight")
    )
    return statement(
        f"""
WITH reports AS MATERIALIZED ({reports})
{_write("reports", ":at")}
WHERE joblib_task.id = reports.id AND {_FENCE} AND {_allows(policy)}
    AND (
        reports.source <> '{TaskStatus.CLAIMED}' OR reports.target <> '{TaskStatus.COMPLETED}'
        OR (joblib_task.error IS NULL AND joblib_task.error_code IS NULL)
    )
RETURNING joblib_task.id, {full_name}, {_COLUMNS}, joblib_task.error, joblib_task.error_code,
    {max_in_flight}, {_PAYLOAD_IF_SMALL}
""",
        *ReportedTask._fields,
        **_TYPES,
        rows=TEXT,
    )


_REPORT_ONE_ON_SQLITE = _report_on(
    """
    SELECT :id AS id, :owner AS owner, :worker AS worker, :attempt AS attempt, :source AS source,
        :target AS target, :result AS result
"""
)
_REPORT_MANY_ON_SQLITE = _report_on(
    """
    SELECT value ->> 0 AS id, value ->> 1 AS owner, value ->> 2 AS worker, value ->> 3 AS attempt,
        value ->> 4 AS source, value ->> 5 AS target, value ->> 6 AS result
    FROM json_each(:rows)
"""
)
