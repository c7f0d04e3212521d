"""Events of tasks in an interval of time, grouped by the database.

Nothing is written for it except `queued_at`: a submit, an end and an earlier attempt each have a row with
their time. One statement reads all of them, so that they are of one state of the database.
"""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, FLOAT, statement
from zndraw_joblib.wire.operators import BUCKET_BOUNDS, MINUTE
from zndraw_joblib.wire.statuses import TERMINAL

SUBMITTED, RETURNED = "submitted", "returned"
NO_CEILING = 2**62


class TimeRange(NamedTuple):
    """Times from `since` on and before `until`; only tasks and attempts with greater numbers are read.

    Tasks have numbers up to `task_ceiling`.
    """

    since: datetime
    until: datetime
    task_floor: int = 0
    attempt_floor: int = 0
    task_ceiling: int = NO_CEILING


class Occurrence(NamedTuple):
    """What happened `number` times to tasks of a job in a minute, counted from 1970.

    `kind` is `SUBMITTED`, the status in which tasks ended, or `RETURNED` for attempts whose tasks returned to
    their queues for the reason `code`. `waiting` and `running` are buckets, None without a claim or a start.
    """

    kind: str
    job_id: UUID
    minute: int
    code: str | None
    waiting: int | None
    running: int | None
    number: int
    waiting_seconds: float
    running_seconds: float


class Numbers(NamedTuple):
    """The greatest numbers of tasks and attempts: those of later transactions are greater than these.

    Later are the transactions that start after `at`.
    """

    task: int
    attempt: int
    at: datetime


async def read(tx: Transaction, interval: TimeRange) -> list[Occurrence]:
    """Return what happened in an interval."""
    return [Occurrence(*row) for row in await tx.execute(_GROUPED[tx.is_sqlite], interval._asdict())]


async def read_tagged(
    tx: Transaction, tag: str, room_id: str | None, since: datetime, until: datetime
) -> list[Occurrence]:
    """Return what happened from one time to another to the newest `MAX_TAGGED` tasks with a tag."""
    params = {"tag": tag, "room_id": room_id, "since": since, "until": until}
    sql = _GROUPED_TAGGED[tx.is_sqlite, room_id is not None]
    return [Occurrence(*row) for row in await tx.execute(sql, params)]


async def numbers(tx: Transaction) -> Numbers:
    """Return the greatest numbers."""
    is_own = tx.is_sqlite or tx.has_own_clock
    row = (await tx.execute(_NUMBERS if is_own else _NUMBERS_AND_TIME)).one()
    return Numbers(row.task or 0, row.attempt or 0, await tx.now() if is_own else row.at)


async def after(tx: Transaction, floor: int, at: datetime) -> tuple[int, datetime] | None:
    """Return the number and time of the first task of a number beyond `floor` that was created since `at`."""
    row = (await tx.execute(_AFTER, {"task_floor": floor, "at": at})).first()
    return None if row is None else (row.seq, row.created_at)


async def last_before(tx: Transaction, interval: TimeRange, at: datetime) -> int:
    """Return the greatest number of the tasks of an interval that were created before `at`."""
    params = {"task_floor": interval.task_floor, "task_ceiling": interval.task_ceiling, "at": at}
    last: int | None = (await tx.execute(_LAST_BEFORE, params)).scalar_one()
    return last or interval.task_floor


async def next_end(tx: Transaction, attempt_floor: int, at: datetime) -> datetime | None:
    """Return when the first task or earlier attempt ended since `at`; None if none did."""
    ended = (await tx.execute(_NEXT_END, {"at": at})).scalar_one()
    returned = (await tx.execute(_NEXT_RETURN, {"at": at, "attempt_floor": attempt_floor})).scalar_one()
    return min((time for time in (ended, returned) if time is not None), default=None)


async def oldest_transaction(tx: Transaction) -> datetime | None:
    """Return when the oldest open transaction of this PostgreSQL database started; None without one.

    PostgreSQL shows it only of transactions of the same role, unless this role may see all.
    """
    begun_at: datetime | None = (await tx.execute(_OLDEST)).scalar_one()
    return begun_at


