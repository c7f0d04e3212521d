"""All tables and their constraints. Their metadata is separate from the host's."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    Label,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from zndraw_joblib.server.db.bulk import by_template
from zndraw_joblib.server.db.column_types import JsonText, UtcDateTime, Uuid
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus


class Named:
    """A row with a full name that is no column."""

    @property
    def full_name(self) -> str:
        """Return ``room:category:name``."""
        return _full_name(self)


class Beating:
    """A row of what sends heartbeats."""

    def is_alive(self: Any, timeout: timedelta) -> bool:
        """Return whether the last heartbeat is at most `timeout` ago."""
        return bool(datetime.now(UTC) - self.last_heartbeat <= timeout)


class ComputedFullName:
    """A full name that the database computes; a row that is not saved has it too."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __get__(self, row: Any, table: type[Any]) -> Any:
        if row is None:
            return self._column
        name = self._column.__get__(row, table)
        return _full_name(row) if name is None else name

    def __set__(self, row: Any, name: str) -> None:
        self._column.__set__(row, name)


def _full_name(row: Any) -> str:
    return f"{row.room_id}:{row.category}:{row.name}"


SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def refuse_unknown(table: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row. Raises TypeError for a field that the table does not have."""
    fields = table.model_fields
    if unknown := sorted(values.keys() - fields.keys()):
        raise TypeError(f"{table.__name__} has no field {', '.join(unknown)}; it has {', '.join(fields)}")
    return values


class Base(SQLModel, registry=registry(metadata=metadata)):
    """The base class of all tables."""

    metadata: ClassVar[MetaData] = metadata
    __table__: ClassVar[Table]
    # What returns the values of a row that has unknown fields.
    on_unknown: ClassVar[Callable[[Any, dict[str, Any]], dict[str, Any]]] = refuse_unknown

    def __init__(self, **values: Any) -> None:
        """Build a row. Raises TypeError for a field that the table does not have."""
        if not values.keys() <= type(self).model_fields.keys():
            values = Base.on_unknown(type(self), values)
        super().__init__(**values)


def _column(kind: Any, *constraints: Any, key: bool = False, optional: bool = False, **options: Any) -> Any:
    """Return a column without an automatic value: part of the primary key, null by default, or required."""
    column = Column(kind, *constraints, primary_key=key, nullable=optional, autoincrement=False, **options)
    return Field(default=None, sa_column=column) if optional else Field(sa_column=column)


def _default(kind: Any, value: Any, sql: str) -> Any:
    """Return a column with a default, also for the rows of servers of an earlier schema."""
    return Field(default=value, sa_column=Column(kind, nullable=False, server_default=text(sql)))


def _sequence() -> Any:
    """Return the column of numbers that the database counts: the primary key."""
    return Field(default=None, sa_column=Column(SEQUENCE, primary_key=True, autoincrement=True))


def _id() -> Any:
    """Return the column of a UUID that is the primary key."""
    return Field(default_factory=uuid4, sa_column=Column(Uuid, primary_key=True))


def moment(*, nullable: bool = False) -> Any:
    """Return a column of a point in time: null by default, or the time when a host's code builds the row."""
    column = Column(UtcDateTime, nullable=nullable)
    return Field(default_factory=lambda: None if nullable else datetime.now(UTC), sa_column=column)


# SQLite's value of a column of `Payload`, or another one if the task's row has its payload.
PAYLOAD_COLUMN = """CASE {0} WHEN '' THEN (
    SELECT joblib_payload.{2} FROM joblib_payload WHERE joblib_payload.task_seq = {1}
) ELSE {3} END"""


class whole_payload(by_template):
    """``whole_payload(payload, seq)``: the payload of a task, wherever it is."""

    type = JsonText()
    postgresql, sqlite = "{0}", PAYLOAD_COLUMN.format("{0}", "{1}", "content", "{0}")


class PayloadText(JsonText):
    """The column of payloads. A host that selects tasks gets each whole payload.

    From a subquery without `seq` SQLite has short payloads only, and raises ValueError for others.
    """

    cache_ok = True

    def column_expression(self, column: Any) -> Any:
        """Return what is selected instead of the column."""
        source = column.element if isinstance(column, Label) else column
        seq = getattr(getattr(source, "table", None), "c", {}).get("seq")
        return column if seq is None else whole_payload(source, seq)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a processor that refuses the column of a long payload."""
        of_json = super().result_processor(dialect, coltype)
        return of_json if dialect.name == "postgresql" else partial(_short_payload, of_json)


def _short_payload(of_json: Callable[[str | None], Any], text: str | None) -> Any:
    if text == "":
        raise ValueError("the payload is in the table joblib_payload: select seq beside payload, or the Task")
    return of_json(text)


def _optional_text() -> Any:
    """Return a column of text or null, without a limit.

    PostgreSQL takes rows with limited text for wide ones, and a table of them for a short one.
    """
    return _column(Text, optional=True)


def _count() -> Any:
    return _default(BigInteger, 0, "0")


def _partial(name: str, where: str, *columns: str, on_sqlite: str | None = None) -> Index:
    """Return an index of the rows that match a condition."""
    return Index(name, *columns, postgresql_where=text(where), sqlite_where=text(on_sqlite or where))


class Statistic(Base, table=True):
    """What happened to the tasks of a job in `resolution` seconds from `start`; 0 is since the first start.

    The job 0 stands for all jobs. `waiting` and `running` are histograms with the sums of their values;
    `causes` counts failed and lost attempts by error code.
    """

    __tablename__ = "joblib_statistic"
    __table_args__: ClassVar[Any] = (
        Index("ix_joblib_statistic_start", "resolution", "start"),
        {"sqlite_with_rowid": False},
    )

    resolution: int = Field(primary_key=True)
    job_id: UUID = _column(Uuid, key=True)
    start: datetime = _column(UtcDateTime, key=True)
    submitted: int = _count()
    completed: int = _count()
    failed: int = _count()
    cancelled: int = _count()
    retried: int = _count()
    lost: int = _count()
    waiting_seconds: float = _default(Float, 0.0, "0")
    running_seconds: float = _default(Float, 0.0, "0")
    waiting: list[int] = _column(JsonText)
    running: list[int] = _column(JsonText)
    causes: dict[str, int] = _column(JsonText)


class StatisticPosition(Base, table=True):
    """Until which moment of the database's clock the statistics have read; one row, with the key 1.

    Tasks and earlier attempts after `until` have greater numbers than `task_floor` and `attempt_floor`. The
    next floors were the last numbers at `next_at`. The pass that updates the statistics locks the row.
    """

    __tablename__ = "joblib_statistic_position"

    key: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    until: datetime = moment()
    task_floor: int = _count()
    attempt_floor: int = _count()
    next_at: datetime = moment()
    next_task_floor: int = _count()
    next_attempt_floor: int = _count()


class Server(Base, table=True):
    """A server process, as its sweeper reported it last, at `seen_at` of the database's clock.

    `internal_jobs` is a list of the internal jobs for which it has an executor, as JSON; null until it knows,
    and for one of an earlier release.
    """

    __tablename__ = "joblib_server"

    id: UUID = _id()
    host: str = Field(max_length=255)
    pid: int
    version: str = Field(max_length=64)
    started_at: datetime = moment()
    seen_at: datetime = moment()
    sweeper_mode: str | None = Field(default=None, max_length=16)
    sweep_interval_seconds: float
    grace_remaining_seconds: float
    last_good_at: datetime | None = moment(nullable=True)
    internal_jobs: str | None = _optional_text()


class SweepCycle(Base, table=True):
    """The summary of a cycle of a server's sweeper; see `SweeperCycle`."""

    __tablename__ = "joblib_sweep_cycle"
    __table_args__ = (Index(None, "at"),)

    n: int | None = _sequence()
    server_id: UUID = _column(Uuid)
    at: datetime = moment()
    mode: str | None = Field(default=None, max_length=16)
    scanned: int
    stale: int
    expired: int
    released: int
    failed: int
    pruned: int
    errors: int
    elapsed: float
    held_back: bool


class AuditRecord(Base, table=True):
    """An action of an operator or of a room's user, written in the transaction of the action.

    `target` is what the action changed: the id of a task or worker, the name of a job, or a filter.
    """

    __tablename__ = "joblib_audit"
    __table_args__ = (Index(None, "at"), Index(None, "room_id", "n"))

    n: int | None = _sequence()
    at: datetime = moment()
    actor: str
    action: str = Field(max_length=64)
    room_id: str | None = Field(default=None, max_length=128)
    target: str = _column(Text)
    detail: dict[str, Any] | None = _column(JsonText, optional=True)
    request_id: str | None = Field(default=None, max_length=128)


class AttemptDetailRecord(Base, table=True):
    """The progress of an attempt, the counts of its log, and the failure that ended it.

    `log_last` is the number of the log's last line. `log_lines` and `log_bytes` count what `TaskLogPart` has.
    `failure` is a `Failure` as JSON without its full traceback. Writers hold the lock of the task.
    """

    __tablename__ = "joblib_attempt_detail"

    task_seq: int = _column(BigInteger, key=True)
    attempt: int = _column(Integer, key=True)
    progress: dict[str, Any] | None = _column(JsonText, optional=True)
    progress_at: datetime | None = moment(nullable=True)
    log_last: int = _default(Integer, 0, "0")
    log_lines: int = _default(Integer, 0, "0")
    log_bytes: int = _default(Integer, 0, "0")
    failure: dict[str, Any] | None = _column(JsonText, optional=True)
    full_traceback: str | None = _column(JsonText, optional=True)


class TaskLogPart(Base, table=True):
    """Consecutive lines of an attempt's log, with the numbers `first` to `last`.

    `lines` is a JSON list of `size` bytes.
    """

    __tablename__ = "joblib_task_log"

    task_seq: int = _column(BigInteger, key=True)
    attempt: int = _column(Integer, key=True)
    first: int = _column(Integer, key=True)
    last: int
    size: int
    lines: str = _column(Text)


class UnnamedTask(Base, table=True):
    """An attempt of a held task that its worker's heartbeats have not named since `unnamed_since`.

    Rows are rare: they are deleted when the worker names the task again, or the attempt has ended.
    """

    __tablename__ = "joblib_unnamed_task"

    task_seq: int = _column(BigInteger, key=True)
    attempt: int
    unnamed_since: datetime = moment()


# The tables of task results, whose content is in a `ContentStore`, and of the database's result backend.


class TaskResult(Base, table=True):
    """The stored result of a task; or, without `task_seq`, content that is being uploaded or to be deleted.

    The content is `size` bytes under `content_key`, which is null after the content was deleted. The sweeper
    deletes the content after `expires_at`; a running upload postpones this time. At `check_at` the sweeper
    checks whether the attempt has completed; `check_at` is null once it has. A transaction that sets
    `task_seq` holds the lock of the task. The bytes count for `user_id`, who submitted the task. Of an upload
    that has failed `attempt` is -1: it becomes no result, and counts no bytes once its content was deleted.
    """

    __tablename__ = "joblib_task_result"
    __table_args__ = (
        _partial("ix_joblib_task_result_expiring", "content_key IS NOT NULL", "expires_at"),
        _partial("ix_joblib_task_result_check", "check_at IS NOT NULL", "check_at"),
        _partial("ix_joblib_task_result_loose", "task_seq IS NULL AND content_key IS NOT NULL", "n"),
    )

    n: int | None = _sequence()
    task_seq: int | None = _column(BigInteger, optional=True, unique=True)
    attempt: int
    content_key: str | None = Field(default=None, max_length=64)
    size: int = _column(BigInteger)
    content_type: str = Field(max_length=255)
    etag: str = Field(max_length=64)
    filename: str | None = _optional_text()
    expires_at: datetime = moment()
    check_at: datetime | None = moment(nullable=True)
    user_id: str | None = _optional_text()


class TaskResultTotal(Base, table=True):
    """The sum of the sizes of all `TaskResult` with content, in one row."""

    __tablename__ = "joblib_task_result_total"
    __table_args__ = (CheckConstraint("size >= 0", "size_counts"),)

    id: int = _column(BigInteger, key=True)
    size: int = _column(BigInteger)


class TaskResultShare(Base, table=True):
    """The sum of the sizes of all `TaskResult` with content that count for a user."""

    __tablename__ = "joblib_task_result_share"
    __table_args__ = (CheckConstraint("size >= 0", "size_counts"),)

    user_id: str = _column(Text, key=True)
    size: int = _column(BigInteger)


class Result(Base, table=True):
    """A value of the database's result backend: bytes in parts or, without `size`, a lock."""

    __tablename__ = "joblib_result"
    __table_args__ = (Index(None, "expires_at"),)

    n: int | None = _sequence()
    key: str = _column(Text, unique=True)
    size: int | None = _column(BigInteger, optional=True)
    expires_at: datetime = moment()


class ResultPart(Base, table=True):
    """A part of the bytes of a `Result`, ordered by `part`."""

    __tablename__ = "joblib_result_part"

    result_n: int = _column(BigInteger, key=True)
    part: int = Field(primary_key=True)
    data: bytes


# The tables of the event logs of watched rooms.


class RoomStream(Base, table=True):
    """A room whose events are recorded, because a client watches it or has watched it until lately.

    Events have the numbers after `last_n`; those up to `first_n` were deleted. `size` is the bytes of all
    events that are kept; writers delete the oldest beyond `max_events` and `max_bytes`. A writer locks the
    row with its last statements, so that numbers follow the order of the commits.
    """

    __tablename__ = "joblib_room_stream"

    room_id: str = Field(primary_key=True, max_length=128)
    first_n: int = _column(BigInteger)
    last_n: int = _column(BigInteger)
    size: int = _column(BigInteger)
    max_events: int
    max_bytes: int = _column(BigInteger)
    watched_until: datetime = moment()
    # The room counts for the share of this user.
    watched_by: str | None = _optional_text()
    # The events that the room's webhooks want, separated by spaces; null without a webhook.
    webhook_events: str | None = _optional_text()


class RoomEvent(Base, table=True):
    """An event of a watched room: `data` is a JSON object of `size` bytes."""

    __tablename__ = "joblib_room_event"
    __table_args__: ClassVar[Any] = (Index("ix_joblib_room_event_task", "task_id", "n"),)

    room_id: str = Field(primary_key=True, max_length=128)
    n: int = _column(BigInteger, key=True)
    task_id: UUID = _column(Uuid)
    at: datetime = moment()
    kind: str = Field(max_length=16)
    size: int
    data: str = _column(Text)


# The tables of jobs, workers, tasks, providers and requests.


def _among(column: str, values: frozenset[TaskStatus]) -> str:
    listed = ", ".join(sorted(f"'{value.value}'" for value in values))
    return f"{column} IN ({listed})"


_FULL_NAME = "room_id || ':' || category || ':' || name"
_QUEUED = "status = 'pending' AND run_at IS NULL"
# The condition that always holds keeps the index of all queues from statements that read one of them.
_IN_FRONT = f"{_QUEUED} AND attempt >= 0"
_LIMITED = f"{_QUEUED} AND limit_key IS NOT NULL"
_HOOKED = "on_end IS NOT NULL AND completed_at IS NOT NULL"
# A task holds its key until it ends or starts for the first time; or, without `unique_until`, until a later
# submit finds that its time is over. A retry by hand may let it hold the key again.
KEY_IS_HELD = f"""unique_id IS NOT NULL AND (unique_until IS NULL OR (completed_at IS NULL AND (
    unique_until = 'ended'
    OR (
        started_at IS NULL
        AND attempt = unstarted + CASE WHEN status = '{TaskStatus.CLAIMED}' THEN 1 ELSE 0 END
    )
)))"""
_LIVE_OF_SCHEDULE = "schedule IS NOT NULL AND completed_at IS NULL"
# SQLite uses the index of a group's tasks by status in statements that have this condition as it stands here.
SHOWN_OF_GROUP = _among("status", frozenset({*HELD, TaskStatus.FAILED}))
_UNSUCCESSFUL = _among("status", frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED}))


