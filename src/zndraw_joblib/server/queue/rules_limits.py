"""Limits of concurrency and rate, for all tasks of a job or for each value of a key.

A bucket is what a limit counts: all tasks, or those with one value of its key. A claim reserves a slot and a
token in each bucket of its tasks, in its own transaction. A queue of tasks with the same keys whose bucket is
exhausted is blocked: claims do not read it until the bucket has a token or a slot again.

Rates are those of the generic cell rate algorithm, by the database's clock. If the clock is set back, a task
waits for at most one interval; if it is set forward, at most `burst` tasks are claimed at once.
"""

import json
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from hashlib import sha256
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, Page, job_key
from zndraw_joblib.server.queue import rules_answers, rules_audit, sql_jobs, sql_limits
from zndraw_joblib.server.queue.rules_unique import canonical_json
from zndraw_joblib.server.queue.sql_limits import WITHOUT_KEY, BucketState, LimitHead, NamedLimit, Wait
from zndraw_joblib.server.queue.sql_task_rows import Place, TaskRecord
from zndraw_joblib.wire.history import Reason
from zndraw_joblib.wire.messages import PaginatedResponse
from zndraw_joblib.wire.names import near_text
from zndraw_joblib.wire.operators import LimitEntry
from zndraw_joblib.wire.policy import YEAR_SECONDS, JobLimit, LimitValues
from zndraw_joblib.wire.problems import Conflict, InvalidRequest, LimitNotFound


class StoredLimits(BaseModel):
    """The limits of a job as its rows store them: `of` is its full name, since its versions share them."""

    of: str
    limits: tuple[JobLimit, ...]


# A claim looks at this many buckets that may allow tasks again, and at a few more of their queues than it
# needs.
_MAX_DUE = 64
_SPARE_QUEUES = 7
# How many waits for rates end in one transaction.
_MAX_READY = 500
_LONGEST = timedelta(seconds=YEAR_SECONDS)
# The most tasks with the same key that are counted to say when a rate allows one after them.
_MAX_BEFORE = 10_000


# The keys of a task.

_ROOM, _SUBMITTER = "room", "submitter"
_TAG, _DIGEST = 8, 22


def _digest(text: str) -> str:
    return urlsafe_b64encode(sha256(text.encode()).digest()[:16]).decode()[:_DIGEST]


@lru_cache(maxsize=4096)
def _tag(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:_TAG]


# The value of a key that the payload does not have.
_MISSING = _digest("")


def key_of(limits: Iterable[JobLimit], payload: Any, submitter: str) -> str:
    """Return the digests of a task's values of the keys of limits: of the submitter, and in the payload."""
    keys = sorted({limit.key for limit in limits if limit.key not in {None, _ROOM}}, key=str)
    return "".join(f"{_tag(str(key))}{_value(str(key), payload, submitter)}" for key in keys)


def _value(key: str, payload: Any, submitter: str) -> str:
    if key == _SUBMITTER:
        return _digest(canonical_json(submitter))
    value = payload
    for part in key.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    try:
        return _digest(canonical_json(value))
    except ValueError:  # an integer beyond 2**53
        return _digest(json.dumps(value, sort_keys=True))


def _digest_in(limit_key: str, key: str) -> str:
    tag = _tag(key)
    for start in range(0, len(limit_key), _TAG + _DIGEST):
        if limit_key.startswith(tag, start):
            return limit_key[start + _TAG : start + _TAG + _DIGEST]
    return _MISSING


# The limits of a job, and their buckets.


class Rule(NamedTuple):
    """A limit of a job, with its values. `scope` names what the buckets are of."""

    limit: JobLimit
    scope: str
    values: LimitValues

    def bucket_id(self, room_id: str, limit_key: str) -> UUID:
        """Return the bucket of the tasks of a room with these keys."""
        key = self.limit.key
        if key is None:
            value = ""
        elif key == _ROOM:
            value = _digest(canonical_json(room_id))
        else:
            value = _digest_in(limit_key, key)
        return UUID(bytes=sha256(f"{self.scope}\n{value}".encode()).digest()[:16])

    @property
    def label(self) -> str:
        """How an operator knows the limit: by its name or its key."""
        name = self.limit.name or self.limit.key
        return "limit of the job" if name is None else f"limit `{name}`"


