"""Report starts and completions of held tasks with one statement, a transaction of its own on PostgreSQL.

The statement has all conditions: the fence, which a stale worker does not pass, and what the task must be.
Reports that need more, such as a deadline, are left to `sql_transitions.move`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import PlainStatements, Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import BOOLEAN, FLOAT, INTEGER, TEXT, statement
from zndraw_joblib.server.queue import sql_groups
from zndraw_joblib.server.queue.sql_task_rows import BODY_SIZE, ShortRows, TaskRow, row_columns
from zndraw_joblib.wire.statuses import TaskStatus

# The fence: what a report may name of its claim, and the task must have then. Reports are refused by it in
# `rules_transitions.check_fence`, or written by this statement. The owner of the worker is compared besides:
# here, and in `rules_transitions.roles_of`. Heartbeats name all of their claim: `rules_transitions.verdict`.
FENCE = ("worker_id", "attempt")


class FencedReport(NamedTuple):
    """A report that moves a held task from `source` to `target`, by the owner of its worker.

    It has a field for each column of the fence, None if it does not name that. `result` is JSON. The run
    started and ended this many seconds ago: None for now, or for a start that is stored.
    """

    id: UUID
    worker_owner_id: str
    worker_id: UUID | None
    attempt: int | None
    source: TaskStatus
    target: TaskStatus
    result: str | None
    started_ago: float | None = None
    ended_ago: float | None = None

    @property
    def claim(self) -> tuple[Any, ...]:
        """The task, the owner and the fence: which claim it is about."""
        return self[: 2 + len(FENCE)]


async def report_single_statement(
    tx: Transaction, reports: Sequence[FencedReport], most_bytes: int = 0, *, is_alone: bool = True
) -> list[tuple[int, TaskRow]]:
    """Write reports of different tasks; return those that were written, each after its `seq`.

    They have payloads up to `most_bytes`. A report whose task is not as assumed writes nothing. On PostgreSQL
    then none does, so that the caller can lock all tasks in their order; nor if a task is of a watched room,
    or one ends that is linked or in a group, unless that was expected or the statement is not to be alone.
    """
    if tx.is_sqlite:
        rows = await _report_on_sqlite(tx, reports, most_bytes)
        if rows:
            tx.record_watched(is_watched=rows[0].is_watched)
    else:
        params: dict[str, Any] = {"at": await tx.now() if tx.has_own_clock else None}
        params |= {"most_bytes": most_bytes, "stripe": sql_groups.stripe(tx)}
        if len(reports) == 1:
            params |= reports[0]._asdict()
        else:
            columns = zip(FencedReport._fields, zip(*reports, strict=True), strict=True)
            params |= {f"all_{name}": list(values) for name, values in columns}
            params["count"] = len(reports)
        report = _REPORT_ONE if len(reports) == 1 else _REPORT_MANY
        rows = await tx.execute_plain("report", report, params, is_alone=is_alone)
        tx.record_now(rows)
    tasks = []
    for row in rows:
        task = _ROWS.row_of(row)
        tasks.append((row.seq, task))
        if task.completed_at is not None:
            _record_end(tx, row, task)
    if counted := {row.group_id for row in rows if row.is_counted and row.group_id and row.completed_at}:
        sql_groups.record_counted(tx, counted)
    return tasks


def _record_end(tx: Transaction, row: Any, task: TaskRow) -> None:
    """Record what follows, and wake a claim for the slot of the job."""
    if not row.is_counted:
        tx.record_end(row.seq, task.status, row.group_id, linked=row.linked)
    tx.record_freed(task.room_id, task.worker_id)
    if row.max_in_flight is not None:
        tx.wake(task.job_key, 1)


async def _report_on_sqlite(
    tx: Transaction, reports: Sequence[FencedReport], most_bytes: int
) -> Sequence[Any]:
    at = await tx.now()
    params, past = {"at": at, "most_bytes": most_bytes}, _TimesBefore(at)
    if len(reports) == 1:
        *others, started, ended = reports[0]
        values = zip(_ON_SQLITE, (*others, past(started), past(ended)), strict=True)
        return (await tx.execute(_REPORT_ONE_ON_SQLITE, dict(values) | params)).all()
    rows = [
        (
            *(task_id.hex, owner, worker_id and worker_id.hex, attempt),
            *(_TEXTS[source], _TEXTS[target], result, past(started), past(ended)),
        )
        for task_id, owner, worker_id, attempt, source, target, result, started, ended in reports
    ]
    return (await tx.execute(_REPORT_MANY_ON_SQLITE, {**params, "rows": to_json(rows).decode()})).all()


# To encode a member of an enumeration takes 20 times as long as a text.
_TEXTS = {status: status.value for status in TaskStatus}


class _TimesBefore:
    """Makes times before another as SQLite stores them: with the text of each second made once."""

    def __init__(self, at: datetime) -> None:
        self._second, self._microseconds = at.replace(tzinfo=None, microsecond=0), at.microsecond
        self._texts: dict[int, str] = {}

    def __call__(self, seconds: float | None) -> str | None:
        """Return the time that was this many seconds before."""
        if seconds is None:
            return None
        second, microseconds = divmod(self._microseconds - round(seconds * 1_000_000), 1_000_000)
        text = self._texts.get(second)
        if text is None:
            text = self._texts[second] = (self._second + timedelta(seconds=second)).isoformat(" ")
        return f"{text}.{microseconds:06d}"


# The columns that the answers to these reports have.
_ROWS = ShortRows(
    **dict.fromkeys(("job_id", "claimed_at", "result", "run_at", "expires_at", "traceparent")),
    **dict.fromkeys(("schedule", "due_at")),
)
_NAMES = (*_ROWS.names, "max_in_flight", "linked", "group_id", "seq", "now", "is_watched", "is_counted")
_TYPES = {"linked": BOOLEAN, "is_watched": BOOLEAN, "is_counted": BOOLEAN, "stripe": INTEGER}
_TYPES |= {name: TEXT for name in ("source", "target", "result", "started", "ended")}
_TYPES |= {"started_ago": FLOAT, "ended_ago": FLOAT}
# SQLite gets the times themselves.
_ON_SQLITE = (*FencedReport._fields[:-2], "started", "ended")
# No task of another queue of the job waits for its slots.
_SHARES_NO_SLOTS = """(joblib_job.max_in_flight IS NULL
            OR (joblib_job.job_version = 1 AND NOT joblib_job.superseded AND (
                SELECT other.id FROM joblib_job AS other
                WHERE other.full_name = joblib_job.full_name AND other.requires IS NOT NULL LIMIT 1
            ) IS NULL))"""
_IS_END = f"reports.target = '{TaskStatus.COMPLETED}'"


def _may_be_written(policy: str, shares_no_slots: str) -> str:
    """Return the conditions: the owner, the fence, the guard on the status, and what this statement can do.

    The task is of no schedule, its end frees no slot of a limit or of other versions of its job, it has no
    deadline when it starts, and a start and end together replace no error, which the answer to the start has.
    """
    fence = " AND ".join(
        f"joblib_task.{name} = coalesce(reports.{name}, joblib_task.{name})" for name in FENCE
    )
    return f"""joblib_task.worker_owner_id = reports.worker_owner_id AND {fence}
        AND joblib_task.status = reports.source AND joblib_task.schedule IS NULL
        AND (NOT {_IS_END} OR (joblib_task.limit_key IS NULL AND {shares_no_slots}))
        AND ({_IS_END} OR ({policy} ->> 'timeout_seconds') IS NULL)
        AND (reports.source <> '{TaskStatus.CLAIMED}' OR NOT {_IS_END}
            OR (joblib_task.error IS NULL AND joblib_task.error_code IS NULL))"""


def _write(reports: str, at: str, past: str, later: str) -> str:
    """Return the UPDATE. `past` is a time of a report by its name, and `later` the later one of two times."""
    start = past.format("started")
    started = f"""CASE WHEN {start} IS NULL THEN coalesce(joblib_task.started_at, {at})
        ELSE {later}(coalesce(joblib_task.claimed_at, joblib_task.created_at), {start}) END"""
    return f"""
