"""Limits of jobs: the queues of their keys, and the slots and tokens that tasks hold.

Writers of a job's queues and waits hold the lock of the job; those of the buckets of a limit with a name hold
the lock of its row, after the locks of jobs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, INTEGER, TEXT, listed_rows, one_row, statement
from zndraw_joblib.server.queue.sql_jobs import QUEUE_NAME
from zndraw_joblib.server.queue.sql_jobs import lock as lock_jobs
from zndraw_joblib.server.queue.sql_pauses import is_room_paused
from zndraw_joblib.server.queue.sql_room_queues import OpenRooms, select_open
from zndraw_joblib.server.queue.sql_task_rows import CHUNK, TASK_IS_HELD, TASK_IS_QUEUED, Place, TaskRecord

# The key of the queue of tasks that were submitted before their job had limits.
WITHOUT_KEY = "-"
_HEAD = ("job_id", "room_id", "limit_key", "lane", "seq")


class LimitHead(NamedTuple):
    """The queue of the tasks of a room with a key, and a lower bound of the place of its first task."""

    job_id: UUID
    room_id: str
    limit_key: str
    lane: int
    seq: int

    @property
    def id(self) -> tuple[UUID, str, str]:
        """The job, the room and the key."""
        return self[:3]

    @property
    def place(self) -> Place:
        """The place of its first task."""
        return self.lane, self.seq


class BucketState(NamedTuple):
    """How many tasks hold slots of a bucket, and when its next token would be due without a burst."""

    held: int
    next_at: datetime | None


class Wait(NamedTuple):
    """Until when a bucket blocks tasks of a job; see `LimitWait`."""

    job_id: UUID
    bucket_id: UUID
    name: str | None
    ready_at: datetime | None
    is_due: bool


# The queues of the keys.

_ADD_ON_SQLITE = statement(
    f"""
INSERT INTO joblib_limit_queue {one_row(_HEAD)}
ON CONFLICT (job_id, room_id, limit_key) DO UPDATE SET lane = excluded.lane, seq = excluded.seq
WHERE (excluded.lane, excluded.seq) < (joblib_limit_queue.lane, joblib_limit_queue.seq)
"""
)


def list_keys(entered: str) -> str:
    """Return PostgreSQL's INSERT of the rows for tasks that enter their queues: `entered` selects the tasks.

    The place is a lower bound: that of no task if the first one by priority is not the first by number.
    """
    return f"""
    INSERT INTO joblib_limit_queue ({", ".join(_HEAD)})
    SELECT job_id, room_id, limit_key, min(lane), min(seq) FROM {entered}
    GROUP BY job_id, room_id, limit_key ORDER BY job_id, room_id, limit_key
    ON CONFLICT (job_id, room_id, limit_key) DO UPDATE SET lane = excluded.lane, seq = excluded.seq
    WHERE (excluded.lane, excluded.seq) < (joblib_limit_queue.lane, joblib_limit_queue.seq)"""


_ADD_MANY = statement(
    list_keys(
        f"""unnest({", ".join(f"(SELECT :all_{name})" for name in _HEAD)})
            AS entered ({", ".join(_HEAD)})"""
    )
)
_ADD_ROOMS = statement(
    f"""
INSERT INTO joblib_limit_queue ({", ".join(_HEAD)})
SELECT job_id, room_id, '{WITHOUT_KEY}', lane, seq FROM joblib_room_queue WHERE job_id = :job_id
ON CONFLICT (job_id, room_id, limit_key) DO UPDATE SET lane = excluded.lane, seq = excluded.seq
WHERE (excluded.lane, excluded.seq) < (joblib_limit_queue.lane, joblib_limit_queue.seq)
"""
)
_FIRST = statement(
    f"""
SELECT {", ".join(_HEAD)} FROM joblib_limit_queue WHERE job_id = ANY (:all_job_id)
ORDER BY job_id, room_id, limit_key LIMIT :limit
""",
    *_HEAD,
)
_HAS_FREE_SLOT = f"""(
    SELECT count(*) FROM joblib_task WHERE joblib_task.room_id = joblib_limit_queue.room_id AND {TASK_IS_HELD}
) < :cap"""
_IS_NOT_PAUSED = f"NOT {is_room_paused('joblib_limit_queue.room_id', ':now')}"


def _of_open_rooms(make: Callable[[str], Any]) -> dict[tuple[bool, bool], Any]:
    """Return the statements by whether rooms have a limit, and whether some may be paused."""
    conditions = {
        (has_cap, skips_paused): [_HAS_FREE_SLOT] * has_cap + [_IS_NOT_PAUSED] * skips_paused
        for has_cap in (True, False)
        for skips_paused in (True, False)
    }
    return {key: make(" AND ".join(["blocked_by IS NULL", *own])) for key, own in conditions.items()}


_BY_PLACE = _of_open_rooms(
    lambda is_open: statement(
        f"""
SELECT {", ".join(_HEAD)} FROM joblib_limit_queue
WHERE job_id = :job_id AND {is_open}
ORDER BY lane, seq LIMIT :limit
""",
        *_HEAD,
        cap=INTEGER,
    )
)


def _rooms(first: str, following: str) -> dict[tuple[bool, bool], Any]:
    """Return the SELECT of the next rooms by name: a look at the index for each, however many keys it has."""

    def of_open(is_open: str) -> Any:
        room = f"""
        SELECT room_id FROM joblib_limit_queue
        WHERE job_id = :job_id AND {is_open} AND {{}}
        ORDER BY room_id LIMIT 1"""
        return statement(
            f"""
