"""Tasks that wait for others: their predecessors, and the ends that are yet to be handled.

A predecessor is a `source`: the `seq` of a task, or the negated `n` of a group. A transaction that adds an
edge has locked the predecessor, so one that ends it either commits before, or sees the edge.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import (
    BIG_INTEGER,
    BOOLEAN,
    INTEGER,
    TEXT,
    UUID_TYPE,
    listed_rows,
    one_row,
    statement,
)
from zndraw_joblib.server.process.ports import SUCCESSORS_KEY
from zndraw_joblib.server.queue import sql_groups, sql_payloads
from zndraw_joblib.server.queue.sql_task_rows import CHUNK
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import MAX_PREDECESSORS

COMPLETED = TaskStatus.COMPLETED.value
_ENDED = frozenset(status.value for status in TERMINAL)
MAX_SHOWN = 100
# The transaction that records an end commits so soon after the time that it has for it.
_RECORDED_WITHIN = timedelta(minutes=1)


class PredecessorTask(NamedTuple):
    """A task that another is to wait for, locked."""

    seq: int
    id: UUID
    room_id: str
    status: str
    lane: int


class PredecessorGroup(NamedTuple):
    """A group that a task is to wait for, locked."""

    n: int
    id: UUID
    room_id: str
    sealed: bool
    ended_at: datetime | None


class NewEdge(NamedTuple):
    """A predecessor of a new task."""

    task_seq: int
    source: int
    position: int
    predecessor: UUID


class NewSuccessor(NamedTuple):
    """What a new task does that waits for others; see `tables.Successor`."""

    task_seq: int
    on_failure: str
    run_at: datetime | None
    fills: bool


class WaveRow(NamedTuple):
    """A predecessor of a room that has ended; with `cancels` the tasks that wait for it are cancelled.

    It is set also if another row of the predecessor has it.
    """

    n: int
    source: int
    cancels: bool
    room_id: str


class TakenWaves(NamedTuple):
    """Ends that a transaction handles, the room with which the next begins, and whether there are more."""

    waves: Sequence[WaveRow]
    next_room: str
    may_be_more: bool


class WaitsBehind(NamedTuple):
    """Which tasks that wait for a predecessor are read: at most `limit`, behind the number `after`.

    With False in `is_all`, only those for which the end of the predecessor was not handled yet.
    """

    source: int
    is_all: bool
    limit: int
    after: int


class OpenEdge(NamedTuple):
    """An edge of a task that waits, with what the task does."""

    task_seq: int
    source: int
    predecessor: UUID
    on_failure: str
    run_at: datetime | None
    fills: bool


class EdgeChange(NamedTuple):
    """How a predecessor ended, and whether the task waits on."""

    task_seq: int
    source: int
    status: str | None
    is_open: bool


class ShownEdge(NamedTuple):
    """An edge of a task."""

    source: int
    predecessor: UUID
    status: str | None
    is_open: bool
    on_failure: str


class SourceResult(NamedTuple):
    """The result of a predecessor as JSON, None if it is long or stored as bytes; null without one."""

    id: UUID
    status: str
    is_long: bool
    is_stored: bool
    result_json: str | None


# The edges of some tasks. On PostgreSQL, `= ANY` of many tasks reads all edges while there are no statistics.
_FROM_TASKS = """FROM unnest((SELECT :all_task_seq)) AS given (seq) CROSS JOIN LATERAL (
    SELECT * FROM joblib_edge WHERE task_seq = given.seq ORDER BY task_seq, source {0}
) AS own"""
_OF_TASKS = _FROM_TASKS.format("OFFSET 0")
# With the most that a task may have, PostgreSQL finds the same edges again by their key.
_TO_CHANGE = _FROM_TASKS.format(f"LIMIT {MAX_PREDECESSORS}")
_OF_TASKS_ON_SQLITE = "FROM joblib_edge AS own WHERE task_seq = ANY (:all_task_seq)"
_IS_OWN = "joblib_edge.task_seq = own.task_seq AND joblib_edge.source = own.source"


def _of_tasks(columns: str, condition: str, order: str = "") -> tuple[Any, Any]:
    """Return what reads edges of tasks on PostgreSQL, and on SQLite."""
    names = columns.removeprefix("DISTINCT ").split(", ")
    return (
        statement(f"SELECT {columns} {_OF_TASKS} WHERE {condition}{order}", *names),
        statement(f"SELECT {columns} {_OF_TASKS_ON_SQLITE} AND {condition}{order}", *names),
    )


_TYPES = {"position": INTEGER, "is_open": BOOLEAN, "source": BIG_INTEGER}
_MADE_BY = statement(
    """
