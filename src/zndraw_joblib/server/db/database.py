"""Transactions that behave the same on SQLite and PostgreSQL, on own connections and a host's sessions."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Executable, func, select, true
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.jobs.logs import ExponentialBackoff, fields_here
from zndraw_joblib.server.db import outbox, room_events
from zndraw_joblib.server.db.compiled import Rows
from zndraw_joblib.server.db.errors import DATABASE_ERRORS, RepeatTransaction, is_retriable, raise_unavailable
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.room_events import EventRow, NewEvent
from zndraw_joblib.server.process.batcher import RowLocked, locked_problem
from zndraw_joblib.server.process.ports import WEBHOOKS_KEY, OpenConnection, Reaches, Wake, reaches_all
from zndraw_joblib.wire.events import Emission, TaskProgress, TaskStatusEvent, audience
from zndraw_joblib.wire.history import EventKind
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Items = TypeVar("Items")
P = ParamSpec("P")
Clock = Callable[[], datetime]
Execute = Callable[..., Awaitable[Rows]]
Work = Callable[["Transaction"], Awaitable[Result]]
# Gets the driver's connection, a statement that has run on it, and its parameters.
OnStatement = Callable[[Any, Executable, Any], Awaitable[None]]
Observe = Callable[[Any, Execute], Execute]


class TaskEnd(NamedTuple):
    """The end of a task that concerns others: its status and group, and whether the task is linked."""

    status: TaskStatus
    group_id: UUID | None
    linked: bool


# Does what such ends of tasks cause, by their `seq`, in the transaction that ended them.
Settle = Callable[["Transaction", Mapping[int, TaskEnd]], Awaitable[None]]

_ATTEMPTS = 5
_RETRY_SECONDS = 15.0
# PostgreSQL: while one batch waits for the disk, the next is prepared. A third would only make them smaller.
CONCURRENT_BATCHES = 2
# After events of a kind of plain requests, or ends in groups, this many transactions expect more of them.
_EXPECTED = 16
_NOW = select(func.now())
_COMMIT_LAZILY = select(func.set_config("synchronous_commit", "off", true()), func.now().label("now"))
SQLITE_LOCK = "BEGIN IMMEDIATE"


class PlainStatements(NamedTuple):
    """A statement of plain requests in two or three forms, with the same columns; one is `is_watched`.

    `alone` writes nothing in a watched room, and ends no task that is linked or in a group: it may be a
    transaction of its own. `followed` writes all, and returns whether one of the rooms is watched. `counted`,
    if there is one, is like `alone`, but counts the ends of tasks in groups that do not end.
    """

    alone: Any
    followed: Any
    counted: Any = None


class Freed(NamedTuple):
    """A freed slot: another task of this room, and of this worker, may be claimed now."""

    room_id: str
    worker_id: UUID | None


class Transaction:
    """The statements of one transaction, and the events and wake-ups that follow its commit."""

    request_id: str | None = None
    # Whether statements had to follow the plain one, and whether tasks or ends were counted in groups.
    was_followed = False
    has_counted = False
    # For how many plain requests that may end tasks of groups such ends are expected.
    expected_counts = 0
    has_expected_counts = False

    def __init__(
        self, execute: Execute, *, is_sqlite: bool, clock: Clock | None = None, alone: Execute | None = None
    ) -> None:
        # Run one statement, or once for each item of a list of parameters.
        self.execute = execute
        self._execute_alone = alone or execute
        self._clock = clock
        self._now: datetime | None = None
        self._now_read_at = 0.0
        self.is_sqlite = is_sqlite
        self._emissions: dict[object, Callable[[], Emission]] = {}
        self._more_emissions: list[Callable[[Reaches], list[Emission]]] = []
        self._logged: list[Callable[[], list[NewEvent]]] = []
        self._is_watched: bool | None = None
        self._must_ask = False
        self._last_writes: list[Callable[[], Awaitable[None]]] = []
        # Of each kind of plain requests, for how many transactions more events are expected.
        self.expected_events: Mapping[str, int] = {}
        self.plain_kind: str | None = None
        self.wakes: list[Wake] = []
        # The stored events of watched rooms.
        self.appended: dict[str, list[EventRow]] = {}
        self.due: datetime | None = None
        self.freed: list[Freed] = []
        self.actions: list[str] = []
        # The full names of providers that are removed with their workers.
        self.removed_providers: list[str] = []
        # The tasks that have ended, linked ones and those of groups, by their `seq`, and what settles that
        # before the commit.
        self.ended: dict[int, TaskEnd] = {}
        self.settle: Settle | None = None
        # Linked tasks that cancel what waits for them, by their `seq`.
        self.cancelling: set[int] = set()
        # Whether a job stays without workers if its policy has no `without_workers`.
        self.keeps_unserved_jobs = False

    async def execute_alone(self, statement: Executable, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Run the first statement, without BEGIN and COMMIT where it can be a transaction of its own.

        If it returns no row, it must have written nothing, and others may follow. Otherwise it is the last.
        If the connection is lost the transaction is repeated, although the statement may have been applied.
        """
        return (await self._execute_alone(statement, parameters)).all()

    async def execute_plain(
        self, kind: str, statements: PlainStatements, parameters: Mapping[str, Any], *, is_alone: bool = True
    ) -> Sequence[Any]:
        """Run the first statement, of plain requests of a `kind`, like `execute_alone`.

        If it is not to be alone, or the last transactions of its kind had events, others may follow it. If
        they had ends in groups, it counts such ends. Others follow if it cannot, as they are of several
        groups, or one may be the last of its group.
        """
        self.plain_kind = kind
        rows: Sequence[Any] = ()
        may_be_alone = is_alone and not self.expected_events.get(kind)
        self.has_expected_counts = statements.counted is not None
        if may_be_alone and not (self.has_expected_counts and self.expected_counts):
            rows = await self.execute_alone(statements.alone, parameters)
        else:
            if may_be_alone:
                rows = await self.execute_alone(statements.counted, parameters)
            if not rows:
                rows = (await self.execute(statements.followed, parameters)).all()
        if rows:
            self.record_watched(is_watched=any(row.is_watched for row in rows))
        return rows

    async def now(self) -> datetime:
        """Return the time of this transaction by the database's clock, which on SQLite is the server's."""
        if self._now is None:
            if self._clock is not None:
                self._now = self._clock()
            elif self.is_sqlite:
                self._now = datetime.now(UTC)
            else:
                self._now = (await self.execute(_NOW)).scalar_one().astimezone(UTC)
            self._now_read_at = time.monotonic()
        return self._now

    async def commit_lazily(self) -> None:
        """Let PostgreSQL commit this transaction before it is on the disk, as its first statement.

        A crash of the database may lose it, but not if a later transaction was durable.
        """
        if not self.is_sqlite:
            self.record_now((await self.execute(_COMMIT_LAZILY)).all())

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the time of neither database."""
        return self._clock is not None

    def record_now(self, rows: Sequence[Any]) -> None:
        """Use the column `now` of the first statement as the time, which saves a statement."""
        if rows and self._now is None and self._clock is None and not self.is_sqlite:
            self._now = rows[0].now.astimezone(UTC)
            self._now_read_at = time.monotonic()

    def emit(self, key: object, make: Callable[[], Emission], *, of_task: bool = False) -> None:
        """Record an event to publish after the commit, once per key. `make` runs only if it is published.

        With `of_task` it also belongs to the event log of its room, each time.
        """
        self._emissions.setdefault(key, make)
        if of_task:
            self._logged.append(lambda: _events_of([make()]))

    def emit_many(self, make: Callable[[Reaches], list[Emission]]) -> None:
        """Record events of tasks without keys. `make` returns those that may reach a client."""
        self._more_emissions.append(make)
        self._logged.append(lambda: _events_of(make(reaches_all)))

    def record_event(self, make: Callable[[], NewEvent]) -> None:
        """Record an event for the event log of a room alone. `make` runs only if the room may be watched."""
        self._logged.append(lambda: [make()])
        self.record_unknown()

    def record_watched(self, *, is_watched: bool) -> None:
        """Record whether a room of the changed tasks is watched; see `room_events.is_watched`.

        Without it, the transaction asks before its commit.
        """
        self._is_watched = bool(self._is_watched) or is_watched

    def record_unknown(self) -> None:
        """Record that there is an event of a room that no statement has checked for readers."""
        self._must_ask = True

    def before_commit(self, write: Callable[[], Awaitable[None]]) -> None:
        """Record what to write after all else, such as deliveries: their targets are locked last."""
        self._last_writes.append(write)

    @property
    def may_have_events(self) -> bool:
        """Whether there are events of rooms that may be watched, or other last writes."""
        is_logged = bool(self._logged) and (self._must_ask or self._is_watched is not False)
        return is_logged or bool(self._last_writes)

    async def append_events(self) -> None:
        """Write the events of watched rooms in their order, as the last statements before the commit."""
        await self._append_logged()
        for write in self._last_writes:
            await write()

    async def _append_logged(self) -> None:
        if not self._logged:
            return
        must_ask = self._must_ask or self._is_watched is None
        if not self._is_watched and not (must_ask and await room_events.is_any_watched(self.execute)):
            return
        new = [event for make in self._logged for event in make()]
        if not new:
            return
        now = await self.now()
        self.appended, hooked = await room_events.append(self.execute, new, now, is_sqlite=self.is_sqlite)
        if hooked:
            of_webhooks = {room_id: self.appended[room_id] for room_id in hooked}
            if await outbox.add_room_events(self.execute, of_webhooks, now, is_sqlite=self.is_sqlite):
                self.wake(WEBHOOKS_KEY)

    @property
    def emissions(self) -> list[Emission]:
        """The events to publish after the commit, in order; those without keys first."""
        return self.emissions_to(reaches_all)

    def emissions_to(self, reaches: Reaches) -> list[Emission]:
        """Return the same events without those that reach no client. Of many it does not make these."""
        more = [emission for make in self._more_emissions for emission in make(reaches)]
        others = [make() for make in self._emissions.values()]
        return more + [emission for emission in others if any(map(reaches, audience(emission)))]

    def record_due(self, at: datetime) -> None:
        """Record that a scheduled task is due at a time."""
        self.due = at if self.due is None else min(self.due, at)

    @property
    def seconds_until_due(self) -> float:
        """Return the seconds until the earliest of these times by the database's clock; 0 without one."""
        if self.due is None or self._now is None:
            return 0.0
        return (self.due - self._now).total_seconds() - (time.monotonic() - self._now_read_at)

    def record_freed(self, room_id: str, worker_id: UUID | None) -> None:
        """Record that a task of a room, held by a worker, is no longer claimed or running."""
        self.freed.append(Freed(room_id, worker_id))

    def record_end(self, seq: int, status: TaskStatus, group_id: UUID | None, *, linked: bool | None) -> None:
        """Record that a task has ended, or has not after all, if it is linked or in a group."""
        if not linked and group_id is None:
            return
        if status in TERMINAL:
            self.ended[seq] = TaskEnd(status, group_id, bool(linked))
        else:
            self.ended.pop(seq, None)

    async def settle_ends(self) -> None:
        """Let `settle` do what the ends of tasks cause that concern others; these tasks may end others."""
        while self.ended:
            if self.settle is None:
                raise RuntimeError(
                    "A task that concerns others has ended, and the transaction cannot settle it"
                )
            ended, self.ended = self.ended, {}
            groups = {end.group_id for end in ended.values()} - {None}
            self.has_counted |= bool(groups)
            self.was_followed |= len(groups) > 1 or any(end.linked for end in ended.values())
            await self.settle(self, ended)

    def record_action(self, action: str) -> None:
        """Record an operator's action to log after the commit."""
        self.actions.append(action)

    def wake(self, key: str, limit: int | None = None) -> None:
        """Record which waiters to wake after the commit."""
        self.wakes.append(Wake(key, limit))