@lru_cache(maxsize=4096)
def _limits_of(stored: str) -> StoredLimits:
    return StoredLimits.model_validate_json(stored)


@lru_cache(maxsize=4096)
def _values_of(spec: str) -> LimitValues:
    return LimitValues.model_validate_json(spec)


def _has_shared_slots(rule: Rule) -> bool:
    return (
        rule.limit.name is not None and rule.limit.key is not None and rule.values.max_in_flight is not None
    )


def rules_of(job: str, limits: Iterable[JobLimit], specs: Mapping[str, str]) -> list[Rule]:
    """Return the limits of a job with their values; `specs` has those of limits with names."""
    number: Counter[str | None] = Counter()
    rules = []
    for limit in limits:
        if limit.name is not None:
            if limit.name in specs:
                rules.append(Rule(limit, f"limit {limit.name}", _values_of(specs[limit.name])))
            continue
        # Limits with the same key are distinguished by their order.
        rules.append(Rule(limit, f"job {job} {number[limit.key]} {limit.key}", limit))
        number[limit.key] += 1
    return rules


class Bucket:
    """A bucket, as the claims of this transaction leave it."""

    def __init__(self, rule: Rule, state: BucketState, now: datetime) -> None:
        self.rule = rule
        self._stored = state
        self._now = now
        self.reset()

    def reset(self) -> None:
        """Return to what is stored."""
        self.held, self._next_at, self.is_clamped = self._stored.held, self._now, False
        if self._stored.next_at is not None and self.rule.values.rate is not None:
            # A later time was stored before the clock was set back. It is replaced, because the time that
            # replaces it is relative to now.
            latest = self._now + self._advance + self.interval
            self.is_clamped = self._stored.next_at > latest
            self._next_at = max(self._now, min(self._stored.next_at, latest))

    @cached_property
    def interval(self) -> timedelta:
        """From one claim to the next."""
        rate = self.rule.values.rate
        return timedelta(microseconds=0 if rate is None else ceil(rate.interval * 1_000_000))

    @cached_property
    def _advance(self) -> timedelta:
        """How early a burst may take a token: stored rates of earlier servers may have any burst."""
        rate = self.rule.values.rate
        return timedelta() if rate is None else min(self.interval * (rate.burst - 1), _LONGEST)

    @property
    def is_full(self) -> bool:
        """Whether all its slots are held."""
        limit = self.rule.values.max_in_flight
        return limit is not None and self.held >= limit

    @property
    def ready_at(self) -> datetime:
        """When its rate allows the next task."""
        return self._next_at - self._advance

    @property
    def allows(self) -> bool:
        """Whether a task may be claimed now."""
        return not self.is_full and self.ready_at <= self._now

    @property
    def tokens(self) -> int:
        """How many tasks its rate allows now, if they also get slots; 0 without a rate."""
        if self.rule.values.rate is None or not self.allows:
            return 0
        return 1 + (self._now - self.ready_at) // self.interval

    def take(self) -> None:
        """Take a slot and a token."""
        self.held += 1
        self._next_at += self.interval

    @property
    def next_at(self) -> datetime | None:
        """When the next token would be due without a burst; None without a rate."""
        return None if self.rule.values.rate is None else self._next_at


