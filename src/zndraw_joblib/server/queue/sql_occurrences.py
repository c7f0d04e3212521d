"""What happened to tasks in an interval of time, grouped by the database.

Nothing is written for it except `queued_at`: a submit, an end and an earlier attempt each have a row with
their time. One statement reads all of them, so that they are of one state of the database.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    String,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
    or_,
    select,
    table,
    union_all,
    update,
)

from zndraw_joblib.server.db.bulk import ONE, by_template
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Attempt, StatisticPosition, Task
from zndraw_joblib.wire.operators import BUCKET_BOUNDS, MINUTE
from zndraw_joblib.wire.statuses import TERMINAL

tasks = Task.__table__
attempts = Attempt.__table__

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
    return [Occurrence(*row) for row in await tx.execute(_GROUPED, interval._asdict())]


async def numbers(tx: Transaction) -> Numbers:
    """Return the greatest numbers."""
    is_own = tx.is_sqlite or tx.has_own_clock
    row = (await tx.execute(_NUMBERS if is_own else _NUMBERS_AND_TIME)).one()
    return Numbers(row.task or 0, row.attempt or 0, await tx.now() if is_own else row.at)


async def after(tx: Transaction, floor: int, at: datetime) -> tuple[int, datetime] | None:
    """Return the number and time of the first task of a number beyond `floor` that was created since `at`."""
    row = (await tx.execute(_AFTER, {"task_floor": floor, "since": at})).first()
    return None if row is None else (row.seq, row.created_at)


async def last_before(tx: Transaction, interval: TimeRange, at: datetime) -> int:
    """Return the greatest number of the tasks of an interval that were created before `at`."""
    params = {"task_floor": interval.task_floor, "task_ceiling": interval.task_ceiling, "until": at}
    last: int | None = (await tx.execute(_LAST_BEFORE, params)).scalar_one()
    return last or interval.task_floor


async def next_end(tx: Transaction, attempt_floor: int, at: datetime) -> datetime | None:
    """Return when the first task or earlier attempt ended since `at`; None if none did."""
    ended = (await tx.execute(_NEXT_END, {"since": at})).scalar_one()
    returned = (await tx.execute(_NEXT_RETURN, {"since": at, "attempt_floor": attempt_floor})).scalar_one()
    return min((time for time in (ended, returned) if time is not None), default=None)


async def oldest_transaction(tx: Transaction) -> datetime | None:
    """Return when the oldest open transaction of this PostgreSQL database started; None without one.

    PostgreSQL shows it only of transactions of the same role, unless this role may see all.
    """
    begun_at: datetime | None = (await tx.execute(_OLDEST)).scalar_one()
    return begun_at


class _epoch(by_template):
    """The seconds from 1970 to a time, with microseconds."""

    type = Float()
    postgresql = "EXTRACT(epoch FROM {0})"
    # Its own functions for times round to milliseconds.
    sqlite = "(strftime('%s', substr({0}, 1, 19)) + ('0' || substr({0}, 20)))"


class _minute(by_template):
    """The minute of a time, counted from 1970."""

    type = BigInteger()
    postgresql = f"CAST(floor(EXTRACT(epoch FROM {{0}}) / {MINUTE}) AS BIGINT)"
    sqlite = f"(strftime('%s', substr({{0}}, 1, 19)) / {MINUTE})"


def _seconds(start: ColumnElement[Any], end: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(_epoch(end) - _epoch(start), Float)


def _bucket(seconds: ColumnElement[Any]) -> ColumnElement[Any]:
    # A microsecond is more than the error of the difference of two times.
    rows: list[tuple[Any, Any]] = [
        (seconds <= literal_column(str(bound + 5e-7)), literal_column(str(place)))
        for place, bound in enumerate(BUCKET_BOUNDS)
    ]
    last: ColumnElement[int] = literal_column(str(len(BUCKET_BOUNDS)))
    return case((seconds.is_(None), cast(null(), Integer)), *rows, else_=last)


def _given(name: str) -> ColumnElement[Any]:
    return bindparam(name, type_=UtcDateTime() if name in {"since", "until"} else BigInteger())


def _sum(seconds: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(func.coalesce(func.sum(case((seconds > literal_column("0"), seconds))), 0.0), Float)


# A range, also without a ceiling: PostgreSQL assumes that it has few rows, and uses the key.
_NUMBERED = and_(tasks.c.seq > _given("task_floor"), tasks.c.seq <= _given("task_ceiling"))
_IS_END = or_(*[attempts.c.status == literal_column(f"'{status}'") for status in sorted(TERMINAL)])
_RETURNED_AT = case((_IS_END, attempts.c.completed_at), else_=attempts.c.ended_at)
_ATTEMPTS = and_(
    attempts.c.n > _given("attempt_floor"), attempts.c.n <= literal_column(str(NO_CEILING), BigInteger())
)


def _within(at: ColumnElement[Any]) -> ColumnElement[bool]:
    return and_(at >= _given("since"), at < _given("until"))


_UNKNOWN = cast(null(), Float)
_HAPPENED = union_all(
    select(
        literal_column(f"'{SUBMITTED}'", String()).label("kind"),
        tasks.c.job_id,
        tasks.c.created_at.label("at"),
        cast(null(), String).label("code"),
        _UNKNOWN.label("waiting"),
        _UNKNOWN.label("running"),
    ).where(_NUMBERED, _within(tasks.c.created_at)),
    select(
        tasks.c.status,
        tasks.c.job_id,
        tasks.c.completed_at,
        tasks.c.error_code,
        _seconds(func.coalesce(tasks.c.queued_at, tasks.c.created_at), tasks.c.claimed_at),
        _seconds(tasks.c.started_at, tasks.c.completed_at),
    ).where(_within(tasks.c.completed_at)),
    select(
        case((_IS_END, attempts.c.status), else_=literal_column(f"'{RETURNED}'")),
        select(tasks.c.job_id).where(tasks.c.seq == attempts.c.task_seq).scalar_subquery(),
        _RETURNED_AT,
        case((_IS_END, attempts.c.error_code), else_=attempts.c.reason),
        _seconds(attempts.c.queued_at, attempts.c.claimed_at),
        _seconds(attempts.c.started_at, func.coalesce(attempts.c.completed_at, attempts.c.ended_at)),
    ).where(_ATTEMPTS, _within(_RETURNED_AT)),
).cte("happened")
_MINUTE = _minute(_HAPPENED.c.at)
_GROUPS: Sequence[ColumnElement[Any]] = (
    *(_HAPPENED.c.kind, _HAPPENED.c.job_id, _MINUTE.label("minute"), _HAPPENED.c.code),
    *(_bucket(_HAPPENED.c.waiting).label("in_waiting"), _bucket(_HAPPENED.c.running).label("in_running")),
)
_GROUPED = select(
    *_GROUPS, func.count(), _sum(_HAPPENED.c.waiting).label("waits"), _sum(_HAPPENED.c.running).label("runs")
).group_by(*_GROUPS)
_NUMBERS = select(
    select(func.max(tasks.c.seq)).scalar_subquery().label("task"),
    select(func.max(attempts.c.n)).scalar_subquery().label("attempt"),
)
# It reads the clock after the state of the database that it returns.
_NUMBERS_AND_TIME = _NUMBERS.add_columns(func.clock_timestamp(type_=UtcDateTime()).label("at"))
_AFTER = (
    select(tasks.c.seq, tasks.c.created_at)
    .where(tasks.c.seq > _given("task_floor"), tasks.c.seq <= literal_column(str(NO_CEILING), BigInteger()))
    .where(tasks.c.created_at >= _given("since"))
    .order_by(tasks.c.seq)
    .limit(ONE)
)
_LAST_BEFORE = select(func.max(tasks.c.seq)).where(_NUMBERED, tasks.c.created_at < _given("until"))
_NEXT_END = select(func.min(tasks.c.completed_at)).where(tasks.c.completed_at >= _given("since"))
_NEXT_RETURN = select(func.min(_RETURNED_AT)).where(_ATTEMPTS, _given("since") <= _RETURNED_AT)
_ACTIVITY = table(
    "pg_stat_activity", *[column(name) for name in ("xact_start", "datname", "pid", "backend_type")]
)
_OLDEST = select(func.min(_ACTIVITY.c.xact_start, type_=UtcDateTime())).where(
    _ACTIVITY.c.datname == func.current_database(),
    _ACTIVITY.c.pid != func.pg_backend_pid(),
    _ACTIVITY.c.backend_type == literal_column("'client backend'"),
)


# Until when the statistics have read, as the functions that delete tasks need it.

position = StatisticPosition.__table__


KEY = 1
# Tasks that were not read yet are kept for this long.
_KEEP_UNREAD = timedelta(minutes=10)
_UNTIL = select(position.c.until).where(position.c.key == KEY)
_NEWEST = {
    "task_floor": select(func.coalesce(func.max(tasks.c.seq), 0)).scalar_subquery(),
    "attempt_floor": select(func.coalesce(func.max(attempts.c.n), 0)).scalar_subquery(),
}
_LOWER = update(position).values(
    {
        f"{prefix}{name}": func.min(position.c[f"{prefix}{name}"], newest)
        for prefix in ("", "next_")
        for name, newest in _NEWEST.items()
    }
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