def _zero() -> Any:
    return Field(default=0, sa_column_kwargs={"server_default": text("0")})


def _no() -> Any:
    return Field(default=False, sa_column_kwargs={"server_default": false()})


class Job(Base, table=True):
    """A named function with a schema. It is soft-deleted only, so that the history of its tasks stays.

    `pending` counts the tasks in its queue, `scheduled` those with a later `run_at`; the functions that write
    a task's status keep both. `deleted_at` is when it was soft-deleted. `policy` is a `JobPolicy` as JSON,
    null for the default; `max_in_flight` is part of it. `has_lanes` is set once a task with a priority other
    than 0 was submitted. `fair_round` and `fair_room` are the turn of the last fair claim: rooms take turns
    in the order of their names. `without_workers` is part of the policy too, null for the server's default;
    it is not in `policy`. `limits` has the other limits of the policy, and `keep` how long ended tasks are
    kept; both are null without any. `unserved_since` is
    when the last worker left, null while one serves the job, and `registered_by` is the user who registered
    it last. It is `paused` until `paused_until`, if that is set.

    A row is a version of the job, with a queue of its own. All but the current one are `superseded`, and
    count as deleted; what is of the whole job, as the policy, is the same in all. `first_id` is the id of the
    first version, null in its own row.

    Tasks with requirements of their own are in queues of their own: `requires` has them as JSON, null in the
    row of the version. `job_version` is the number of the queue, see `ports.version_of`. `cost` is
    how many slots of its worker a task of the queue takes, null for one. `masked` has the
    paths to the secret values of payloads, see `wire.masks`; null without any.
    """

    __tablename__ = "joblib_job"
    __table_args__ = (
        Index(None, "room_id", "category", "name"),
        Index(None, "full_name"),
        Index(
            "uq_joblib_job_full_name",
            "full_name",
            unique=True,
            postgresql_where=text("NOT superseded"),
            sqlite_where=text("NOT superseded"),
        ),
        CheckConstraint("pending >= 0", "pending_counts"),
        CheckConstraint("scheduled >= 0", "scheduled_counts"),
        _partial("ix_joblib_job_deleted", "deleted", "id", on_sqlite="deleted = 1"),
        _partial("ix_joblib_job_unserved", "unserved_since IS NOT NULL", "unserved_since"),
        _partial("ix_joblib_job_paused_until", "paused_until IS NOT NULL", "paused_until"),
        _partial("ix_joblib_job_keep", "keep IS NOT NULL", "id"),
    )

    id: UUID = _id()
    room_id: str = Field(max_length=128)
    category: str = Field(max_length=128)
    name: str = Field(max_length=128)
    full_name: str = _column(Text, Computed(_FULL_NAME, persisted=True))
    schema_: dict[str, Any] = _column("schema", JsonText)
    created_at: datetime = moment()
    deleted: bool = False
    deleted_at: datetime | None = moment(nullable=True)
    pending: int = 0
    scheduled: int = _zero()
    paused: bool = _no()
    has_lanes: bool = _no()
    fair_round: int = _count()
    fair_room: str = _default(String(128), "", "''")
    policy: str | None = _optional_text()
    max_in_flight: int | None = None
    limits: str | None = _optional_text()
    without_workers: str | None = Field(default=None, max_length=8)
    unserved_since: datetime | None = moment(nullable=True)
    registered_by: str | None = _optional_text()
    paused_until: datetime | None = moment(nullable=True)
    job_version: int = _default(Integer, 1, "1")
    first_id: UUID | None = _column(Uuid, optional=True)
    superseded: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))
    keep: str | None = _optional_text()
    requires: str | None = _optional_text()
    cost: int | None = None
    masked: str | None = _optional_text()