UPDATE joblib_task SET
    status = reports.target,
    started_at = {started},
    completed_at = CASE WHEN {_IS_END} THEN {later}({started}, coalesce({past.format("ended")}, {at})) END,
    error = CASE WHEN NOT {_IS_END} THEN joblib_task.error END,
    error_code = CASE WHEN NOT {_IS_END} THEN joblib_task.error_code END,
    deadline = NULL,
    result = reports.result
FROM {reports}"""


def _answer(of_job: Sequence[str], now: str, watched: str, counted: str = "false") -> str:
    full_name, job_version, max_in_flight = of_job
    payload = f"""CASE WHEN :most_bytes > 0 AND {BODY_SIZE} <= :most_bytes THEN payload_of(joblib_task) END"""
    columns = row_columns(names=_ROWS.names, job_name=full_name, job_version=job_version, payload=payload)
    own = ", ".join(f"joblib_task.{name}" for name in ("linked", "group_id", "seq"))
    return f"RETURNING {columns}, {max_in_flight}, {own}, {now}, {watched}, {counted}"


_AT = "coalesce(:at, now())"


# It locks the tasks in their order. The lock reads the newest version of a row that another transaction has
# changed meanwhile. The UPDATE must not compare more than the key: it compares the older version first.
# One report has no list: PostgreSQL starts each part of a statement for each execution.
def _report(reports: str, order: str, condition: str) -> PlainStatements:
    of_job = [f"reports.{name}" for name in ("full_name", "job_version", "max_in_flight")]

    def form(guard: str, watched: str, counting: tuple[str, str] = ("", "")) -> Any:
        counts, are_counted = counting
        return statement(
            f"""