WITH RECURSIVE rooms (room_id, number) AS (
    SELECT ({room.format(first)}
    ), 1
    UNION ALL
    SELECT ({room.format(following)}
    ), rooms.number + 1
    FROM rooms WHERE rooms.room_id IS NOT NULL AND rooms.number < :limit
)
SELECT room_id FROM rooms WHERE room_id IS NOT NULL
""",
            "room_id",
            cap=INTEGER,
        )

    return _of_open_rooms(of_open)


_FOLLOWS = "joblib_limit_queue.room_id > rooms.room_id"
_AFTER = _rooms("room_id > :room_id", _FOLLOWS)
_UNTIL = _rooms("room_id <= :room_id", f"joblib_limit_queue.room_id <= :room_id AND {_FOLLOWS}")
_OF_ROOM = """
    SELECT {} FROM joblib_limit_queue
    WHERE job_id = :job_id AND blocked_by IS NULL AND room_id = {} ORDER BY lane, seq LIMIT :count"""
_OF_ROOMS = statement(
    f"""
SELECT heads.* FROM unnest((SELECT :all_room_id)) AS rooms (room_id)
CROSS JOIN LATERAL ({_OF_ROOM.format(", ".join(_HEAD), "rooms.room_id")}
) AS heads
""",
    *_HEAD,
)
_OF_ROOMS_ON_SQLITE = statement(
    f"""
SELECT {", ".join(f"heads.{name}" for name in _HEAD)} FROM json_each(:rooms) AS rooms
JOIN joblib_limit_queue AS heads ON heads.rowid IN ({_OF_ROOM.format("rowid", "rooms.value")}
)
""",
    *_HEAD,
    rooms=TEXT,
)


def _first_tasks(columns: str, room: str, key: str) -> str:
    # Ranges, so that only the index of these queues has the order.
    return f"""
    SELECT {columns} FROM joblib_task
    WHERE joblib_task.job_id = :job_id AND {TASK_IS_QUEUED} AND joblib_task.room_id = {room}
        AND joblib_task.limit_key >= {key} AND joblib_task.limit_key <= {key}
    ORDER BY joblib_task.limit_key, joblib_task.lane, joblib_task.seq LIMIT :count"""


_FIRST_TASKS = statement(
    f"""
SELECT heads.number, tasks.lane, tasks.seq
FROM unnest((SELECT :all_room_id), (SELECT :all_limit_key)) WITH ORDINALITY AS heads (room_id, key, number)
CROSS JOIN LATERAL ({_first_tasks("lane, seq", "heads.room_id", "heads.key")}
) AS tasks
""",
    *("number", "lane", "seq"),
    number=BIG_INTEGER,
)
_FIRST_TASKS_ON_SQLITE = statement(
    f"""
SELECT heads.key + 1, tasks.lane, tasks.seq
FROM json_each(:heads) AS heads
JOIN joblib_task AS tasks ON tasks.seq IN ({_first_tasks("seq", "(heads.value ->> 0)", "(heads.value ->> 1)")}
)
""",
    *("number", "lane", "seq"),
    heads=TEXT,
    number=BIG_INTEGER,
)
_FIRST_WITHOUT_KEY = statement(
    f"""
SELECT lane, seq FROM joblib_task
WHERE job_id = :job_id AND {TASK_IS_QUEUED} AND limit_key IS NULL
    AND room_id >= :room_id AND room_id <= :room_id
ORDER BY room_id, lane, seq LIMIT :count
""",
    *("lane", "seq"),
)
_BEFORE = statement(
    f"""
SELECT count(*) FROM (
    SELECT 1 FROM joblib_task
    WHERE job_id = :job_id AND {TASK_IS_QUEUED} AND room_id = :room_id AND limit_key IS NOT NULL
        AND limit_key = :limit_key AND (lane, seq) < (:lane, :seq)
    LIMIT :limit
) AS before
""",
    "number",
)
_IS_HEAD = "job_id = :job_id AND room_id = :room_id AND limit_key = :limit_key"
_MOVE = statement(f"UPDATE joblib_limit_queue SET lane = :lane, seq = :seq WHERE {_IS_HEAD}")
_REMOVE = statement(f"DELETE FROM joblib_limit_queue WHERE {_IS_HEAD}")
_BLOCK = statement(f"UPDATE joblib_limit_queue SET blocked_by = :blocked_by WHERE {_IS_HEAD}")
_BLOCK_MANY = statement(
    """
UPDATE joblib_limit_queue SET blocked_by = blocked.blocked_by
FROM unnest(
    (SELECT :all_job_id), (SELECT :all_room_id), (SELECT :all_limit_key), (SELECT :all_blocked_by)
) AS blocked (job_id, room_id, limit_key, blocked_by)
WHERE joblib_limit_queue.job_id = blocked.job_id AND joblib_limit_queue.room_id = blocked.room_id
    AND joblib_limit_queue.limit_key = blocked.limit_key
"""
)
_BLOCKED = """
        SELECT {} FROM joblib_limit_queue AS queue
        WHERE queue.job_id = {} AND queue.blocked_by = {} ORDER BY queue.lane, queue.seq LIMIT :limit"""
_REOPEN = statement(
    f"""
