"""Tasks as records, and the conditions that select them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self
from uuid import UUID

from sqlalchemy import ColumnElement, and_, literal_column

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import as_sql
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.server.queue.sql_jobs import policy_of
from zndraw_joblib.wire.names import JobName, split_name
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

tasks = Task.__table__

Condition = ColumnElement[bool]
# A task's `lane` and `seq`: its sort key in the queue of its job.
Place = tuple[int, int]
# How many ids one statement takes.
CHUNK = 512
# The `run_at` of a task that waits for others: later than any that a submit can name.
WAITING = datetime(9999, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC)


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


@dataclass(kw_only=True)
class TaskRow:
    """A task's row as far as its answer needs it: columns of tasks, the job's full name and its version.

    Statements that write tasks and answer at once return this row, as `row_columns` and `row_of` do.
    """

    id: UUID
    job_id: UUID
    job_name: str
    room_id: str
    status: TaskStatus
    created_by: str
    payload: dict[str, Any]
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    attempt: int = 0
    unstarted: int = 0
    error: str | None = None
    error_code: str | None = None
    result: Any = None
    lane: int = 0
    run_at: datetime | None = None
    expires_at: datetime | None = None
    traceparent: str | None = None
    schedule: str | None = None
    due_at: datetime | None = None
    job_version: int = 1

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values."""
        # `dataclasses.replace` costs ten times as much for this many fields.
        copy = object.__new__(type(self))
        copy.__dict__ = self.__dict__ | values
        return copy

    @property
    def job(self) -> JobName:
        """The name of the job in its parts."""
        return split_name(self.job_name)

    @property
    def job_key(self) -> str:
        """The key of the claims that wait for it."""
        return job_key(self.job_name, self.job_version)

    @property
    def attempts(self) -> int:
        """How many attempts have begun, with the present one."""
        is_unstarted = ended_unstarted(self.claimed_at, self.started_at) and self.status in TERMINAL
        return self.attempt - self.unstarted - is_unstarted

    @property
    def is_queued(self) -> bool:
        """Whether the task is pending in its queue."""
        return self.status is TaskStatus.PENDING and self.run_at is None

    @property
    def is_waiting(self) -> bool:
        """Whether the task is pending until others have ended."""
        return self.run_at == WAITING and self.status is TaskStatus.PENDING

    @property
    def is_scheduled(self) -> bool:
        """Whether the task is pending until its `run_at`, or until others have ended."""
        return self.status is TaskStatus.PENDING and self.run_at is not None


@dataclass(kw_only=True)
class TaskRecord(TaskRow):
    """A task's whole row, with the policy of its job.

    `masked` has the paths to the secret values of its payload, see `wire.masks`. A task that is about to
    return to its queue has two more: the `reason`, and when its attempt `ended_at` if that was before now.
    """

    seq: int
    worker_owner_id: str | None = None
    deadline: datetime | None = None
    max_attempts: int | None = None
    failures: int = 0
    crashes: int = 0
    claim_id: UUID | None = None
    queued_at: datetime | None = None
    unique_id: UUID | None = None
    unique_text: str | None = None
    unique_until: str | None = None
    unique_expires_at: datetime | None = None
    limit_key: str | None = None
    linked: bool | None = None
    tags: list[str] | None = None
    parent: UUID | None = None
    root: UUID | None = None
    group_id: UUID | None = None
    policy: JobPolicy = field(default_factory=JobPolicy)
    masked: str | None = None
    reason: str | None = None
    ended_at: datetime | None = None

    @property
    def place(self) -> Place:
        """The sort key of this task in its queue: the smallest is claimed first."""
        return self.lane, self.seq


Move = tuple[TaskRecord, TaskRecord]


class TaskState(NamedTuple):
    """A task's status, and its current or last worker and attempt."""

    status: TaskStatus
    worker_id: UUID | None
    attempt: int


ROW_NAMES = [*TaskRow.__dataclass_fields__]
RECORD_NAMES = [name for name in TaskRecord.__dataclass_fields__ if name not in {"reason", "ended_at"}]
_OF_JOB = {
    "job_name": "joblib_job.full_name AS job_name",
    "policy": "joblib_job.policy",
    "masked": "joblib_job.masked",
    "job_version": "joblib_job.job_version",
}
# The columns of tasks in a record.
COLUMNS = [name for name in RECORD_NAMES if name not in _OF_JOB]