Job.full_name = ComputedFullName(Job.full_name)  # type: ignore[assignment]


class Worker(Beating, Base, table=True):
    """A remote process that claims tasks. It expires by the age of `last_heartbeat` alone.

    From `name` on, the columns have what the process says about itself; `slots` is how many tasks it can run
    at once. `ends_at` is when its allocation ends, as its claims say; null if they do not.
    """

    __tablename__ = "joblib_worker"
    __table_args__ = (Index(None, "last_heartbeat"), Index(None, "created_at"))

    id: UUID = _id()
    owner_id: str
    created_at: datetime = moment()
    last_heartbeat: datetime = moment()
    draining: bool = _no()
    max_tasks: int | None = None
    name: str | None = _optional_text()
    host: str | None = _optional_text()
    pid: int | None = None
    version: str | None = _optional_text()
    slots: int | None = None
    labels: dict[str, Any] | None = _column(JsonText, optional=True)
    ends_at: datetime | None = moment(nullable=True)


class WorkerJobLink(Base, table=True):
    """The link of a worker to a job that it serves."""

    __tablename__ = "joblib_worker_job"

    worker_id: UUID = _column(Uuid, ForeignKey("joblib_worker.id"), key=True)
    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"), key=True, index=True)


class UnfitWorker(Base, table=True):
    """A worker that is registered for a version of a job, and lacks labels that the job's policy requires."""

    __tablename__ = "joblib_unfit_worker"

    worker_id: UUID = _column(Uuid, ForeignKey("joblib_worker.id"), key=True)
    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"), key=True, index=True)