SELECT id FROM joblib_task WHERE id = ANY (:all_id) AND created_by = :user_id
UNION ALL
SELECT id FROM joblib_group WHERE id = ANY (:all_id) AND created_by = :user_id
""",
    "id",
    id=UUID_TYPE,
)
_LOCK_TASKS = statement(
    f"""
SELECT {", ".join(PredecessorTask._fields)} FROM joblib_task WHERE id = ANY (:all_id) ORDER BY seq
FOR NO KEY UPDATE
""",
    *PredecessorTask._fields,
)
_LOCK_FREE_TASKS = statement(
    f"""
SELECT {", ".join(PredecessorTask._fields)} FROM joblib_task WHERE id = ANY (:all_id) ORDER BY seq
FOR NO KEY UPDATE SKIP LOCKED
""",
    *PredecessorTask._fields,
)
# Those that end a group lock it with FOR NO KEY UPDATE.
_LOCK_GROUPS = statement(
    f"""
SELECT {", ".join(PredecessorGroup._fields)} FROM joblib_group WHERE id = ANY (:all_id) ORDER BY id
FOR SHARE SKIP LOCKED
""",
    *PredecessorGroup._fields,
    sealed=BOOLEAN,
)
_AWAITED_GROUPS = statement(
    """
SELECT id FROM joblib_group WHERE id = ANY (:all_id) AND (
    SELECT task_seq FROM joblib_edge WHERE source = -joblib_group.n AND is_open ORDER BY source LIMIT 1
) IS NOT NULL
""",
    "id",
)
_COUNT_GROUPS = statement("SELECT count(*) FROM joblib_group WHERE id = ANY (:all_id)", "number")
_LINK = statement("UPDATE joblib_task SET linked = true WHERE seq = ANY (:all_seq) AND linked IS NULL")
_SEQS = statement("SELECT id, seq FROM joblib_task WHERE id = ANY (:all_id)", "id", "seq")
_ADD_EDGE = statement(f"INSERT INTO joblib_edge {one_row((*NewEdge._fields, 'is_open'))}", **_TYPES)
_ADD_EDGES = statement(f"INSERT INTO joblib_edge {listed_rows((*NewEdge._fields, 'is_open'))}", **_TYPES)
_ADD_SUCCESSOR = statement(
    f"INSERT INTO joblib_successor {one_row(NewSuccessor._fields)}", fills=BOOLEAN, on_failure=TEXT
)
_ADD_SUCCESSORS = statement(
    f"INSERT INTO joblib_successor {listed_rows(NewSuccessor._fields)}", fills=BOOLEAN, on_failure=TEXT
)
# Of tasks that have ended and for which others wait.
_ADD_WAVES = statement(
    """
INSERT INTO joblib_wave (source, cancels, room_id)
SELECT seq, :cancels, room_id FROM joblib_task WHERE seq = ANY (:all_seq) AND EXISTS (
    SELECT 1 FROM joblib_edge WHERE joblib_edge.source = joblib_task.seq AND is_open
)
RETURNING n
""",
    "n",
    cancels=BOOLEAN,
)
_ADD_WAVE_OF_GROUP = statement(
    """
INSERT INTO joblib_wave (source, cancels, room_id)
SELECT -n, false, room_id FROM joblib_group WHERE n = :n AND EXISTS (
    SELECT 1 FROM joblib_edge WHERE source = -joblib_group.n AND is_open
)
RETURNING n
""",
    "n",
)
_SOURCES, _ = _of_tasks("DISTINCT source", "true", " ORDER BY source")
_LOCK_SOURCES = [
    statement("SELECT seq FROM joblib_task WHERE seq = ANY (:all_n) FOR NO KEY UPDATE SKIP LOCKED", "seq"),
    statement("SELECT n FROM joblib_group WHERE n = ANY (:all_n) FOR SHARE SKIP LOCKED", "n"),
]
_COUNT_SOURCES = [
    statement("SELECT count(*) FROM joblib_task WHERE seq = ANY (:all_n)", "number"),
    statement("SELECT count(*) FROM joblib_group WHERE n = ANY (:all_n)", "number"),
]
_ADD_WAVE = statement(
    """
INSERT INTO joblib_wave (source, cancels, room_id)
SELECT :source, false, coalesce(
    (SELECT room_id FROM joblib_task WHERE seq = :source),
    (SELECT room_id FROM joblib_group WHERE n = -:source), ''
)
""",
    source=BIG_INTEGER,
)
_ADD_WAVE_AGAIN = statement(
    f"INSERT INTO joblib_wave {one_row(('source', 'cancels', 'room_id'))}",
    source=BIG_INTEGER,
    cancels=BOOLEAN,
    room_id=TEXT,
)
# Each step looks up the next room: a room with many ends is read as quickly as one with a single end.
_ROOMS_OF_WAVES = statement(
    """
