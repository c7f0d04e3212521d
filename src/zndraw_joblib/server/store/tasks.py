"""Tasks. Nothing outside this module writes a task's status, and each writer has its guard in the WHERE."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    null,
    select,
    update,
)

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.ports import job_key
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Attempt, Job, Task, Worker

tasks = Task.__table__
attempts = Attempt.__table__
jobs = Job.__table__
workers = Worker.__table__


def of_status(statuses: Iterable[TaskStatus]) -> ColumnElement[bool]:
    """Match the tasks of these statuses."""
    # Literals: neither database uses a partial index where the status is a parameter.
    return tasks.c.status.in_([literal_column(f"'{status}'") for status in sorted(statuses)])


IS_PENDING = tasks.c.status == literal_column(f"'{TaskStatus.PENDING}'")
QUEUED = and_(IS_PENDING, tasks.c.run_at.is_(None))
IS_SCHEDULED = and_(IS_PENDING, tasks.c.run_at.is_not(None))
IS_HELD = of_status(HELD)
CHUNK = 512
# SQLite takes 32766 parameters.
_IDS = 16_384
_GUARDED = ("seq", "status", "attempt")
_WRITTEN = (
    "status",
    "worker_id",
    "worker_owner_id",
    "attempt",
    "claimed_at",
    "started_at",
    "completed_at",
    "error",
    "error_code",
    "result",
    "run_at",
    "expires_at",
    "deadline",
    "failures",
    "crashes",
    "claim_id",
)
# Of a record, what is not in a task's row.
_NOT_STORED = {"job", "policy", "reason"}


@dataclass(slots=True)
class TaskRecord:
    """A task as it stands in the database, with the name and the policy of its job.

    `reason` is why it went back to its queue, where it is about to.
    """

    seq: int
    id: UUID
    job_id: UUID
    job: JobName
    room_id: str
    status: TaskStatus
    created_by: str
    payload: dict[str, Any]
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    worker_owner_id: str | None = None
    attempt: int = 0
    error: str | None = None
    result: Any = None
    lane: int = 0
    run_at: datetime | None = None
    expires_at: datetime | None = None
    deadline: datetime | None = None
    max_attempts: int | None = None
    failures: int = 0
    crashes: int = 0
    claim_id: UUID | None = None
    error_code: str | None = None
    policy: JobPolicy = field(default_factory=JobPolicy)
    reason: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in its queue: those with a smaller one go first."""
        return self.lane, self.seq


Place = tuple[int, int]


class TaskState(NamedTuple):
    """Where a task stands, and who holds it or held it last, by which claim."""

    status: TaskStatus
    worker_id: UUID | None
    attempt: int


_FIELDS = [tasks.c[name] for name in TaskRecord.__dataclass_fields__ if name not in _NOT_STORED]
_INSERTED = [column.name for column in _FIELDS if column.name != "seq"]
_JOB = [jobs.c.room_id.label("job_room"), jobs.c.category, jobs.c.name, jobs.c.policy]


def _record(row: Sequence[Any]) -> TaskRecord:
    seq, task_id, job_id, room_id, status, *rest, job_room, category, name, policy = row
    job = JobName(job_room, category, name)
    return TaskRecord(
        seq, task_id, job_id, job, room_id, TaskStatus(status), *[*rest, job_store.policy_of(policy)]
    )


def select_records(*, bodies: bool = True) -> Select[Any]:
    """Select whole records, or with payload and result left out: a sweep has no use for them."""
    bulky = {"payload", "result"}
    columns = [null().label(c.name) if not bodies and c.name in bulky else c for c in _FIELDS]
    return select(*columns, *_JOB).join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)


def in_queue(job_id: Any) -> ColumnElement[bool]:
    """Match the tasks in the queue of a job; order them by `job_id`, `lane` and `seq`.

    A range, so that only the index of the queues has that order. With an equality PostgreSQL may walk
    the primary key instead, through all of the history, if it takes the pending tasks to be everywhere.
    """
    return and_(tasks.c.job_id >= job_id, tasks.c.job_id <= job_id, QUEUED)


def _moving(given: Mapping[str, ColumnElement[Any]]) -> Update:
    old = [tasks.c[name] == given[f"old_{name}"] for name in _GUARDED]
    return update(tasks).where(*old).values({name: given[f"new_{name}"] for name in _WRITTEN})