class Task(Base, table=True):
    """One call of a job.

    `seq` is the order of submission; `attempt` is the fencing token, which grows with every claim. `lane` is
    the negated priority: a queue is ordered by `lane`, then by `seq`. While `run_at` is set, a pending task
    is in no queue. `failures` and `crashes` count failed attempts, `unstarted` claims that never started. A
    held task must have started, or ended, by its `deadline`. `worker_id` and `worker_owner_id` outlive the
    worker. `queued_at` is null until the task enters its queue again, `on_end` after it was called.

    `unique_id` is the digest of the unique key `unique_text`. The task holds the key until it has ended or
    started, as `unique_until` says, or until `unique_expires_at`.
    `schedule` is the name of the schedule of its room that submitted it, `due_at` the due time.
    `limit_key` has the digests of its values of the keys of its job's limits; null if the job had no limits.
    A task that waits for others has a `run_at` that no submit can name: see `Successor`.
    `linked` is null unless its end concerns successors, or webhooks of its submit. A transaction
    that adds such a successor locks the task, and changes this column.
    `parent` is the id of the task that has submitted it, `root` that of the first task of its tree. Both stay
    after those are deleted. `tags` is a list; `TaskTag` has them too, for searches.
    `group_id` is the group that it was submitted to.
    """

    __tablename__ = "joblib_task"
    __table_args__ = (
        CheckConstraint(_among("status", frozenset(TaskStatus)), "status_known"),
        CheckConstraint(
            f"(completed_at IS NOT NULL) = ({_among('status', TERMINAL)})", "completed_when_terminal"
        ),
        CheckConstraint(
            "status <> 'pending' OR (worker_id IS NULL AND started_at IS NULL)", "pending_is_free"
        ),
        CheckConstraint(f"NOT ({_among('status', HELD)}) OR claimed_at IS NOT NULL", "held_was_claimed"),
        CheckConstraint(
            "status NOT IN ('running', 'completed') OR started_at IS NOT NULL", "running_was_started"
        ),
        CheckConstraint("attempt >= 0", "attempt_counts"),
        _partial("ix_joblib_task_queue", _QUEUED, "job_id", "lane", "seq"),
        _partial("ix_joblib_task_front", _IN_FRONT, "lane", "seq"),
        _partial("ix_joblib_task_turn", _QUEUED, "job_id", "room_id", "lane", "seq"),
        _partial("ix_joblib_task_limited", _LIMITED, "job_id", "room_id", "limit_key", "lane", "seq"),
        _partial("ix_joblib_task_scheduled", "status = 'pending' AND run_at IS NOT NULL", "run_at"),
        _partial("ix_joblib_task_expiring", "status = 'pending' AND expires_at IS NOT NULL", "expires_at"),
        _partial("ix_joblib_task_held", _among("status", HELD), "worker_id"),
        Index("ix_joblib_task_room", "room_id", "created_at", "seq"),
        Index("ix_joblib_task_room_status", "room_id", "status", "created_at", "seq"),
        Index("ix_joblib_task_job_room", "job_id", "room_id", "created_at", "seq"),
        _partial("ix_joblib_task_ended", "completed_at IS NOT NULL", "completed_at", "seq"),
        _partial("ix_joblib_task_unsuccessful", _UNSUCCESSFUL, "status", "seq"),
        _partial("ix_joblib_task_group", "group_id IS NOT NULL", "group_id", "seq"),
        _partial(
            "ix_joblib_task_group_status",
            f"group_id IS NOT NULL AND {SHOWN_OF_GROUP}",
            *("group_id", "status", "seq"),
        ),
        Index(
            "ix_joblib_task_schedule",
            *("room_id", "schedule", "due_at"),
            unique=True,
            postgresql_where=text("schedule IS NOT NULL"),
            sqlite_where=text("schedule IS NOT NULL"),
        ),
        _partial("ix_joblib_task_schedule_live", _LIVE_OF_SCHEDULE, "room_id", "schedule"),
        _partial("ix_joblib_task_parent", "parent IS NOT NULL", "parent", "seq"),
        _partial("ix_joblib_task_root", "root IS NOT NULL", "root", "seq"),
        _partial(
            "ix_joblib_task_on_end",
            "on_end IS NOT NULL AND completed_at IS NOT NULL",
            "on_end",
            "on_end_due_at",
        ),
        Index(
            "uq_joblib_task_unique_id",
            "unique_id",
            unique=True,
            postgresql_where=text(KEY_IS_HELD),
            sqlite_where=text(KEY_IS_HELD),
        ),
    )

    seq: int | None = _sequence()
    id: UUID = Field(default_factory=uuid4, sa_column=Column(Uuid, unique=True, nullable=False))
    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"))
    room_id: str = Field(max_length=128)
    status: str = TaskStatus.PENDING.value
    created_by: str
    payload: dict[str, Any] = _column(PayloadText)
    created_at: datetime = moment()
    claimed_at: datetime | None = moment(nullable=True)
    started_at: datetime | None = moment(nullable=True)
    completed_at: datetime | None = moment(nullable=True)
    worker_id: UUID | None = _column(Uuid, optional=True)
    worker_owner_id: str | None = None
    attempt: int = 0
    error: str | None = _optional_text()
    result: Any = _column(JsonText, optional=True)
    lane: int = _zero()
    run_at: datetime | None = moment(nullable=True)
    expires_at: datetime | None = moment(nullable=True)
    deadline: datetime | None = moment(nullable=True)
    max_attempts: int | None = None
    failures: int = _zero()
    crashes: int = _zero()
    unstarted: int = _default(Integer, 0, "0")
    claim_id: UUID | None = _column(Uuid, optional=True)
    error_code: str | None = Field(default=None, max_length=64)
    queued_at: datetime | None = moment(nullable=True)
    traceparent: str | None = Field(default=None, max_length=64)
    on_end: str | None = _optional_text()
    on_end_attempts: int | None = None
    on_end_due_at: datetime | None = moment(nullable=True)
    unique_id: UUID | None = _column(Uuid, optional=True)
    unique_text: str | None = _optional_text()
    unique_until: str | None = _optional_text()
    unique_expires_at: datetime | None = moment(nullable=True)
    schedule: str | None = Field(default=None, max_length=128)
    due_at: datetime | None = moment(nullable=True)
    limit_key: str | None = _optional_text()
    linked: bool | None = None
    group_id: UUID | None = _column(Uuid, optional=True)
    parent: UUID | None = _column(Uuid, optional=True)
    root: UUID | None = _column(Uuid, optional=True)
    tags: list[str] | None = _column(JsonText, optional=True)


