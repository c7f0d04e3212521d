"""The statements of searches: a window of candidates along one index, filtered by all conditions.

A statement is built and compiled once for each shape of a filter; the values are parameters.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from zndraw_joblib.contract.status import HELD, TaskStatus
from zndraw_joblib.server.store.bulk import among, by_database, contains
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks.records import IS_HELD, IS_SCHEDULED, QUEUED, Condition, of_status

tasks = Task.__table__

MAX_ERROR = 300
UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
# More streams than this cost more than they save.
_MAX_STREAMS = 40
# PostgreSQL uses an index with a condition for lists of at most 100 values.
_REPEATED = 90
_NAMES = (
    *("seq", "id", "job_id", "room_id", "status", "created_at", "claimed_at", "started_at", "completed_at"),
    *("worker_id", "created_by", "attempt", "unstarted", "lane", "run_at", "error_code"),
)
_COLUMNS = [*(tasks.c[name] for name in _NAMES), func.substr(tasks.c.error, 1, MAX_ERROR).label("error")]
_SEQ = bindparam("seq", type_=tasks.c.seq.type)
_AT = bindparam("at", type_=tasks.c.created_at.type)
_MOST = bindparam("most", type_=BigInteger())
_BY_SEQ = (tasks.c.seq,)
_BY_TIME = (tasks.c.created_at, tasks.c.seq)


def _given(name: str, column: str) -> ColumnElement[Any]:
    return bindparam(name, type_=tasks.c[column].type)


_CONDITIONS: dict[str, Condition] = {
    "jobs": among(tasks.c.job_id, bindparam("jobs")),
    "rooms": among(tasks.c.room_id, bindparam("rooms")),
    "error_codes": among(tasks.c.error_code, bindparam("error_codes")),
    "worker": tasks.c.worker_id == _given("worker", "worker_id"),
    "created_by": tasks.c.created_by == _given("created_by", "created_by"),
    "since": tasks.c.created_at >= _given("since", "created_at"),
    "until": tasks.c.created_at < _given("until", "created_at"),
    "newest": tasks.c.seq <= _given("newest", "seq"),
    # The last one: it costs most.
    "text": or_(
        contains(tasks.c.error, bindparam("text", type_=Text())),
        contains(tasks.c.payload, bindparam("text", type_=Text())),
    ),
}
CONDITIONS = tuple(_CONDITIONS)


class Shape(NamedTuple):
    """What a filter has: its statuses, the names of other conditions, and how many rooms and jobs.

    `are_few`: the parameter `few` has the numbers of all tasks that may match.
    """

    statuses: tuple[TaskStatus, ...]
    conditions: tuple[str, ...]
    rooms: int
    jobs: int
    are_few: bool

    @property
    def streams(self) -> int:
        """How many ranges of an index a window reads."""
        return len(_streams(self))

    @property
    def is_unsuccessful(self) -> bool:
        """Whether the candidates are tasks that failed or were cancelled."""
        return bool(self.statuses) and UNSUCCESSFUL.issuperset(self.statuses)


class _Stream(NamedTuple):
    """Candidates in the descending order of one index; they differ in `created_at` and `seq` at most."""

    wanted: Sequence[Condition]
    order: tuple[ColumnElement[Any], ...]

    def after_place(self) -> Condition:
        return tuple_(*_BY_TIME) < tuple_(_AT, _SEQ) if self.order == _BY_TIME else tasks.c.seq < _SEQ


@lru_cache(maxsize=512)
def statement(shape: Shape, window: int, *, is_first: bool) -> Select[Any]:
    """Return the statement for the matches in a window of candidates, and for its last candidate.

    It has the columns of tasks, whether the task `matches`, and the `total` number of candidates. The filter
    is applied to the rows of a subquery with a limit, so it does not change by which index they are read.
    """
    # As a literal: PostgreSQL's plans for any number of rows are worse.
    size: ColumnElement[int] = literal_column(str(window))
    found = [_CONDITIONS[name] for name in shape.conditions]
    if shape.statuses:
        found.insert(0, of_status(shape.statuses))
    matches = and_(true(), *found).label("matches")
    parts = []
    for stream in _streams(shape):
        wanted = [*stream.wanted] if is_first else [*stream.wanted, stream.after_place()]
        rows = select(*_COLUMNS, matches).where(*wanted)
        parts.append(rows.order_by(*[column.desc() for column in stream.order]).limit(size).subquery())
    names = ["created_at", "seq"] if shape.rooms else ["seq"]
    read = parts[0]
    if len(parts) > 1:
        united = union_all(*[select(part) for part in parts]).subquery()
        read = select(united).order_by(*[united.c[name].desc() for name in names]).limit(size).subquery()
    place = func.row_number().over(order_by=[read.c[name].desc() for name in names]).label("place")
    numbered = select(read, place, func.count().over().label("total")).subquery()
    chosen = select(numbered).where(or_(numbered.c.matches, numbered.c.place == numbered.c.total))
    return chosen.order_by(numbered.c.place).limit(_MOST)


def _streams(shape: Shape) -> list[_Stream]:
    if shape.rooms:
        return _of_rooms(shape)
    if shape.are_few:
        return [_Stream([among(tasks.c.seq, bindparam("few"))], _BY_SEQ)]
    if shape.is_unsuccessful:
        return [_unsuccessful(status) for status in shape.statuses]
    return [_Stream([], _BY_SEQ)]


def _unsuccessful(status: TaskStatus) -> _Stream:
    value: ColumnElement[str] = literal_column(f"'{status}'")
    # With an equality, PostgreSQL knows that the primary key has the same order, and reads the history by it.
    # For one value in a list, only this index has the order. The more often the list has the value, the more
    # rows PostgreSQL expects, so that it neither sorts them nor reads them by another index.
    is_one = by_database(
        tasks.c.status.in_([value] * _REPEATED), and_(of_status(UNSUCCESSFUL), tasks.c.status == value)
    )
    return _Stream([is_one], (tasks.c.status, tasks.c.seq))


def _of_rooms(shape: Shape) -> list[_Stream]:
    """Return a stream for each room, or for each of its statuses or jobs: the index that reads least."""
    times = [_CONDITIONS[name] for name in shape.conditions if name in {"since", "until"}]
    parts: list[list[Condition]] = [[]]
    # Most waiting tasks of a room may be those of one job; others are found faster by their status.
    if shape.jobs and (not shape.statuses or TaskStatus.PENDING in shape.statuses):
        parts = [[tasks.c.job_id == _given(f"job_{place}", "job_id")] for place in range(shape.jobs)]
    elif shape.statuses:
        parts = [[of_status([status])] for status in shape.statuses]
    if len(parts) * shape.rooms > _MAX_STREAMS:
        parts = [[]]
    return [
        _Stream([tasks.c.room_id == _given(f"room_{place}", "room_id"), *part, *times], _BY_TIME)
        for place in range(shape.rooms)
        for part in parts
    ]


@lru_cache(maxsize=512)
def few(shape: Shape, most: int) -> Select[Any] | None:
    """Return the statement for the numbers of tasks that may match, at most `most`, along short indexes.

    None if there is no such index. Each order is that of one index only, so that no other is used.
    """
    keys: list[Select[Any]] = []
    if shape.statuses and (HELD | {TaskStatus.PENDING}).issuperset(shape.statuses):
        if not HELD.isdisjoint(shape.statuses):
            # Held tasks of internal jobs have no worker.
            chosen = _same("worker", tasks.c.worker_id) if "worker" in shape.conditions else true()
            keys.append(select(tasks.c.seq).where(IS_HELD, chosen).order_by(tasks.c.worker_id))
        if TaskStatus.PENDING in shape.statuses:
            order = (tasks.c.job_id, tasks.c.lane, tasks.c.seq)
            keys += [select(tasks.c.seq).where(QUEUED, each).order_by(*order) for each in _jobs(shape)]
            keys.append(select(tasks.c.seq).where(IS_SCHEDULED).order_by(tasks.c.run_at))
    elif shape.jobs:
        by_job = (tasks.c.job_id, tasks.c.room_id, tasks.c.created_at, tasks.c.seq)
        keys += [select(tasks.c.seq).where(each).order_by(*by_job) for each in _jobs(shape)]
    if not keys:
        return None
    size: ColumnElement[int] = literal_column(str(most))
    united = union_all(*[select(key.limit(size).subquery()) for key in keys]).subquery()
    return select(united).limit(size)


def _jobs(shape: Shape) -> list[Condition]:
    if not shape.jobs:
        column = tasks.c.job_id
        return [and_(column >= _given("first_job", "job_id"), column <= _given("last_job", "job_id"))]
    return [_same(f"job_{place}", tasks.c.job_id) for place in range(shape.jobs)]


def _same(name: str, column: ColumnElement[Any]) -> Condition:
    given = bindparam(name, type_=column.type)
    return and_(column >= given, column <= given)