# The members of the enumeration by the texts in rows: ten times as fast as to call it.
_STATUSES = {status: status for status in TaskStatus}


def record_of(values: Sequence[Any]) -> TaskRecord:
    """Return the record of a row of `RECORD_COLUMNS`."""
    record = object.__new__(TaskRecord)
    record.__dict__ = dict(zip(RECORD_NAMES, values, strict=True))
    record.status, record.policy = _STATUSES[record.status], policy_of(record.__dict__["policy"])
    record.reason = record.ended_at = None
    return record


def row_of(values: Sequence[Any]) -> TaskRow:
    """Return the row of the values of `row_columns`, which others may follow."""
    row = object.__new__(TaskRow)
    row.__dict__ = dict(zip(ROW_NAMES, values))  # noqa: B905
    row.status = _STATUSES[row.status]
    return row


def row_columns(table: str = "joblib_task", names: Iterable[str] = ROW_NAMES, **others: str) -> str:
    """Return the columns of a `TaskRow` as SQL: those of the table, and `others` by their names."""
    others = {"payload": f"payload_of({table})"} | others
    return ", ".join(f"{others[name]} AS {name}" if name in others else f"{table}.{name}" for name in names)


class ShortRows:
    """The columns of a `TaskRow` in rows that are the same in all others: `shared` has these by name.

    To read a column that is null in each row costs as much as another one.
    """

    def __init__(self, **shared: Any) -> None:
        self._shared = shared
        self.names = [name for name in ROW_NAMES if name not in shared]

    def row_of(self, values: Sequence[Any]) -> TaskRow:
        """Return the row of the values of these columns, which others may follow."""
        row = object.__new__(TaskRow)
        attributes = row.__dict__ = self._shared.copy()
        attributes.update(zip(self.names, values))  # noqa: B905
        row.status = _STATUSES[row.status]
        return row


# A task that has not ended needs its predecessors, and their results. Only of linked tasks it is looked up.
IS_NEEDED_BY_SUCCESSOR = """joblib_task.linked IS NOT NULL AND (
    SELECT 1 FROM joblib_edge JOIN joblib_task AS successor ON successor.seq = joblib_edge.task_seq
    WHERE joblib_edge.source = joblib_task.seq AND successor.completed_at IS NULL LIMIT 1
) IS NOT NULL"""
# How many bytes payload and result of a task have together.
BODY_SIZE = "payload_size(joblib_task) + coalesce(octet_length(joblib_task.result), 0)"
_BODIES = {"payload": "payload_of(joblib_task)", "result": "joblib_task.result"}


def _record_column(name: str, *, bodies: bool | str) -> str:
    if body := _BODIES.get(name):
        is_small = f"CASE WHEN {BODY_SIZE} <= :most_bytes THEN {body} END"
        return f"{body if bodies is True else is_small if bodies else 'NULL'} AS {name}"
    return _OF_JOB.get(name, f"joblib_task.{name}")


# The columns of a record as SQL. Without bodies, or unless they are small, payload and result are null.
RECORD_COLUMNS: dict[bool | str, str] = {
    bodies: ", ".join(_record_column(name, bodies=bodies) for name in RECORD_NAMES)
    for bodies in (True, "small", False)
}
# Each task has a job. With an outer join PostgreSQL cannot read the tasks of each job instead, which it does
# without statistics.
TASKS_AND_JOBS = "joblib_task LEFT JOIN joblib_job ON joblib_task.job_id = joblib_job.id"
SELECT_RECORDS = {
    bodies: f"SELECT {RECORD_COLUMNS[bodies]}\nFROM {TASKS_AND_JOBS}" for bodies in (True, False)
}


async def fetch_records(tx: Transaction, statement: Any, **parameters: Any) -> list[TaskRecord]:
    """Run a statement that selects records."""
    return [record_of(row) for row in await tx.execute(statement, parameters)]