UPDATE joblib_limit_queue SET blocked_by = NULL
FROM (
    SELECT waits.job_id, waits.bucket_id, queues.room_id, queues.limit_key
    FROM unnest((SELECT :all_job_id), (SELECT :all_bucket_id)) AS waits (job_id, bucket_id)
    CROSS JOIN LATERAL ({_BLOCKED.format("room_id, limit_key", "waits.job_id", "waits.bucket_id")}
    ) AS queues
) AS opened
WHERE joblib_limit_queue.job_id = opened.job_id AND joblib_limit_queue.room_id = opened.room_id
    AND joblib_limit_queue.limit_key = opened.limit_key
RETURNING opened.job_id, opened.bucket_id
""",
    *("job_id", "bucket_id"),
)
_BLOCKED_ON_SQLITE = statement(
    f"""
SELECT opened.job_id, opened.blocked_by, opened.room_id, opened.limit_key
FROM json_each(:waits) AS waits
JOIN joblib_limit_queue AS opened ON opened.rowid IN (
    {_BLOCKED.format("rowid", "(waits.value ->> 0)", "(waits.value ->> 1)")}
)
""",
    *("job_id", "blocked_by", "room_id", "limit_key"),
    waits=TEXT,
)


async def add(tx: Transaction, entered: Iterable[TaskRecord]) -> None:
    """Add the rows of tasks that enter their queues. The caller has locked their jobs."""
    firsts: dict[Any, dict[str, Any]] = {}
    for task in sorted(entered, key=lambda task: task.place):
        row = {name: getattr(task, name) for name in _HEAD}
        row["limit_key"] = WITHOUT_KEY if task.limit_key is None else task.limit_key
        firsts.setdefault((task.job_id, task.room_id, row["limit_key"]), row)
    if firsts:
        rows = [firsts[key] for key in sorted(firsts)]
        await (tx.execute(_ADD_ON_SQLITE, rows) if tx.is_sqlite else tx.execute(_ADD_MANY, by_column(rows)))


async def add_rooms(tx: Transaction, job_id: UUID) -> None:
    """Add the rows of the queued tasks without a key of a job, which the caller has locked."""
    await tx.execute(_ADD_ROOMS, {"job_id": job_id})


async def first_queues(tx: Transaction, job_ids: Sequence[UUID], limit: int) -> list[LimitHead]:
    """Return the first queues of keys of these jobs, in the order of their keys, also blocked ones."""
    rows = await tx.execute(_FIRST, {"all_job_id": padded(sorted(job_ids)), "limit": limit})
    return [LimitHead(*row) for row in rows]


async def by_place(tx: Transaction, job_id: UUID, limit: int, open_rooms: OpenRooms) -> list[LimitHead]:
    """Return the first open queues of a job in the order of their places, without those of other rooms."""
    rows = await select_open(tx, _BY_PLACE, open_rooms, job_id=job_id, limit=limit)
    return [LimitHead(*row) for row in rows]


async def rooms(
    tx: Transaction, job_id: UUID, last: str, limit: int, open_rooms: OpenRooms, *, is_after: bool
) -> list[str]:
    """Return the open rooms with open queues of a job that follow a name, or those up to it."""
    selects = _AFTER if is_after else _UNTIL
    rows = await select_open(tx, selects, open_rooms, job_id=job_id, room_id=last, limit=limit)
    return list(rows.scalars())


async def of_rooms(tx: Transaction, job_id: UUID, rooms: Sequence[str], count: int) -> list[LimitHead]:
    """Return the first `count` open queues of each of these rooms."""
    if not rooms:
        return []
    params: dict[str, Any] = {"job_id": job_id, "count": count}
    if tx.is_sqlite:
        rows = await tx.execute(_OF_ROOMS_ON_SQLITE, {**params, "rooms": to_json(rooms).decode()})
    else:
        rows = await tx.execute(_OF_ROOMS, {**params, "all_room_id": list(rooms)})
    return [LimitHead(*row) for row in rows]


async def first_tasks(
    tx: Transaction, job_id: UUID, heads: Sequence[LimitHead], count: int
) -> dict[LimitHead, list[Place]]:
    """Return the places of the first `count` tasks of each of these queues of a job, in order."""
    places: dict[LimitHead, list[Place]] = {head: [] for head in heads}
    params: dict[str, Any] = {"job_id": job_id, "count": count}
    keyed = [head for head in heads if head.limit_key != WITHOUT_KEY]
    if keyed and tx.is_sqlite:
        rows = to_json([(head.room_id, head.limit_key) for head in keyed]).decode()
        found = await tx.execute(_FIRST_TASKS_ON_SQLITE, {**params, "heads": rows})
    elif keyed:
        columns = {
            "all_room_id": [head.room_id for head in keyed],
            "all_limit_key": [head.limit_key for head in keyed],
        }
        found = await tx.execute(_FIRST_TASKS, params | columns)
    for number, lane, seq in found if keyed else []:
        places[keyed[number - 1]].append((lane, seq))
    for head in heads:
        if head.limit_key == WITHOUT_KEY:
            own = await tx.execute(_FIRST_WITHOUT_KEY, {**params, "room_id": head.room_id})
            places[head] = [(lane, seq) for lane, seq in own]
    return {head: sorted(of_head) for head, of_head in places.items()}


async def count_before(tx: Transaction, task: TaskRecord, limit: int) -> int:
    """Return how many queued tasks of its room and key are before a queued task, at most `limit`."""
    if not task.is_queued or task.limit_key is None:
        return 0
    params = {name: getattr(task, name) for name in _HEAD}
    number: int = (await tx.execute(_BEFORE, {**params, "limit": limit})).scalar_one()
    return number


async def move(tx: Transaction, heads: Sequence[LimitHead]) -> None:
    """Set the places of queues to those of their first tasks. The caller has locked the job."""
    if heads:
        await tx.execute(_MOVE, [head._asdict() for head in heads])


async def remove(tx: Transaction, heads: Sequence[LimitHead]) -> None:
    """Delete the rows of queues without tasks. The caller has locked the job."""
    if heads:
        await tx.execute(_REMOVE, [dict(zip(_HEAD[:3], head.id, strict=True)) for head in heads])


async def block(tx: Transaction, blocked: Mapping[tuple[UUID, str, str], UUID]) -> None:
    """Record which bucket blocks each of these queues. The caller has locked their jobs."""
    names = (*_HEAD[:3], "blocked_by")
    rows = [dict(zip(names, (*key, blocked[key]), strict=True)) for key in sorted(blocked)]
    if rows:
        await (tx.execute(_BLOCK, rows) if tx.is_sqlite else tx.execute(_BLOCK_MANY, by_column(rows)))


async def reopen(tx: Transaction, waits: Sequence[tuple[UUID, UUID]], limit: int) -> list[tuple[UUID, UUID]]:
    """Open the first `limit` queues that each of these buckets blocks, of a job. Return one pair for each."""
    if not waits:
        return []
    if not tx.is_sqlite:
        params = {"all_job_id": [job for job, _ in waits], "all_bucket_id": [bucket for _, bucket in waits]}
        return [(row[0], row[1]) for row in await tx.execute(_REOPEN, {**params, "limit": limit})]
    pairs = to_json([(job_id.hex, bucket_id.hex) for job_id, bucket_id in waits]).decode()
    rows = (await tx.execute(_BLOCKED_ON_SQLITE, {"waits": pairs, "limit": limit})).all()
    if rows:
        names = (*_HEAD[:3], "blocked_by")
        values = [(row.job_id, row.room_id, row.limit_key, None) for row in rows]
        await tx.execute(_BLOCK, [dict(zip(names, row, strict=True)) for row in values])
    return [(row.job_id, row.blocked_by) for row in rows]


# Slots and tokens.

_SLOT = ("task_seq", "bucket_id", "job_id", "freed")
_STATES = statement(
    """