class TaskTag(Base, table=True):
    """A tag of a task of a room. Its rows are deleted with the task."""

    __tablename__ = "joblib_task_tag"
    __table_args__ = (Index(None, "tag", "task_seq"), Index(None, "room_id", "tag", "task_seq"))

    task_seq: int = _column(BigInteger, key=True)
    tag: str = Field(primary_key=True, max_length=64)
    room_id: str = Field(max_length=128)


class Payload(Base, table=True):
    """A long payload of a task, of `size` bytes, on SQLite: the column of the task's row is empty then.

    SQLite writes a whole row again when one column changes. PostgreSQL does not: there the table is empty.
    """

    __tablename__ = "joblib_payload"

    task_seq: int = _column(SEQUENCE, key=True)
    size: int
    content: str = _column(Text)


class Group(Base, table=True):
    """A group of tasks of a room: it ends once, when it is `sealed` and all its tasks have ended.

    At `due_at` an open group expires, or is sealed: null once neither is to happen. `on_end` is a
    `GroupOnEnd` as JSON, `on_end_schema` the digest of the schema that its payload was checked against, and
    `on_end_task` the task that was submitted at the end; `error` is why it was not. `task_id` is the task
    whose token has made the group, which has only children of this task. `masked` is like that of a schedule,
    for the payload of `on_end`.
    Writers that add tasks lock the row for a share, those that may end it for themselves: after tasks, before
    jobs.
    """

    __tablename__ = "joblib_group"
    __table_args__ = (
        Index("ix_joblib_group_room", "room_id", "n"),
        _partial("ix_joblib_group_due", "due_at IS NOT NULL", "due_at"),
        _partial("ix_joblib_group_open", "ended_at IS NULL", "created_by"),
        _partial("ix_joblib_group_ended", "ended_at IS NOT NULL", "ended_at"),
        _partial("ix_joblib_group_error", "error IS NOT NULL", "n"),
    )

    n: int | None = _sequence()
    id: UUID = Field(default_factory=uuid4, sa_column=Column(Uuid, unique=True, nullable=False))
    room_id: str = Field(max_length=128)
    name: str | None = _optional_text()
    created_by: str = _column(Text)
    created_at: datetime = moment()
    sealed: bool = _no()
    expires_at: datetime | None = moment(nullable=True)
    due_at: datetime | None = moment(nullable=True)
    ended_at: datetime | None = moment(nullable=True)
    on_end: str | None = _optional_text()
    on_end_schema: str | None = Field(default=None, max_length=64)
    on_end_task: UUID | None = _column(Uuid, optional=True)
    error: str | None = _optional_text()
    task_id: UUID | None = _column(Uuid, optional=True)
    masked: str | None = _optional_text()


class GroupCount(Base, table=True):
    """How many tasks of a group are open, that is have not ended, and how many ended with each status.

    A reader sums the stripes. A stripe's `open` is a share of the group's: a writer that ends fewer tasks
    than the share of its stripe changes this row alone, and cannot be the last. The others lock the group.
    """

    __tablename__ = "joblib_group_count"
    __table_args__: ClassVar[Any] = {"sqlite_with_rowid": False}

    group_id: UUID = _column(Uuid, key=True)
    stripe: int = Field(primary_key=True)
    open: int
    completed: int
    failed: int
    cancelled: int


