"""Search tasks, newest or oldest first, along the index that fits, within a budget of rows and time.

A search reads *candidates* along one index in windows; all conditions of the filter decide which of them it
returns. So its cost depends on the budget, not on the number of tasks. A statement is built and compiled once
for each shape of a filter; the values are parameters.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from operator import attrgetter, gt, lt
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json
from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union,
    union_all,
)

from zndraw_joblib.server.admin.sql_figures import IS_SERVED
from zndraw_joblib.server.db.bulk import among, before_colon, by_database, contains, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, TEXT, statement
from zndraw_joblib.server.db.tables import Job, RoomCount, Task, TaskTag, whole_payload
from zndraw_joblib.server.process.ports import QUEUES
from zndraw_joblib.server.queue.sql_pauses import is_job_paused
from zndraw_joblib.server.queue.sql_task_rows import (
    IS_HELD,
    IS_SCHEDULED,
    QUEUED,
    TASK_IS_HELD,
    Condition,
    ended_unstarted,
    of_status,
)
from zndraw_joblib.wire.masks import without_secrets
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

tasks, task_tags, jobs = Task.__table__, TaskTag.__table__, Job.__table__

MAX_ERROR = 300
MAX_PREVIEW = 200
# Longer payloads with secret values are not shown.
_MAX_MASKED = 65_536
UNSUCCESSFUL = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
# More streams than this cost more than they save.
_MAX_STREAMS = 40
# PostgreSQL uses an index with a condition for lists of at most 100 values.
_REPEATED = 90
_NAMES = (
    *("seq", "id", "job_id", "room_id", "status", "created_at", "claimed_at", "started_at", "completed_at"),
    *("worker_id", "created_by", "attempt", "unstarted", "lane", "run_at", "error_code"),
    *("tags", "parent", "root"),
)
_COLUMNS = [*(tasks.c[name] for name in _NAMES), func.substr(tasks.c.error, 1, MAX_ERROR).label("error")]
_SEQ = bindparam("seq", type_=tasks.c.seq.type)
_AT = bindparam("at", type_=tasks.c.created_at.type)
_LIMIT = bindparam("limit", type_=BigInteger())
_BY_SEQ = (tasks.c.seq,)
_BY_TIME = (tasks.c.created_at, tasks.c.seq)


def _value(name: str, column: str) -> ColumnElement[Any]:
    return bindparam(name, type_=tasks.c[column].type)


_CONDITIONS: dict[str, Condition] = {
    "jobs": among(tasks.c.job_id, bindparam("jobs")),
    "rooms": among(tasks.c.room_id, bindparam("rooms")),
    "error_codes": among(tasks.c.error_code, bindparam("error_codes")),
    "exceptions": among(before_colon(tasks.c.error), bindparam("exceptions")),
    "scheduled": case((IS_SCHEDULED, true()), else_=false()) == bindparam("scheduled", type_=Boolean()),
    "parent": tasks.c.parent == _value("parent", "parent"),
    "root": tasks.c.root == _value("root", "root"),
    # Not equal: PostgreSQL would read the whole table of tags into a hash table.
    "tags": exists().where(
        task_tags.c.task_seq >= tasks.c.seq,
        task_tags.c.task_seq <= tasks.c.seq,
        among(task_tags.c.tag, bindparam("tags")),
    ),
    "worker": tasks.c.worker_id == _value("worker", "worker_id"),
    "created_by": tasks.c.created_by == _value("created_by", "created_by"),
    "group": tasks.c.group_id == _value("group", "group_id"),
    "since": tasks.c.created_at >= _value("since", "created_at"),
    "until": tasks.c.created_at < _value("until", "created_at"),
    "newest": tasks.c.seq <= _value("newest", "seq"),
    # The last one: it costs most.
    "text": or_(
        contains(tasks.c.error, bindparam("text", type_=Text())),
        # A search would show whether a guess of a secret is right.
        and_(
            contains(whole_payload(tasks.c.payload, tasks.c.seq), bindparam("text", type_=Text())),
            select(jobs.c.masked).where(jobs.c.id == tasks.c.job_id).scalar_subquery().is_(None),
        ),
    ),
}
CONDITIONS = tuple(_CONDITIONS)
# The columns of tasks by the names of conditions that few tasks meet.
_LINKS = {"parent": "parent", "root": "root", "group": "group_id"}


class Shape(NamedTuple):
    """What a filter has: its statuses, the names of other conditions, and how many rooms, jobs and tags.

    `are_few`: the parameter `few` has the numbers of all tasks that may match. With `tags` it has those of a
    window, which are read by `tagged_statement` before. Windows begin with the newest tasks, or the oldest.
    """

    statuses: tuple[TaskStatus, ...]
    conditions: tuple[str, ...]
    rooms: int
    jobs: int
    are_few: bool
    tags: int = 0
    oldest_first: bool = False

    @property
    def streams(self) -> int:
        """How many ranges of an index a window reads."""
        return max(self.tags, len(_streams(self)))

    @property
    def is_linked(self) -> bool:
        """Whether the candidates are the tasks of a tree, a group or tags, in the order of `seq`."""
        return self.tags > 0 or not _LINKS.keys().isdisjoint(self.conditions)

    @property
    def is_by_time(self) -> bool:
        """Whether the candidates are in the order of their creation."""
        return self.rooms > 0 and not self.is_linked

    @property
    def is_unsuccessful(self) -> bool:
        """Whether the candidates are tasks that failed or were cancelled."""
        return bool(self.statuses) and UNSUCCESSFUL.issuperset(self.statuses)


class _Stream(NamedTuple):
    """Candidates in the order of one index, either way; they differ in `created_at` and `seq` at most."""

    conditions: Sequence[Condition]
    order: tuple[ColumnElement[Any], ...]

    link: str | None = None

    def after_position(self, *, oldest_first: bool) -> Condition:
        follows: Callable[[Any, Any], ColumnElement[bool]] = gt if oldest_first else lt
        if self.link is not None:
            name = _LINKS[self.link]
            column, value = tasks.c[name], _value(self.link, name)
            of_link = follows(tuple_(column, tasks.c.seq), tuple_(value, _SEQ))
            return by_database(of_link, follows(tasks.c.seq, _SEQ))
        if self.order == _BY_TIME:
            return follows(tuple_(*_BY_TIME), tuple_(_AT, _SEQ))
        return follows(tasks.c.seq, _SEQ)


def _ordered(columns: Iterable[ColumnElement[Any]], *, oldest_first: bool) -> list[ColumnElement[Any]]:
    return [column.asc() if oldest_first else column.desc() for column in columns]


@lru_cache(maxsize=512)
def window_statement(shape: Shape, window: int, *, is_first: bool) -> Select[Any]:
    """Return the statement for the matches in a window of candidates, and for its last candidate.

    It has the columns of tasks, whether the task `matches`, and the `total` number of candidates. The filter
    is applied to the rows of a subquery with a limit, so it does not change by which index they are read.
    """
    # As a literal: PostgreSQL's plans for any number of rows are worse.
    size: ColumnElement[int] = literal_column(str(window))
    conditions = [_CONDITIONS[name] for name in shape.conditions]
    ordered = partial(_ordered, oldest_first=shape.oldest_first)
    if shape.statuses:
        conditions.insert(0, of_status(shape.statuses))
    matches = and_(true(), *conditions).label("matches")
    parts = []
    for stream in _streams(shape):
        bounds = [*stream.conditions]
        if not is_first:
            bounds.append(stream.after_position(oldest_first=shape.oldest_first))
        rows = select(*_COLUMNS, matches).where(*bounds)
        parts.append(rows.order_by(*ordered(stream.order)).limit(size).subquery())
    names = ["created_at", "seq"] if shape.is_by_time else ["seq"]
    read = parts[0]
    if len(parts) > 1:
        united = union_all(*[select(part) for part in parts]).subquery()
        read = select(united).order_by(*ordered(united.c[name] for name in names)).limit(size).subquery()
    position = func.row_number().over(order_by=ordered(read.c[name] for name in names)).label("position")
    numbered = select(read, position, func.count().over().label("total")).subquery()
    statement = select(numbered).where(or_(numbered.c.matches, numbered.c.position == numbered.c.total))
    return statement.order_by(numbered.c.position).limit(_LIMIT)


def _streams(shape: Shape) -> list[_Stream]:
    # The tasks below a parent are never more than those of its tree.
    for link in ("parent", "group", "root"):
        if link in shape.conditions:
            return [_of_link(link)]
    if shape.rooms and not shape.tags:
        return _of_rooms(shape)
    if shape.are_few or shape.tags:
        return [_Stream([among(tasks.c.seq, bindparam("few"))], _BY_SEQ)]
    if shape.is_unsuccessful:
        return [_unsuccessful(status) for status in shape.statuses]
    return [_Stream([], _BY_SEQ)]


def _of_link(link: str) -> _Stream:
    """Return the tasks with a parent, a root or a group, in the order of their index."""
    name = _LINKS[link]
    column, value = tasks.c[name], _value(link, name)
    # Beside an equality PostgreSQL knows that the primary key has the same order, and may read by it.
    is_linked = by_database(and_(column >= value, column <= value), column == value)
    return _Stream([is_linked], (column, tasks.c.seq), link)


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
        parts = [[tasks.c.job_id == _value(f"job_{index}", "job_id")] for index in range(shape.jobs)]
    elif shape.statuses:
        parts = [[of_status([status])] for status in shape.statuses]
    if len(parts) * shape.rooms > _MAX_STREAMS:
        parts = [[]]
    return [
        _Stream([tasks.c.room_id == _value(f"room_{index}", "room_id"), *part, *times], _BY_TIME)
        for index in range(shape.rooms)
        for part in parts
    ]


@lru_cache(maxsize=512)
def tagged_statement(
    rooms: int, tags: int, window: int, *, is_first: bool, oldest_first: bool = False
) -> Select[Any]:
    """Return the statement for the numbers of the next tasks that have a tag, newest or oldest first.

    Each room and tag has a range of its own in an index.
    """
    size: ColumnElement[int] = literal_column(str(window))
    seq, parts = task_tags.c.task_seq, []
    behind, [order] = seq > _SEQ if oldest_first else seq < _SEQ, _ordered([seq], oldest_first=oldest_first)
    for room in range(rooms) if 0 < rooms * tags <= _MAX_STREAMS else [None]:
        for tag in range(tags):
            bounds: list[Condition] = [task_tags.c.tag == bindparam(f"tag_{tag}", type_=Text())]
            if room is not None:
                bounds.append(task_tags.c.room_id == _value(f"room_{room}", "room_id"))
            bounds += [] if is_first else [behind]
            parts.append(select(seq).where(*bounds).order_by(order).limit(size).subquery())
    united = union(*[select(part) for part in parts]).subquery() if len(parts) > 1 else parts[0]
    return select(united).order_by(*_ordered([united.c.task_seq], oldest_first=oldest_first)).limit(size)


@lru_cache(maxsize=512)
def few(shape: Shape, limit: int) -> Select[Any] | None:
    """Return the statement for the numbers of tasks that may match, at most `limit`, along short indexes.

    None if there is no such index. Each order is that of one index only, so that no other is used.
    """
    keys: list[Select[Any]] = []
    if shape.statuses and (HELD | {TaskStatus.PENDING}).issuperset(shape.statuses):
        if not HELD.isdisjoint(shape.statuses):
            # Held tasks of internal jobs have no worker.
            of_worker = _same("worker", tasks.c.worker_id) if "worker" in shape.conditions else true()
            keys.append(select(tasks.c.seq).where(IS_HELD, of_worker).order_by(tasks.c.worker_id))
        if TaskStatus.PENDING in shape.statuses:
            order = (tasks.c.job_id, tasks.c.lane, tasks.c.seq)
            keys += [select(tasks.c.seq).where(QUEUED, of_job).order_by(*order) for of_job in _jobs(shape)]
            keys.append(select(tasks.c.seq).where(IS_SCHEDULED).order_by(tasks.c.run_at))
    elif shape.jobs:
        by_job = (tasks.c.job_id, tasks.c.room_id, tasks.c.created_at, tasks.c.seq)
        keys += [select(tasks.c.seq).where(of_job).order_by(*by_job) for of_job in _jobs(shape)]
    if not keys:
        return None
    size: ColumnElement[int] = literal_column(str(limit))
    united = union_all(*[select(key.limit(size).subquery()) for key in keys]).subquery()
    return select(united).limit(size)


def _jobs(shape: Shape) -> list[Condition]:
    if not shape.jobs:
        column = tasks.c.job_id
        return [and_(column >= _value("first_job", "job_id"), column <= _value("last_job", "job_id"))]
    return [_same(f"job_{index}", tasks.c.job_id) for index in range(shape.jobs)]


def _same(name: str, column: ColumnElement[Any]) -> Condition:
    value = bindparam(name, type_=column.type)
    return and_(column >= value, column <= value)


rooms = RoomCount.__table__

# This many candidates are sorted; more are read along an index that has their order.
FEW = 2_000
# Larger windows would be hardly faster for each row, and for them PostgreSQL would sort whole large tables.
_WINDOWS = (4, 16, 64, 256, 1024)
# Payloads may have 1 MiB each.
_FIRST, _FIRST_WITH_TEXT = 256, 4
# A search of fewer rows is whole, also where the first window waited for the compilation of its statement.
_LEAST = 16
_MAX_ROWS_FIRST, _MAX_ROWS = 1024, 4096
# Unsuccessful tasks are scattered: without statistics PostgreSQL would rather scan than read more of them.
_MAX_UNSUCCESSFUL = 256
# Tasks are numbered almost in the order of their creation: a transaction takes less than this.
_DISORDER = timedelta(hours=1)
_FIRST_JOB, _LAST_JOB = UUID(int=0), UUID(int=2**128 - 1)
_LISTS = ("jobs", "rooms", "error_codes", "exceptions", "tags")


class SearchPosition(NamedTuple):
    """Where a search continues: after this task. `at` is its time of creation."""

    seq: int
    at: datetime | None = None


class Budget(NamedTuple):
    """How much a search reads at most: about `rows`, and no window that ends after `seconds`.

    A search reads 16 rows however long that takes, and does not interrupt a window. After a window that took
    less than `grow_below` seconds, the next one is four times larger; after a window that took more than
    `shrink_above` seconds, it is smaller.
    """

    rows: int = 20_000
    seconds: float = 0.02
    grow_below: float = 0.0035
    shrink_above: float = 0.01


@dataclass(frozen=True)
class Filter:
    """Which tasks to find; an empty collection and None match all. `newest` is the greatest `seq`.

    They are found newest first, or `oldest_first`.
    """

    statuses: Collection[TaskStatus] = ()
    jobs: Sequence[UUID] = ()
    rooms: Sequence[str] = ()
    worker: UUID | None = None
    created_by: str | None = None
    error_codes: Sequence[str] = ()
    exceptions: Sequence[str] = ()
    tags: Sequence[str] = ()
    parent: UUID | None = None
    root: UUID | None = None
    scheduled: bool | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    newest: int | None = None
    group: UUID | None = None
    oldest_first: bool = False

    def limited_to(self, newest: int, *, oldest_first: bool = False) -> "Filter":
        """Return the same filter without tasks that are newer than this one."""
        return replace(self, newest=newest, oldest_first=oldest_first)


class SearchRow(NamedTuple):
    """The columns of a found task. `error` has at most 300 characters."""

    seq: int
    id: UUID
    job_id: UUID
    room_id: str
    status: str
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    worker_id: UUID | None
    created_by: str
    attempt: int
    unstarted: int
    lane: int
    run_at: datetime | None
    error_code: str | None
    tags: list[str] | None
    parent: UUID | None
    root: UUID | None
    error: str | None

    @property
    def attempts(self) -> int:
        """How many attempts have begun, with the present one."""
        is_unstarted = self.status in TERMINAL and ended_unstarted(self.claimed_at, self.started_at)
        return self.attempt - self.unstarted - is_unstarted


class SearchDetail(NamedTuple):
    """More of a found task: the beginning of its payload, its worker and progress, the state of its job.

    `has_children`: another task has it as its parent.
    """

    payload: str
    worker: str | None
    progress: dict[str, Any] | None
    is_paused: bool
    is_served: bool
    masked: str | None
    has_children: bool

    @property
    def preview(self) -> str:
        """The beginning of the payload, without secret values; empty for a long one that has some."""
        if self.masked is None:
            return self.payload
        try:
            payload = from_json(self.payload)
        except ValueError:  # it was cut
            return ""
        return to_json(without_secrets(payload, self.masked)).decode()[:MAX_PREVIEW]


_DETAILS = statement(
    f"""
