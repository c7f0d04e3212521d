"""Lists for operators that are read in parts, each with a cursor: audit trail, jobs, rooms, providers.

A `CursorList` declares a list: its operation, its rows and their order, its filters, and what a row becomes
in the answer. `read` makes the statements, cursors and answers of all lists, and `http.admin` the endpoints.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
    tuple_,
    type_coerce,
    union,
    union_all,
)

from zndraw_joblib.server.admin.sql_figures import Service, services
from zndraw_joblib.server.db.bulk import MAX_LISTED_BYTES, MAX_LISTED_SCHEMA, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.db.tables import AuditRecord, Group, Job, Pause, ProviderRecord, RoomCount, Schedule
from zndraw_joblib.server.process.ports import CursorPage, version_of
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_groups,
    rules_pauses,
    rules_schedules,
    sql_counts,
    sql_groups,
    sql_jobs,
)
from zndraw_joblib.server.queue.sql_groups import GroupRecord
from zndraw_joblib.server.queue.sql_jobs import COLUMNS as JOB_COLUMNS
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_pauses import PauseRecord
from zndraw_joblib.server.queue.sql_providers import COLUMNS, ProviderRow
from zndraw_joblib.server.queue.sql_schedules import ScheduleRecord
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import Name
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import CursorResponse, JobVersion
from zndraw_joblib.wire.names import validate_room_id
from zndraw_joblib.wire.operations import Operation
from zndraw_joblib.wire.operators import (
    AuditEntry,
    JobEntry,
    PauseEntry,
    ProviderEntry,
    RoomEntry,
    SearchedName,
)
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.schedules import ScheduleResponse
from zndraw_joblib.wire.statuses import StatusCounts


class ListFilter(NamedTuple):
    """A filter of a list: a parameter of the query, of this type.

    `condition` has the value as a parameter of the same name, and may have `now`. It holds unless the value
    is `unless`. `check` raises the problem of a wrong value.
    """

    annotation: Any
    condition: ColumnElement[bool]
    default: Any = None
    unless: Any = None
    description: str | None = None
    check: Callable[[Any], Any] | None = None


@dataclass(frozen=True, eq=False)
class CursorList:
    """A list that is read in parts. Rows of `selects` are ordered by `keys`, columns of texts or integers.

    `kind` is its name in cursors, `entries` returns the items of rows, and `description` is for the OpenAPI
    document. `long` is a column of texts whose bytes bound a part of the list. With more than one select,
    rows that are equal are one, and each filter must fit all of them.
    Keys are neither times nor UUIDs.
    """

    operation: Operation[Any]
    description: str
    kind: str
    selects: Sequence[Select[Any]]
    keys: Sequence[str]
    entries: Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]
    filters: Mapping[str, ListFilter] = field(default_factory=dict)
    is_descending: bool = False
    long: str | None = None

    @property
    def columns(self) -> list[ColumnElement[Any]]:
        """The columns of the keys."""
        return [self.selects[0].selected_columns[key] for key in self.keys]


async def read(
    tx: Transaction,
    cursor_list: CursorList,
    page: CursorPage,
    values: Mapping[str, Any],
    rooms: Sequence[str] = (),
) -> CursorResponse[Any]:
    """Return a part of a list with these values of filters. Read it in a snapshot.

    With `rooms`, the items of these: each room's are read by its index and merged. Raises `InvalidRequest`
    for a wrong cursor.
    """
    filters = cursor_list.filters.items()
    params = {name: values.get(name, entry.default) for name, entry in filters}
    names = tuple([name for name, entry in filters if params[name] is not entry.unless])
    for name in names:
        if (check := cursor_list.filters[name].check) is not None:
            check(params[name])
    if page.cursor is not None:
        types = [int if isinstance(column.type, Integer) else str for column in cursor_list.columns]
        after = decode_cursor(cursor_list.kind, page.cursor, types)
        params |= {f"after_{key}": value for key, value in zip(cursor_list.keys, after, strict=True)}
    params |= {f"room_{number}": room_id for number, room_id in enumerate(rooms)}
    query = _statement(cursor_list, names, len(rooms), is_first=page.cursor is None)
    if "now" in query.compile().params:
        params["now"] = await tx.now()
    limit = page.limit
    if cursor_list.long is not None:
        sizes = _sizes(cursor_list, names, len(rooms), is_first=page.cursor is None)
        limit = _fitting((await tx.execute(sizes, params | {"limit": limit})).scalars().all(), limit)
    rows = (await tx.execute(query, params | {"limit": limit + 1})).all()
    following = None
    if len(rows) > limit:
        rows = rows[:limit]
        following = encode_cursor(cursor_list.kind, *[getattr(rows[-1], key) for key in cursor_list.keys])
    items = await cursor_list.entries(tx, rows) if rows else []
    response: CursorResponse[Any] = cursor_list.operation.answer(items=items, next=following)
    return response


@cache
def _statement(
    cursor_list: CursorList, filters: tuple[str, ...], rooms: int, *, is_first: bool
) -> Select[Any]:
    """Return the statement for the first rows of a list, or for those after a cursor, of some rooms."""
    conditions = [cursor_list.filters[name].condition for name in filters]
    selects = cursor_list.selects
    if rooms:
        selects = [
            query.where(query.selected_columns["room_id"] == bindparam(f"room_{number}"))
            for query in selects
            for number in range(rooms)
        ]
    first, *others = [_part(query.where(*conditions), cursor_list, is_first=is_first) for query in selects]
    if not others:
        return first
    unite = union_all if rooms else union
    united = unite(*[select(part.subquery()) for part in (first, *others)]).subquery()
    return _ordered(select(united), cursor_list)


def _fitting(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first rows have no more bytes than a list may have; at least one."""
    return min(limit, max(1, sum(total <= MAX_LISTED_BYTES for total in accumulate(sizes))))