WITH locked AS (
    SELECT joblib_task.seq, joblib_task.group_id, reports.target, reports.result, reports.started_ago,
        reports.ended_ago, joblib_job.full_name, joblib_job.job_version, joblib_job.max_in_flight
    FROM {reports}
    JOIN joblib_task ON joblib_task.id = reports.id
    JOIN joblib_job ON joblib_job.id = joblib_task.job_id
    WHERE {_may_be_written("CAST(joblib_job.policy AS json)", _SHARES_NO_SLOTS)}{guard}
    {order}
    FOR NO KEY UPDATE OF joblib_task
){counts}
{_write("locked AS reports", _AT, f"({_AT} - reports.{{}}_ago * interval '1 second')", "greatest")}
WHERE joblib_task.seq = reports.seq{condition}{are_counted}
{_answer(of_job, "now()", watched, "true" if counts else "false")}
""",
            *_NAMES,
            **_TYPES,
        )

    watched = is_watched("joblib_task.room_id")
    is_alone = f" AND (joblib_task.{{}} OR NOT {_IS_END}) AND NOT {watched}"
    concerns_none = is_alone.format("linked IS NULL AND joblib_task.group_id IS NULL")
    return PlainStatements(
        alone=form(concerns_none, "false"),
        followed=form("", watched),
        counted=form(is_alone.format("linked IS NULL"), "false", _counting(condition)),
    )


def _counting(condition: str) -> tuple[str, str]:
    """Return the parts that count ends of tasks in their group, and the condition that all are counted.

    A stripe of the group has more open tasks than end here, so none of them is its last. The statement leaves
    tasks of several groups to the other forms: it would have to lock all their stripes before. A transaction
    that lets a task wait for one of these has changed `linked`, which the lock of the task notices.
    """
    counts = f""",
changes AS (
    SELECT group_id, count(*) AS number FROM locked AS reports
    WHERE {_IS_END} AND group_id IS NOT NULL{condition}
    GROUP BY group_id
),
counted AS (
    UPDATE joblib_group_count SET
        open = joblib_group_count.open - changes.number,
        completed = joblib_group_count.completed + changes.number
    FROM changes
    WHERE joblib_group_count.group_id = changes.group_id
        AND joblib_group_count.stripe = ({sql_groups.STRIPE_OF_CHANGE})
        AND joblib_group_count.open > changes.number AND (SELECT count(*) FROM changes) = 1
    RETURNING joblib_group_count.stripe
)"""
    return counts, " AND (SELECT count(*) FROM counted) = (SELECT count(*) FROM changes)"


_REPORT_ONE, _REPORT_MANY = (
    _report(
        f"(SELECT {', '.join(f':{name} AS {name}' for name in FencedReport._fields)}) AS reports", "", ""
    ),
    _report(
        f"unnest({', '.join(f'(SELECT :all_{name})' for name in FencedReport._fields)}) "
        f"AS reports ({', '.join(FencedReport._fields)})",
        "ORDER BY joblib_task.seq",
        " AND (SELECT count(*) FROM locked) = :count",
    ),
)


def _report_on(reports: str) -> Any:
    """Return SQLite's statement. RETURNING sees the new row."""
    # Without the plus sign a subquery of RETURNING scans all jobs.
    policy, shares_no_slots, *columns = (
        f"(SELECT {column} FROM joblib_job WHERE joblib_job.id = +joblib_task.job_id)"
        for column in ("policy", _SHARES_NO_SLOTS, "full_name", "job_version", "max_in_flight")
    )
    return statement(
        f"""
WITH reports AS MATERIALIZED (SELECT {reports})
{_write("reports", ":at", "reports.{}", "max")}
WHERE joblib_task.id = reports.id AND {_may_be_written(policy, shares_no_slots)}
{_answer(columns, "NULL", "EXISTS (SELECT 1 FROM joblib_room_stream)")}
""",
        *_NAMES,
        **_TYPES,
        rows=TEXT,
    )


_REPORT_ONE_ON_SQLITE = _report_on(", ".join(f":{name} AS {name}" for name in _ON_SQLITE))
_REPORT_MANY_ON_SQLITE = _report_on(
    ", ".join(f"value ->> {index} AS {name}" for index, name in enumerate(_ON_SQLITE))
    + " FROM json_each(:rows)"
)