SELECT bucket_id, count(*), NULL AS next_at FROM joblib_limit_slot
WHERE bucket_id = ANY (:all_bucket_id) AND NOT freed
GROUP BY bucket_id
UNION ALL
SELECT id, 0, next_at FROM joblib_limit_bucket WHERE id = ANY (:all_id)
""",
    *("bucket_id", "held", "next_at"),
    held=BIG_INTEGER,
)
_ON_SAME_TASK = "ON CONFLICT (task_seq, bucket_id) DO UPDATE SET job_id = excluded.job_id, freed = false"
_TAKE_SLOTS = statement(f"INSERT INTO joblib_limit_slot {one_row(_SLOT)}\n{_ON_SAME_TASK}")
_TAKE_SLOTS_MANY = statement(f"INSERT INTO joblib_limit_slot {listed_rows(_SLOT)}\n{_ON_SAME_TASK}")
_ON_SAME_BUCKET = "ON CONFLICT (id) DO UPDATE SET next_at = excluded.next_at"
_TAKE_TOKENS = statement(
    f"INSERT INTO joblib_limit_bucket (id, next_at) VALUES (:id, :next_at) {_ON_SAME_BUCKET}"
)
_FREE = statement(
    """
UPDATE joblib_limit_slot SET freed = true WHERE task_seq = ANY (:all_task_seq) AND NOT freed
RETURNING bucket_id
""",
    "bucket_id",
)
_COLLECT_FREED = statement(
    "DELETE FROM joblib_limit_slot WHERE job_id = ANY (:all_job_id) AND freed RETURNING bucket_id",
    "bucket_id",
)

_COLLECT_AWAITED = statement(
    """
DELETE FROM joblib_limit_slot
WHERE freed AND EXISTS (
    SELECT 1 FROM joblib_limit_wait
    WHERE joblib_limit_wait.bucket_id = joblib_limit_slot.bucket_id
        AND joblib_limit_wait.job_id = ANY (:all_job_id)
)
RETURNING bucket_id
""",
    "bucket_id",
)


async def states(
    tx: Transaction, with_slots: Sequence[UUID], with_rates: Sequence[UUID]
) -> dict[UUID, BucketState]:
    """Return the states of these buckets; without a row nothing of a bucket is in use."""
    result: dict[UUID, BucketState] = {}
    params = {"all_bucket_id": padded(with_slots), "all_id": padded(with_rates)}
    for bucket_id, held, next_at in await tx.execute(_STATES, params):
        state = result.get(bucket_id, BucketState(0, None))
        result[bucket_id] = BucketState(state.held + held, next_at or state.next_at)
    return result


async def take(
    tx: Transaction, slots: Sequence[tuple[int, UUID, UUID]], tokens: Mapping[UUID, datetime]
) -> None:
    """Let tasks hold slots: of each the `seq`, the bucket and the job. Record the tokens that were taken."""
    rows = [dict(zip(_SLOT, (*slot, False), strict=True)) for slot in sorted(slots)]
    if rows:
        await (
            tx.execute(_TAKE_SLOTS, rows) if tx.is_sqlite else tx.execute(_TAKE_SLOTS_MANY, by_column(rows))
        )
    if tokens:
        await tx.execute(_TAKE_TOKENS, [{"id": id, "next_at": tokens[id]} for id in sorted(tokens)])


async def free(tx: Transaction, seqs: Sequence[int]) -> set[UUID]:
    """Free the slots of tasks whose attempts have ended. Return their buckets."""
    freed: set[UUID] = set()
    for start in range(0, len(seqs), CHUNK):
        params = {"all_task_seq": padded(seqs[start : start + CHUNK])}
        freed |= set((await tx.execute(_FREE, params)).scalars())
    return freed


async def collect_freed(tx: Transaction, job_ids: Sequence[UUID]) -> set[UUID]:
    """Delete the freed slots of these jobs, which the caller has locked. Return their buckets."""
    return set((await tx.execute(_COLLECT_FREED, {"all_job_id": padded(job_ids)})).scalars())


async def collect_awaited(tx: Transaction, job_ids: Sequence[UUID]) -> set[UUID]:
    """Delete the freed slots, of any job, for which these jobs wait. Return their buckets.

    The caller has locked these jobs and the limits with names.
    """
    return set((await tx.execute(_COLLECT_AWAITED, {"all_job_id": padded(job_ids)})).scalars())


# Waits.

_WAIT = Wait._fields
_SET_WAITS = statement(
    f"""
