"""Search tasks, newest first, along the index that fits the filter, within a budget of rows and time.

A search reads *candidates* along one index in windows; all conditions of the filter decide which of them it
returns. So its cost depends on the budget, not on the number of tasks.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, bindparam, func, literal_column, select, true

from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.store import search_windows
from zndraw_joblib.server.store.bulk import among, like_pattern, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.search_windows import CONDITIONS, Shape
from zndraw_joblib.server.store.tables import Job, RoomCount, Task
from zndraw_joblib.server.store.tasks.records import IS_HELD, ended_unstarted

tasks, jobs, rooms = Task.__table__, Job.__table__, RoomCount.__table__

# So many candidates are sorted; more are read along an index that has their order.
FEW = 2_000
# Larger windows would be hardly faster for each row, and for them PostgreSQL would sort whole large tables.
_WINDOWS = (16, 64, 256, 1024)
_FIRST, _FIRST_WITH_TEXT = 256, 16
_MAX_ROWS_FIRST, _MAX_ROWS = 1024, 4096
# Unsuccessful tasks are scattered: without statistics PostgreSQL would rather scan than read more of them.
_MAX_UNSUCCESSFUL = 256
# Tasks are numbered almost in the order of their creation: a transaction takes less than this.
_DISORDER = timedelta(hours=1)
_FIRST_JOB, _LAST_JOB = UUID(int=0), UUID(int=2**128 - 1)
_LISTS = ("jobs", "rooms", "error_codes")


class Place(NamedTuple):
    """Where a search continues: after this task. `at` is its time of creation."""

    seq: int
    at: datetime | None = None


class Budget(NamedTuple):
    """How much a search reads at most: about so many rows, and no window that ends after so many seconds.

    The search does not interrupt a window. After a window that took less than `grow_below` seconds, the next
    one is four times larger; after a window that took more than `shrink_above` seconds, it is smaller.
    """

    rows: int = 20_000
    seconds: float = 0.02
    grow_below: float = 0.0035
    shrink_above: float = 0.01


@dataclass(frozen=True)
class Filter:
    """Which tasks to find; an empty collection and None match all. `newest` is the greatest `seq`."""

    statuses: Collection[TaskStatus] = ()
    jobs: Sequence[UUID] = ()
    rooms: Sequence[str] = ()
    worker: UUID | None = None
    created_by: str | None = None
    error_codes: Sequence[str] = ()
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    newest: int | None = None

    def limited_to(self, newest: int) -> "Filter":
        """Return the same filter without tasks that are newer than this one."""
        return replace(self, newest=newest)


class FoundRow(NamedTuple):
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
    error: str | None

    @property
    def attempts(self) -> int:
        """How many attempts have begun, with the present one."""
        is_unstarted = self.status in TERMINAL and ended_unstarted(self.claimed_at, self.started_at)
        return self.attempt - self.unstarted - is_unstarted


class _Pace:
    """Decides how large each window is, and when a search ends early."""

    def __init__(self, shape: Shape, budget: Budget, began: float) -> None:
        self._streams, self._budget, self._read = shape.streams, budget, 0
        self._gives_up, self._started = began + budget.seconds, time.monotonic()
        first = _FIRST_WITH_TEXT if "text" in shape.conditions else _FIRST
        self._last = _WINDOWS.index(_MAX_UNSUCCESSFUL) if shape.is_unsuccessful else len(_WINDOWS) - 1
        self._place = _WINDOWS.index(first)
        while self._place and self._rows(self._place) > _MAX_ROWS_FIRST:
            self._place -= 1

    @property
    def window(self) -> int:
        """The size of the next window."""
        return _WINDOWS[self._place]

    def _rows(self, place: int) -> int:
        return _WINDOWS[place] * self._streams

    def _may_be(self, place: int) -> bool:
        return place <= self._last and self._rows(place) <= _MAX_ROWS

    def permits_another(self) -> bool:
        """Return whether there may be one more window, once a window is read, and choose its size."""
        now = time.monotonic()
        took, self._started = now - self._started, now
        self._read += self._rows(self._place)
        following = self._place + 1
        if took > self._budget.shrink_above:
            self._place = max(self._place - 1, 0)
        elif took < self._budget.grow_below and self._may_be(following):
            self._place = following
        return self._read < self._budget.rows and now + took < self._gives_up


class Part(NamedTuple):
    """Found tasks, and where to continue: None at the end."""

    rows: list[FoundRow]
    after: Place | None


async def find(
    tx: Transaction, wanted: Filter, after: Place | None, limit: int, budget: Budget | None = None
) -> Part:
    """Return up to `limit` tasks that match, newest first, after a place.

    It returns fewer, and where to continue, once the budget is spent.
    """
    began = time.monotonic()
    shape, given = await _prepare(tx, wanted)
    if after is None and not (shape.are_few or shape.rooms):
        after = await _first_place(tx, wanted)
    pace = _Pace(shape, budget or Budget(), began)
    found: list[FoundRow] = []
    while True:
        window = pace.window
        statement = search_windows.statement(shape, window, is_first=after is None)
        place = {} if after is None else {"seq": after.seq, "at": after.at}
        rows = (await tx.execute(statement, {**given, **place, "most": limit + 1 - len(found)})).all()
        found += [FoundRow(*row[: len(FoundRow._fields)]) for row in rows if row.matches]
        if len(found) > limit:
            return Part(found[:limit], _place(found[limit - 1]))
        if not rows or rows[-1].total < window or _is_before(wanted, rows[-1].created_at):
            return Part(found, None)
        after = _place(rows[-1])
        if len(found) == limit or not pace.permits_another():
            return Part(found, after)


async def _prepare(tx: Transaction, wanted: Filter) -> tuple[Shape, dict[str, Any]]:
    """Return the shape of a filter and its parameters, with the numbers of its candidates if they are few."""
    conditions = tuple(name for name in CONDITIONS if getattr(wanted, name) not in (None, (), []))
    shape = Shape(
        tuple(sorted(wanted.statuses)), conditions, len(wanted.rooms), len(wanted.jobs), are_few=False
    )
    given: dict[str, Any] = {name: getattr(wanted, name) for name in conditions}
    given |= {name: padded(sorted(given[name])) for name in _LISTS if name in given}
    given |= {f"room_{place}": room for place, room in enumerate(wanted.rooms)}
    given |= {f"job_{place}": job_id for place, job_id in enumerate(wanted.jobs)}
    given |= {"first_job": _FIRST_JOB, "last_job": _LAST_JOB}
    if wanted.text is not None:
        given["text"] = like_pattern(wanted.text)
    statement = None if wanted.rooms else search_windows.few(shape, FEW + 1)
    if statement is not None and not await _many_are_pending(tx, wanted):
        found = (await tx.execute(statement, given)).scalars().all()
        if len(found) <= FEW:
            return shape._replace(are_few=True), {**given, "few": padded(found) or [0]}
    return shape, given


_PENDING = select(func.sum(jobs.c.pending))
_PENDING_OF_JOBS = _PENDING.where(among(jobs.c.id, bindparam("jobs")))


async def _many_are_pending(tx: Transaction, wanted: Filter) -> bool:
    """Return whether too many pending tasks may match, by kept counts: PostgreSQL might sort all of them."""
    if TaskStatus.PENDING not in wanted.statuses:
        return False
    statement = _PENDING_OF_JOBS if wanted.jobs else _PENDING
    return ((await tx.execute(statement, {"jobs": padded(wanted.jobs)})).scalar() or 0) > FEW


def _place(row: Any) -> Place:
    return Place(row.seq, row.created_at)


def _is_before(wanted: Filter, created_at: datetime) -> bool:
    return wanted.since is not None and created_at + _DISORDER < wanted.since


async def _first_place(tx: Transaction, wanted: Filter) -> Place | None:
    """Return the place where a search begins that is not for new tasks."""
    places = [] if wanted.newest is None else [Place(wanted.newest + 1)]
    if wanted.until is not None and (place := await _place_after(tx, wanted.until)) is not None:
        places.append(place)
    return min(places, key=attrgetter("seq"), default=None)


_BOUNDS = select(func.min(tasks.c.seq), func.max(tasks.c.seq))
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


async def _place_after(tx: Transaction, moment: datetime) -> Place | None:
    """Return a place behind about all tasks that were created after a moment, found by halving."""
    first, last = (await tx.execute(_BOUNDS)).one()
    if first is None:
        return None
    low, high = first - 1, last + 1
    while high - low > 1:
        middle = (low + high) // 2
        nearest = (await tx.execute(_NEAREST, {"middle": middle})).first()
        if nearest is None or nearest.created_at - _DISORDER <= moment:
            low = middle
        else:
            high = nearest.seq
    return Place(high)


_JOB_IDS = select(jobs.c.id).where(among(jobs.c.full_name, bindparam("names")))
_KEPT = [
    func.coalesce(func.sum(rooms.c[name]), 0).label(name)
    for name in ("total", "pending", "failed", "cancelled")
]
_HELD = [
    func.count().filter(tasks.c.status == literal_column(f"'{status}'")).label(status)
    for status in sorted(HELD)
]


def _counts(*, of_rooms: bool) -> Select[Any]:
    kept, held = select(*_KEPT), select(*_HELD).where(IS_HELD)
    if of_rooms:
        kept = kept.where(among(rooms.c.room_id, bindparam("rooms")))
        held = held.where(among(tasks.c.room_id, bindparam("rooms")))
    counts, counts_held = kept.subquery(), held.subquery()
    return select(counts, counts_held).join_from(counts, counts_held, true())


_COUNTS, _COUNTS_OF_ROOMS = _counts(of_rooms=False), _counts(of_rooms=True)


async def job_ids(tx: Transaction, names: Sequence[str]) -> list[UUID]:
    """Return the ids of those jobs of these full names that exist, also of soft-deleted ones."""
    return sorted((await tx.execute(_JOB_IDS, {"names": padded(names)})).scalars())


async def count(tx: Transaction, room_ids: Sequence[str] = ()) -> dict[TaskStatus, int]:
    """Return how many tasks have each status, in some rooms or in all.

    The counts are kept by the writers of tasks; the held tasks are few and are counted.
    """
    if room_ids:
        row = (await tx.execute(_COUNTS_OF_ROOMS, {"rooms": padded(room_ids)})).one()
    else:
        row = (await tx.execute(_COUNTS)).one()
    found: dict[str, int] = {**row._mapping}
    found["completed"] = row.total - sum(found[status] for status in TaskStatus if status in found)
    return {status: max(0, int(found[status])) for status in TaskStatus}
