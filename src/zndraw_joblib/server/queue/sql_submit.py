"""Submit with one statement on PostgreSQL and five short ones on SQLite: tasks of one job, without options.

All of them may be of one group that does not expire.

These tasks enter the queue at once, with priority 0. The statements check what the server assumes about the
job, and write nothing if that is wrong; then `sql_transitions.add` inserts the tasks.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.database import PlainStatements, Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import BIG_INTEGER, BOOLEAN, INTEGER, TEXT, UUID_TYPE, statement
from zndraw_joblib.server.queue import sql_counts, sql_groups, sql_payloads, sql_room_queues
from zndraw_joblib.server.queue.sql_idempotency import lock_number
from zndraw_joblib.wire.statuses import TaskStatus


class KnownJob(NamedTuple):
    """What a server assumes about an active job whose tasks all have priority 0."""

    id: UUID
    full_name: str
    schema: str
    policy: str | None
    job_version: int


class NewTaskRow(NamedTuple):
    """A task without options. `id` has 32 hexadecimal digits, `payload` is JSON."""

    id: str
    room_id: str
    created_by: str
    payload: str
    traceparent: str | None


class NewKey(NamedTuple):
    """The idempotency key of the task at `position`, counted from 1.

    `answer` is the beginning of a JSON object, up to the opening quote of the time of creation.
    """

    id: UUID
    fingerprint: UUID
    user_id: str
    position: int
    answer: str


class NewMembers(NamedTuple):
    """The group of the tasks, and their room."""

    group_id: UUID
    group_room: str


class Appended(NamedTuple):
    """The time of the tasks, and the length of the queue before them."""

    at: datetime
    ahead: int


async def append(
    tx: Transaction,
    job: KnownJob,
    new: Sequence[NewTaskRow],
    keys: Sequence[NewKey],
    group: NewMembers | None = None,
) -> Appended | None:
    """Append tasks to the queue of a job. Return None if what is assumed about the job is wrong.

    It also returns None if one of the keys was used or is being used, if the tasks cannot be added to their
    group, or on PostgreSQL if one of the rooms is watched and no events were expected. Then nothing was
    written.
    """
    if tx.is_sqlite:
        return await _append_on_sqlite(tx, job, new, keys, group)
    params: dict[str, Any] = {**_assumptions(job), "count": len(new)}
    if group is not None:
        tx.has_counted = True  # reports will end them
        shares = sql_groups.shares(tx, len(new))
        params |= {**group._asdict(), "all_stripe": list(shares), "all_open": list(shares.values())}
    params["at"] = await tx.now() if tx.has_own_clock else None
    if len(new) == 1:
        params |= new[0]._asdict()
    else:
        columns = zip(NewTaskRow._fields, zip(*new, strict=True), strict=True)
        params |= {f"all_{name}": list(values) for name, values in columns}
    if keys:
        params |= {
            "all_key": [key.id for key in keys],
            "all_lock": [lock_number(key.id) for key in keys],
            "all_fingerprint": [key.fingerprint for key in keys],
            "all_user_id": [key.user_id for key in keys],
            "all_position": [key.position for key in keys],
            "all_answer": [key.answer for key in keys],
        }
    try:
        rows = await tx.execute_plain("submit", _APPEND[len(new) == 1, bool(keys), group is not None], params)
    except IntegrityError as error:
        # A transaction that committed after the start of this statement has stored one of the keys.
        raise RepeatTransaction("An idempotency key was stored meanwhile") from error
    if not rows:
        return None
    tx.record_now(rows)
    return Appended(await tx.now(), rows[0].pending - len(new))


def _assumptions(job: KnownJob) -> dict[str, Any]:
    return {
        "full_name": job.full_name,
        "schema": job.schema,
        "policy": job.policy,
        "job_version": job.job_version,
    }


async def _append_on_sqlite(
    tx: Transaction,
    job: KnownJob,
    new: Sequence[NewTaskRow],
    keys: Sequence[NewKey],
    group: NewMembers | None,
) -> Appended | None:
    if (keys or group) and await _are_refused(tx, keys, group):
        return None
    firsts: dict[str, int] = {}
    of_rooms: Counter[str] = Counter()
    for index, task in enumerate(new):
        firsts.setdefault(task.room_id, len(new) - 1 - index)
        of_rooms[task.room_id] += 1
    rooms = to_json(list(firsts)).decode()
    params = {**_assumptions(job), "job_id": job.id, "rooms": rooms, "count": len(new)}
    counted = (await tx.execute(_COUNT_ON_SQLITE, params)).first()
    if counted is None:
        return None
    tx.record_watched(is_watched=bool(counted.is_watched))
    now = await tx.now()
    await _insert_on_sqlite(tx, new, {"job_id": job.id, "now": now}, group)
    if group is not None:
        await sql_groups.add_tasks(tx, {group.group_id: len(new)})
    await sql_counts.write_appended(tx, job.id, of_rooms)
    if counted.listed < len(firsts):
        unlisted = {"rows": to_json(list(firsts.items())).decode(), "job_id": job.id}
        await tx.execute(_LIST_ROOMS_ON_SQLITE, unlisted)
    ahead = counted.pending - len(new)
    if keys:
        await _store_keys_on_sqlite(tx, keys, now, ahead)
    return Appended(now, ahead)


async def _are_refused(tx: Transaction, keys: Sequence[NewKey], group: NewMembers | None) -> bool:
    """Return whether the tasks cannot be added to their group, or one of the keys was used."""
    if group is not None and (await tx.execute(_FIND_GROUP, group._asdict())).first() is None:
        return True
    ids = to_json([key.id.hex for key in keys]).decode()
    return bool(keys) and (await tx.execute(_FIND_KEYS_ON_SQLITE, {"ids": ids})).first() is not None


async def _insert_on_sqlite(
    tx: Transaction, new: Sequence[NewTaskRow], shared: dict[str, Any], group: NewMembers | None
) -> None:
    insert_one, insert = _INSERT_ON_SQLITE[group is not None]
    if group is not None:
        shared = {**shared, "group_id": group.group_id}
    has_long = any(sql_payloads.is_long(task.payload) for task in new)
    if has_long or len(new) == 1:
        # SQLite parses each value of a list several times: statements for each take less time here.
        for task in new:
            row = task._replace(payload=sql_payloads.column(task.payload)) if has_long else task
            await tx.execute(insert_one, {**row._asdict(), **shared})
        if has_long:
            first = await sql_room_queues.last_seq(tx) - len(new) + 1
            await sql_payloads.write(tx, enumerate((task.payload for task in new), first))
    else:
        await tx.execute(insert, {"rows": to_json(new).decode(), **shared})


async def _store_keys_on_sqlite(tx: Transaction, keys: Sequence[NewKey], now: datetime, ahead: int) -> None:
    stamp = to_json(now).decode().strip('"')
    answers = [
        (
            *(key.id.hex, key.fingerprint.hex, key.user_id),
            f'{key.answer}{stamp}","queue_position":{ahead + key.position}}}',
        )
        for key in keys
    ]
    await tx.execute(_STORE_KEYS_ON_SQLITE, {"rows": to_json(answers).decode(), "now": now})


_IS_AS_ASSUMED = """full_name = :full_name AND NOT deleted AND job_version = :job_version AND NOT has_lanes
        AND schema = :schema AND policy IS NOT DISTINCT FROM :policy
        AND coalesce(without_workers, '') <> 'reject'"""
_AT = "coalesce(:at, now())"


def _counted_job(*conditions: str) -> str:
    """Return the part that locks and counts the job, if it is as assumed and the conditions hold."""
    return f"""