class Successor(Base, table=True):
    """What a task does that waits for others, or has waited: it was put into its queue at `released_at`.

    Until then its `run_at` is `WAITING`, and the one that its submit named is here. `fills`: its payload has
    values that are results of predecessors. Writers hold the lock of the task.
    """

    __tablename__ = "joblib_successor"

    task_seq: int = _column(SEQUENCE, key=True)
    on_failure: str = Field(max_length=16)
    run_at: datetime | None = moment(nullable=True)
    fills: bool = _no()
    released_at: datetime | None = moment(nullable=True)


class Edge(Base, table=True):
    """A predecessor of a task: `source` is the `seq` of a task, or the negated `n` of a group.

    `position` counts the predecessors of a task, and `predecessor` is the id of the task or group. `status`
    is how it ended last, as far as that was handled. While `is_open`, the task waits for it. A transaction
    that adds a row has locked the predecessor: those that end it see the row, or end it before.
    """

    __tablename__ = "joblib_edge"
    __table_args__: ClassVar[Any] = (
        _partial("ix_joblib_edge_open", "is_open", "source", "task_seq"),
        Index("ix_joblib_edge_source", "source", "task_seq"),
        {"sqlite_with_rowid": False},
    )

    task_seq: int = _column(BigInteger, key=True)
    source: int = _column(BigInteger, key=True)
    position: int
    predecessor: UUID = _column(Uuid)
    status: str | None = Field(default=None, max_length=16)
    is_open: bool = _no()


class Wave(Base, table=True):
    """A predecessor that has ended: the tasks that wait for it are yet to be handled.

    With `cancels` they are cancelled, also by other rows of the same source. The transaction of the end adds
    the row. Rooms take turns; those of servers of an earlier release have none.
    """

    __tablename__ = "joblib_wave"
    __table_args__ = (Index(None, "room_id", "n"), _partial("ix_joblib_wave_cancels", "cancels", "source"))

    n: int | None = _sequence()
    source: int = _column(BigInteger)
    cancels: bool = _no()
    room_id: str = _default(String(128), "", "''")


class Schedule(Base, table=True):
    """A schedule of a room: it submits tasks of a job at due times.

    `spec` is a `ScheduleTimes` as JSON. Intervals are counted from `anchor_at`. At `next_due_at` the next
    task is due; null after the last one. A writer that submits its tasks has locked the job, then the row.
    `masked` has the paths to the secret values of its payload by the schemas that the job had when it was
    written, see `wire.masks`.
    """

    __tablename__ = "joblib_schedule"
    __table_args__ = (
        UniqueConstraint("room_id", "name"),
        _partial("ix_joblib_schedule_due", "next_due_at IS NOT NULL AND NOT paused", "next_due_at"),
        _partial("ix_joblib_schedule_failing", "error IS NOT NULL AND NOT paused", "error_at"),
        _partial("ix_joblib_schedule_ran", "last_task_id IS NOT NULL AND NOT paused", "last_due_at"),
        Index(None, "owner_id"),
    )

    id: UUID = _id()
    room_id: str = Field(max_length=128)
    name: str = Field(max_length=128)
    owner_id: str
    job_name: str = _column(Text)
    spec: str = _column(Text)
    paused: bool = _no()
    created_at: datetime = moment()
    updated_at: datetime = moment()
    anchor_at: datetime = moment()
    next_due_at: datetime | None = moment(nullable=True)
    last_due_at: datetime | None = moment(nullable=True)
    last_task_id: UUID | None = _column(Uuid, optional=True)
    error: str | None = _optional_text()
    error_at: datetime | None = moment(nullable=True)
    masked: str | None = _optional_text()


_IS_DUE = "due_at IS NOT NULL"


class Webhook(Base, table=True):
    """A target of events: a webhook of a room, or without a `name` that of tasks, by a digest in `target`.

    `events` are their names, separated by spaces. `previous_secret` signs too until `previous_until`. At
    `due_at` a server delivers the first waiting row of its outbox, or looks again whether one has stopped
    (`lease`); null while no row waits. A transaction that adds rows holds the row with FOR KEY SHARE, one
    that sets `due_at` to null with FOR UPDATE.
    """

    __tablename__ = "joblib_webhook"
    __table_args__ = (
        UniqueConstraint("room_id", "name"),
        _partial("ix_joblib_webhook_due", f"{_IS_DUE} AND failures = 0", "due_at"),
        _partial("ix_joblib_webhook_due_of_owner", f"{_IS_DUE} AND failures = 0", "owner_id", "due_at"),
        _partial("ix_joblib_webhook_failing", f"{_IS_DUE} AND failures > 0", "due_at"),
        _partial("ix_joblib_webhook_failing_of_owner", f"{_IS_DUE} AND failures > 0", "owner_id", "due_at"),
        _partial("ix_joblib_webhook_disabled", "disabled_at IS NOT NULL AND name IS NOT NULL", "disabled_at"),
        Index(None, "owner_id"),
    )

    n: int | None = _sequence()
    webhook_id: UUID = _column(Uuid, unique=True)
    room_id: str = Field(max_length=128)
    name: str | None = Field(default=None, max_length=128)
    owner_id: str
    url: str = _column(Text)
    events: str = _column(Text)
    secret: str | None = _optional_text()
    previous_secret: str | None = _optional_text()
    previous_until: datetime | None = moment(nullable=True)
    created_at: datetime = moment()
    updated_at: datetime = moment()
    used_at: datetime = moment()
    disabled_at: datetime | None = moment(nullable=True)
    disabled_reason: str | None = _optional_text()
    failures: int = _zero()
    last_error: str | None = _optional_text()
    due_at: datetime | None = moment(nullable=True)
    lease: UUID | None = _column(Uuid, optional=True)


class TaskWebhook(Base, table=True):
    """The target that a task's submit named."""

    __tablename__ = "joblib_task_webhook"

    task_seq: int = _column(BigInteger, key=True)
    webhook_n: int = _column(BigInteger, index=True)