SELECT seq, substr(payload_of(joblib_task), 1, CASE WHEN (
        SELECT masked FROM joblib_job WHERE joblib_job.id = job_id
    ) IS NULL THEN {MAX_PREVIEW} ELSE {_MAX_MASKED} END),
    (SELECT name FROM joblib_worker WHERE joblib_worker.id = worker_id),
    CASE WHEN {TASK_IS_HELD} THEN (SELECT progress FROM joblib_attempt_detail detail
        WHERE task_seq = seq AND detail.attempt = joblib_task.attempt) END,
    (SELECT {is_job_paused(":now")} FROM joblib_job WHERE joblib_job.id = job_id),
    (SELECT room_id = '{INTERNAL}' OR {IS_SERVED} FROM joblib_job WHERE joblib_job.id = job_id),
    (SELECT masked FROM joblib_job WHERE joblib_job.id = job_id),
    EXISTS (SELECT 1 FROM joblib_task child WHERE child.parent = joblib_task.id)
FROM joblib_task WHERE seq = ANY (:all_seq)
""",
    *("seq", "preview", "name", "progress", "is_paused", "is_served", "masked", "has_children"),
    preview=TEXT,
    name=TEXT,
    is_paused=BOOLEAN,
    is_served=BOOLEAN,
    has_children=BOOLEAN,
)


async def details(tx: Transaction, rows: Sequence[SearchRow], now: datetime) -> dict[int, SearchDetail]:
    """Return more of found tasks, by `seq`."""
    if not rows:
        return {}
    params = {"all_seq": padded([row.seq for row in rows]), "now": now}
    return {row[0]: SearchDetail(*row[1:]) for row in await tx.execute(_DETAILS, params)}


class _Pace:
    """Decides how large each window is, and when a search ends early."""

    def __init__(self, shape: Shape, budget: Budget, began: float) -> None:
        self._streams, self._budget, self._read = shape.streams, budget, 0
        self._gives_up, self._started = began + budget.seconds, time.monotonic()
        first = _FIRST_WITH_TEXT if "text" in shape.conditions else _FIRST
        self._last = _WINDOWS.index(_MAX_UNSUCCESSFUL) if shape.is_unsuccessful else len(_WINDOWS) - 1
        self._index = _WINDOWS.index(first)
        while self._index and self._rows(self._index) > _MAX_ROWS_FIRST:
            self._index -= 1

    @property
    def window(self) -> int:
        """The size of the next window."""
        return _WINDOWS[self._index]

    def _rows(self, index: int) -> int:
        return _WINDOWS[index] * self._streams

    def _may_be(self, index: int) -> bool:
        return index <= self._last and self._rows(index) <= _MAX_ROWS

    def permits_another(self) -> bool:
        """Return whether there may be one more window, once a window is read, and choose its size."""
        now = time.monotonic()
        took, self._started = now - self._started, now
        self._read += self._rows(self._index)
        following = self._index + 1
        if took > self._budget.shrink_above:
            self._index = max(self._index - 1, 0)
        elif took < self._budget.grow_below and self._may_be(following):
            self._index = following
        return self._read < _LEAST or (self._read < self._budget.rows and now + took < self._gives_up)


class SearchPart(NamedTuple):
    """Found tasks, and where to continue: None at the end."""

    rows: list[SearchRow]
    after: SearchPosition | None


async def find(
    tx: Transaction, filters: Filter, after: SearchPosition | None, limit: int, budget: Budget | None = None
) -> SearchPart:
    """Return up to `limit` tasks that match after a position, in the order of the filter.

    It returns fewer, and where to continue, once the budget is spent.
    """
    began = time.monotonic()
    shape, params = await _prepare(tx, filters)
    if after is None and not (shape.are_few or shape.is_by_time):
        after = await _first_position(tx, filters)
    pace = _Pace(shape, budget or Budget(), began)
    matches: list[SearchRow] = []
    while True:
        window = await _read_window(tx, shape, params, after, pace.window, limit + 1 - len(matches))
        matches += [SearchRow(*row[: len(SearchRow._fields)]) for row in window.rows if row.matches]
        if len(matches) > limit:
            return SearchPart(matches[:limit], _position(matches[limit - 1]))
        if window.last is None or (window.rows and _is_beyond(filters, window.rows[-1])):
            return SearchPart(matches, None)
        after = window.last
        if len(matches) == limit or not pace.permits_another():
            return SearchPart(matches, after)


class _Window(NamedTuple):
    """The rows of a window that match, and the last one; its end, None if no other window follows."""

    rows: Sequence[Any]
    last: SearchPosition | None


async def _read_window(
    tx: Transaction, shape: Shape, params: dict[str, Any], after: SearchPosition | None, size: int, limit: int
) -> _Window:
    position = {} if after is None else {"seq": after.seq, "at": after.at}
    params = {**params, **position, "limit": limit}
    seqs: Sequence[int] = []
    if shape.tags:
        order = {"is_first": after is None, "oldest_first": shape.oldest_first}
        statement = tagged_statement(shape.rooms, shape.tags, size, **order)
        seqs = (await tx.execute(statement, params)).scalars().all()
        params["few"] = padded(seqs) or [0]
    rows = (await tx.execute(window_statement(shape, size, is_first=after is None), params)).all()
    if shape.tags:
        # Some of these tasks may have been deleted meanwhile.
        return _Window(rows, SearchPosition(seqs[-1]) if len(seqs) == size else None)
    return _Window(rows, _position(rows[-1]) if rows and rows[-1].total >= size else None)


async def _prepare(tx: Transaction, filters: Filter) -> tuple[Shape, dict[str, Any]]:
    """Return the shape of a filter and its parameters, with the numbers of its candidates if they are few."""
    conditions = tuple(name for name in CONDITIONS if getattr(filters, name) not in (None, (), []))
    is_in_tree = filters.parent is not None or filters.root is not None
    tags = 0 if is_in_tree else len(filters.tags)
    shape = Shape(
        tuple(sorted(filters.statuses)),
        tuple(name for name in conditions if not (tags and name == "tags")),
        len(filters.rooms),
        len(filters.jobs),
        are_few=False,
        tags=tags,
        oldest_first=filters.oldest_first,
    )
    params: dict[str, Any] = {name: getattr(filters, name) for name in conditions}
    params |= {name: padded(sorted(params[name])) for name in _LISTS if name in params}
    params |= {f"room_{index}": room for index, room in enumerate(filters.rooms)}
    params |= {f"tag_{index}": tag for index, tag in enumerate(filters.tags)}
    params |= {f"job_{index}": job_id for index, job_id in enumerate(filters.jobs)}
    params |= {"first_job": _FIRST_JOB, "last_job": _LAST_JOB}
    statement = None if shape.rooms or shape.is_linked else few(shape, FEW + 1)
    if statement is not None and not await _many_are_pending(tx, filters):
        numbers = (await tx.execute(statement, params)).scalars().all()
        if len(numbers) <= FEW:
            return shape._replace(are_few=True), {**params, "few": padded(numbers) or [0]}
    return shape, params


_PENDING = select(func.sum(jobs.c.pending))
_PENDING_OF_JOBS = _PENDING.where(among(jobs.c.id, bindparam("jobs")))


async def _many_are_pending(tx: Transaction, filters: Filter) -> bool:
    """Return whether too many pending tasks may match, by kept counts: PostgreSQL might sort all of them."""
    if TaskStatus.PENDING not in filters.statuses:
        return False
    statement = _PENDING_OF_JOBS if filters.jobs else _PENDING
    return ((await tx.execute(statement, {"jobs": padded(filters.jobs)})).scalar() or 0) > FEW


def _position(row: Any) -> SearchPosition:
    return SearchPosition(row.seq, row.created_at)


def _is_beyond(filters: Filter, row: Any) -> bool:
    """Return whether no task matches that follows this one."""
    if filters.oldest_first:
        is_newer = filters.newest is not None and not filters.rooms and row.seq > filters.newest
        return is_newer or (filters.until is not None and row.created_at - _DISORDER >= filters.until)
    return filters.since is not None and row.created_at + _DISORDER < filters.since


async def _first_position(tx: Transaction, filters: Filter) -> SearchPosition | None:
    """Return the position where a search begins that is not for new tasks, or for the oldest ones."""
    if filters.oldest_first:
        last = None if filters.since is None else await _last_before(tx, filters.since, -_DISORDER)
        return None if last is None else SearchPosition(last)
    positions = [] if filters.newest is None else [SearchPosition(filters.newest + 1)]
    if filters.until is not None and (last := await _last_before(tx, filters.until, _DISORDER)) is not None:
        positions.append(SearchPosition(last + 1))
    return min(positions, key=attrgetter("seq"), default=None)


# Each by itself: for both at once SQLite reads a whole index.
_BOUNDS = select(
    select(func.min(tasks.c.seq)).scalar_subquery(), select(func.max(tasks.c.seq)).scalar_subquery()
)
_NEAREST = (
    select(tasks.c.seq, tasks.c.created_at)
    .where(tasks.c.seq <= bindparam("middle", type_=tasks.c.seq.type))
    .order_by(tasks.c.seq.desc())
    .limit(literal_column("1"))
)


async def newest(tx: Transaction) -> int:
    """Return the number of the newest task, 0 without one."""
    _, last = (await tx.execute(_BOUNDS)).one()
    return last or 0


async def _last_before(tx: Transaction, moment: datetime, margin: timedelta) -> int | None:
    """Return the number of about the last task that was created until a moment and a margin; None without.

    It is found by halving.
    """
    first, last = (await tx.execute(_BOUNDS)).one()
    if first is None:
        return None
    low, high = int(first) - 1, int(last) + 1
    while high - low > 1:
        middle = (low + high) // 2
        nearest = (await tx.execute(_NEAREST, {"middle": middle})).first()
        if nearest is None or nearest.created_at - margin <= moment:
            low = middle
        else:
            high = nearest.seq
    return high - 1


_JOB_IDS = select(jobs.c.id).where(among(jobs.c.full_name, bindparam("names")))
_VERSION_IDS = _JOB_IDS.where(among(jobs.c.job_version % QUEUES, bindparam("versions")))
_TOTALS = [
    func.coalesce(func.sum(rooms.c[name]), 0).label(name)
    for name in ("total", "pending", "failed", "cancelled")
]
# Each held task was claimed. With this column SQLite does not scan the whole index of rooms and statuses.
_HELD = [
    func.count(tasks.c.claimed_at).filter(tasks.c.status == literal_column(f"'{status}'")).label(status)
    for status in sorted(HELD)
]


def _counts(*, of_rooms: bool) -> Select[Any]:
    totals, held = select(*_TOTALS), select(*_HELD).where(IS_HELD)
    if of_rooms:
        totals = totals.where(among(rooms.c.room_id, bindparam("rooms")))
        held = held.where(among(tasks.c.room_id, bindparam("rooms")))
    counts, counts_held = totals.subquery(), held.subquery()
    return select(counts, counts_held).join_from(counts, counts_held, true())


_COUNTS, _COUNTS_OF_ROOMS = _counts(of_rooms=False), _counts(of_rooms=True)


async def job_ids(
    tx: Transaction, names: Sequence[str], versions: Sequence[int] = (), *, superseded: bool = False
) -> list[UUID]:
    """Return the ids of all versions of jobs of these full names, or of these; also of soft-deleted jobs.

    With `superseded` leave out the current versions.
    """
    sql, params = _JOB_IDS, dict[str, Any](names=padded(names))
    if versions:
        sql, params["versions"] = _VERSION_IDS, padded(versions)
    return sorted((await tx.execute(sql.where(jobs.c.superseded) if superseded else sql, params)).scalars())


async def count(tx: Transaction, room_ids: Sequence[str] = ()) -> dict[TaskStatus, int]:
    """Return how many tasks have each status, in some rooms or in all.

    The counts are kept by the writers of tasks; the held tasks are few and are counted.
    """
    if room_ids:
        row = (await tx.execute(_COUNTS_OF_ROOMS, {"rooms": padded(room_ids)})).one()
    else:
        row = (await tx.execute(_COUNTS)).one()
    numbers: dict[str, int] = row._asdict()
    numbers["completed"] = row.total - sum(numbers[status] for status in TaskStatus if status in numbers)
    return {status: max(0, int(numbers[status])) for status in TaskStatus}


# How many tasks of a tree or of tags are counted, the newest.
MAX_COUNTED = 10_000


@lru_cache(maxsize=64)
def _linked_counts(shape: Shape) -> Select[Any]:
    """Return the statement that counts the newest tasks of a tree, or of tags, by status.

    It has how many of them match, and how many it has read.
    """
    size = MAX_COUNTED + 1
    matches = and_(true(), *[_CONDITIONS[name] for name in shape.conditions]).label("matches")
    columns = tasks.c.status, matches
    if shape.tags:
        tagged = tagged_statement(shape.rooms, shape.tags, size, is_first=True).subquery()
        rows = select(*columns).join_from(tagged, tasks, tasks.c.seq == tagged.c.task_seq).subquery()
    else:
        [stream] = _streams(shape)
        read = select(*columns).where(*stream.conditions)
        rows = read.order_by(*[column.desc() for column in stream.order]).limit(size).subquery()
    numbers = func.count().filter(rows.c.matches).label("number"), func.count().label("total")
    return select(rows.c.status, *numbers).group_by(rows.c.status)


async def count_linked(tx: Transaction, filters: Filter) -> tuple[dict[TaskStatus, int], bool]:
    """Count the newest tasks of a tree or of tags by status; also return whether these are all."""
    shape, params = await _prepare(tx, filters)
    rows = (await tx.execute(_linked_counts(shape), params)).all()
    numbers = {TaskStatus(row.status): row.number for row in rows}
    return numbers, sum(row.total for row in rows) <= MAX_COUNTED


# The most tags, from the text on, that are read to find those that begin with it.
_MAX_READ_TAGS = 1_000


def _distinct_tags(following: str) -> Any:
    """Return the statement for the tags of a room or of all: each is one look into an index.

    `following` is the tag that follows another one.
    """
    return statement(
        f"""