@cache
def _sizes(cursor_list: CursorList, filters: tuple[str, ...], rooms: int, *, is_first: bool) -> Select[Any]:
    """Return the statement for how long the texts of the same rows are."""
    rows = _statement(cursor_list, filters, rooms, is_first=is_first).subquery()
    length = func.length(type_coerce(rows.c[cursor_list.long or ""], Text))
    return select(length).order_by(*_order([rows.c[key] for key in cursor_list.keys], cursor_list))


def _part(query: Select[Any], cursor_list: CursorList, *, is_first: bool) -> Select[Any]:
    if not is_first:
        columns = [query.selected_columns[key] for key in cursor_list.keys]
        after = [bindparam(f"after_{column.key}", type_=column.type) for column in columns]
        place, bound = (tuple_(*columns), tuple_(*after)) if after[1:] else (columns[0], after[0])
        query = query.where(place < bound if cursor_list.is_descending else place > bound)
    return _ordered(query, cursor_list)


def _ordered(query: Select[Any], cursor_list: CursorList) -> Select[Any]:
    columns = [query.selected_columns[key] for key in cursor_list.keys]
    return query.order_by(*_order(columns, cursor_list)).limit(bindparam("limit"))


def _order(columns: Sequence[ColumnElement[Any]], cursor_list: CursorList) -> list[ColumnElement[Any]]:
    return [column.desc() for column in columns] if cursor_list.is_descending else [*columns]


# Cursors: where the next request of a list continues, as opaque text.

_MAX_CURSOR = 2000
_CURSOR_VERSION = 1


def encode_cursor(kind: str, *values: str | int) -> str:
    """Return the cursor of a list of this kind that continues after `values`."""
    return urlsafe_b64encode(to_json([_CURSOR_VERSION, kind, *values])).decode().rstrip("=")


def decode_cursor(kind: str, text: str, types: Sequence[type[str] | type[int]]) -> list[Any]:
    """Return the values of a cursor. Raises `InvalidRequest` unless this kind of list has returned it."""
    try:
        if len(text) > _MAX_CURSOR:
            raise ValueError(f"it has more than {_MAX_CURSOR} characters")
        content = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        version, name, *values = from_json(content, allow_inf_nan=False)
        if (version, name, [type(value) for value in values]) != (_CURSOR_VERSION, kind, list(types)):
            raise ValueError("it is not a cursor of this list")
        if any("\x00" in value if isinstance(value, str) else abs(value) >= 2**63 for value in values):
            raise ValueError("it has a value that no row has")
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"query.cursor: {text[:40]!r} is not a cursor of this list; pass the `next` of the last response"
        ) from error
    return list(values)


# The audit trail.

audit = AuditRecord.__table__


async def _audit_entries(_: Transaction, rows: Sequence[Any]) -> list[AuditEntry]:
    return [AuditEntry.model_construct(**row._asdict()) for row in rows]


AUDIT = CursorList(
    ops.LIST_AUDIT_ENTRIES,
    "List operators' actions, newest first; other callers name a room that they may read.",
    "audit",
    [select(audit)],
    ["n"],
    _audit_entries,
    {
        "room": ListFilter(SearchedName, audit.c.room_id == bindparam("room")),
        "actor": ListFilter(SearchedName, audit.c.actor == bindparam("actor")),
        "action": ListFilter(
            SearchedName, audit.c.action == bindparam("action"), description="Such as `job.pause`."
        ),
    },
    is_descending=True,
)