def _events_of(emissions: Iterable[Emission]) -> list[NewEvent]:
    return [event for emission in emissions if (event := _event_of(emission)) is not None]


def _event_of(emission: Emission) -> NewEvent | None:
    event = emission.event
    if isinstance(event, TaskStatusEvent):
        return NewEvent(event.room_id, event.id, EventKind.STATUS, event.model_dump_json(exclude_none=True))
    if isinstance(event, TaskProgress):
        data = event.model_dump_json(include={"attempt", "progress"}, exclude_none=True)
        return NewEvent(event.room_id, event.id, EventKind.PROGRESS, data)
    return None


class Database(ABC):
    """Runs functions in transactions. The first argument of each function is its `Transaction`.

    `on_statement`, if it is set, is awaited after each statement of later transactions. On SQLite it may
    await nothing that waits. `keeps_unserved_jobs`, if it is set, returns that of each transaction. `settle`
    is that of each transaction; without it none can end tasks that concern others.
    """

    on_statement: OnStatement | None = None
    keeps_unserved_jobs: Callable[[], bool] | None = None
    settle: Settle | None = None

    def __init__(self, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self._clock = clock
        self._limits = limits or Limits()
        self._expected_events: dict[str, int] = {}
        self._expected_counts = 0

    async def read(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run `work(tx, *args, **kwargs)`, which writes nothing, and return its result.

        Raises `ServiceUnavailable` when the database is unavailable.
        """
        return await self._alone(lambda: self._read(lambda tx: work(tx, *args, **kwargs), is_short=False))

    async def read_snapshot(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Read like `read`; all statements see the same commits."""
        return await self._alone(
            lambda: self._read(lambda tx: work(tx, *args, **kwargs), is_short=False, is_snapshot=True)
        )

    async def read_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Read like `read`. The caller promises a few milliseconds: SQLite may run it on the event loop."""
        return await self._alone(lambda: self._read(lambda tx: work(tx, *args, **kwargs), is_short=True))

    async def write(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Result, Transaction]:
        """Run `work(tx, *args, **kwargs)` and commit. After a deadlock, run it again.

        Return its result and the finished transaction. An exception from `work` rolls everything back.
        Raises `ServiceUnavailable` when the database is unavailable, or another transaction holds a lock.
        """
        bound = self._bound(work, *args, **kwargs)
        return _logged(await self._alone(lambda: self._write(bound, is_short=False)))

    async def write_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Result, Transaction]:
        """Write like `write`. The caller promises a few milliseconds: SQLite may run it on the event loop."""
        bound = self._bound(work, *args, **kwargs)
        return _logged(await self._alone(lambda: self._write(bound, is_short=True)))

    async def write_batch(
        self,
        work: Callable[[Transaction, Items], Awaitable[Result]],
        items: Items,
        lock_seconds: float,
        *,
        is_short: bool = True,
    ) -> tuple[Result, Transaction]:
        """Write like `write_short`, unless `is_short` is false.

        Raises `RowLocked` if another transaction holds a lock for longer than `lock_seconds`.
        """
        lock_seconds = self._limits.batch_lock(lock_seconds, is_short=is_short)
        write = partial(self._write, lambda tx: work(self.prepared(tx), items), is_short, lock_seconds)
        committed: tuple[Result, Transaction] = await _retry(write)
        tx = committed[1]
        if tx.plain_kind is not None:
            expected = self._expected_events.get(tx.plain_kind, 0)
            self._expected_events[tx.plain_kind] = (
                _EXPECTED if tx.appended or tx.was_followed else max(0, expected - 1)
            )
            if tx.has_counted:
                self._expected_counts = _EXPECTED
            elif tx.has_expected_counts:
                self._expected_counts = max(0, self._expected_counts - 1)
        return _logged(committed) if tx.actions else committed

    def use_clock(self, clock: Clock | None) -> None:
        """Take the time of later transactions from `clock`; with None, from the database, as by default."""
        self._clock = clock

    @property
    def lock_seconds(self) -> float:
        """Return how long a request may wait for a lock of another transaction."""
        return self._limits.lock

    def _bound(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Work[Result]:
        """Return `work` with its arguments.

        A thread may run it, where the fields of the log are not known.
        """
        request_id = fields_here.get().get("request_id")

        def run_with_id(tx: Transaction) -> Awaitable[Result]:
            tx.request_id = request_id
            return work(self.prepared(tx), *args, **kwargs)

        return run_with_id

    def prepared(self, tx: Transaction) -> Transaction:
        """Return a transaction with what this object gives each one that writes."""
        if self.keeps_unserved_jobs is not None:
            tx.keeps_unserved_jobs = self.keeps_unserved_jobs()
        tx.expected_events, tx.expected_counts = self._expected_events, self._expected_counts
        tx.settle = self.settle
        return tx

    async def _alone(self, transaction: Callable[[], Awaitable[Result]]) -> Result:
        """Run a transaction; after a lock timeout repeat it until the request's time for locks is over."""
        gives_up = time.monotonic() + self._limits.lock
        while True:
            try:
                return await _retry(transaction)
            except RowLocked as error:
                if time.monotonic() >= gives_up:
                    raise locked_problem("a row that the request needs", self._limits.lock) from error

    def _observed(self, connection: Any, execute: Execute) -> Execute:
        """Return `execute`, which calls `on_statement` after each statement if it is set."""
        on_statement = self.on_statement
        if on_statement is None:
            return execute

        async def observed(statement: Executable, parameters: Any = None) -> Rows:
            rows = await execute(statement, parameters)
            await on_statement(connection, statement, parameters)
            return rows

        return observed

    @property
    def concurrent_writes(self) -> int:
        """How many batches of one kind to write at the same time. SQLite allows one writer."""
        return 1

    @property
    def is_sqlite(self) -> bool | None:
        """Whether it is SQLite; None while that is unknown."""
        return None

    async def pubsub_connection(self) -> OpenConnection | None:
        """Return a function that opens a pub/sub connection over this database, None for SQLite."""
        return None

    @abstractmethod
    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work`, such as a migration, on a plain connection and commit."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections and threads that this object opened."""

    @abstractmethod
    async def _read(self, work: Work[Result], is_short: bool, *, is_snapshot: bool = False) -> Result: ...

    @abstractmethod
    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]: ...


def dialect(tx: Transaction) -> ModuleType:
    """Return the SQLAlchemy dialect whose `insert` supports ON CONFLICT."""
    return sqlite if tx.is_sqlite else postgresql


async def run(work: Work[Result], tx: Transaction) -> Result:
    """Do the work of a transaction up to its commit."""
    result = await work(tx)
    if tx.ended:
        await tx.settle_ends()
    if tx.may_have_events:
        await tx.append_events()
    return result


def log_actions(tx: Transaction) -> None:
    """Log the operators' actions of a committed transaction, one line each."""
    for action in tx.actions:
        logger.info("Operator action: %s", action)


def _logged(committed: tuple[Result, Transaction]) -> tuple[Result, Transaction]:
    log_actions(committed[1])
    return committed


async def _retry(transaction: Callable[[], Awaitable[Result]]) -> Result:
    backoff, give_up = None, time.monotonic() + _RETRY_SECONDS
    try:
        for attempt in range(1, _ATTEMPTS):
            try:
                return await transaction()
            except DBAPIError as error:
                if not is_retriable(error) or time.monotonic() > give_up:
                    raise
                logger.info("Retrying a transaction (attempt=%d error=%r)", attempt, error.orig)
            except RepeatTransaction as change:
                logger.debug("Repeating a transaction (attempt=%d): %s", attempt, change)
            backoff = backoff or ExponentialBackoff(first=0.01, longest=0.1, jitter=1)
            await asyncio.sleep(backoff.next())
        return await transaction()
    except DATABASE_ERRORS as error:
        raise_unavailable(error)
