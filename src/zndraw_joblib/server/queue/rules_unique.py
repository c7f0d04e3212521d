"""Unique tasks: the keys of submits, the tasks that hold them, and what a further submit does.

A task holds its key as its own row says (`KEY_IS_HELD`), so whatever moves the task also frees the key. Each
transaction that makes a task hold a key locks the job of the task before.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from math import isfinite
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.queue import sql_jobs, sql_tasks, sql_transitions, sql_trees, sql_unique
from zndraw_joblib.server.queue.sql_task_rows import Move, TaskRecord
from zndraw_joblib.wire.messages import TaskSubmitRequest
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.problems import DuplicateTask, InvalidRequest
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.unique import Unique

# Canonical JSON (RFC 8785), so that clients in any language make the same key of a payload.

_MAX_INTEGER = 2**53 - 1


def payload_key(payload: Any) -> str:
    """Return the key of a payload: the SHA-256 of its canonical JSON. Raises `InvalidRequest`."""
    try:
        return sha256(canonical_json(payload).encode()).hexdigest()
    except ValueError as error:
        raise InvalidRequest(
            f"body.unique: the payload has no canonical JSON, because {error}; give unique.key"
        ) from error


def canonical_json(value: Any) -> str:
    """Return a value as JSON in the form of RFC 8785. Raises ValueError for a number that JSON has not."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        # In the order of UTF-16, as the RFC says.
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        members = (f"{canonical_json(name)}:{canonical_json(value[name])}" for name in names)
        return f"{{{','.join(members)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(canonical_json, value))}]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise ValueError(f"{value} is larger than 2**53 - 1")
        return str(value)
    return _number(float(value))


def _number(value: float) -> str:
    """Return a float as ECMAScript writes it: the shortest digits that read as the same number."""
    if not isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or 0)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        rest = f".{digits[1:]}" if count > 1 else ""
        text = f"{digits[0]}{rest}e{point - 1:+d}"
    return f"-{text}" if value < 0 else text


# Keys and their holders.


class UniqueKey(NamedTuple):
    """A key of a job: `text` names it, and `id` is the digest of its scope, job, room and text."""

    id: UUID
    text: str


def key_of(rule: Unique, text: str, job: JobName, room_id: str) -> UniqueKey:
    """Return the key of a submit."""
    scope = [rule.scope, str(job), room_id if rule.scope == "room" else None, text]
    return UniqueKey(UUID(bytes=sha256(json.dumps(scope).encode()).digest()[:16]), text)


def keyed(task: TaskRecord, rule: Unique, key: UniqueKey, now: datetime) -> TaskRecord:
    """Return a new task that holds a key."""
    seconds = rule.for_seconds
    return task.changed(
        unique_id=key.id,
        unique_text=key.text,
        unique_until=rule.until if seconds is None else None,
        unique_expires_at=None if seconds is None else now + timedelta(seconds=seconds),
    )


def holds_key(task: TaskRecord) -> bool:
    """Return whether a task holds its key, as `KEY_IS_HELD` does: also one whose time is over."""
    if task.unique_id is None or task.unique_until is None:
        return task.unique_id is not None
    if task.status in TERMINAL:
        return False
    is_claimed = task.status is TaskStatus.CLAIMED
    return task.unique_until == "ended" or (
        task.started_at is None and task.attempt == task.unstarted + is_claimed
    )


def is_over(task: TaskRecord, now: datetime) -> bool:
    """Return whether the time for which a task holds its key is over."""
    return task.unique_expires_at is not None and task.unique_expires_at <= now


def duplicate_of(task: TaskRecord) -> DuplicateTask:
    """Return the refusal of a second task with the key of this one."""
    return DuplicateTask(
        f"Task {task.id} holds the unique key {task.unique_text!r} of job {task.job_name!r}; "
        "wait for it, or submit with another key",
        task_id=str(task.id),
    )


class Duplicate(NamedTuple):
    """A submit that made no task, because this one holds its key; it may have replaced this one's payload."""

    task: TaskRecord


def replaces(options: TaskSubmitRequest) -> bool:
    """Return whether a submit replaces the pending task that holds its key."""
    rule = options.unique
    return rule is not None and (rule.on_conflict == "replace" or options.debounce is not None)


class Submit(NamedTuple):
    """A submit with a key, the room that it comes from, and the task whose token it has."""

    key: UniqueKey
    options: TaskSubmitRequest
    room_id: str
    task_id: UUID | None = None

    def may_replace(self, holder: TaskRecord) -> bool:
        """Return whether the submit replaces a task that holds its key.

        A client writes only to its own room, and the token of a task only to the children of this task.
        """
        is_own = holder.room_id == self.room_id and self.task_id in {None, holder.parent}
        return is_own and replaces(self.options) and holder.status is TaskStatus.PENDING


class Make(Protocol):
    """Makes the task of a submit."""

    def __call__(self, *, is_new: bool = True) -> TaskRecord:
        """Return the task: a new one, or with the values of one that it replaces."""