FULL = select_records()
_NEW = arrays({name: tasks.c[name].type for name in _INSERTED})
_ADD = insert(tasks)
_ADD_MANY = insert(tasks).from_select(
    _INSERTED, select(*[_NEW.c[name] for name in _INSERTED]).order_by(_NEW.c.place)
)
_MOVED = {f"old_{name}": tasks.c[name].type for name in _GUARDED} | {
    f"new_{name}": tasks.c[name].type for name in _WRITTEN
}
_MOVE = _moving({name: bindparam(name) for name in _MOVED})
_MOVE_MANY = _moving(dict(arrays(_MOVED).c))
# With the count of the one job that they concern: a statement less.
_ADD_AND_COUNT, _MOVE_AND_COUNT = (
    job_store.ADD_TO_COUNTS.add_cte(many.cte("written")) for many in (_ADD_MANY, _MOVE_MANY)
)
_END_ALIKE = (
    update(tasks)
    .where(among(tasks.c.seq, bindparam("seqs")), IS_HELD)
    .values(
        status=bindparam("end_status"),
        completed_at=bindparam("end_at"),
        error=bindparam("end_error"),
        error_code=bindparam("end_code"),
        crashes=tasks.c.crashes + bindparam("end_crash"),
        failures=tasks.c.failures + bindparam("end_failure"),
        deadline=None,
    )
)
_BY_ID = FULL.where(tasks.c.id == bindparam("task"))
_LOCK = (
    FULL.add_columns(func.now().label("now"))
    .where(among(tasks.c.id, bindparam("ids")))
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks)
)
_BY_CLAIMS = FULL.where(
    IS_HELD, among(tasks.c.worker_id, bindparam("workers")), among(tasks.c.claim_id, bindparam("ids"))
)
_STANDINGS = select(tasks.c.id, tasks.c.status, tasks.c.worker_id, tasks.c.attempt).where(
    among(tasks.c.id, bindparam("ids"))
)


async def fetch_records(tx: Transaction, statement: Select[Any], **parameters: Any) -> list[TaskRecord]:
    """Run a statement that selects whole records."""
    return [_record(row) for row in await tx.execute(statement, parameters)]


def is_queued(task: TaskRecord) -> bool:
    """Tell whether a task waits in its queue."""
    return task.status == TaskStatus.PENDING and task.run_at is None


def _is_scheduled(task: TaskRecord) -> bool:
    return task.status == TaskStatus.PENDING and task.run_at is not None


async def add(tx: Transaction, new: Sequence[TaskRecord]) -> None:
    """Add tasks in their order. Their jobs are locked: else one could be hidden meanwhile."""
    rows = [{name: getattr(task, name) for name in _INSERTED} for task in new]
    await _write(tx, (_ADD, _ADD_MANY, _ADD_AND_COUNT), rows, [(None, task) for task in new])
    _note(tx, [(None, task) for task in new])


async def move(tx: Transaction, moves: Sequence[tuple[TaskRecord, TaskRecord]]) -> None:
    """Write new states over old ones. The old ones were read under a lock in this transaction.

    A task may move several times: its first and its last state count.

    The guard stands in the statement all the same: a row that is not as it was read stays.
    """
    if not moves:
        return
    ways: dict[int, tuple[TaskRecord, TaskRecord]] = {}
    for before, after in moves:
        first, _ = ways.get(before.seq, (before, after))
        ways[before.seq] = (first, after)
    rows = [_parameters(before, after) for before, after in ways.values()]
    await _write(tx, (_MOVE, _MOVE_MANY, _MOVE_AND_COUNT), rows, list(ways.values()))
    _note(tx, ways.values())
    over = [_attempt(before, after, await tx.now()) for before, after in moves if _goes_back(before, after)]
    if over:
        await tx.execute(insert(attempts), over)


async def move_alike(tx: Transaction, moves: Sequence[tuple[TaskRecord, TaskRecord]]) -> None:
    """Do what `move` does, for held tasks, of which many come to the same end: in one statement for those."""
    alike: dict[tuple[Any, ...], list[tuple[TaskRecord, TaskRecord]]] = {}
    for before, after in moves:
        crash, failure = after.crashes - before.crashes, after.failures - before.failures
        end = (after.status, after.completed_at, after.error, after.error_code, crash, failure)
        alike.setdefault(end, []).append((before, after))
    for (status, at, error, code, crash, failure), same in alike.items():
        if status not in TERMINAL:
            await move(tx, same)
            continue
        told = {"end_status": status.value, "end_at": at, "end_error": error, "end_code": code}
        counts = {"end_crash": crash, "end_failure": failure}
        for start in range(0, len(same), CHUNK):
            part = [before.seq for before, _ in same[start : start + CHUNK]]
            await tx.execute(_END_ALIKE, {"seqs": padded(part), **told, **counts})
        _note(tx, same)


def _note(tx: Transaction, ways: Iterable[tuple[TaskRecord | None, TaskRecord]]) -> None:
    """Note what concerns others after the commit: when a task is due, and where a place is free."""
    for before, after in ways:
        if after.status == TaskStatus.PENDING and after.run_at is not None:
            tx.record_due(after.run_at)
        if before is not None and before.status in HELD and after.status not in HELD:
            tx.record_freed(before.room_id, before.worker_id)
            # What is in its queue again is told anyway, and that is one task for one free place.
            if before.policy.max_in_flight is not None and not is_queued(after):
                tx.wake(job_key(before.job), 1)