WITH RECURSIVE seen (tag, number) AS (
    SELECT ({following.format(">=", ":prefix")}), 1
    UNION ALL
    SELECT ({following.format(">", "seen.tag")}), number + 1
    FROM seen WHERE tag IS NOT NULL AND number < {_MAX_READ_TAGS}
)
SELECT tag FROM seen WHERE tag IS NOT NULL AND substr(tag, 1, length(:prefix)) = :prefix
ORDER BY number LIMIT :limit
""",
        "tag",
        prefix=TEXT,
    )


_TAGS = _distinct_tags("SELECT min(tag) FROM joblib_task_tag WHERE tag {} {}")
# With an equality PostgreSQL may read the tags of all rooms.
_TAGS_OF_ROOM = _distinct_tags(
    """SELECT tag FROM joblib_task_tag
        WHERE (room_id, tag) {} (:room_id, {}) AND room_id <= :room_id ORDER BY room_id, tag LIMIT 1"""
)


async def tags(tx: Transaction, room_ids: Sequence[str], prefix: str, limit: int) -> list[str]:
    """Return tags of tasks of some rooms, or of all, that begin with a text, in their order."""
    params: dict[str, Any] = {"prefix": prefix, "limit": limit}
    if not room_ids:
        return list((await tx.execute(_TAGS, params)).scalars())
    names = set[str]()
    for room_id in room_ids:
        names.update((await tx.execute(_TAGS_OF_ROOM, {**params, "room_id": room_id})).scalars())
    return sorted(names)[:limit]