INSERT INTO joblib_limit_wait {one_row(_WAIT)}
ON CONFLICT (job_id, bucket_id) DO UPDATE SET ready_at = excluded.ready_at, is_due = excluded.is_due
WHERE joblib_limit_wait.is_due <> excluded.is_due
    OR NOT joblib_limit_wait.ready_at IS NOT DISTINCT FROM excluded.ready_at
"""
)
_END_WAITS = statement("DELETE FROM joblib_limit_wait WHERE job_id = :job_id AND bucket_id = :bucket_id")
# In one order, because with limits that jobs share two transactions end waits of the same jobs.
_SET_DUE, _SET_DUE_OF_JOB = (
    statement(
        f"""
UPDATE joblib_limit_wait SET is_due = true
WHERE (job_id, bucket_id) IN (
    SELECT job_id, bucket_id FROM joblib_limit_wait WHERE {condition} ORDER BY job_id, bucket_id
    FOR UPDATE
)
RETURNING job_id
""",
        "job_id",
    )
    for condition in ("bucket_id = ANY (:all_bucket_id)", "job_id = :job_id")
)
_WAITING_JOBS = statement(
    f"""
SELECT DISTINCT {QUEUE_NAME} FROM joblib_limit_wait
JOIN joblib_job ON joblib_job.id = joblib_limit_wait.job_id
WHERE bucket_id = ANY (:all_bucket_id) LIMIT :limit
""",
    "full_name",
)
_PENDING = statement(
    f"SELECT id, {QUEUE_NAME}, pending FROM joblib_job WHERE id = ANY (:all_job_id) AND pending > 0",
    *("id", "queue", "pending"),
)
# A time that is further away than a rate can block was made before the clock was set back.
_DUE = statement(
    """
SELECT job_id, bucket_id FROM joblib_limit_wait WHERE job_id = ANY (:all_job_id) AND is_due
UNION ALL
SELECT job_id, bucket_id FROM joblib_limit_wait
WHERE job_id = ANY (:all_job_id) AND NOT is_due AND ready_at <= :now
UNION ALL
SELECT job_id, bucket_id FROM joblib_limit_wait
WHERE job_id = ANY (:all_job_id) AND NOT is_due AND ready_at > :at
LIMIT :limit
""",
    *("job_id", "bucket_id"),
)


async def due(
    tx: Transaction, job_ids: Sequence[UUID], now: datetime, latest: datetime, limit: int
) -> list[tuple[UUID, UUID]]:
    """Return the waits of these jobs that are over, each as a job and a bucket, at most `limit`."""
    params = {"all_job_id": padded(job_ids), "now": now, "at": latest, "limit": limit}
    return [(row[0], row[1]) for row in await tx.execute(_DUE, params)]


async def set_due(tx: Transaction, buckets: Iterable[UUID]) -> set[UUID]:
    """End the waits for these buckets. Return the jobs that waited."""
    ids = sorted(buckets)
    return set((await tx.execute(_SET_DUE, {"all_bucket_id": padded(ids)})).scalars()) if ids else set()


async def pending_tasks(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, tuple[str, int]]:
    """Return the names of the queues of jobs that have pending tasks, and the numbers of these, by id."""
    rows = await tx.execute(_PENDING, {"all_job_id": padded(sorted(job_ids))})
    return {job_id: (queue, pending) for job_id, queue, pending in rows}


async def set_due_of_job(tx: Transaction, job_id: UUID) -> None:
    """End all waits of a job, which the caller has locked."""
    await tx.execute(_SET_DUE_OF_JOB, {"job_id": job_id})


async def waiting_jobs(tx: Transaction, buckets: Iterable[UUID], limit: int) -> list[str]:
    """Return the names of the queues that wait for these buckets, at most `limit`."""
    ids = sorted(buckets)
    if not ids:
        return []
    return list((await tx.execute(_WAITING_JOBS, {"all_bucket_id": padded(ids), "limit": limit})).scalars())


async def write_waits(tx: Transaction, waits: Sequence[Wait], ended: Sequence[tuple[UUID, UUID]]) -> None:
    """Write waits of jobs that the caller has locked, and delete those that have ended."""
    if waits:
        await tx.execute(_SET_WAITS, [wait._asdict() for wait in sorted(waits)])
    if ended:
        await tx.execute(_END_WAITS, [{"job_id": job, "bucket_id": bucket} for job, bucket in sorted(ended)])


# Waits for rates end by themselves.

_IS_READY = "NOT is_due AND ready_at IS NOT NULL AND ready_at"
_SET_READY = statement(
    f"""