def _epoch(at: str, *, is_sqlite: bool) -> str:
    """Return the seconds from 1970 to a time, with microseconds."""
    # SQLite's own functions for times round to milliseconds.
    on_sqlite = f"(strftime('%s', substr({at}, 1, 19)) + ('0' || substr({at}, 20)))"
    return on_sqlite if is_sqlite else f"EXTRACT(epoch FROM {at})"


def _bucket(seconds: str) -> str:
    # A microsecond is more than the error of the difference of two times.
    buckets = " ".join(f"WHEN {seconds} <= {bound + 5e-7} THEN {i}" for i, bound in enumerate(BUCKET_BOUNDS))
    return f"CASE WHEN {seconds} IS NULL THEN CAST(NULL AS integer) {buckets} ELSE {len(BUCKET_BOUNDS)} END"


def _sum(seconds: str) -> str:
    return f"CAST(coalesce(sum(CASE WHEN {seconds} > 0 THEN {seconds} END), 0.0) AS float)"


# A range, also without a ceiling: PostgreSQL assumes that it has few rows, and uses the key.
_IS_NUMBERED = "seq > :task_floor AND seq <= :task_ceiling"
_TERMINAL = ", ".join(f"'{status}'" for status in sorted(TERMINAL))
_IS_END = f"joblib_attempt.status IN ({_TERMINAL})"
_RETURNED_AT = f"CASE WHEN {_IS_END} THEN joblib_attempt.completed_at ELSE joblib_attempt.ended_at END"
_IS_NEW_ATTEMPT = f"joblib_attempt.n > :attempt_floor AND joblib_attempt.n <= {NO_CEILING}"


# How many tasks with a tag are read for its statistics.
MAX_TAGGED = 10_000
_IS_TAGGED = "IN (SELECT task_seq FROM tagged)"


def _tagged(*, of_room: bool) -> str:
    room = " AND room_id = :room_id" if of_room else ""
    return f"""tagged AS (
    SELECT task_seq FROM joblib_task_tag WHERE tag = :tag{room} ORDER BY task_seq DESC LIMIT {MAX_TAGGED}
), """


def _grouped(*, is_sqlite: bool, tagged: str = "") -> Any:
    """Return the statement that groups what happened to all tasks, or to those of a first expression."""
    is_new, is_new_attempt = _IS_NUMBERED, _IS_NEW_ATTEMPT
    is_ended = ""
    if tagged:
        is_new, is_new_attempt, is_ended = (
            f"seq {_IS_TAGGED}",
            f"task_seq {_IS_TAGGED}",
            f"seq {_IS_TAGGED} AND ",
        )

    def seconds(start: str, end: str) -> str:
        times = f"{_epoch(end, is_sqlite=is_sqlite)} - {_epoch(start, is_sqlite=is_sqlite)}"
        return f"CAST({times} AS float)"

    minute = "strftime('%s', substr(at, 1, 19))" if is_sqlite else "EXTRACT(epoch FROM at)"
    minute = f"({minute} / {MINUTE})" if is_sqlite else f"CAST(floor({minute} / {MINUTE}) AS bigint)"
    return statement(
        f"""
WITH {tagged}happened AS (
    SELECT '{SUBMITTED}' AS kind, job_id, created_at AS at, CAST(NULL AS varchar) AS code,
        CAST(NULL AS float) AS waiting, CAST(NULL AS float) AS running
    FROM joblib_task WHERE {is_new} AND created_at >= :since AND created_at < :until
    UNION ALL
    SELECT status, job_id, completed_at, error_code,
        {seconds("coalesce(queued_at, created_at)", "claimed_at")}, {seconds("started_at", "completed_at")}
    FROM joblib_task WHERE {is_ended}completed_at >= :since AND completed_at < :until
    UNION ALL
    SELECT CASE WHEN {_IS_END} THEN status ELSE '{RETURNED}' END,
        (SELECT job_id FROM joblib_task WHERE joblib_task.seq = joblib_attempt.task_seq),
        {_RETURNED_AT}, CASE WHEN {_IS_END} THEN error_code ELSE reason END,
        {seconds("queued_at", "claimed_at")}, {seconds("started_at", "coalesce(completed_at, ended_at)")}
    FROM joblib_attempt WHERE {is_new_attempt} AND {_RETURNED_AT} >= :since AND {_RETURNED_AT} < :until
)
SELECT kind, job_id, {minute} AS minute, code, {_bucket("waiting")} AS in_waiting,
    {_bucket("running")} AS in_running, count(*), {_sum("waiting")}, {_sum("running")}
FROM happened GROUP BY kind, job_id, minute, code, in_waiting, in_running
""",
        *("kind", "job_id", "minute", "code", "in_waiting", "in_running", "number", "waits", "runs"),
        task_ceiling=BIG_INTEGER,
        waits=FLOAT,
        runs=FLOAT,
    )