WITH RECURSIVE room AS (
    SELECT min(room_id) AS id FROM joblib_wave WHERE room_id >= :first
    UNION ALL
    SELECT (SELECT min(room_id) FROM joblib_wave WHERE room_id > room.id) FROM room WHERE room.id IS NOT NULL
)
SELECT id, CURRENT_TIMESTAMP AS now FROM room WHERE id IS NOT NULL LIMIT :limit
""",
    *("id", "now"),
    id=TEXT,
    first=TEXT,
)
# An end may have been added before its task was retried, or a cancel with the tree: this wins over all.
_CANCELS = """cancels OR (
    SELECT other.source FROM joblib_wave AS other
    WHERE other.cancels AND other.source >= joblib_wave.source AND other.source <= joblib_wave.source
    ORDER BY other.source LIMIT 1
) IS NOT NULL AS cancels"""
_TAKEN = f"""
SELECT n, source, {_CANCELS}, room_id FROM joblib_wave
WHERE (room_id, n) > ({{0}}, 0) AND room_id <= {{0}} ORDER BY room_id, n LIMIT :limit
FOR UPDATE SKIP LOCKED
"""
_TAKE = statement(
    f"""
SELECT taken.n, taken.source, taken.cancels, taken.room_id
FROM unnest((SELECT :all_room_id)) AS given (room_id)
CROSS JOIN LATERAL ({_TAKEN.format("given.room_id")}) AS taken
""",
    *WaveRow._fields,
    all_room_id=TEXT,
    cancels=BOOLEAN,
)
_TAKE_OF_ROOM = statement(_TAKEN.format(":room_id"), *WaveRow._fields, room_id=TEXT, cancels=BOOLEAN)
_TAKE_ONE = statement(
    f"SELECT n, source, {_CANCELS}, room_id FROM joblib_wave WHERE n = :n\nFOR UPDATE SKIP LOCKED",
    *WaveRow._fields,
    cancels=BOOLEAN,
)
_NUMBERS = statement(
    "SELECT n FROM joblib_wave WHERE n > :n AND n <= :last ORDER BY n LIMIT :limit", "n", last=BIG_INTEGER
)
_LAST_NUMBER = statement("SELECT n FROM joblib_wave ORDER BY n DESC LIMIT 1", "n")
# Only of predecessors that have ended: a task may wait for a thousand others.
_STILL_OPEN = statement(
    f"""
SELECT task_seq, source, CASE WHEN source = ANY (:all_source) THEN (
    SELECT joblib_task.status FROM joblib_task WHERE joblib_task.seq = own.source
) END AS status
{_OF_TASKS} WHERE is_open
""",
    *("task_seq", "source", "status"),
    status=TEXT,
    source=BIG_INTEGER,
)
_REMOVE_WAVES = statement("DELETE FROM joblib_wave WHERE n = ANY (:all_n)")
_ANY_WAVE = statement("SELECT n FROM joblib_wave ORDER BY n LIMIT 1", "n")
_STATUSES = statement("SELECT seq, status FROM joblib_task WHERE seq = ANY (:all_seq)", "seq", "status")
_GROUPS = statement("SELECT n, id, ended_at FROM joblib_group WHERE n = ANY (:all_n)", "n", "id", "ended_at")
# A predecessor that has not completed keeps those that hold waiting: their edges have its status by then.
_OPEN_COLUMNS = """
SELECT open.task_seq, open.source, predecessor, on_failure, joblib_successor.run_at, fills
FROM """
# SQLite would read the edges that are closed too.
_BY_OPEN = " INDEXED BY ix_joblib_edge_open"
_OPEN_EDGES = """(
    SELECT task_seq, source, predecessor FROM joblib_edge{4}
    WHERE source = {0} AND task_seq > {3} AND is_open AND (status IS NULL OR {1})
    ORDER BY source, task_seq LIMIT {2}
) AS open JOIN joblib_successor ON joblib_successor.task_seq = open.task_seq
"""
_OPEN = statement(
    f"{_OPEN_COLUMNS} unnest((SELECT :all_source), (SELECT :all_is_all), (SELECT :all_limit), "
    "(SELECT :all_after)) AS given (source, is_all, most, after) CROSS JOIN LATERAL "
    f"{_OPEN_EDGES.format('given.source', 'given.is_all', 'given.most', 'given.after', '')} "
    "ORDER BY open.source, open.task_seq",
    *OpenEdge._fields,
    fills=BOOLEAN,
    is_all=BOOLEAN,
    limit=BIG_INTEGER,
    after=BIG_INTEGER,
    **_TYPES,
)
_OPEN_OF_ONE = statement(
    f"{_OPEN_COLUMNS}{_OPEN_EDGES.format(':source', ':is_all', ':limit', ':after', _BY_OPEN)} "
    "ORDER BY open.source, open.task_seq",
    *OpenEdge._fields,
    fills=BOOLEAN,
    is_all=BOOLEAN,
    after=BIG_INTEGER,
    **_TYPES,
)
_OPEN_YET, _JUST_ENDED, _LONG_ENDED = range(3)
# Ends that an older server has written, which knows no waves, and whatever else was not recorded.
_UNRECORDED = statement(
    f"""