UPDATE joblib_limit_wait SET is_due = true
WHERE (job_id, bucket_id) IN (
    SELECT job_id, bucket_id FROM joblib_limit_wait WHERE {_IS_READY} <= :now
    ORDER BY ready_at LIMIT :limit
    FOR UPDATE SKIP LOCKED
)
RETURNING (SELECT {QUEUE_NAME} FROM joblib_job WHERE joblib_job.id = joblib_limit_wait.job_id)
""",
    "full_name",
)
_NEXT_READY, _NEXT_READY_AFTER = (
    statement(
        f"""
SELECT ready_at FROM joblib_limit_wait
WHERE NOT is_due AND ready_at IS NOT NULL{condition} ORDER BY ready_at LIMIT 1
""",
        "ready_at",
    )
    for condition in ("", " AND ready_at > :at")
)


async def end_ready(tx: Transaction, limit: int) -> list[str]:
    """End the waits whose rates allow a task now. Return the name of the queue of each."""
    return list((await tx.execute(_SET_READY, {"now": await tx.now(), "limit": limit})).scalars())


async def next_ready(tx: Transaction, after: datetime | None = None) -> datetime | None:
    """Return when the first wait for a rate ends, of those that end after a time."""
    params = {} if after is None else {"at": after}
    at: datetime | None = (
        await tx.execute(_NEXT_READY if after is None else _NEXT_READY_AFTER, params)
    ).scalar_one_or_none()
    return at


# The limits with names.

_SPECS = statement("SELECT name, spec FROM joblib_limit WHERE name = ANY (:all_name)", *("name", "spec"))
_LOCK_NAMES = statement(
    "SELECT name FROM joblib_limit WHERE name = ANY (:all_name) ORDER BY name\nFOR KEY SHARE", "name"
)
_LOCK_SPECS, _LOCK_FREE_SPECS = (
    statement(
        f"""
SELECT name, spec FROM joblib_limit WHERE name = ANY (:all_name) ORDER BY name
FOR NO KEY UPDATE{skip}
""",
        *("name", "spec"),
    )
    for skip in ("", " SKIP LOCKED")
)


async def specs(tx: Transaction, names: Iterable[str]) -> dict[str, str]:
    """Return the values of the limits with these names, as JSON."""
    params = {"all_name": padded(sorted(set(names)))}
    return {name: spec for name, spec in await tx.execute(_SPECS, params)}


async def lock_shared(tx: Transaction, names: Iterable[str]) -> set[str]:
    """Return which of these names are defined, so that they are not deleted before the commit."""
    params = {"all_name": padded(sorted(set(names)))}
    return set((await tx.execute(_LOCK_NAMES, params)).scalars())


async def lock_specs(tx: Transaction, names: Iterable[str], *, skip_locked: bool) -> dict[str, str]:
    """Return what `specs` does, and lock the rows. With `skip_locked`, skip those of other transactions."""
    params = {"all_name": padded(sorted(set(names)))}
    sql = _LOCK_FREE_SPECS if skip_locked else _LOCK_SPECS
    return {name: spec for name, spec in await tx.execute(sql, params)}


_COLUMNS = ("name", "spec", "created_at", "updated_at", "updated_by")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM joblib_limit"
_PUT = statement(
    f"""
INSERT INTO joblib_limit {one_row(_COLUMNS)}
ON CONFLICT (name) DO UPDATE SET
    spec = excluded.spec, updated_at = excluded.updated_at, updated_by = excluded.updated_by
"""
)
_LOCK = statement(f"{_SELECT} WHERE name = :name\nFOR UPDATE", *_COLUMNS)
_GET = statement(f"{_SELECT} WHERE name = :name", *_COLUMNS)
_PAGE = statement(f"{_SELECT} ORDER BY name LIMIT :limit OFFSET :offset", *_COLUMNS)
_FOLLOWING_NAMES = statement(
    "SELECT name FROM joblib_limit WHERE name >= :name ORDER BY name LIMIT :limit", "name"
)
_COUNT = statement("SELECT count(*) FROM joblib_limit", "number")
_DELETE = statement("DELETE FROM joblib_limit WHERE name = :name")
_USERS = statement(
    """
SELECT full_name, limits FROM joblib_job WHERE limits IS NOT NULL AND NOT deleted ORDER BY full_name
""",
    *("full_name", "limits"),
)
_SET_DUE_OF_NAME = statement("UPDATE joblib_limit_wait SET is_due = true WHERE name = :name")
_WAITING_OF_NAME = statement(
    f"""