# The jobs of all rooms, with their counts.

jobs = Job.__table__


async def _job_entries(tx: Transaction, rows: Sequence[Any]) -> list[JobEntry]:
    records = [JobRecord(*row[: len(JobRecord._fields)]) for row in rows]
    if not records:
        return []
    versions = await sql_jobs.versions_of_jobs(tx, [job.id for job in records])
    ids = [version.id for of_job in versions.values() for version in of_job]
    services_of_jobs, counts = await services(tx, ids), await sql_counts.of_jobs(tx, ids)
    waiting = [version.id for of_job in versions.values() for version in of_job if version.pending]
    oldest: dict[UUID, datetime] = {}
    for task in await sql_counts.of_queues(tx, waiting) if waiting else []:
        oldest[task.job_id] = min(task.created_at, oldest.get(task.job_id, task.created_at))
    now = await tx.now()
    return [
        job_entry(
            job,
            now,
            services_of_jobs.get(job.id),
            sum_of(counts.get(version.id) for version in versions[job.id]),
            queued=sum(version.pending for version in versions[job.id]),
            scheduled=sum(version.scheduled for version in versions[job.id]),
            oldest_waiting_at=min(
                (oldest[version.id] for version in versions[job.id] if version.id in oldest), default=None
            ),
            versions=rules_answers.job_versions(
                versions[job.id],
                {version_id: service.workers for version_id, service in services_of_jobs.items()},
            ),
        )
        for job in records
    ]


def sum_of(counts: Iterable[StatusCounts | None]) -> StatusCounts:
    """Return the sum of counts."""
    total = StatusCounts()
    for one in counts:
        for name, number in one or ():
            setattr(total, name, getattr(total, name) + number)
    return total


def job_entry(  # noqa: PLR0913 - the parts of an entry
    job: JobRecord,
    now: datetime,
    service: Service | None,
    counts: StatusCounts,
    *,
    queued: int,
    scheduled: int = 0,
    oldest_waiting_at: datetime | None = None,
    versions: Sequence[JobVersion] = (),
) -> JobEntry:
    """Return a job with its workers and counts."""
    workers, slots = service or (0, 0)
    return JobEntry(
        id=job.stable_id,
        full_name=str(job.name),
        version=version_of(job.job_version),
        versions=list(versions),
        schema_=job.schema,
        paused=job.is_paused(now),
        paused_until=job.paused_until if job.is_paused(now) else None,
        deleted=job.deleted,
        created_at=job.created_at,
        workers=workers,
        slots=slots,
        queued=queued,
        scheduled=scheduled,
        counts=counts,
        oldest_waiting_at=oldest_waiting_at,
        unserved_since=job.unserved_since,
        **job.name._asdict(),
        **dict(job.policy),
    )


# As in `sql_jobs.page`.
_SCHEMA = case(
    (func.length(type_coerce(jobs.c.schema, Text)) <= MAX_LISTED_SCHEMA, jobs.c.schema),
    else_=literal_column("'{}'"),
).label("schema")
# As `sql_pauses.is_job_paused`.
_ENDS_LATER = jobs.c.paused_until > bindparam("now", type_=jobs.c.paused_until.type)
_IS_PAUSED = and_(jobs.c.paused, func.coalesce(_ENDS_LATER, true()))
JOBS = CursorList(
    ops.LIST_ALL_JOBS,
    "List the jobs of all rooms by full name, with their counts. `deleted` adds soft-deleted jobs.",
    "jobs",
    [
        select(
            *[_SCHEMA if name == "schema" else jobs.c[name] for name in JOB_COLUMNS], jobs.c.full_name
        ).where(~jobs.c.superseded)
    ],
    ["full_name"],
    _job_entries,
    {
        "room": ListFilter(str, jobs.c.room_id == bindparam("room"), check=validate_room_id),
        "category": ListFilter(Name, jobs.c.category == bindparam("category")),
        "paused": ListFilter(bool, bindparam("paused", type_=jobs.c.paused.type) == _IS_PAUSED),
        "deleted": ListFilter(bool, ~jobs.c.deleted, default=False, unless=True),
        "name": ListFilter(Name, jobs.c.name == bindparam("name")),
    },
)


# The rooms that have tasks or active jobs, with their counts.

room_counts = RoomCount.__table__
_JOBS_OF_ROOMS = statement(
    """
SELECT room_id, count(*) FROM joblib_job WHERE room_id = ANY (:all_room_id) AND NOT deleted GROUP BY room_id
""",
    *("room_id", "number"),
)