WITH part AS MATERIALIZED (
    SELECT source, task_seq, status FROM joblib_edge
    WHERE is_open AND (source, task_seq) > (:source, :task_seq) ORDER BY source, task_seq LIMIT :limit
)
SELECT source, task_seq, CASE WHEN source > 0 THEN coalesce((
    SELECT CASE WHEN completed_at IS NULL OR NOT (part.status IS NULL OR joblib_task.status = '{COMPLETED}')
        THEN {_OPEN_YET} WHEN completed_at < :before THEN {_LONG_ENDED} ELSE {_JUST_ENDED} END
    FROM joblib_task WHERE seq = source
), CASE WHEN status IS NULL THEN {_LONG_ENDED} ELSE {_OPEN_YET} END)
WHEN status IS NOT NULL THEN {_OPEN_YET}
ELSE coalesce((
    SELECT CASE WHEN ended_at IS NULL
        THEN {_OPEN_YET} WHEN ended_at < :before THEN {_LONG_ENDED} ELSE {_JUST_ENDED} END
    FROM joblib_group WHERE n = -source
), {_LONG_ENDED}) END AS state
FROM part ORDER BY source, task_seq
""",
    *("source", "task_seq", "state"),
    source=BIG_INTEGER,
    task_seq=BIG_INTEGER,
    before=UtcDateTime(),
    state=INTEGER,
)
_CHANGE_EDGE = statement(
    """
UPDATE joblib_edge SET status = :status, is_open = :is_open WHERE task_seq = :task_seq AND source = :source
""",
    **_TYPES,
)
_CHANGE_EDGES = statement(
    """
UPDATE joblib_edge SET status = new.status, is_open = new.is_open
FROM unnest((SELECT :all_task_seq), (SELECT :all_source), (SELECT :all_status), (SELECT :all_is_open))
    AS new (task_seq, source, status, is_open)
WHERE joblib_edge.task_seq = new.task_seq AND joblib_edge.source = new.source
""",
    **_TYPES,
)
_WAITING = _of_tasks("DISTINCT task_seq", "is_open")
_FINISH = statement(
    """
WITH released AS (
    UPDATE joblib_successor SET released_at = :now
    WHERE task_seq = ANY (:all_task_seq) AND released_at IS NULL
)
DELETE FROM joblib_wave WHERE n = ANY (:all_n)
"""
)
_RELEASE = statement(
    """
UPDATE joblib_successor SET released_at = :now WHERE task_seq = ANY (:all_task_seq) AND released_at IS NULL
"""
)
_RELEASED_AT = statement(
    "SELECT released_at FROM joblib_successor WHERE task_seq = :task_seq AND released_at IS NOT NULL",
    "released_at",
)
_SUCCESSORS = statement(
    f"""
SELECT {", ".join(NewSuccessor._fields)} FROM joblib_successor
WHERE task_seq = ANY (:all_task_seq) AND released_at IS NULL
""",
    *NewSuccessor._fields,
    fills=BOOLEAN,
    on_failure=TEXT,
)
_REOPEN = (
    statement(
        f"""
UPDATE joblib_edge SET is_open = true, status = NULL FROM (SELECT task_seq, source {_TO_CHANGE}) AS own
WHERE {_IS_OWN}
RETURNING joblib_edge.source
""",
        "source",
    ),
    statement(
        """
UPDATE joblib_edge SET is_open = true, status = NULL WHERE task_seq = ANY (:all_task_seq)
RETURNING source
""",
        "source",
    ),
)
_PREDECESSORS = _of_tasks("task_seq, source, predecessor", "source > 0")
_RESULTS = statement(
    """
SELECT id, status, octet_length(result) > :most_bytes AS is_long, EXISTS (
        SELECT 1 FROM joblib_task_result WHERE joblib_task_result.task_seq = joblib_task.seq
    ) AS is_stored,
    CASE WHEN octet_length(result) <= :most_bytes THEN CAST(result AS text) END AS result_json
FROM joblib_task WHERE seq = ANY (:all_seq)
""",
    *SourceResult._fields,
    is_long=BOOLEAN,
    is_stored=BOOLEAN,
    result_json=TEXT,
)
_SCHEMAS = statement(
    "SELECT id, schema FROM joblib_job WHERE id = ANY (:all_id)", "id", "schema", schema=TEXT
)
_WRITE_PAYLOAD = statement("UPDATE joblib_task SET payload = :payload WHERE seq = :seq", payload=TEXT)
_EDGES = statement(
    """