SELECT DISTINCT {QUEUE_NAME} FROM joblib_limit_wait
JOIN joblib_job ON joblib_job.id = joblib_limit_wait.job_id
WHERE joblib_limit_wait.name = :name
""",
    "full_name",
)


class NamedLimit(NamedTuple):
    """A limit that jobs share; `spec` is a `LimitValues` as JSON."""

    name: str
    spec: str
    created_at: datetime
    updated_at: datetime
    updated_by: str


async def get(tx: Transaction, name: str, *, lock: bool = False) -> NamedLimit | None:
    """Return the limit of a name, with `lock` until the commit."""
    row = (await tx.execute(_LOCK if lock else _GET, {"name": name})).first()
    return None if row is None else NamedLimit(*row)


async def put(tx: Transaction, limit: NamedLimit) -> None:
    """Insert or replace a limit, and end the waits for it."""
    await tx.execute(_PUT, limit._asdict())
    await tx.execute(_SET_DUE_OF_NAME, {"name": limit.name})


async def waiting_for(tx: Transaction, name: str) -> list[str]:
    """Return the names of the queues that wait for a limit."""
    return list((await tx.execute(_WAITING_OF_NAME, {"name": name})).scalars())


async def page(tx: Transaction, limit: int, offset: int) -> tuple[list[NamedLimit], int]:
    """Return one page of the limits by name, and the number of all."""
    rows = (await tx.execute(_PAGE, {"limit": limit, "offset": offset})).all()
    return [NamedLimit(*row) for row in rows], (await tx.execute(_COUNT)).scalar_one()


async def names_from(tx: Transaction, name: str, limit: int) -> list[str]:
    """Return the first names of limits from one on."""
    return list((await tx.execute(_FOLLOWING_NAMES, {"name": name, "limit": limit})).scalars())


async def delete(tx: Transaction, name: str) -> None:
    """Delete a limit, which the caller has locked."""
    await tx.execute(_DELETE, {"name": name})


async def limits_of_jobs(tx: Transaction) -> list[tuple[str, str]]:
    """Return the jobs with limits: their names, and the limits as they are stored."""
    return [(name, limits) for name, limits in await tx.execute(_USERS)]


# How many tasks wait for rates.

MAX_COUNTED = 10_000
_WAITS = f"SELECT job_id, bucket_id FROM joblib_limit_wait WHERE {_IS_READY} > :now"
_OF_RATES = f"{_WAITS} AND NOT (job_id = ANY (:all_job_id)) LIMIT {MAX_COUNTED}"
_OF_WAIT = "joblib_limit_queue.job_id = waits.job_id AND joblib_limit_queue.blocked_by = waits.bucket_id"
_OF_QUEUE = f"""joblib_task.job_id = waits.job_id AND {TASK_IS_QUEUED}
        AND joblib_task.room_id = queues.room_id AND joblib_task.limit_key IS NOT NULL
        AND joblib_task.limit_key >= queues.limit_key AND joblib_task.limit_key <= queues.limit_key"""
# The limits keep the planner from reading all tasks before the waits.
_BLOCKED_TASKS = statement(
    f"""
SELECT count(*) FROM (
    SELECT 1 FROM ({_OF_RATES}) AS waits
    CROSS JOIN LATERAL (
        SELECT room_id, limit_key FROM joblib_limit_queue WHERE {_OF_WAIT} LIMIT {MAX_COUNTED}
    ) AS queues
    CROSS JOIN LATERAL (SELECT 1 FROM joblib_task WHERE {_OF_QUEUE} LIMIT {MAX_COUNTED}) AS tasks
    LIMIT {MAX_COUNTED}
) AS blocked
""",
    "number",
)
_BLOCKED_TASKS_ON_SQLITE = statement(
    f"""
SELECT count(*) FROM (
    SELECT 1 FROM ({_OF_RATES}) AS waits
    CROSS JOIN joblib_limit_queue AS queues CROSS JOIN joblib_task
    WHERE {_OF_WAIT.replace("joblib_limit_queue", "queues")} AND {_OF_QUEUE}
    LIMIT {MAX_COUNTED}
) AS blocked
""",
    "number",
)
_WITHOUT_QUEUES = statement(
    f"""
SELECT waits.job_id, waits.bucket_id, joblib_job.limits, joblib_job.pending
FROM ({_WAITS} LIMIT {MAX_COUNTED}) AS waits
JOIN joblib_job ON joblib_job.id = waits.job_id
WHERE joblib_job.limits IS NOT NULL AND joblib_job.pending > 0
    AND NOT EXISTS (SELECT 1 FROM joblib_limit_queue WHERE {_OF_WAIT})
LIMIT {MAX_COUNTED}
""",
    *("job_id", "bucket_id", "limits", "pending"),
)


async def count_blocked(tx: Transaction, but_of: Collection[UUID]) -> int:
    """Count the tasks in queues that rates block, except those of these jobs, up to `MAX_COUNTED`."""
    sql = _BLOCKED_TASKS_ON_SQLITE if tx.is_sqlite else _BLOCKED_TASKS
    params = {"now": await tx.now(), "all_job_id": padded([*but_of] or [UUID(int=0)])}
    number: int = (await tx.execute(sql, params)).scalar_one()
    return number


async def waits_without_queues(tx: Transaction) -> list[tuple[UUID, UUID, str, int]]:
    """Return the waits for rates that block no queue.

    Of each the job, the bucket, the limits of the job as they are stored, and the number of its queued tasks.
    """
    return [tuple(row) for row in await tx.execute(_WITHOUT_QUEUES, {"now": await tx.now()})]


# Delete rows that no longer limit anything.

FIRST_QUEUE = (UUID(int=0), "", "")
FIRST_WAIT = (UUID(int=0), UUID(int=0))
_PRUNE_BUCKETS = statement(
    """
DELETE FROM joblib_limit_bucket
WHERE next_at < :at AND id IN (
    SELECT id FROM joblib_limit_bucket WHERE next_at < :at ORDER BY next_at LIMIT :limit
)
RETURNING id
""",
    "id",
)
_FOLLOWING_QUEUES = statement(
    f"""