async def _room_entries(tx: Transaction, rows: Sequence[Any]) -> list[RoomEntry]:
    rooms = [row.room_id for row in rows]
    jobs_of_rooms: dict[str, int] = {
        room_id: number
        for room_id, number in await tx.execute(_JOBS_OF_ROOMS, {"all_room_id": padded(rooms)})
    }
    counts, held = await sql_counts.of_rooms(tx, rooms)
    oldest = await sql_counts.oldest_of_rooms(tx, rooms)
    items = []
    for room_id in rooms:
        of_room = counts.get(room_id, sql_counts.NO_COUNTS)
        item = RoomEntry(
            id=room_id,
            counts=of_room,
            jobs=jobs_of_rooms.get(room_id, 0),
            share=(of_room.claimed + of_room.running) / held if held else 0.0,
            oldest_waiting_at=oldest.get(room_id),
        )
        items.append(item)
    return items


ROOMS = CursorList(
    ops.LIST_ROOMS,
    "List the rooms that have tasks or jobs, by id, with their counts.",
    "rooms",
    [select(room_counts.c.room_id).distinct(), select(jobs.c.room_id).where(~jobs.c.deleted).distinct()],
    ["room_id"],
    _room_entries,
)


# The pauses of rooms, and of the whole queue.

pauses = Pause.__table__


async def _pause_entries(tx: Transaction, rows: Sequence[Any]) -> list[PauseEntry]:
    now = await tx.now()
    records = [PauseRecord(*row) for row in rows]
    return [rules_pauses.entry(pause) for pause in records if pause.until is None or pause.until > now]


PAUSES = CursorList(
    ops.LIST_PAUSES,
    "List the paused rooms by id, after the pause of all rooms. The list of jobs has those of jobs.",
    "pauses",
    [select(*[pauses.c[name] for name in PauseRecord._fields])],
    ["room_id"],
    _pause_entries,
)


# The providers of all rooms, with their open requests.

_OPEN_REQUESTS = statement(
    """
SELECT provider_id, count(*) FROM joblib_provider_call
WHERE provider_id = ANY (:all_provider_id) AND expires_at > :now
GROUP BY provider_id
""",
    *("provider_id", "number"),
)


async def _provider_entries(tx: Transaction, rows: Sequence[Any]) -> list[ProviderEntry]:
    records = [ProviderRow(*row) for row in rows]
    now = await tx.now()
    params = {"all_provider_id": padded([provider.id for provider in records]), "now": now}
    open_requests: dict[UUID, int] = {
        provider_id: number for provider_id, number in await tx.execute(_OPEN_REQUESTS, params)
    }
    return [
        ProviderEntry(
            connected=provider.connected_until > now,
            open_requests=open_requests.get(provider.id, 0),
            **provider.shown(),
        )
        for provider in records
    ]


PROVIDERS = CursorList(
    ops.LIST_ALL_PROVIDERS,
    "List the providers of all rooms by full name, with their open requests.",
    "providers",
    [select(*[ProviderRecord.__table__.c[name] for name in COLUMNS])],
    ["room_id", "category", "name"],
    _provider_entries,
    long="schema",
)

# The schedules of all rooms.


async def _schedule_entries(tx: Transaction, rows: Sequence[Any]) -> list[ScheduleResponse]:
    return await rules_schedules.responses(tx, [ScheduleRecord(*row) for row in rows])


SCHEDULES = CursorList(
    ops.LIST_ALL_SCHEDULES,
    "List the schedules of all rooms by room and name; other callers name a room that they may read.",
    "schedules",
    [select(*[Schedule.__table__.c[name] for name in ScheduleRecord._fields])],
    ["room_id", "name"],
    _schedule_entries,
    {"room": ListFilter(SearchedName, Schedule.__table__.c.room_id == bindparam("room"))},
    long="spec",
)

# The groups of a room, or of all.

groups = Group.__table__


async def _group_entries(tx: Transaction, rows: Sequence[Any]) -> list[GroupResponse]:
    records = [GroupRecord(*row) for row in rows]
    sums, counts = await sql_groups.counts(tx, [group.id for group in records])
    masks = await rules_groups.masks(tx, records)
    return [rules_groups.response(group, sums[group.id], counts[group.id], masks=masks) for group in records]


GROUPS = CursorList(
    ops.LIST_GROUPS,
    "List groups, newest first, without their failures; callers that are no superusers name a room.",
    "groups",
    [select(*[groups.c[name] for name in GroupRecord._fields])],
    ["n"],
    _group_entries,
    {"room": ListFilter(SearchedName, groups.c.room_id == bindparam("room"))},
    is_descending=True,
)

# `http.admin` serves them.
LISTS = tuple(value for value in tuple(globals().values()) if isinstance(value, CursorList))
