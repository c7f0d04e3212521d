"""Append plain tasks to the queue of one job: one statement on PostgreSQL, five short ones on SQLite.

Plain tasks enter the queue at once, with priority 0 and without options. The statements check what the
server assumes about the job, and write nothing if that is wrong.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    FromClause,
    Insert,
    Integer,
    Select,
    Text,
    Update,
    Uuid,
    any_,
    bindparam,
    cast,
    func,
    insert,
    literal_column,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.bulk import arrays
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.room_events import ROOMS, is_watched
from zndraw_joblib.server.db.tables import Job, RoomQueue, Task
from zndraw_joblib.server.queue import sql_counts
from zndraw_joblib.server.queue.sql_idempotency import keys as stored_keys
from zndraw_joblib.server.queue.sql_idempotency import lock_number
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__
jobs = Job.__table__
queues = RoomQueue.__table__


class KnownJob(NamedTuple):
    """What a server assumes about an active job whose tasks all have priority 0."""

    id: UUID
    full_name: str
    schema: str
    policy: str | None


class NewTask(NamedTuple):
    """A plain task. `id` has 32 hexadecimal digits, `payload` is JSON."""

    id: str
    room_id: str
    created_by: str
    payload: str


class NewKey(NamedTuple):
    """The idempotency key of the task at `place`, counted from 1.

    `answer` is the beginning of a JSON object, up to the opening quote of the time of creation.
    """

    id: UUID
    fingerprint: UUID
    user_id: str
    place: int
    answer: str


class Appended(NamedTuple):
    """The time of the tasks, and the length of the queue before them."""

    at: datetime
    ahead: int


async def append(
    tx: Transaction,
    job: KnownJob,
    new: Sequence[NewTask],
    keys: Sequence[NewKey],
    traceparents: Sequence[str | None] = (),
) -> Appended | None:
    """Append plain tasks to the queue of a job. Return None if what is assumed about the job is wrong.

    `traceparents` are the trace contexts of the tasks, empty if no task has one.

    It also returns None if one of the keys was used or is being used, or on PostgreSQL if one of the rooms is
    watched. Then nothing was written.
    """
    given: dict[str, Any] = {
        "job_name": job.full_name,
        "known_schema": job.schema,
        "known_policy": job.policy,
        "count": len(new),
    }
    if tx.is_sqlite:
        return await _append_on_sqlite(tx, job.id, given, new, keys, traceparents)
    given["at"] = await tx.now() if tx.has_own_clock else None
    columns = zip(NewTask._fields, zip(*new, strict=True), strict=True)
    given |= {f"all_{name}": list(values) for name, values in columns}
    if traceparents:
        given["all_traceparent"] = list(traceparents)
    if keys:
        given |= _arrays_of(keys)
    try:
        rows = await tx.execute_alone(_APPEND[bool(keys), bool(traceparents)], given)
    except IntegrityError as error:
        # A transaction that committed after the start of this statement has stored one of the keys.
        raise RepeatTransaction("An idempotency key was stored meanwhile") from error
    if not rows:
        return None
    tx.record_now(rows)
    tx.record_watched(is_watched=False)
    return Appended(await tx.now(), rows[0].pending - len(new))


def _arrays_of(keys: Sequence[NewKey]) -> dict[str, Any]:
    return {
        "key_ids": [key.id for key in keys],
        "all_key": [key.id for key in keys],
        "all_fingerprint": [key.fingerprint for key in keys],
        "all_user_id": [key.user_id for key in keys],
        "all_lock": [lock_number(key.id) for key in keys],
        "all_task": [key.place for key in keys],
        "all_answer": [key.answer for key in keys],
    }


async def _append_on_sqlite(
    tx: Transaction,
    job_id: UUID,
    given: Mapping[str, Any],
    new: Sequence[NewTask],
    keys: Sequence[NewKey],
    traceparents: Sequence[str | None],
) -> Appended | None:
    if keys:
        ids = to_json([key.id.hex for key in keys]).decode()
        if (await tx.execute(_FIND_KEYS, {"ids": ids})).first() is not None:
            return None
    firsts: dict[str, int] = {}
    of_rooms: Counter[str] = Counter()
    for place, task in enumerate(new):
        firsts.setdefault(task.room_id, len(new) - 1 - place)
        of_rooms[task.room_id] += 1
    rooms = to_json(list(firsts)).decode()
    counted = (await tx.execute(_COUNT_ON_SQLITE, {**given, "job_id": job_id, "rooms": rooms})).first()
    if counted is None:
        return None
    now = await tx.now()
    added = new if not traceparents else [(*row, trace) for row, trace in zip(new, traceparents, strict=True)]
    rows = {"rows": to_json(added).decode(), "job_id": job_id, "now": now}
    await tx.execute(_ADD_TRACED_ON_SQLITE if traceparents else _ADD_ON_SQLITE, rows)
    await sql_counts.write_appended(tx, job_id, of_rooms)
    if counted.listed < len(firsts):
        listed = {"rows": to_json(list(firsts.items())).decode(), "job_id": job_id}
        await tx.execute(_LIST_ON_SQLITE, listed)
    ahead = counted.pending - len(new)
    if keys:
        await _store_keys_on_sqlite(tx, keys, now, ahead)
    return Appended(now, ahead)


async def _store_keys_on_sqlite(tx: Transaction, keys: Sequence[NewKey], now: datetime, ahead: int) -> None:
    stamp = to_json(now).decode().strip('"')
    answers = [
        (
            *(key.id.hex, key.fingerprint.hex, key.user_id),
            f'{key.answer}{stamp}","queue_position":{ahead + key.place}}}',
        )
        for key in keys
    ]
    await tx.execute(_STORE_KEYS_ON_SQLITE, {"rows": to_json(answers).decode(), "now": now})


_FIXED = {
    "status": literal_column(f"'{TaskStatus.PENDING}'"),
    **dict.fromkeys(("attempt", "lane", "failures", "crashes"), literal_column("0", Integer())),
}
_ANSWER_COLUMNS = ["id", "fingerprint", "user_id", "created_at", "answer"]


def _count() -> Update:
    """Return the statement that locks a job and adds to its count, if it is as assumed."""
    is_as_assumed = (
        jobs.c.full_name == bindparam("job_name"),
        ~jobs.c.deleted,
        ~jobs.c.has_lanes,
        type_coerce(jobs.c.schema, Text()) == bindparam("known_schema", type_=Text()),
        jobs.c.policy.is_not_distinct_from(bindparam("known_policy", type_=Text())),
    )
    return update(jobs).where(*is_as_assumed).values(pending=jobs.c.pending + bindparam("count"))


def _insert_tasks(values: Mapping[str, ColumnElement[Any]], source: FromClause, place: Any) -> Insert:
    columns = {**values, **_FIXED}
    rows = select(*[column.label(name) for name, column in columns.items()]).select_from(source)
    return insert(tasks).from_select(list(columns), rows.order_by(place), include_defaults=False)


def _append(*, is_keyed: bool, is_traced: bool) -> Executable:
    """Return PostgreSQL's statement.

    A row of a room's queue that exists is a lower bound, because the new tasks are the last. It may have been
    deleted after the start of the statement, which ON CONFLICT notices.
    """
    count = _count().where(~is_watched(any_(ROOMS)))
    if is_keyed:
        count = count.where(select(_FREE.c.is_free).scalar_subquery(), ~_USED.exists())
    job = count.returning(jobs.c.id, jobs.c.pending).cte("job")
    source = _GIVEN_TRACED if is_traced else _GIVEN
    values = {
        "id": cast(source.c.id, Uuid()),
        "job_id": job.c.id,
        "room_id": source.c.room_id,
        "created_by": source.c.created_by,
        "payload": type_coerce(source.c.payload, Text()),
        "created_at": _AT,
    }
    if is_traced:
        values["traceparent"] = source.c.traceparent
    added = _insert_tasks(values, source.join(job, true()), source.c.place)
    new = added.returning(tasks.c.job_id, tasks.c.room_id, tasks.c.lane, tasks.c.seq).cte("added")
    firsts = select(new.c.job_id, new.c.room_id, func.min(new.c.lane), func.min(new.c.seq))
    firsts = firsts.group_by(new.c.job_id, new.c.room_id)
    listed = postgresql.insert(queues).from_select(list(new.c.keys()), firsts)
    statement = select(job.c.pending, func.now().label("now")).add_cte(
        listed.on_conflict_do_nothing().returning(queues.c.room_id).cte("listed"),
        *sql_counts.keep_inserted(new),
    )
    if is_keyed:
        statement = statement.add_cte(_insert_keys(job).cte("stored"))
    return statement


def _insert_keys(job: FromClause) -> Any:
    position = job.c.pending - bindparam("count", type_=Integer()) + _GIVEN_KEYS.c.task
    text = _GIVEN_KEYS.c.answer + _STAMP + '","queue_position":' + cast(position, Text()) + "}"
    rows = select(_GIVEN_KEYS.c.key, _GIVEN_KEYS.c.fingerprint, _GIVEN_KEYS.c.user_id, _AT, text)
    rows = rows.select_from(_GIVEN_KEYS.join(job, true()))
    return insert(stored_keys).from_select(_ANSWER_COLUMNS, rows).returning(stored_keys.c.id)


def _json_rows(*kinds: Any) -> tuple[Any, list[ColumnElement[Any]]]:
    """Return a JSON list of lists as a table for SQLite, and its columns."""
    rows = func.json_each(bindparam("rows", type_=Text())).table_valued("key", "value", name="given")
    places = range(len(kinds))
    return rows, [
        type_coerce(func.json_extract(rows.c.value, literal_column(f"'$[{place}]'")), kinds[place])
        for place in places
    ]


def _insert_on_sqlite(*, is_traced: bool) -> Insert:
    rows, (task_id, room_id, created_by, payload, *traceparent) = _json_rows(*[Text()] * (4 + is_traced))
    values = {
        "id": task_id,
        "job_id": _JOB,
        "room_id": room_id,
        "created_by": created_by,
        "payload": payload,
        "created_at": _NOW,
        **dict(zip(["traceparent"], traceparent, strict=False)),
    }
    return _insert_tasks(values, rows, rows.c.key)


def _list_on_sqlite() -> Insert:
    """Return the statement that adds missing rows of rooms. Their first tasks are counted from the last."""
    rows, (room_id, from_end) = _json_rows(Text(), Integer())
    last = select(func.max(tasks.c.seq)).scalar_subquery()
    new: Select[Any] = select(_JOB, room_id, literal_column("0", Integer()), last - from_end).select_from(
        rows
    )
    columns = ["job_id", "room_id", "lane", "seq"]
    return insert(queues).prefix_with("OR IGNORE").from_select(columns, new, include_defaults=False)


def _insert_keys_on_sqlite() -> Insert:
    rows, (key_id, fingerprint, user_id, answer) = _json_rows(*[Text()] * 4)
    new = select(key_id, fingerprint, user_id, _NOW, answer).select_from(rows)
    return insert(stored_keys).from_select(_ANSWER_COLUMNS, new, include_defaults=False)


_NOW = bindparam("now", type_=UtcDateTime())
_AT = func.coalesce(bindparam("at", type_=UtcDateTime()), func.now())
_JOB = bindparam("job_id", type_=tasks.c.job_id.type)
_GIVEN = arrays(dict.fromkeys(NewTask._fields, Text()))
_GIVEN_TRACED = arrays(dict.fromkeys([*NewTask._fields, "traceparent"], Text()))
_GIVEN_KEYS = arrays(
    {
        **{"key": Uuid(), "fingerprint": Uuid(), "user_id": Text()},
        **{"lock": BigInteger(), "task": Integer(), "answer": Text()},
    }
).alias("given_keys")
_LOCKS = arrays({"lock": BigInteger()}).alias("locks")
_FREE = select(func.bool_and(func.pg_try_advisory_xact_lock(_LOCKS.c.lock)).label("is_free")).cte("free")
_KEY_IDS: ColumnElement[Any] = bindparam("key_ids", type_=postgresql.ARRAY(Uuid(), dimensions=1))
_USED = select(stored_keys.c.id).where(stored_keys.c.id == any_(_KEY_IDS))
_STAMP = func.to_char(func.timezone("UTC", _AT), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"', type_=Text())
_BOTH = (False, True)
_APPEND = {
    (is_keyed, is_traced): _append(is_keyed=is_keyed, is_traced=is_traced)
    for is_keyed in _BOTH
    for is_traced in _BOTH
}
_LISTED = func.json_each(bindparam("rooms", type_=Text())).table_valued("value", name="listed")
_COUNT_ON_SQLITE = _count().returning(
    jobs.c.pending,
    select(func.count())
    .where(queues.c.job_id == _JOB, queues.c.room_id.in_(select(_LISTED.c.value)))
    .scalar_subquery()
    .label("listed"),
)
_ADD_ON_SQLITE = _insert_on_sqlite(is_traced=False)
_ADD_TRACED_ON_SQLITE = _insert_on_sqlite(is_traced=True)
_LIST_ON_SQLITE = _list_on_sqlite()
_GIVEN_IDS = func.json_each(bindparam("ids", type_=Text())).table_valued("value", name="given")
_FIND_KEYS: Select[Any] = (
    select(literal_column("1"))
    .where(type_coerce(stored_keys.c.id, Text()).in_(select(_GIVEN_IDS.c.value)))
    .select_from(stored_keys)
    .limit(1)
)
_STORE_KEYS_ON_SQLITE = _insert_keys_on_sqlite()
