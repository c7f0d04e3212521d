"""Tasks as records, and the conditions that select them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    null,
    select,
)

from zndraw_joblib.server.db.bulk import byte_size
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import as_sql
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.queue.sql_jobs import policy_of
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

tasks = Task.__table__
jobs = Job.__table__

Condition = ColumnElement[bool]
# A task's `lane` and `seq`: its sort key in the queue of its job.
Place = tuple[int, int]
# How many ids one statement takes.
CHUNK = 512
_NOT_STORED = {"job", "policy", "reason"}


def of_status(statuses: Iterable[TaskStatus]) -> Condition:
    """Match the tasks of these statuses."""
    # Literals: neither database uses a partial index if the status is a parameter.
    return tasks.c.status.in_([literal_column(f"'{status}'") for status in sorted(statuses)])


IS_PENDING = tasks.c.status == literal_column(f"'{TaskStatus.PENDING}'")
QUEUED = and_(IS_PENDING, tasks.c.run_at.is_(None))
IS_SCHEDULED = and_(IS_PENDING, tasks.c.run_at.is_not(None))
IS_HELD = of_status(HELD)
# The same conditions in statements that are written as SQL, which call the table by its whole name.
TASK_IS_PENDING, TASK_IS_QUEUED, TASK_IS_HELD = map(as_sql, (IS_PENDING, QUEUED, IS_HELD))


def ended_unstarted(claimed_at: datetime | None, started_at: datetime | None) -> bool:
    """Return whether a task has lost a claim that never started, which was no attempt."""
    return claimed_at is not None and started_at is None


@dataclass
class TaskRecord:
    """A task's row, with the name and the policy of its job.

    `reason` is set on a task that is about to return to its queue: why it returns.
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
    unstarted: int = 0
    claim_id: UUID | None = None
    error_code: str | None = None
    traceparent: str | None = None
    queued_at: datetime | None = None
    policy: JobPolicy = field(default_factory=JobPolicy)
    reason: str | None = None

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values."""
        # `dataclasses.replace` costs ten times as much for this many fields.
        copy = object.__new__(type(self))
        copy.__dict__ = self.__dict__ | values
        return copy

    @property
    def place(self) -> Place:
        """The sort key of this task in its queue: the smallest is claimed first."""
        return self.lane, self.seq

    @property
    def attempts(self) -> int:
        """How many attempts have begun, with the present one."""
        is_unstarted = self.status in TERMINAL and ended_unstarted(self.claimed_at, self.started_at)
        return self.attempt - self.unstarted - is_unstarted

    @property
    def is_queued(self) -> bool:
        """Whether the task is pending in its queue."""
        return self.status is TaskStatus.PENDING and self.run_at is None

    @property
    def is_scheduled(self) -> bool:
        """Whether the task is pending until its `run_at`."""
        return self.status is TaskStatus.PENDING and self.run_at is not None


Move = tuple[TaskRecord, TaskRecord]


class TaskState(NamedTuple):
    """A task's status, and its current or last worker and attempt."""

    status: TaskStatus
    worker_id: UUID | None
    attempt: int


COLUMNS = [tasks.c[name] for name in TaskRecord.__dataclass_fields__ if name not in _NOT_STORED]
_JOB_COLUMNS = [jobs.c.room_id.label("job_room"), jobs.c.category, jobs.c.name, jobs.c.policy]


def record_of(row: Sequence[Any]) -> TaskRecord:
    """Return the record of a row that `select_records` selected."""
    seq, task_id, job_id, room_id, status, *rest, job_room, category, name, policy = row
    job = JobName(job_room, category, name)
    return TaskRecord(seq, task_id, job_id, job, room_id, TaskStatus(status), *[*rest, policy_of(policy)])


def body_size() -> ColumnElement[int]:
    """Return how many bytes payload and result of a task have together."""
    return byte_size(tasks.c.payload) + func.coalesce(byte_size(tasks.c.result), literal_column("0"))


def if_small(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column that is null if payload and result have more than `most_bytes` together."""
    return case((body_size() <= bindparam("most_bytes", type_=Integer()), column)).label(column.name)


def select_records(*, bodies: bool | Literal["small"] = True) -> Select[Any]:
    """Select records; without `bodies`, or unless they are small, payload and result are null."""
    bulky = {"payload", "result"}
    columns: list[ColumnElement[Any]] = list(COLUMNS)
    if bodies is not True:
        columns = [
            column if column.name not in bulky else if_small(column) if bodies else null().label(column.name)
            for column in COLUMNS
        ]
    return select(*columns, *_JOB_COLUMNS).join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)


FULL = select_records()
# The same as SQL, with or without payload and result.
SELECT_RECORDS = {bodies: as_sql(select_records(bodies=bodies)) for bodies in (True, False)}
RECORD_COLUMNS = [column.name for column in (*COLUMNS, *_JOB_COLUMNS)]


async def fetch_records(tx: Transaction, statement: Select[Any], **parameters: Any) -> list[TaskRecord]:
    """Run a statement that selects records."""
    return [record_of(row) for row in await tx.execute(statement, parameters)]


def in_queue(job_id: Any) -> Condition:
    """Match the tasks in the queue of a job; order them by `job_id`, `lane` and `seq`.

    The condition is a range, so that only the index of the queues has that order. With an equality
    PostgreSQL may scan the primary key, and with it the whole history.
    """
    return and_(tasks.c.job_id >= job_id, tasks.c.job_id <= job_id, QUEUED)