job AS (
    UPDATE joblib_job SET pending = pending + :count
    WHERE {" AND ".join((_IS_AS_ASSUMED, *conditions))}
    RETURNING id, pending
)"""


# The row of a room's queue that exists is a lower bound, because the new tasks are the last. It may have been
# deleted after the start of the statement, which ON CONFLICT notices.
def _tasks(new: str, first_tasks: str, *, is_grouped: bool) -> str:
    names, values = (", group_id", ", :group_id") if is_grouped else ("", "")
    return f"""
added AS (
    INSERT INTO joblib_task (
        id, job_id, room_id, created_by, payload, traceparent, created_at,
        status, attempt, lane, failures, crashes{names}
    )
    SELECT CAST(new.id AS uuid), job.id, new.room_id, new.created_by, new.payload, new.traceparent, {_AT},
        '{TaskStatus.PENDING}', 0, 0, 0, 0{values}
    FROM {new}
    RETURNING job_id, room_id, lane, seq, status, run_at
),
listed_rooms AS (
    INSERT INTO joblib_room_queue (job_id, room_id, lane, seq)
    SELECT {first_tasks}
    ON CONFLICT DO NOTHING
)"""


_BOTH = (False, True)
_ONE_TASK, _TASKS = (
    [_tasks(new, first_tasks, is_grouped=is_grouped) for is_grouped in _BOTH]
    for new, first_tasks in (
        (
            """(
        SELECT :id AS id, :room_id AS room_id, :created_by AS created_by, :payload AS payload,
            :traceparent AS traceparent
    ) AS new CROSS JOIN job""",
            "job_id, room_id, lane, seq FROM added",
        ),
        (
            """unnest(
        (SELECT :all_id), (SELECT :all_room_id), (SELECT :all_created_by), (SELECT :all_payload),
        (SELECT :all_traceparent)
    ) WITH ORDINALITY AS new (id, room_id, created_by, payload, traceparent, position)
    CROSS JOIN job
    ORDER BY new.position""",
            "job_id, room_id, min(lane), min(seq) FROM added GROUP BY job_id, room_id",
        ),
    )
)
# A group of the token of a task has only children of this task, and no plain task is one.
_IS_OPEN_GROUP = (
    "id = :group_id AND room_id = :group_room AND NOT sealed AND expires_at IS NULL AND task_id IS NULL"
)
# The lock of the group comes before that of the job.
_GROUPED = f"""
grouped AS (
    SELECT id FROM joblib_group WHERE {_IS_OPEN_GROUP}
    FOR KEY SHARE
)"""
_COUNTED_GROUP = """
counted_group AS (
    INSERT INTO joblib_group_count (group_id, stripe, open, completed, failed, cancelled)
    SELECT :group_id, shares.stripe, shares.open, 0, 0, 0
    FROM job CROSS JOIN unnest((SELECT :all_stripe), (SELECT :all_open)) AS shares (stripe, open)
    ORDER BY shares.stripe
    ON CONFLICT (group_id, stripe) DO UPDATE SET open = joblib_group_count.open + excluded.open
)"""
_LOCKED_KEYS = """
locked_keys AS (
    SELECT bool_and(pg_try_advisory_xact_lock(lock)) AS are_free
    FROM unnest((SELECT :all_lock)) AS new_keys (lock)
)"""
_KEYS_ARE_FREE = """(SELECT are_free FROM locked_keys)
        AND NOT EXISTS (SELECT 1 FROM joblib_idempotency_key WHERE id = ANY (:all_key))"""
_STORED_KEYS = f"""
stored_keys AS (
    INSERT INTO joblib_idempotency_key (id, fingerprint, user_id, created_at, answer)
    SELECT new_keys.id, new_keys.fingerprint, new_keys.user_id, {_AT},
        new_keys.answer || to_char(timezone('UTC', {_AT}), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        || '","queue_position":' || CAST(job.pending - :count + new_keys.position AS text) || '}}'
    FROM unnest(
        (SELECT :all_key), (SELECT :all_fingerprint), (SELECT :all_user_id), (SELECT :all_position),
        (SELECT :all_answer)
    ) AS new_keys (id, fingerprint, user_id, position, answer)
    CROSS JOIN job
)"""


def _append(rooms: str, added: Sequence[str], *, has_keys: bool, is_grouped: bool) -> PlainStatements:
    locked, stored = ([_LOCKED_KEYS], [_STORED_KEYS]) if has_keys else ([], [])
    conditions = [_KEYS_ARE_FREE] if has_keys else []
    if is_grouped:
        locked, stored = [_GROUPED, *locked], [*stored, _COUNTED_GROUP]
        conditions = ["EXISTS (SELECT 1 FROM grouped)", *conditions]

    def form(watched: str, *guards: str) -> Any:
        parts = (*locked, _counted_job(*guards, *conditions), *added, *stored)
        return statement(
            f"WITH {', '.join(parts)} SELECT pending, now(), {watched} FROM job",
            *("pending", "now", "is_watched"),
            id=TEXT,
            payload=TEXT,
            schema=TEXT,
            key=UUID_TYPE,
            lock=BIG_INTEGER,
            position=INTEGER,
            stripe=INTEGER,
            open=INTEGER,
            group_room=TEXT,
            is_watched=BOOLEAN,
        )

    return PlainStatements(form("false", f"NOT {is_watched(rooms)}"), form(is_watched(rooms)))


# By whether it is one task, whether there are keys, and whether it is of a group. One task has no list and is
# counted without GROUP BY: PostgreSQL starts each part of a statement for each execution.
_APPEND = {
    (is_one, has_keys, is_grouped): _append(
        rooms, (added[is_grouped], counted), has_keys=has_keys, is_grouped=is_grouped
    )
    for is_one, rooms, added, counted in (
        (True, ":room_id", _ONE_TASK, sql_counts.COUNT_ADDED_ONE),
        (False, "ANY (:all_room_id)", _TASKS, sql_counts.COUNT_ADDED),
    )
    for has_keys in _BOTH
    for is_grouped in _BOTH
}
_FIND_GROUP = statement(f"SELECT 1 FROM joblib_group WHERE {_IS_OPEN_GROUP}", group_room=TEXT)
_FIND_KEYS_ON_SQLITE = statement(
    """
SELECT 1 FROM joblib_idempotency_key WHERE id IN (SELECT value FROM json_each(:ids)) LIMIT 1
""",
    ids=TEXT,
)
_COUNT_ON_SQLITE = statement(
    f"""
UPDATE joblib_job SET pending = pending + :count
WHERE {_IS_AS_ASSUMED}
RETURNING pending, (
    SELECT count(*) FROM joblib_room_queue
    WHERE job_id = :job_id AND room_id IN (SELECT value FROM json_each(:rooms))
), EXISTS (SELECT 1 FROM joblib_room_stream)
""",
    "pending",
    "listed",
    "is_watched",
    is_watched=BOOLEAN,
    schema=TEXT,
    rooms=TEXT,
)
_COLUMNS = """id, job_id, room_id, created_by, payload, traceparent, created_at,
    status, attempt, lane, failures, crashes"""


def _inserts(names: str = "", values: str = "") -> tuple[Any, Any]:
    return (
        statement(
            f"""
INSERT INTO joblib_task ({_COLUMNS}{names})
VALUES (
    :id, :job_id, :room_id, :created_by, :payload, :traceparent, :now,
    '{TaskStatus.PENDING}', 0, 0, 0, 0{values}
)
""",
            id=TEXT,
            payload=TEXT,
        ),
        statement(
            f"""
INSERT INTO joblib_task ({_COLUMNS}{names})
SELECT value ->> 0, :job_id, value ->> 1, value ->> 2, value ->> 3, value ->> 4, :now,
    '{TaskStatus.PENDING}', 0, 0, 0, 0{values}
FROM json_each(:rows)
ORDER BY key
""",
            rows=TEXT,
        ),
    )


# Of one task and of several, without a group and with one.
_INSERT_ON_SQLITE = (_inserts(), _inserts(", group_id", ", :group_id"))
# The first tasks of the rooms are counted from the last task.
_LIST_ROOMS_ON_SQLITE = statement(
    """
INSERT OR IGNORE INTO joblib_room_queue (job_id, room_id, lane, seq)
SELECT :job_id, value ->> 0, 0, (SELECT max(seq) FROM joblib_task) - (value ->> 1)
FROM json_each(:rows)
""",
    rows=TEXT,
)
_STORE_KEYS_ON_SQLITE = statement(
    """
INSERT INTO joblib_idempotency_key (id, fingerprint, user_id, created_at, answer)
SELECT value ->> 0, value ->> 1, value ->> 2, :now, value ->> 3
FROM json_each(:rows)
""",
    rows=TEXT,
)