class KeyHolders:
    """The tasks that hold the keys of a batch of submits, as these change them in their order."""

    def __init__(self, holders: dict[UUID, TaskRecord], now: datetime) -> None:
        self._now = now
        self._stored = {task.id: task for task in holders.values()}
        self._holders = holders
        self._over = [task.seq for task in holders.values() if is_over(task, now)]

    @classmethod
    async def of(
        cls,
        tx: Transaction,
        submits: Iterable[Submit],
        job_ids: Collection[UUID],
        now: datetime,
        most_bytes: int,
    ) -> "KeyHolders":
        """Read the holders, and lock those that may change. The jobs with these ids are locked.

        Raises `RepeatTransaction` if another transaction is changing one of these, or has locked the earlier
        version of a job that one of these leaves.
        """
        may_change: dict[UUID, bool] = {}
        for submit in submits:
            id = submit.key.id
            may_change[id] = may_change.get(id, False) or replaces(submit.options)
        holders = await sql_unique.holders(tx, sorted(may_change), most_bytes)
        earlier = {
            task.job_id
            for id, task in holders.items()
            if may_change[id] and task.status is TaskStatus.PENDING and task.job_id not in job_ids
        }
        if earlier and await sql_jobs.lock(tx, earlier, skip_locked=True) != earlier:
            raise RepeatTransaction("The earlier version of a task that a submit replaces is locked")
        changing = [
            task
            for id, task in holders.items()
            if is_over(task, now) or (may_change[id] and task.status is TaskStatus.PENDING)
        ]
        await _lock(tx, changing)
        return cls(holders, now)

    def submit(self, submit: Submit, make: Make) -> TaskRecord | Duplicate | DuplicateTask:
        """Return the new task of a submit, the one that holds its key, or the refusal.

        What `make` raises is raised; then the key is as it was.
        """
        key, options = submit.key, submit.options
        rule, holder = options.unique, self._holders.get(key.id)
        if rule is None:
            return make()
        if holder is None or is_over(holder, self._now):
            task = self._holders[key.id] = keyed(make(), rule, key, self._now)
            return task
        if submit.may_replace(holder):
            holder = self._holders[key.id] = self._replaced(holder, make(is_new=False), options)
        elif rule.on_conflict == "reject":
            return duplicate_of(holder)
        return Duplicate(holder)

    def _replaced(self, task: TaskRecord, new: TaskRecord, options: TaskSubmitRequest) -> TaskRecord:
        run_at = new.run_at
        if options.debounce is not None and options.debounce.max_seconds is not None:
            latest = task.created_at + timedelta(seconds=options.debounce.max_seconds)
            run_at = min(run_at or latest, latest)
            run_at = run_at if run_at > self._now else None
        elif run_at is None and task.attempt:
            run_at = task.run_at  # the pause before a retry
        if task.is_waiting:
            run_at = task.run_at  # it waits for the same predecessors
        return task.changed(
            job_id=new.job_id,
            job_version=new.job_version,
            limit_key=new.limit_key,
            policy=new.policy,
            masked=new.masked,
            payload=new.payload,
            max_attempts=new.max_attempts,
            traceparent=new.traceparent,
            tags=new.tags,
            run_at=run_at,
            expires_at=new.expires_at,
        )

    def latest(self, task: TaskRecord) -> TaskRecord:
        """Return a task as it is after all submits of the batch."""
        holder = self._holders.get(task.unique_id) if task.unique_id is not None else None
        return holder if holder is not None and holder.id == task.id else task

    async def write_freed(self, tx: Transaction) -> None:
        """Free the keys whose time is over, before new tasks hold them."""
        await sql_unique.free(tx, self._over)

    async def write_replaced(self, tx: Transaction) -> list[Move]:
        """Write replaced tasks. Return their moves."""
        moves = [
            (stored, task)
            for task in self._holders.values()
            if (stored := self._stored.get(task.id)) is not None and stored is not task
        ]
        await sql_unique.replace(tx, [after for _, after in moves])
        retagged = [after for before, after in moves if before.tags != after.tags]
        await sql_trees.remove_tags(tx, [task.seq for task in retagged])
        await sql_trees.add_tags(tx, retagged)
        await sql_transitions.replace(tx, moves)
        return moves


async def _lock(tx: Transaction, tasks: Sequence[TaskRecord]) -> None:
    """Lock tasks as they were read. The jobs are locked already, so it waits for no other transaction."""
    if tx.is_sqlite or not tasks:
        return
    free = {task.seq: task for task in await sql_tasks.lock_free(tx, sorted(task.seq for task in tasks))}
    for task in tasks:
        locked = free.get(task.seq)
        state = None if locked is None else (locked.status, locked.attempt, locked.run_at, locked.unique_id)
        if state != (task.status, task.attempt, task.run_at, task.unique_id):
            raise RepeatTransaction(f"Task {task.id}, which holds a unique key, is being changed")


async def retake(tx: Transaction, retried: Sequence[TaskRecord]) -> dict[int, DuplicateTask]:
    """Let ended tasks that are retried hold their keys again. The jobs are locked.

    Return the refusals, by `seq`, of those whose keys other tasks hold by now, one of them perhaps.
    """
    keys = {task.unique_id for task in retried if task.unique_id is not None and holds_key(task)}
    if not keys:
        return {}
    now = await tx.now()
    current = await sql_unique.holders(tx, sorted(keys))
    over = [task for task in current.values() if is_over(task, now)]
    await _lock(tx, over)
    refused: dict[int, DuplicateTask] = {}
    freed: list[int] = []
    for task in retried:
        if task.unique_id is None or not holds_key(task):
            continue
        holder = current.get(task.unique_id, task)
        if holder.id != task.id and not is_over(holder, now):
            refused[task.seq] = duplicate_of(holder)
            continue
        if holder.id != task.id:
            freed.append(holder.seq)
        current[task.unique_id] = task
    await sql_unique.free(tx, freed)
    return refused
