"""What one server process is made of, and the walks of its requests through it."""

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary, WeakSet

from zndraw_joblib.contract.messages import (
    NamedTask,
    TaskClaimResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
    WorkerResponse,
)
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.background.scheduler import Scheduler
from zndraw_joblib.server.batcher import Batcher
from zndraw_joblib.server.internal.dispatcher import Dispatcher
from zndraw_joblib.server.payload_validator import PayloadValidator
from zndraw_joblib.server.ports import (
    Identity,
    Publisher,
    SessionMaker,
    Wake,
    claim_key,
    job_key,
    place_key,
    task_key,
    worker_key,
)
from zndraw_joblib.server.pubsub.pubsub import PubSub
from zndraw_joblib.server.service import claims, internal, jobs, tasks, workers
from zndraw_joblib.server.service.fairness import ClaimOrder
from zndraw_joblib.server.service.payloads import ExpensiveValidation
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import Clock, Database, SessionDatabase, Transaction
from zndraw_joblib.server.waiters import Disconnected, Waiters

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
P = ParamSpec("P")

_RECHECK_FIRST, _RECHECK_GROWTH, _RECHECK_MAX = 1.0, 1.5, 5.0
_MAX_BACKOFF = 0.5
_WORKER = worker_key("")
_BEATS_AT_ONCE = 1000
_FINISH_SECONDS = 10.0
# So many tasks are looked up in a few milliseconds.
_SHORTLY_READ = 500