SELECT {", ".join(_HEAD)} FROM joblib_limit_queue
WHERE (job_id, room_id, limit_key) > (:job_id, :room_id, :limit_key)
ORDER BY job_id, room_id, limit_key LIMIT :limit
""",
    *_HEAD,
)
_FOLLOWING_WAITS = statement(
    f"""
SELECT {", ".join(_WAIT)} FROM joblib_limit_wait
WHERE (job_id, bucket_id) > (:job_id, :bucket_id) ORDER BY job_id, bucket_id LIMIT :limit
""",
    *_WAIT,
)
_PRUNE_WAITS = statement(
    """
DELETE FROM joblib_limit_wait
WHERE job_id = :job_id AND bucket_id = ANY (:all_bucket_id)
    AND (is_due OR ready_at IS NULL OR ready_at < :at)
    AND NOT EXISTS (
        SELECT 1 FROM joblib_limit_queue
        WHERE joblib_limit_queue.job_id = joblib_limit_wait.job_id
            AND joblib_limit_queue.blocked_by = joblib_limit_wait.bucket_id
    )
RETURNING bucket_id
""",
    "bucket_id",
)
# A lost wait: it is for a slot, and no task holds one.
_SET_LOST = statement(
    """
UPDATE joblib_limit_wait SET is_due = true
WHERE job_id = :job_id AND bucket_id = ANY (:all_bucket_id) AND ready_at IS NULL AND NOT is_due
    AND NOT EXISTS (
        SELECT 1 FROM joblib_limit_slot
        WHERE joblib_limit_slot.bucket_id = joblib_limit_wait.bucket_id AND NOT freed
    )
"""
)
_FREE_LOST = statement(
    f"""
UPDATE joblib_limit_slot SET freed = true
WHERE task_seq = ANY (:all_task_seq) AND NOT freed AND NOT EXISTS (
    SELECT 1 FROM joblib_task WHERE joblib_task.seq = joblib_limit_slot.task_seq AND {TASK_IS_HELD}
)
"""
)
_FOLLOWING_SLOTS = statement(
    """
SELECT DISTINCT task_seq FROM joblib_limit_slot WHERE task_seq > :seq ORDER BY task_seq LIMIT :limit
""",
    "task_seq",
)
_UNLIMITED = statement(
    """
DELETE FROM joblib_limit_slot
WHERE task_seq = ANY (:all_task_seq) AND freed AND NOT EXISTS (
    SELECT 1 FROM joblib_job WHERE joblib_job.id = joblib_limit_slot.job_id AND limits IS NOT NULL
)
RETURNING bucket_id
""",
    "bucket_id",
)


async def prune_buckets(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete the states of up to `limit` rates that were last used before a time. Return how many."""
    return len((await tx.execute(_PRUNE_BUCKETS, {"at": before, "limit": limit})).all())


async def prune_queues(
    tx: Transaction, after: tuple[UUID, str, str], limit: int
) -> tuple[int, tuple[UUID, str, str]]:
    """Delete those of the `limit` queues that follow one that have no tasks.

    Return how many, and the queue to continue from: `FIRST_QUEUE` at the end.
    """
    params = dict(zip(_HEAD[:3], after, strict=True))
    heads = [LimitHead(*row) for row in await tx.execute(_FOLLOWING_QUEUES, {**params, "limit": limit})]
    deleted = 0
    for job_id in sorted(await lock_jobs(tx, {head.job_id for head in heads}, skip_locked=True)):
        own = [head for head in heads if head.job_id == job_id]
        places = await first_tasks(tx, job_id, own, 1)
        empty = [head for head in own if not places[head]]
        await remove(tx, empty)
        deleted += len(empty)
    return deleted, heads[-1].id if len(heads) == limit else FIRST_QUEUE


async def prune_waits(
    tx: Transaction, before: datetime, after: tuple[UUID, UUID], limit: int
) -> tuple[int, tuple[UUID, UUID]]:
    """Delete those of the `limit` waits that follow one that block no queue.

    End those for slots that no task holds. Return how many were deleted, and the wait to continue from:
    `FIRST_WAIT` at the end.
    """
    params = {"job_id": after[0], "bucket_id": after[1], "limit": limit}
    waits = [Wait(*row) for row in await tx.execute(_FOLLOWING_WAITS, params)]
    deleted = 0
    for job_id in sorted(await lock_jobs(tx, {wait.job_id for wait in waits}, skip_locked=True)):
        own = [wait for wait in waits if wait.job_id == job_id]
        ids = {"job_id": job_id, "all_bucket_id": padded([wait.bucket_id for wait in own])}
        deleted += len((await tx.execute(_PRUNE_WAITS, {**ids, "at": before})).all())
        await tx.execute(_SET_LOST, ids)
    return deleted, (waits[-1].job_id, waits[-1].bucket_id) if len(waits) == limit else FIRST_WAIT


async def prune_slots(tx: Transaction, after: int, limit: int) -> tuple[int, int]:
    """Free those of the slots that follow a task's `seq` whose tasks are not held, as after an upgrade.

    Delete the freed ones of jobs without limits. Return how many, and the `seq` to continue from, 0 at
    the end.
    """
    seqs = list((await tx.execute(_FOLLOWING_SLOTS, {"seq": after, "limit": limit})).scalars())
    if not seqs:
        return 0, 0
    params = {"all_task_seq": padded(seqs)}
    await tx.execute(_FREE_LOST, params)
    buckets = list((await tx.execute(_UNLIMITED, params)).scalars())
    await set_due(tx, set(buckets))
    return len(buckets), seqs[-1] if len(seqs) == limit else 0