SELECT source, predecessor, status, is_open, on_failure
FROM joblib_edge JOIN joblib_successor ON joblib_successor.task_seq = joblib_edge.task_seq
WHERE joblib_edge.task_seq = :task_seq ORDER BY position
""",
    *ShownEdge._fields,
    on_failure=TEXT,
    **_TYPES,
)
_SUCCESSORS_OF = statement(
    """
SELECT joblib_task.id FROM joblib_edge JOIN joblib_task ON joblib_task.seq = joblib_edge.task_seq
WHERE source = :source ORDER BY source, task_seq LIMIT :limit
""",
    "id",
    source=BIG_INTEGER,
)
_STATUS_OF_SUCCESSOR = statement(
    """
SELECT successor.status FROM joblib_edge
JOIN joblib_task AS successor ON successor.seq = joblib_edge.task_seq
JOIN joblib_task AS predecessor ON predecessor.seq = joblib_edge.source
WHERE successor.id = :successor_id AND predecessor.id = :id
""",
    "status",
    successor_id=UUID_TYPE,
)
_REMOVE_EDGES = (
    statement(f"DELETE FROM joblib_edge USING (SELECT task_seq, source {_TO_CHANGE}) AS own WHERE {_IS_OWN}"),
    statement("DELETE FROM joblib_edge WHERE task_seq = ANY (:all_task_seq)"),
)
_REMOVE_SUCCESSORS = statement("DELETE FROM joblib_successor WHERE task_seq = ANY (:all_task_seq)")


async def made_by(tx: Transaction, user_id: str, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these tasks and groups that a user has submitted or created."""
    found, unique_ids = set[UUID](), sorted(ids)
    for start in range(0, len(unique_ids), CHUNK):
        part = padded(unique_ids[start : start + CHUNK])
        found.update((await tx.execute(_MADE_BY, {"all_id": part, "user_id": user_id})).scalars())
    return found


async def lock_tasks(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, PredecessorTask]:
    """Lock those of these tasks that exist: until the commit no other transaction ends or deletes them."""
    tasks: dict[UUID, PredecessorTask] = {}
    unique_ids = sorted(set(ids))
    for start in range(0, len(unique_ids), CHUNK):
        rows = await tx.execute(_LOCK_TASKS, {"all_id": padded(unique_ids[start : start + CHUNK])})
        tasks |= {row.id: PredecessorTask(*row) for row in rows}
    return tasks


async def lock_free_tasks(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, PredecessorTask]:
    """Lock those of these tasks that no other transaction has locked."""
    rows = await tx.execute(_LOCK_FREE_TASKS, {"all_id": padded(sorted(set(ids)))})
    return {row.id: PredecessorTask(*row) for row in rows}


async def lock_groups(tx: Transaction, ids: Iterable[UUID]) -> tuple[dict[UUID, PredecessorGroup], bool]:
    """Lock those of these groups that exist, so that none of them ends until the commit.

    Return also whether another transaction has locked one of them.
    """
    params = {"all_id": padded(sorted(set(ids)))}
    groups = {row.id: PredecessorGroup(*row) for row in await tx.execute(_LOCK_GROUPS, params)}
    return groups, (await tx.execute(_COUNT_GROUPS, params)).scalar_one() > len(groups)


async def awaited_groups(tx: Transaction, ids: Iterable[UUID]) -> set[UUID]:
    """Return those of these groups that tasks wait for."""
    return set((await tx.execute(_AWAITED_GROUPS, {"all_id": padded(sorted(set(ids)))})).scalars())


async def seqs(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, int]:
    """Return the numbers of these tasks."""
    numbers: dict[UUID, int] = {}
    unique_ids = sorted(set(ids))
    for start in range(0, len(unique_ids), CHUNK):
        rows = await tx.execute(_SEQS, {"all_id": padded(unique_ids[start : start + CHUNK])})
        numbers |= {row.id: row.seq for row in rows}
    return numbers


async def add(
    tx: Transaction, successors: Sequence[NewSuccessor], edges: Sequence[NewEdge], linked: Iterable[int]
) -> None:
    """Insert what tasks wait for, and mark the predecessors, which are locked or new, as linked."""
    numbers = sorted(set(linked))
    for start in range(0, len(numbers), CHUNK):
        await tx.execute(_LINK, {"all_seq": padded(numbers[start : start + CHUNK])})
    rows = [successor._asdict() for successor in successors]
    edge_rows = [{**edge._asdict(), "is_open": True} for edge in edges]
    if tx.is_sqlite:
        await tx.execute(_ADD_SUCCESSOR, rows)
        await tx.execute(_ADD_EDGE, edge_rows)
    else:
        await tx.execute(_ADD_SUCCESSORS, by_column(rows))
        await tx.execute(_ADD_EDGES, by_column(edge_rows))