def _goes_back(before: TaskRecord, after: TaskRecord) -> bool:
    return after.status == TaskStatus.PENDING and before.status != TaskStatus.PENDING


def _attempt(before: TaskRecord, after: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return the row that keeps what the task's own row forgets when it goes back to its queue."""
    has_ended = before.status in TERMINAL
    told = before if has_ended else after
    return {
        "task_seq": before.seq,
        "attempt": before.attempt,
        "status": before.status.value,
        "worker_id": before.worker_id,
        "claimed_at": before.claimed_at,
        "started_at": before.started_at,
        "completed_at": before.completed_at,
        "ended_at": now,
        "run_at": after.run_at,
        "error_code": told.error_code,
        "error": told.error,
        "reason": after.reason or "released",
    }


async def _write(
    tx: Transaction,
    statements: tuple[Executable, Executable, Executable],
    rows: Sequence[Mapping[str, Any]],
    ways: Sequence[tuple[TaskRecord | None, TaskRecord]],
) -> None:
    each, many, and_count = statements
    changes = _changes(ways)
    if tx.is_sqlite:
        await tx.execute(each, rows)
    elif len(changes) == 1:
        [(job_id, change)] = changes.items()
        await tx.execute(and_count, {**by_column(rows), "job": job_id, **change._asdict()})
        return
    else:
        await tx.execute(many, by_column(rows))
    await job_store.add_to_counts(tx, changes)


def _changes(ways: Sequence[tuple[TaskRecord | None, TaskRecord]]) -> dict[UUID, job_store.CountChange]:
    queued: Counter[UUID] = Counter()
    later: Counter[UUID] = Counter()
    for before, after in ways:
        queued[after.job_id] += is_queued(after) - (before is not None and is_queued(before))
        later[after.job_id] += _is_scheduled(after) - (before is not None and _is_scheduled(before))
    return {
        job_id: job_store.CountChange(queued[job_id], later[job_id])
        for job_id in queued
        if queued[job_id] or later[job_id]
    }


def _parameters(before: TaskRecord, after: TaskRecord) -> dict[str, Any]:
    old = {f"old_{name}": getattr(before, name) for name in _GUARDED}
    return old | {f"new_{name}": getattr(after, name) for name in _WRITTEN}


async def by_claims(
    tx: Transaction, claims: Sequence[tuple[UUID, UUID]]
) -> dict[tuple[UUID | None, UUID | None], TaskRecord]:
    """Return the tasks that workers hold by claims of theirs, by worker and claim."""
    given = {
        "workers": padded([worker for worker, _ in claims]),
        "ids": padded([known for _, known in claims]),
    }
    found = await fetch_records(tx, _BY_CLAIMS, **given)
    return {(record.worker_id, record.claim_id): record for record in found}


async def by_id(tx: Transaction, task_id: UUID) -> TaskRecord | None:
    """Return one task."""
    found = await fetch_records(tx, _BY_ID, task=task_id)
    return found[0] if found else None


async def lock(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, TaskRecord]:
    """Return the tasks that exist, by id, and keep them as they are until the commit."""
    rows = (await tx.execute(_LOCK, {"ids": padded(ids)})).all()
    tx.record_now(rows)
    found = [_record(row[:-1]) for row in rows]
    return {record.id: record for record in found}


async def states(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, TaskState]:
    """Return where those of these tasks stand that exist, by id, without a lock."""
    found: dict[UUID, TaskState] = {}
    for start in range(0, len(ids), _IDS):
        rows = await tx.execute(_STANDINGS, {"ids": padded(ids[start : start + _IDS])})
        found |= {row.id: TaskState(TaskStatus(row.status), row.worker_id, row.attempt) for row in rows}
    return found


async def finished(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these tasks that have ended."""
    found: list[UUID] = []
    for start in range(0, len(ids), CHUNK):
        part = tasks.c.id.in_(padded(ids[start : start + CHUNK]))
        found += (await tx.execute(select(tasks.c.id).where(part, of_status(TERMINAL)))).scalars()
    return found


async def prune(tx: Transaction, before: datetime, after: int, limit: int) -> tuple[int, int | None]:
    """Remove those of the `limit` tasks that follow the `seq` `after` which ended before a time.

    Tell how many, and the `seq` to go on from; None where the tasks are younger than that time.
    """
    walk = select(tasks.c.seq, tasks.c.created_at, tasks.c.completed_at).where(tasks.c.seq > after)
    rows = (await tx.execute(walk.order_by(tasks.c.seq).limit(limit))).all()
    if not rows or rows[0].created_at >= before:
        return 0, None
    old = [row.seq for row in rows if row.completed_at is not None and row.completed_at < before]
    for start in range(0, len(old), CHUNK):
        part = padded(old[start : start + CHUNK])
        await tx.execute(delete(attempts).where(attempts.c.task_seq.in_(part)))
        await tx.execute(delete(tasks).where(tasks.c.seq.in_(part), of_status(TERMINAL)))
    return len(old), rows[-1].seq