class Runtime:
    """One server process: its settings, its database, its waiters, its write path."""

    def __init__(
        self,
        database: Database | SessionMaker,
        settings: JobLibSettings,
        *,
        publish: Publisher | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self.database = database if isinstance(database, Database) else SessionDatabase(database, clock)
        self.pubsub = PubSub(self._wake, self.recheck)
        self.waiters = Waiters(lambda: self.settings.max_waiting_requests, self.pubsub.forward)
        self.publish = publish

        def width() -> int:
            return self.database.concurrent_writes

        self._submits = Batcher(partial(self._commit, tasks.submit), width)
        self._claims = Batcher(partial(self._commit, claims.claim), width)
        self._reports = Batcher(partial(self._commit, tasks.report), width)
        self._beats = Batcher(self._commit_beats, width)
        self._writing: set[asyncio.Task[Any]] = set()
        self._confirms = Batcher(partial(self._commit, internal.confirm_dispatch), width)
        self.dispatcher = Dispatcher(self.write, self._confirms.put, lambda: self.order)
        self.checker = PayloadValidator()
        self.scheduler = Scheduler(self.write)
        # Called with the key of each wake-up, be it of this process or of another replica.
        self.hearers: list[Callable[[str], None]] = [self.dispatcher.hear]
        # Called with (kind, name) of all keys that are slept on, to wake those that missed their wake-up.
        self.looks: list[Callable[[list[list[str]]], Awaitable[None]]] = []
        self._seen: dict[UUID, float] = {}
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._rechecking: WeakSet[asyncio.AbstractEventLoop] = WeakSet()

    async def write(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run `work(tx, *args, **kwargs)` in a transaction, commit, then wake waiters and publish events.

        A cancelled caller stops neither: what is committed is published.
        """
        return await self._finished(self.database.write(work, *args, **kwargs))

    async def write_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Write as `write` does. The caller promises a few milliseconds, so SQLite may run it on the event loop."""
        return await self._finished(self.database.write_short(work, *args, **kwargs))

    async def _finished(self, write: Awaitable[tuple[Result, Transaction]]) -> Result:
        writing = asyncio.create_task(self._commit_and_tell(write))
        self._writing.add(writing)
        writing.add_done_callback(self._written)
        return await asyncio.shield(writing)

    def _written(self, writing: asyncio.Task[Any]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled() and (error := writing.exception()):
            # Whoever waits for it gets it; whoever has given up does not want it.
            logger.debug("a transaction was rolled back: %r", error)

    async def finish(self) -> None:
        """Let what is being written be written and told, before the loop or the database closes."""
        await self.checker.close()
        paths: tuple[Batcher[Any, Any], ...] = (
            self._submits,
            self._claims,
            self._reports,
            self._beats,
            self._confirms,
        )
        if writing := self._writing.union(*[path.batches for path in paths]):
            await asyncio.wait(writing, timeout=_FINISH_SECONDS)

    async def _commit_and_tell(self, write: Awaitable[tuple[Result, Transaction]]) -> Result:
        result, tx = await write
        await self.tell(tx)
        return result

    async def _commit(self, apply: Callable[..., Awaitable[Result]], items: Sequence[Any]) -> Result:
        return await self._commit_and_tell(self.database.write_short(apply, items))

    async def _commit_beats(
        self, items: Sequence[workers.Heartbeat]
    ) -> Sequence[WorkerResponse | ProblemException]:
        is_short = sum(len(item.named) for item in items) <= _SHORTLY_READ
        write = self.database.write_short if is_short else self.database.write
        return await self._commit_and_tell(write(workers.heartbeat, items))

    async def tell(self, tx: Transaction) -> None:
        """Wake waiters and send events, after the commit. A publisher that fails is logged."""
        self._notify(tx.wakes)
        if tx.due is not None:
            self.scheduler.note(tx.due)
        for worker_id in {freed.worker_id for freed in tx.freed}:
            self.waiters.wake(place_key(worker_id))
        if tx.freed and self.settings.room_max_in_flight is not None:
            await self._wake_for_rooms([freed.room_id for freed in tx.freed], tx.wakes)
        if self.publish is None or not getattr(self.publish, "has_subscribers", True):
            return
        if not (emissions := tx.emissions):
            return
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            try:
                await self.publish(emissions)
            except Exception:
                logger.exception("%d events were not sent; what they tell of is committed", len(emissions))

    async def _wake_for_rooms(self, rooms: list[str], woken: Sequence[Wake]) -> None:
        """Wake somebody, once for each task, for each job of which rooms may have more under way now.

        Who was woken already counts.
        """
        found = await self.database.read(jobs.pending_in_rooms, rooms=sorted(set(rooms)))
        done = Counter[str]()
        for key, count in woken:
            done[key] += count or 0
        wanted = {job_key(name): len(rooms) - done[job_key(name)] for name in found}
        self._notify([Wake(key, count) for key, count in wanted.items() if count > 0])

    def _notify(self, wakes: Sequence[Wake]) -> None:
        self.waiters.notify(wakes)
        for wake in wakes:
            self._heed(wake.key)

    @property
    def order(self) -> ClaimOrder:
        """In which order tasks are claimed, as the settings say now."""
        return ClaimOrder(self.settings.claim_order == "fair", self.settings.room_max_in_flight)

    async def submit(
        self, caller: Identity, room_id: str, job: JobName, request: TaskSubmitRequest
    ) -> TaskResponse:
        """Add a task; where its job is internal, hand it to the broker too."""
        way = self.dispatcher.way(job)
        item = tasks.Submission(
            caller=caller,
            room_id=room_id,
            job=job,
            payload=request.payload,
            options=request,
            is_configured=way is not None,
            exclusive_start=way is not None and way.exclusive_start,
            is_deferred=way is not None and way.is_bounded,
            is_bounded=self.settings.room_max_in_flight is not None,
            validate_payload=self.settings.validate_payload,
            cross_room=self.settings.cross_room_jobs,
        )
        task = await self._submit(item)
        if way is None or way.is_bounded or task.status != TaskStatus.CLAIMED:
            return task
        return await self.dispatcher.hand_over(task, way)

    async def _submit(self, item: tasks.Submission) -> TaskResponse:
        while True:
            try:
                task: TaskResponse = await self._submits.put(item)
            except ExpensiveValidation as work:
                await self.checker.check(work.schema, item.payload)
                item = replace(item, validated_schema=work.schema)
            else:
                return task

    async def report(self, caller: Identity, task_id: UUID, update: TaskUpdateRequest) -> TaskResponse:
        """Move a task as its holder, its submitter or a superuser says."""
        task = await self._reports.put(tasks.Report(caller, task_id, update))
        # Clients of old do not say who they are; a worker cancels nothing.
        reporter = update.worker_id or (task.worker_id if update.status != TaskStatus.CANCELLED else None)
        if reporter is not None:
            await self.touch_worker(caller, reporter)
        return task

    async def beat(
        self,
        caller: Identity,
        worker_id: UUID,
        named: Sequence[NamedTask] = (),
        max_tasks: int | None = None,
    ) -> WorkerResponse:
        """Note that a worker lives; give a verdict on each task that it names."""
        self._mark_seen(worker_id)
        item = workers.Heartbeat(caller, worker_id, self.settings.heartbeat_seconds, named, max_tasks)
        return await self._beats.put(item)

    def force_heartbeat(self, worker_id: UUID) -> None:
        """Let the next sign of life of a worker be written, however short ago the last one was."""
        self._seen[worker_id] = -math.inf

    async def claim(
        self,
        caller: Identity,
        worker_id: UUID,
        wait: float = 0,
        gone: Disconnected = None,
        claim_id: UUID | None = None,
    ) -> TaskClaimResponse:
        """Claim the oldest task for a worker; sleep up to `wait` seconds for one.

        `gone` is done once the client has hung up: then it gets no task. Who repeats a `claim_id` gets the
        task again that it holds by it.
        """
        is_doubted = self._seen.get(worker_id) == -math.inf
        interval = 0 if is_doubted else self.settings.heartbeat_seconds
        item = claims.Claim(caller, worker_id, interval, claim_id, self.order)
        deadline = time.monotonic() + wait
        got: claims.ClaimResult | None = await self._claim_once(item)
        while got is not None and not got.is_final and not self._is_over(deadline, gone):
            keys = got.keys(worker_id)
            got = await self._claim_asleep(item, keys, deadline, gone)
        return TaskClaimResponse(task=got.task, reason=got.reason) if got else TaskClaimResponse()

    async def _claim_asleep(
        self, item: claims.Claim, keys: list[str], deadline: float, gone: Disconnected
    ) -> claims.ClaimResult | None:
        """Claim, sleeping in between, until there is a task, the time is over, or the keys have changed.

        None where the client is gone, or a newer claim of the worker took its place.
        """
        # A client that lost its connection asks anew, while we take the old one for alive.
        self.waiters.evict_oldest(keys[0], self.settings.max_claims_per_worker)
        marks = [] if item.claim_id is None else [claim_key(item.claim_id)]
        for mark in marks:
            self.waiters.evict_oldest(mark, 1)
        with self.waiters.enter([*keys, *marks]) as waiter:
            self.start_recheck()
            while True:
                self.waiters.look(waiter)
                got = await self._claim_once(item)
                is_for_others = not got.is_final and keys != got.keys(item.worker_id)
                if not is_for_others:
                    waiter.found(job_key(got.task.job_name) if got.task else None)
                if got.is_final or is_for_others or self._is_over(deadline, gone):
                    return got
                await waiter.sleep(deadline - time.monotonic(), gone)
                if waiter.is_dismissed or (gone is not None and gone.done()):
                    return None

    def _is_over(self, deadline: float, gone: Disconnected) -> bool:
        return time.monotonic() >= deadline or self.waiters.is_closed or (gone is not None and gone.done())

    async def _claim_once(self, item: claims.Claim) -> claims.ClaimResult:
        for attempt in range(self.settings.claim_max_attempts):
            got = await self._claims.put(item)
            if got.task is not None or not got.is_contended:
                break
            delay = self.settings.claim_base_delay_seconds * 2**attempt
            await asyncio.sleep(min(delay, _MAX_BACKOFF) * (0.5 + random.random()))  # noqa: S311 - jitter
        self._mark_seen(item.worker_id)
        return got

    async def get_task(self, task_id: UUID, wait: float = 0, gone: Disconnected = None) -> TaskResponse:
        """Return a task; sleep up to `wait` seconds for its end."""
        if wait <= 0:
            return await self._read_task(task_id)
        deadline = time.monotonic() + wait
        with self.waiters.enter([task_key(task_id)]) as waiter:
            self.start_recheck()
            while True:
                self.waiters.look(waiter)
                task = await self._read_task(task_id)
                if tasks.has_ended(task) or self._is_over(deadline, gone):
                    return task
                await waiter.sleep(deadline - time.monotonic(), gone)

    async def _read_task(self, task_id: UUID) -> TaskResponse:
        return await self.database.read(tasks.get, task_id=task_id)

    async def touch_worker(self, caller: Identity, worker_id: UUID) -> None:
        """Count any request of a worker as a heartbeat, unless one was noted lately."""
        due = self._seen.get(worker_id, 0) + self.settings.heartbeat_seconds
        if time.monotonic() >= due:
            try:
                await self.beat(caller, worker_id)
            except ProblemException as problem:
                logger.debug("no heartbeat noted for worker %s: %s", worker_id, problem)

    def _mark_seen(self, worker_id: UUID) -> None:
        if len(self._seen) > 2 * self.settings.max_waiting_requests + 1000:
            self._seen.clear()
        self._seen[worker_id] = time.monotonic()

    def start_recheck(self) -> None:
        """Look now and then, as long as somebody sleeps, for wake-ups that were lost."""
        loop = asyncio.get_running_loop()
        if loop not in self._rechecking:
            self._rechecking.add(loop)
            loop.create_task(self._recheck_while_somebody_sleeps())  # noqa: RUF006 - it ends by itself

    async def _recheck_while_somebody_sleeps(self) -> None:
        # A wake-up may be lost, and who waits lives: one look, and one write, for all waiters together.
        delay, beaten = _RECHECK_FIRST, time.monotonic()
        try:
            while len(self.waiters):
                interval = self.settings.heartbeat_seconds
                await asyncio.sleep(min(delay, interval))
                delay = min(delay * _RECHECK_GROWTH, _RECHECK_MAX)
                try:
                    if time.monotonic() >= beaten + interval:
                        beaten = time.monotonic()
                        await self._beat_for_sleepers()
                    await self.recheck()
                except ProblemException as problem:
                    logger.warning("waiters were not re-checked: %s", problem)
        finally:
            self._rechecking.discard(asyncio.get_running_loop())

    async def _beat_for_sleepers(self) -> None:
        """Note that the workers live whose claims are held open."""
        waiting = [
            UUID(key.removeprefix(_WORKER)) for key in self.waiters.waited_keys if key.startswith(_WORKER)
        ]
        for start in range(0, len(waiting), _BEATS_AT_ONCE):
            part = waiting[start : start + _BEATS_AT_ONCE]
            await self.write(workers.keep_alive, worker_ids=part)

    def _wake(self, key: str, limit: int | None) -> None:
        self.waiters.wake(key, limit)
        self._heed(key)

    def _heed(self, key: str) -> None:
        for hear in self.hearers:
            hear(key)

    async def recheck(self) -> None:
        """Wake the waiters for whom something is there, whatever became of their wake-ups."""
        waited_keys = [key.split(":", 1) for key in self.waiters.waited_keys]
        ids = [UUID(rest) for kind, rest in waited_keys if kind == "task"]
        names = [rest for kind, rest in waited_keys if kind == "job"]
        ended = await self.database.read(tasks.ended, ids=ids) if ids else []
        waiting = await self.database.read(jobs.pending_counts, full_names=names) if names else {}
        for task_id in ended:
            self.waiters.wake(task_key(task_id))
        # Its tasks may have ended in another process, which tells nobody of that.
        for worker_id in (rest for kind, rest in waited_keys if kind == "place"):
            self.waiters.wake(place_key(worker_id))
        for name, count in waiting.items():
            self.waiters.wake(job_key(name), count)
        for look in self.looks:
            await look(waited_keys)