class OutboxRow(Base, table=True):
    """An event for a webhook, written in the transaction of the event. It waits while `ended_at` is null.

    Rows of a webhook are delivered in the order of `seq`. `message` is the same in repeats. `status_code`
    and `error` are those of the last attempt.
    """

    __tablename__ = "joblib_outbox"
    __table_args__ = (
        _partial("ix_joblib_outbox_waiting", "ended_at IS NULL", "webhook_n", "seq"),
        Index("ix_joblib_outbox_room", "room_id", "seq"),
        _partial("ix_joblib_outbox_task", "task_id IS NOT NULL", "task_id", "seq"),
        Index(None, "created_at"),
    )

    seq: int | None = _sequence()
    webhook_n: int = _column(BigInteger)
    room_id: str = Field(max_length=128)
    webhook: str | None = Field(default=None, max_length=128)
    message: UUID = _column(Uuid)
    event: str = Field(max_length=64)
    task_id: UUID | None = _column(Uuid, optional=True)
    body: str = _column(Text)
    created_at: datetime = moment()
    attempts: int = _zero()
    attempted_at: datetime | None = moment(nullable=True)
    ended_at: datetime | None = moment(nullable=True)
    delivered: bool = _no()
    status_code: int | None = None
    error: str | None = _optional_text()


class Pause(Base, table=True):
    """A room whose tasks are not claimed until `until`, if that is set; with an empty id, the whole queue.

    A row may outlive its `until`: readers compare it with the time.
    """

    __tablename__ = "joblib_pause"

    room_id: str = Field(primary_key=True, max_length=128)
    until: datetime | None = moment(nullable=True)
    paused_at: datetime = moment()
    paused_by: str = _column(Text)


class SubmitRate(Base, table=True):
    """When the token bucket of a user's submits is full, and when that was written; full without a row.

    Both are in microseconds since 1970.
    """

    __tablename__ = "joblib_submit_rate"
    __table_args__ = (Index(None, "full_at"),)

    user_id: str = _column(Text, key=True)
    full_at: int = _column(BigInteger)
    written_at: int | None = _column(BigInteger, optional=True)


class RoomQueue(Base, table=True):
    """The tasks of one room in the queue of one job; (`lane`, `seq`) is a lower bound of the first one.

    Every queued task has the row of its job and room. Writers hold the lock of the job. A task that leaves
    its queue changes no row: a claim by room moves the row to its next task, or deletes it.
    """

    __tablename__ = "joblib_room_queue"
    __table_args__ = (Index("ix_joblib_room_queue_place", "job_id", "lane", "seq"), Index(None, "room_id"))

    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"), key=True)
    room_id: str = Field(primary_key=True, max_length=128)
    lane: int
    seq: int = _column(BigInteger)


# The tables of the limits of jobs.


class Limit(Base, table=True):
    """A limit that jobs share by its name: `spec` is a `LimitValues` as JSON.

    Writers that reserve its slots and tokens hold the lock of the row, after those of jobs.
    """

    __tablename__ = "joblib_limit"

    name: str = Field(primary_key=True, max_length=64)
    spec: str = _column(Text)
    created_at: datetime = moment()
    updated_at: datetime = moment()
    updated_by: str = _column(Text)


class LimitBucket(Base, table=True):
    """The state of a rate for one value of a limit's key: when the next token would be due without a burst.

    Without a row the rate was not used lately.
    """

    __tablename__ = "joblib_limit_bucket"
    __table_args__ = (Index(None, "next_at"),)

    id: UUID = _id()
    next_at: datetime = moment()


class LimitSlot(Base, table=True):
    """A slot of a concurrency limit, for one value of its key, that a task holds.

    Whatever ends the attempt sets `freed`; the next claim of the job `job_id` deletes the row, and so knows
    which tasks may be claimed now.
    """

    __tablename__ = "joblib_limit_slot"
    __table_args__ = (
        _partial("ix_joblib_limit_slot_held", "NOT freed", "bucket_id"),
        _partial("ix_joblib_limit_slot_freed", "freed", "job_id"),
    )

    task_seq: int = _column(BigInteger, key=True)
    bucket_id: UUID = _column(Uuid, key=True)
    job_id: UUID = _column(Uuid)
    freed: bool = _no()


class LimitQueue(Base, table=True):
    """The tasks of one room and one `limit_key` in the queue of a job; (`lane`, `seq`) as in `RoomQueue`.

    The key is `-` for tasks without one. `blocked_by` is the bucket of a limit that allows none of them now.
    Writers hold the lock of the job. A claim moves the row to its next task, or deletes it.
    """

    __tablename__ = "joblib_limit_queue"
    __table_args__ = (
        _partial("ix_joblib_limit_queue_open", "blocked_by IS NULL", "job_id", "lane", "seq"),
        _partial("ix_joblib_limit_queue_room", "blocked_by IS NULL", "job_id", "room_id", "lane", "seq"),
        _partial(
            "ix_joblib_limit_queue_blocked", "blocked_by IS NOT NULL", "job_id", "blocked_by", "lane", "seq"
        ),
    )

    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"), key=True)
    room_id: str = Field(primary_key=True, max_length=128)
    limit_key: str = Field(primary_key=True, max_length=256)
    lane: int
    seq: int = _column(BigInteger)
    blocked_by: UUID | None = _column(Uuid, optional=True)


class LimitWait(Base, table=True):
    """A bucket that blocks tasks of a job: with a full rate until `ready_at`, else until a slot is freed.

    With `is_due` the next claim of the job looks at its tasks again.
    """

    __tablename__ = "joblib_limit_wait"
    __table_args__ = (
        _partial("ix_joblib_limit_wait_due", "is_due", "job_id"),
        _partial("ix_joblib_limit_wait_rate", "ready_at IS NOT NULL", "job_id", "ready_at"),
        _partial("ix_joblib_limit_wait_ready", "NOT is_due AND ready_at IS NOT NULL", "ready_at"),
        Index(None, "bucket_id"),
        _partial("ix_joblib_limit_wait_name", "name IS NOT NULL", "name"),
    )

    job_id: UUID = _column(Uuid, ForeignKey("joblib_job.id"), key=True)
    bucket_id: UUID = _column(Uuid, key=True)
    name: str | None = Field(default=None, max_length=64)
    ready_at: datetime | None = moment(nullable=True)
    is_due: bool = _no()