async def add_waves_of_tasks(tx: Transaction, seqs: Collection[int], *, cancels: bool = False) -> None:
    """Record the ends of tasks for which others wait."""
    numbers, is_any = sorted(seqs), False
    for start in range(0, len(numbers), CHUNK):
        params = {"all_seq": padded(numbers[start : start + CHUNK]), "cancels": cancels}
        is_any |= bool((await tx.execute(_ADD_WAVES, params)).all())
    if is_any:
        tx.wake(SUCCESSORS_KEY)


async def add_wave_of_group(tx: Transaction, n: int) -> None:
    """Record the end of a group, if tasks wait for it."""
    if (await tx.execute(_ADD_WAVE_OF_GROUP, {"n": n})).all():
        tx.wake(SUCCESSORS_KEY)


async def add_waves(tx: Transaction, sources: Iterable[int]) -> None:
    """Let the tasks that wait for these predecessors be looked at."""
    if rows := [{"source": source} for source in sorted(set(sources))]:
        await tx.execute(_ADD_WAVE, rows)
        tx.wake(SUCCESSORS_KEY)


async def has_waves(tx: Transaction) -> bool:
    """Return whether ends are yet to be handled."""
    return (await tx.execute(_ANY_WAVE)).first() is not None


async def unrecorded(
    tx: Transaction, after: tuple[int, int], limit: int
) -> tuple[dict[int, bool], tuple[int, int] | None]:
    """Return predecessors that have ended, although tasks wait for them, among `limit` edges behind one.

    Each has whether that was long ago: the others may have ended since the caller saw that there are no
    waves. Return also where to continue: None at the end.
    """
    before = await tx.now() - _RECORDED_WITHIN
    params = {"source": after[0], "task_seq": after[1], "limit": limit, "before": before}
    rows = (await tx.execute(_UNRECORDED, params)).all()
    last = (rows[-1].source, rows[-1].task_seq) if len(rows) == limit else None
    return {row.source: row.state == _LONG_ENDED for row in rows if row.state != _OPEN_YET}, last


async def take_wave(tx: Transaction, n: int) -> list[WaveRow]:
    """Lock and return an end that is yet to be handled, none if it is locked or gone."""
    return [WaveRow(*row) for row in await tx.execute(_TAKE_ONE, {"n": n})]