class Limiter:
    """The limits of the jobs from which a transaction claims, and what it has reserved of them."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rules: dict[UUID, list[Rule]] = {}
        self._specs: dict[str, str] = {}
        self._buckets: dict[UUID, Bucket] = {}
        self._of_queue: dict[tuple[UUID, str, str], list[UUID]] = {}
        # Queues to block, and what else was refused, by job and bucket.
        self._blocked: dict[tuple[UUID, str, str], UUID] = {}
        self._refused: set[tuple[UUID, UUID]] = set()
        self._closed: set[UUID] = set()
        # The waits that are over, and whether a bucket may block more queues than were opened.
        self._due: dict[tuple[UUID, UUID], bool] = {}

    async def add(
        self,
        limits: Mapping[UUID, str],
        count: int,
        versions: Mapping[UUID, Sequence[UUID]] = MappingProxyType({}),
    ) -> set[UUID]:
        """Add jobs with these limits, for a claim of `count` tasks. The caller has locked them.

        `versions` has all versions of those that have others, which are locked as well.

        Return the jobs whose limits another transaction has locked: they have no tasks for this one.
        """
        new = {job_id: _limits_of(stored) for job_id, stored in limits.items() if job_id not in self._rules}
        names = {
            limit.name for own in new.values() for limit in own.limits if limit.name
        } - self._specs.keys()
        if names:
            locked = await sql_limits.lock_specs(self._tx, names, skip_locked=bool(self._specs))
            if self._specs and len(locked) < len(names):
                names &= (await sql_limits.specs(self._tx, names)).keys() - locked.keys()
            else:
                names = set()
            self._specs |= locked
        busy = {job_id for job_id, own in new.items() if any(limit.name in names for limit in own.limits)}
        for job_id, own in new.items():
            if job_id not in busy:
                self._rules[job_id] = rules_of(own.of, own.limits, self._specs)
        await self._open(sorted(new.keys() - busy), count, versions)
        return busy

    def has(self, job_id: UUID) -> bool:
        """Return whether a job has limits."""
        return job_id in self._rules

    async def _open(
        self, job_ids: Sequence[UUID], count: int, versions: Mapping[UUID, Sequence[UUID]]
    ) -> None:
        """Open queues whose buckets may allow tasks again."""
        if not job_ids:
            return
        # The tasks that held the slots may be of another version, or of another job with the same limit.
        sharing = sorted({id for job_id in job_ids for id in versions.get(job_id, [job_id])})
        freed = await sql_limits.collect_freed(self._tx, sharing)
        named = [job_id for job_id in job_ids if any(map(_has_shared_slots, self._rules[job_id]))]
        if named:
            freed |= await sql_limits.collect_awaited(self._tx, named)
        if freed:
            others = (await sql_limits.set_due(self._tx, freed)) - set(job_ids)
            for name, version in (await sql_jobs.full_names(self._tx, others)).values() if others else ():
                self._tx.wake(job_key(name, version), 1)
        now, longest = await self._tx.now(), timedelta()
        for rule in (rule for job_id in job_ids for rule in self._rules[job_id] if rule.values.rate):
            rate = rule.values.rate
            longest = max(longest, timedelta(seconds=rate.interval if rate is not None else 0.0))
        waits = await sql_limits.due(self._tx, job_ids, now, now + longest, _MAX_DUE)
        opened = Counter(await sql_limits.reopen(self._tx, waits, count + _SPARE_QUEUES))
        self._due |= {wait: opened[wait] == count + _SPARE_QUEUES for wait in waits}

    async def first_tasks(
        self, job_id: UUID, heads: Sequence[LimitHead], count: int
    ) -> dict[LimitHead, list[Place]]:
        """Return the first tasks of queues that have some and whose buckets allow one.

        The rows of empty queues are deleted, and others are moved to their first tasks.
        """
        if not heads:
            return {}
        places = await sql_limits.first_tasks(self._tx, job_id, heads, count)
        await sql_limits.remove(self._tx, [head for head in heads if not places[head]])
        moved = [
            head._replace(lane=own[0][0], seq=own[0][1])
            for head, own in places.items()
            if own and own[0] != head.place
        ]
        await sql_limits.move(self._tx, moved)
        await self._read([head.id for head in heads if places[head]])
        allowed = {}
        for head, own in places.items():
            if own and self.allows(head):
                allowed[head] = own
            elif own and not self.is_closed(job_id):
                self._block(head.id)
        return allowed

    async def _read(self, queues: Iterable[tuple[UUID, str, str]]) -> None:
        unread: dict[UUID, Rule] = {}
        for queue in queues:
            if queue in self._of_queue:
                continue
            job_id, room_id, limit_key = queue
            ids = self._of_queue[queue] = []
            for rule in self._rules[job_id]:
                if not rule.values.is_empty:
                    bucket_id = rule.bucket_id(room_id, "" if limit_key == WITHOUT_KEY else limit_key)
                    ids.append(bucket_id)
                    if bucket_id not in self._buckets:
                        unread[bucket_id] = rule
        if not unread:
            return
        states = await sql_limits.states(
            self._tx,
            sorted(id for id, rule in unread.items() if rule.values.max_in_flight is not None),
            sorted(id for id, rule in unread.items() if rule.values.rate is not None),
        )
        now = await self._tx.now()
        for bucket_id, rule in unread.items():
            self._buckets[bucket_id] = Bucket(rule, states.get(bucket_id, BucketState(0, None)), now)

    def reset(self) -> None:
        """Forget what was reserved, before other tasks are chosen."""
        for bucket in self._buckets.values():
            bucket.reset()
        self._closed.clear()

    def key_of(self, task: TaskRecord) -> str | None:
        """Return the key of a task from its claim on: if its job has limits, it holds what they count."""
        return (task.limit_key or "") if self.has(task.job_id) else task.limit_key

    def is_closed(self, job_id: UUID) -> bool:
        """Return whether a limit allows no task of a job, whatever its keys."""
        return job_id in self._closed

    def allows(self, head: LimitHead) -> bool:
        """Return whether a further task of a queue may be claimed now."""
        bucket_id = self._exhausted(head.id)
        if bucket_id is not None and self._buckets[bucket_id].rule.limit.key is None:
            self._refused.add((head.job_id, bucket_id))
            self._closed.add(head.job_id)
        return bucket_id is None

    def _exhausted(self, queue: tuple[UUID, str, str]) -> UUID | None:
        """Return a bucket of a queue that allows no task, first one of the whole job."""
        ids = [id for id in self._of_queue[queue] if not self._buckets[id].allows]
        return min(ids, key=lambda id: self._buckets[id].rule.limit.key is not None, default=None)

    def _block(self, queue: tuple[UUID, str, str]) -> None:
        bucket_id = self._exhausted(queue)
        if bucket_id is not None and self._buckets[bucket_id].rule.limit.key is not None:
            self._refused.add((queue[0], bucket_id))
            self._blocked[queue] = bucket_id

    def take(self, head: LimitHead) -> None:
        """Reserve a slot and a token of each bucket of a queue."""
        for bucket_id in self._of_queue[head.id]:
            self._buckets[bucket_id].take()

    async def block(self) -> bool:
        """Block the queues that were refused. Return whether there was one."""
        blocked, self._blocked = self._blocked, {}
        await sql_limits.block(self._tx, blocked)
        return bool(blocked)

    async def write(self, claimed: Iterable[TaskRecord]) -> None:
        """Write the slots and tokens of claimed tasks, and until when exhausted buckets block others."""
        self.reset()
        limited = [task for task in claimed if task.job_id in self._rules]
        await self._read([_queue_of(task) for task in limited])
        slots, reserved = [], set[tuple[UUID, UUID]]()
        for task in limited:
            for bucket_id in self._of_queue[_queue_of(task)]:
                bucket = self._buckets[bucket_id]
                bucket.take()
                reserved.add((task.job_id, bucket_id))
                if bucket.rule.values.max_in_flight is not None:
                    slots.append((task.seq, bucket_id, task.job_id))
        changed = {id for _, id in reserved} | {
            id for id, bucket in self._buckets.items() if bucket.is_clamped
        }
        tokens = {id: at for id in changed if (at := self._buckets[id].next_at) is not None}
        await sql_limits.take(self._tx, slots, tokens)
        for queue in self._of_queue:
            self._block(queue)
        await self.block()
        exhausted = {pair for pair in reserved if pair[1] in tokens and not self._buckets[pair[1]].allows}
        await self._write_waits(exhausted)

    async def _write_waits(self, exhausted: Collection[tuple[UUID, UUID]]) -> None:
        now, waits, ended = await self._tx.now(), [], []
        for pair in {*self._due, *self._refused, *exhausted}:
            job_id, bucket_id = pair
            bucket = self._buckets.get(bucket_id)
            if bucket is None or not (self._due.get(pair) or pair in self._refused or pair in exhausted):
                # Its queues were opened, but not read yet: they are read as others are.
                if not self._due[pair]:
                    ended.append(pair)
                continue
            ready_at = None if bucket.is_full or bucket.allows else bucket.ready_at
            waits.append(Wait(job_id, bucket_id, bucket.rule.limit.name, ready_at, bucket.allows))
            if ready_at is not None:
                self._tx.record_due(max(ready_at, now))
        await sql_limits.write_waits(self._tx, waits, ended)
        await self._wake_for_tokens()

    async def _wake_for_tokens(self) -> None:
        """Wake claims for the tokens of waits that are over: their ends have woken one claim each."""
        tokens: Counter[UUID] = Counter()
        for job_id, bucket_id in self._due:
            if (bucket := self._buckets.get(bucket_id)) is not None:
                tokens[job_id] += bucket.tokens
            elif any(rule.values.rate for rule in self._rules[job_id]):
                tokens[job_id] += 1  # the claim got another task
        if +tokens:
            for job_id, (queue, pending) in (await sql_limits.pending_tasks(self._tx, +tokens)).items():
                self._tx.wake(job_key(queue), min(pending, tokens[job_id]))


def _queue_of(task: TaskRecord) -> tuple[UUID, str, str]:
    return task.job_id, task.room_id, task.limit_key or ""


async def reasons(tx: Transaction, task: TaskRecord, position: int | None) -> list[Reason]:
    """Return which limits of its job keep a waiting task from being claimed now.

    `position` is that in the queue of the job; the tasks before it take tokens of the rates first.
    """
    limits = task.policy.limits
    if not limits:
        return []
    specs = await sql_limits.specs(tx, {limit.name for limit in limits if limit.name is not None})
    rules = {
        rule.bucket_id(task.room_id, task.limit_key or ""): rule
        for rule in rules_of(task.job_name, limits, specs)
    }
    states = await sql_limits.states(tx, sorted(rules), sorted(rules))
    now, others = await tx.now(), 0
    if any(rule.limit.key is not None and rule.values.rate is not None for rule in rules.values()):
        others = await sql_limits.count_before(tx, task, _MAX_BEFORE)
    waiting_reasons = []
    for bucket_id, rule in rules.items():
        bucket = Bucket(rule, states.get(bucket_id, BucketState(0, None)), now)
        if bucket.is_full:
            held = "1 task is" if bucket.held == 1 else f"{bucket.held} tasks are"
            detail = f"{held} claimed or running, and max_in_flight of {rule.label} is "
            detail += str(rule.values.max_in_flight)
            waiting_reasons.append(Reason(code="limit_at_capacity", detail=detail))
        before = others if rule.limit.key is not None else (position or 1) - 1
        if (rate_detail := _rate_detail(bucket, before, now)) is not None:
            waiting_reasons.append(Reason(code="rate_limited", detail=rate_detail))
    return waiting_reasons


def _rate_detail(bucket: Bucket, before: int, now: datetime) -> str | None:
    """Return when a rate allows a task with this number of others before it; None for now."""
    rate = bucket.rule.values.rate
    if rate is None:
        return None
    after = f", after {before} other task{'' if before == 1 else 's'}" if before else ""
    if before * rate.interval > YEAR_SECONDS:
        return f"rate {bucket.rule.label}: not within a year{after}"
    at = bucket.ready_at + before * bucket.interval
    # Rooms may take turns, and jobs may share the limit: then it is not exact for those that are not first.
    about = "about " if before else ""
    return (
        None
        if at <= now
        else f"rate {bucket.rule.label}: next at {about}{at:%Y-%m-%d %H:%M:%S.%f} UTC{after}"
    )


async def count_rate_limited(tx: Transaction) -> int:
    """Return how many tasks wait for a rate: of keys at most 10,000, and all of a job for its own rate."""
    # The rate of a whole job blocks no single queue.
    waits = [
        (job_id, bucket_id, _limits_of(stored), pending)
        for job_id, bucket_id, stored, pending in await sql_limits.waits_without_queues(tx)
    ]
    names = {limit.name for *_, own, _ in waits for limit in own.limits if limit.name is not None}
    specs = await sql_limits.specs(tx, names) if names else {}
    pending_of: dict[UUID, int] = {}
    for job_id, bucket_id, own, pending in waits:
        rules = rules_of(own.of, own.limits, specs)
        if any(rule.limit.key is None and rule.bucket_id("", "") == bucket_id for rule in rules):
            pending_of[job_id] = pending
    return sum(pending_of.values()) + await sql_limits.count_blocked(tx, pending_of)


async def change(tx: Transaction, job_ids: Iterable[UUID], limits: Sequence[JobLimit]) -> None:
    """Apply the new limits of the versions of a job, which are locked.

    Raises `LimitNotFound`, and `InvalidRequest` for a burst that is too large.

    Tasks that wait keep their keys: those that were submitted before the job had a limit with a key in the
    payload count as tasks without a value of it. Claimed and running tasks hold no slots of new limits.
    """
    for number, limit in enumerate(limits):
        _check_burst(limit, f"limits.{number}.rate.burst")
    names = {limit.name for limit in limits if limit.name is not None}
    if names and (unknown := names - (await sql_limits.lock_shared(tx, names))):
        raise await _not_found(tx, min(unknown), "limits: ")
    for job_id in job_ids:
        if limits:
            await sql_limits.add_rooms(tx, job_id)
        await sql_limits.set_due_of_job(tx, job_id)


def _check_burst(values: LimitValues, field: str) -> None:
    rate = values.rate
    if rate is not None and rate.burst * rate.interval > YEAR_SECONDS:
        raise InvalidRequest(
            f"{field}: a rate of {rate.count} in {rate.per_seconds:g} seconds takes more than a year "
            f"for a burst of {rate.burst}; give at most {int(YEAR_SECONDS / rate.interval)}"
        )


async def next_ready(tx: Transaction) -> tuple[datetime | None, bool]:
    """Wake claims for tasks whose rates allow them now, at most one batch.

    Return when a rate allows the next one, and whether another transaction holds a lock on an earlier one.
    """
    at, now = await sql_limits.next_ready(tx), await tx.now()
    if at is None or at > now:
        return at, False
    names = await sql_limits.end_ready(tx, _MAX_READY)
    for name, count in Counter(names).items():
        tx.wake(job_key(name), count)
    if len(names) == _MAX_READY:
        return now, False
    at = await sql_limits.next_ready(tx)
    is_locked = at is not None and at <= now
    return (await sql_limits.next_ready(tx, after=now) if is_locked else at), is_locked


# The limits that jobs share by their names.

_MAX_NAMED = 10_000
# The most names among which the nearest one is looked for.
_MAX_NEAR = 200


async def put(tx: Transaction, caller: Identity, name: str, values: LimitValues) -> tuple[LimitEntry, bool]:
    """Define a limit, for all claims from now on. Return it, and whether it is new.

    Raises `InvalidRequest` for one that limits nothing or has too large a burst, and `Conflict` if there are
    too many.
    """
    if values.is_empty:
        raise InvalidRequest("body: a limit has max_in_flight, or rate, or both; give one of them")
    _check_burst(values, "rate.burst")
    before, now = await sql_limits.get(tx, name, lock=True), await tx.now()
    created_at = now if before is None else before.created_at
    limit = NamedLimit(name, values.model_dump_json(), created_at, now, caller.id)
    await sql_limits.put(tx, limit)
    if before is None and (await sql_limits.page(tx, 1, 0))[1] > _MAX_NAMED:
        raise Conflict(f"There are {_MAX_NAMED} limits, which is the most: delete some that no job uses")
    for queue in await sql_limits.waiting_for(tx, name):
        tx.wake(job_key(queue))
    await rules_audit.record(tx, caller, "limit.put", name, None, values.model_dump(mode="json"))
    return _entry(limit), before is None


async def get(tx: Transaction, name: str) -> LimitEntry:
    """Return a limit. Raises `LimitNotFound`."""
    limit = await sql_limits.get(tx, name)
    if limit is None:
        raise await _not_found(tx, name)
    return _entry(limit)


async def page(tx: Transaction, part: Page) -> PaginatedResponse[LimitEntry]:
    """Return one page of the limits by name."""
    limits, total = await sql_limits.page(tx, part.limit, part.offset)
    return rules_answers.page_response(PaginatedResponse[LimitEntry], list(map(_entry, limits)), total, part)


async def delete(tx: Transaction, caller: Identity, name: str) -> None:
    """Delete a limit. Raises `LimitNotFound`, and `Conflict` while a job names it."""
    if await sql_limits.get(tx, name, lock=True) is None:
        raise await _not_found(tx, name)
    for job, stored in await sql_limits.limits_of_jobs(tx):
        if any(limit.name == name for limit in _limits_of(stored).limits):
            raise Conflict(f"Job {job!r} has the limit {name!r}: register it without this limit first")
    await sql_limits.delete(tx, name)
    await rules_audit.record(tx, caller, "limit.delete", name)


async def _not_found(tx: Transaction, name: str, field: str = "") -> LimitNotFound:
    near = near_text(name, await sql_limits.names_from(tx, name[:1], _MAX_NEAR))
    return LimitNotFound(
        f"{field}there is no limit {name!r}{near}; an operator defines it with PUT /limits/{name}, or "
        f"zndraw-joblib limits put {name}"
    )


def _entry(limit: NamedLimit) -> LimitEntry:
    values = _values_of(limit.spec)
    fields = {name: getattr(limit, name) for name in ("name", "created_at", "updated_at", "updated_by")}
    return LimitEntry(max_in_flight=values.max_in_flight, rate=values.rate, **fields)


# How many tasks limits allow, for a demand.

# The most queues of keys that are looked at; of more, the limits are not.
_MAX_KEYS = 1000


async def allowed(tx: Transaction, stored: str, pending: Mapping[UUID, int]) -> dict[UUID, int]:
    """Return how many of the pending tasks of the queues of a job its limits allow now, at most.

    Nothing is locked: it is a figure, not a claim. Of a job with more than 1,000 queues of keys, it is all.
    """
    buckets = await _buckets(tx, stored, list(pending))
    if buckets is None:
        return dict(pending)
    ids_of, free = buckets
    numbers = dict.fromkeys(pending, 0)
    for head, ids in ids_of.items():
        number = min(pending[head.job_id] - numbers[head.job_id], *(free[bucket_id] for bucket_id in ids))
        numbers[head.job_id] += number
        for bucket_id in ids:
            free[bucket_id] -= number
    return numbers


async def allowed_queues(tx: Transaction, stored: str, job_id: UUID) -> list[LimitHead] | None:
    """Return the queues of keys of a job of which its limits allow a task now.

    None if they limit nothing, or if it has more than 1,000 of these queues.
    """
    buckets = await _buckets(tx, stored, [job_id])
    if buckets is None:
        return None
    ids_of, free = buckets
    return [head for head, ids in ids_of.items() if all(free[bucket_id] for bucket_id in ids)]


async def _buckets(
    tx: Transaction, stored: str, job_ids: Sequence[UUID]
) -> tuple[dict[LimitHead, list[UUID]], dict[UUID, int]] | None:
    """Return the buckets of each queue of keys of a job, and how many tasks each of them allows now."""
    own = _limits_of(stored)
    names = {limit.name for limit in own.limits if limit.name is not None}
    rules = rules_of(own.of, own.limits, await sql_limits.specs(tx, names) if names else {})
    rules = [rule for rule in rules if not rule.values.is_empty]
    heads = await sql_limits.first_queues(tx, job_ids, _MAX_KEYS + 1)
    if not rules or len(heads) > _MAX_KEYS:
        return None
    ids_of: dict[LimitHead, list[UUID]] = {}
    rule_of: dict[UUID, Rule] = {}
    for head in heads:
        key = "" if head.limit_key == WITHOUT_KEY else head.limit_key
        ids_of[head] = [rule.bucket_id(head.room_id, key) for rule in rules]
        rule_of.update(zip(ids_of[head], rules, strict=True))
    return ids_of, await _free(tx, rule_of)


async def _free(tx: Transaction, rule_of: Mapping[UUID, Rule]) -> dict[UUID, int]:
    """Return how many tasks each bucket allows now."""
    ids, now = sorted(rule_of), await tx.now()
    states = await sql_limits.states(tx, ids, ids) if ids else {}
    free = {}
    for bucket_id, rule in rule_of.items():
        bucket, values = Bucket(rule, states.get(bucket_id, BucketState(0, None)), now), rule.values
        numbers = [] if values.rate is None else [bucket.tokens]
        if values.max_in_flight is not None:
            numbers.append(max(0, values.max_in_flight - bucket.held))
        free[bucket_id] = min(numbers)
    return free