class RoomCount(Base, table=True):
    """How many tasks of a job a room has: all, and those of three statuses. Readers sum its parts."""

    __tablename__ = "joblib_room_count"
    __table_args__: ClassVar[Any] = (Index(None, "job_id", "room_id"), {"sqlite_with_rowid": False})

    room_id: str = Field(primary_key=True, max_length=128)
    job_id: UUID = _column(Uuid, key=True)
    part: int = Field(primary_key=True)
    total: int
    pending: int
    failed: int
    cancelled: int


class QueueBlock(Base, table=True):
    """How many tasks with these high bits of `seq` are in a lane of a job's queue; 0 without a row."""

    __tablename__ = "joblib_queue_block"
    __table_args__: ClassVar[Any] = {"sqlite_with_rowid": False}

    job_id: UUID = _column(Uuid, key=True)
    lane: int = Field(primary_key=True)
    block: int = _column(BigInteger, key=True)
    queued: int


class Attempt(Base, table=True):
    """An earlier attempt of a task, or the end that a manual retry replaced.

    The current or last attempt is in the task's own row, so most tasks have no row here.
    """

    __tablename__ = "joblib_attempt"
    __table_args__ = (Index(None, "task_seq"),)

    n: int | None = _sequence()
    task_seq: int = _column(BigInteger)
    attempt: int
    status: str
    worker_id: UUID | None = _column(Uuid, optional=True)
    claimed_at: datetime | None = moment(nullable=True)
    started_at: datetime | None = moment(nullable=True)
    completed_at: datetime | None = moment(nullable=True)
    ended_at: datetime = moment()
    run_at: datetime | None = moment(nullable=True)
    error_code: str | None = Field(default=None, max_length=64)
    error: str | None = _optional_text()
    reason: str = Field(max_length=64)
    queued_at: datetime | None = moment(nullable=True)


class ProviderRecord(Named, Base, table=True):
    """A remote data source. `worker_id`, `schema` and `content_type` belong to its newest registration.

    `registration` changes with each registration: results of earlier ones are not used. Until
    `connected_until` its worker counts as connected. One of ``@internal`` has no worker.
    """

    __tablename__ = "joblib_provider"
    __table_args__ = (UniqueConstraint("room_id", "category", "name"), Index(None, "worker_id"))

    id: UUID = _id()
    room_id: str = Field(max_length=128)
    category: str = Field(max_length=128)
    name: str = Field(max_length=128)
    schema_: dict[str, Any] = Field(
        default_factory=dict, sa_column=Column("schema", JsonText, nullable=False)
    )
    content_type: str = Field(default="application/json", max_length=255)
    owner_id: str
    worker_id: UUID | None = Field(sa_column=Column(Uuid, ForeignKey("joblib_worker.id"), nullable=True))
    registration: UUID = Field(default_factory=uuid4)
    created_at: datetime = moment()
    connected_until: datetime = moment()


class ProviderWorkerLink(Base, table=True):
    """The registration of a worker for a provider. If the newest is deleted, the one before is used."""

    __tablename__ = "joblib_provider_worker"

    n: int | None = _sequence()
    provider_id: UUID = _column(Uuid, ForeignKey("joblib_provider.id"), index=True)
    worker_id: UUID = _column(Uuid, ForeignKey("joblib_worker.id"), index=True)
    schema_: dict[str, Any] = _column("schema", JsonText)
    content_type: str = Field(max_length=255)


class ProviderRequestRecord(Base, table=True):
    """An open request to a provider. Its result is wanted until `expires_at`.

    `registration` is the provider's registration when it was made; `claimed_by` the worker that claimed it;
    `user_id` the user who asked first, None for the server itself.
    """

    __tablename__ = "joblib_provider_call"
    __table_args__ = (UniqueConstraint("provider_id", "request_hash"), Index(None, "expires_at"))

    n: int | None = _sequence()
    provider_id: UUID = _column(Uuid, ForeignKey("joblib_provider.id"))
    request_hash: str = Field(max_length=128)
    params: str = _column(Text)
    registration: UUID
    sent_at: datetime = moment()
    expires_at: datetime = moment()
    claimed_by: UUID | None = _column(Uuid, optional=True)
    claimed_at: datetime | None = moment(nullable=True)
    claim_id: UUID | None = _column(Uuid, optional=True)
    user_id: str | None = _optional_text()


class Token(Base, table=True):
    """A bearer token of the standalone server. Only the SHA-256 of its text is stored.

    `roles`, `rooms` and `jobs` are lists as JSON, None for what users could do before there were roles. A
    token that `issued_by` made over HTTP is of workers: they have `labels`, and `claims` counts up to
    `max_tasks`.
    """

    __tablename__ = "joblib_token"
    __table_args__ = (
        _partial("ix_joblib_token_ending", "expires_at IS NOT NULL AND issued_by IS NULL", "expires_at"),
    )

    name: str = Field(primary_key=True, max_length=128)
    digest: str = Field(max_length=64, unique=True)
    is_superuser: bool = False
    created_at: datetime = moment()
    roles: str | None = _column(Text, optional=True)
    rooms: str | None = _column(Text, optional=True)
    jobs: str | None = _column(Text, optional=True)
    expires_at: datetime | None = moment(nullable=True)
    last_used_at: datetime | None = moment(nullable=True)
    issued_by: str | None = _optional_text()
    max_tasks: int | None = None
    claims: int | None = None
    labels: dict[str, Any] | None = _column(JsonText, optional=True)


class RuntimeSetting(Base, table=True):
    """A setting that operators change while servers run, shared by all servers."""

    __tablename__ = "joblib_switch"

    name: str = Field(primary_key=True, max_length=64)
    value: str = Field(max_length=64)


class IdempotencyKey(Base, table=True):
    """The answer to a request with an `Idempotency-Key`; `id` is a digest of its caller and the key.

    `user_id` is the caller, None for an answer that a server of an earlier schema stored.
    """

    __tablename__ = "joblib_idempotency_key"
    __table_args__ = (Index(None, "created_at"),)

    id: UUID = _id()
    fingerprint: UUID
    created_at: datetime = moment()
    answer: str = _column(Text)
    user_id: str | None = _optional_text()