async def take_waves(tx: Transaction, limit: int, first_room: str) -> TakenWaves:
    """Lock and return ends that are yet to be handled, the oldest of each room; skip locked ones.

    Each room gets the same number, those from `first_room` on if there are too many rooms.
    """
    rooms = await _rooms_of_waves(tx, limit + 1, first_room)
    if first_room and len(rooms) <= limit:
        rooms += [room for room in await _rooms_of_waves(tx, limit + 1, "") if room < first_room]
    next_room = rooms[limit] if len(rooms) > limit else ""
    rooms = rooms[:limit]
    each = -(-limit // max(1, len(rooms)))
    params = {"limit": each}
    if tx.is_sqlite:
        rows = [row for room in rooms for row in await tx.execute(_TAKE_OF_ROOM, {**params, "room_id": room})]
    else:
        rows = list(await tx.execute(_TAKE, {**params, "all_room_id": rooms})) if rooms else []
    waves = [WaveRow(*row) for row in rows]
    counts = Counter(wave.room_id for wave in waves)
    return TakenWaves(waves, next_room, bool(next_room) or each in counts.values())


async def _rooms_of_waves(tx: Transaction, limit: int, first: str) -> list[str]:
    rows = (await tx.execute(_ROOMS_OF_WAVES, {"first": first, "limit": limit})).all()
    tx.record_now(rows)
    return [row.id for row in rows]


async def last_wave_number(tx: Transaction) -> int:
    """Return the highest number of an end that is yet to be handled, 0 if there is none."""
    row = (await tx.execute(_LAST_NUMBER)).first()
    return 0 if row is None else row.n


async def wave_numbers(tx: Transaction, after: int, last: int, limit: int) -> list[int]:
    """Return the numbers of ends that are yet to be handled, after one and up to a `last`."""
    return list((await tx.execute(_NUMBERS, {"n": after, "last": last, "limit": limit})).scalars())


async def still_open(
    tx: Transaction, seqs: Collection[int], sources: Collection[int]
) -> tuple[dict[int, set[int]], dict[int, str]]:
    """Return the predecessors of the open edges of these tasks, by `seq`, and the statuses of `sources`.

    Groups and those of other tasks are left out of the statuses.
    """
    edges: dict[int, set[int]] = {seq: set() for seq in seqs}
    of: dict[int, str] = {}
    numbers, ended = sorted(seqs), padded(sorted(sources))
    for start in range(0, len(numbers), CHUNK):
        params = {"all_task_seq": padded(numbers[start : start + CHUNK]), "all_source": ended}
        for row in await tx.execute(_STILL_OPEN, params):
            edges[row.task_seq].add(row.source)
            if row.status is not None:
                of[row.source] = row.status
    return edges, of


async def remove_waves(tx: Transaction, numbers: Sequence[int]) -> None:
    """Delete ends that were handled."""
    if numbers:
        await tx.execute(_REMOVE_WAVES, {"all_n": padded(numbers)})


async def move_waves_back(tx: Transaction, waves: Sequence[WaveRow]) -> None:
    """Put ends, which are locked, behind all others."""
    await remove_waves(tx, [wave.n for wave in waves])
    rows = dict.fromkeys(wave[1:] for wave in waves)
    if rows:
        await tx.execute(
            _ADD_WAVE_AGAIN,
            [{"source": source, "cancels": cancels, "room_id": room_id} for source, cancels, room_id in rows],
        )


async def statuses(tx: Transaction, sources: Collection[int]) -> dict[int, str | None]:
    """Return the statuses of predecessors; None of a group that has not ended.

    A group has `completed` if all its tasks have, else `failed`. Those that do not exist are left out.
    """
    of: dict[int, str | None] = {}
    if tasks := sorted(source for source in sources if source > 0):
        of |= {row.seq: row.status for row in await tx.execute(_STATUSES, {"all_seq": padded(tasks)})}
    if numbers := sorted(-source for source in sources if source < 0):
        groups = (await tx.execute(_GROUPS, {"all_n": padded(numbers)})).all()
        sums, _ = await sql_groups.counts(tx, [group.id for group in groups]) if groups else ({}, None)
        for group in groups:
            change = sums[group.id]
            ended = "failed" if change.failed or change.cancelled or change.open > 0 else COMPLETED
            of[-group.n] = None if group.ended_at is None else ended
    return of


async def open_edges(tx: Transaction, given: Sequence[WaitsBehind]) -> dict[int, list[OpenEdge]]:
    """Return the first tasks that wait for each of these predecessors."""
    edges: dict[int, list[OpenEdge]] = {one.source: [] for one in given}
    params = [one._asdict() for one in given]
    if tx.is_sqlite:
        rows = [row for values in params for row in await tx.execute(_OPEN_OF_ONE, values)]
    else:
        rows = list(await tx.execute(_OPEN, by_column(params)))
    for row in rows:
        edges[row.source].append(OpenEdge(*row))
    return edges


async def change_edges(tx: Transaction, changes: Sequence[EdgeChange]) -> None:
    """Write how predecessors have ended. The tasks that wait for them are locked."""
    rows = [change._asdict() for change in changes]
    if rows and tx.is_sqlite:
        await tx.execute(_CHANGE_EDGE, rows)
    elif rows:
        await tx.execute(_CHANGE_EDGES, by_column(rows))


async def waiting(tx: Transaction, seqs: Collection[int]) -> set[int]:
    """Return which of these tasks still wait for a predecessor."""
    still: set[int] = set()
    numbers = sorted(seqs)
    for start in range(0, len(numbers), CHUNK):
        params = {"all_task_seq": padded(numbers[start : start + CHUNK])}
        still.update((await tx.execute(_WAITING[tx.is_sqlite], params)).scalars())
    return still


async def finish(tx: Transaction, released: Collection[int], waves: Sequence[int]) -> None:
    """Record that tasks wait no longer for predecessors, and delete the ends that were handled."""
    if tx.is_sqlite or not (released and waves):
        await record_released(tx, released)
        await remove_waves(tx, waves)
        return
    params = {"all_task_seq": padded(sorted(released)), "now": await tx.now(), "all_n": padded(waves)}
    await tx.execute(_FINISH, params)


async def record_released(tx: Transaction, seqs: Collection[int]) -> None:
    """Record that tasks wait no longer for predecessors."""
    numbers, now = sorted(seqs), await tx.now()
    for start in range(0, len(numbers), CHUNK):
        await tx.execute(_RELEASE, {"all_task_seq": padded(numbers[start : start + CHUNK]), "now": now})


async def released_at(tx: Transaction, seq: int) -> datetime | None:
    """Return until when a task has waited for predecessors; None for one that waits still, or never did."""
    row = (await tx.execute(_RELEASED_AT, {"task_seq": seq})).first()
    return None if row is None else row.released_at


async def unreleased(tx: Transaction, seqs: Collection[int]) -> dict[int, NewSuccessor]:
    """Return those of these tasks that wait for predecessors, or ended while they did."""
    found: dict[int, NewSuccessor] = {}
    numbers = sorted(seqs)
    for start in range(0, len(numbers), CHUNK):
        params = {"all_task_seq": padded(numbers[start : start + CHUNK])}
        found |= {row.task_seq: NewSuccessor(*row) for row in await tx.execute(_SUCCESSORS, params)}
    return found


async def lock_sources(tx: Transaction, seqs: Collection[int]) -> bool:
    """Lock the predecessors of tasks: until the commit none of them ends. Return whether it got all locks."""
    rows = await tx.execute(_SOURCES, {"all_task_seq": padded(sorted(seqs))})
    sources = list(rows.scalars())
    both = [source for source in sources if source > 0], [-source for source in sources if source < 0]
    for numbers, lock, count in zip(both, _LOCK_SOURCES, _COUNT_SOURCES, strict=True):
        for start in range(0, len(numbers), CHUNK):
            params = {"all_n": padded(numbers[start : start + CHUNK])}
            locked = len((await tx.execute(lock, params)).all())
            if locked < (await tx.execute(count, params)).scalar_one():
                return False
    return True


async def reopen(tx: Transaction, seqs: Collection[int], retried: Collection[int]) -> None:
    """Let tasks wait for their predecessors again, and let those that ended be looked at.

    The predecessors are locked. Those among `retried` are queued again in this transaction. No end is
    recorded that is none: it would be handled in place of a later one, and without its `cancels`.
    """
    rows = await tx.execute(_REOPEN[tx.is_sqlite], {"all_task_seq": padded(sorted(seqs))})
    sources = set(rows.scalars()).difference(retried)
    of = await statuses(tx, sources)
    # One that is gone was deleted after its end.
    await add_waves(tx, (source for source in sources if source not in of or of[source] in _ENDED))


async def predecessors(tx: Transaction, seqs: Sequence[int]) -> dict[int, dict[UUID, int]]:
    """Return the tasks that these tasks waited for: their numbers by id, by `seq`."""
    of: dict[int, dict[UUID, int]] = {}
    for row in await tx.execute(_PREDECESSORS[tx.is_sqlite], {"all_task_seq": padded(seqs)}):
        of.setdefault(row.task_seq, {})[row.predecessor] = row.source
    return of


async def results(tx: Transaction, seqs: Iterable[int], most_bytes: int) -> dict[UUID, SourceResult]:
    """Return the results of tasks, by id, each as JSON if that has at most `most_bytes`."""
    found: dict[UUID, SourceResult] = {}
    numbers = sorted(set(seqs))
    for start in range(0, len(numbers), CHUNK):
        params = {"all_seq": padded(numbers[start : start + CHUNK]), "most_bytes": most_bytes}
        found |= {row.id: SourceResult(*row) for row in await tx.execute(_RESULTS, params)}
    return found


async def schemas(tx: Transaction, job_ids: Collection[UUID]) -> dict[UUID, str]:
    """Return the schemas of jobs as JSON."""
    rows = await tx.execute(_SCHEMAS, {"all_id": padded(sorted(job_ids))})
    return {row.id: row.schema for row in rows}


async def write_payloads(tx: Transaction, payloads: Mapping[int, str]) -> None:
    """Replace the payloads of tasks, which are locked, given as JSON by `seq`."""
    rows = [{"seq": seq, "payload": payload} for seq, payload in payloads.items()]
    if tx.is_sqlite and rows:
        await sql_payloads.remove(tx, list(payloads))
        await sql_payloads.write(tx, payloads.items())
        rows = [{"seq": seq, "payload": sql_payloads.column(payload)} for seq, payload in payloads.items()]
    if rows:
        await tx.execute(_WRITE_PAYLOAD, rows)


async def edges_of(tx: Transaction, seq: int) -> list[ShownEdge]:
    """Return the predecessors of a task, in the order of its submit."""
    return [ShownEdge(*row) for row in await tx.execute(_EDGES, {"task_seq": seq})]


async def successors_of(tx: Transaction, source: int) -> list[UUID]:
    """Return the first tasks that wait for a predecessor, or have waited."""
    rows = await tx.execute(_SUCCESSORS_OF, {"source": source, "limit": MAX_SHOWN})
    return list(rows.scalars())


async def status_of_successor(tx: Transaction, successor_id: UUID, predecessor_id: UUID) -> str | None:
    """Return the status of a task that waits for another one, or has waited; None if it does not."""
    rows = await tx.execute(_STATUS_OF_SUCCESSOR, {"successor_id": successor_id, "id": predecessor_id})
    return rows.scalar_one_or_none()


async def remove(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete what tasks that are deleted have waited for."""
    for delete in (_REMOVE_EDGES[tx.is_sqlite], _REMOVE_SUCCESSORS):
        await tx.execute(delete, {"all_task_seq": padded(seqs)})