_GROUPED = {is_sqlite: _grouped(is_sqlite=is_sqlite) for is_sqlite in (True, False)}
_GROUPED_TAGGED = {
    (is_sqlite, of_room): _grouped(is_sqlite=is_sqlite, tagged=_tagged(of_room=of_room))
    for is_sqlite in (True, False)
    for of_room in (True, False)
}
_NEWEST = "(SELECT max(seq) FROM joblib_task) AS task, (SELECT max(n) FROM joblib_attempt) AS attempt"
_NUMBERS = statement(f"SELECT {_NEWEST}", *("task", "attempt"))
# It reads the clock after the state of the database that it returns.
_NUMBERS_AND_TIME = statement(f"SELECT {_NEWEST}, clock_timestamp() AS at", *("task", "attempt", "at"))
_AFTER = statement(
    f"""
SELECT seq, created_at FROM joblib_task
WHERE seq > :task_floor AND seq <= {NO_CEILING} AND created_at >= :at
ORDER BY seq LIMIT 1
""",
    *("seq", "created_at"),
)
_LAST_BEFORE = statement(
    f"SELECT max(seq) AS seq FROM joblib_task WHERE {_IS_NUMBERED} AND created_at < :at",
    "seq",
    task_ceiling=BIG_INTEGER,
)
_NEXT_END = statement("SELECT min(completed_at) AS at FROM joblib_task WHERE completed_at >= :at", "at")
_NEXT_RETURN = statement(
    f"SELECT min({_RETURNED_AT}) AS at FROM joblib_attempt WHERE {_IS_NEW_ATTEMPT} AND {_RETURNED_AT} >= :at",
    "at",
)
_OLDEST = statement(
    """
SELECT min(xact_start) AS at FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
""",
    "at",
)


# Until when the statistics have read, as the functions that delete tasks need it.

KEY = 1
# Tasks that were not read yet are kept for this long.
_KEEP_UNREAD = timedelta(minutes=10)
_UNTIL = statement(f"SELECT until FROM joblib_statistic_position WHERE key = {KEY}", "until")
_FLOORS = {
    "task_floor": "(SELECT coalesce(max(seq), 0) FROM joblib_task)",
    "attempt_floor": "(SELECT coalesce(max(n), 0) FROM joblib_attempt)",
}
_LOWER = statement(
    "UPDATE joblib_statistic_position SET "
    + ", ".join(
        f"{prefix}{name} = min({prefix}{name}, {newest})"
        for prefix in ("", "next_")
        for name, newest in _FLOORS.items()
    )
)


async def read_until(tx: Transaction) -> datetime | None:
    """Return until when the statistics have read; None before they begin."""
    until: datetime | None = (await tx.execute(_UNTIL)).scalar_one_or_none()
    return until


async def unread_since(tx: Transaction) -> datetime | None:
    """Return the time since which ended tasks must not be deleted, because the statistics will read them.

    None without statistics, and if no server has updated them for some minutes.
    """
    until = await read_until(tx)
    return None if until is None or until < await tx.now() - _KEEP_UNREAD else until


async def lower_floors(tx: Transaction) -> None:
    """Lower the floors to the numbers that exist, after tasks were deleted.

    SQLite gives the number of a deleted row to a new one if no row has a greater number.
    """
    if tx.is_sqlite:
        await tx.execute(_LOWER)
