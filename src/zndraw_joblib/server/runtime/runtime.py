"""One server process: its database, its waiters, its write path, and the flow of a request through them."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import cached_property, partial
from http import HTTPStatus
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.server.db.database import Clock, Database, Freed, Transaction
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.room_events import EventRow
from zndraw_joblib.server.process.batcher import MAX_WAITING, Batcher, raised
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.ports import (
    BEFORE,
    PAUSES_KEY,
    ContentStore,
    Identity,
    LocalHistogram,
    Reaches,
    RequestKey,
    SessionMaker,
    Wake,
    claim_key,
    events_key,
    group_key,
    job_key,
    parsed_before,
    reaches_all,
    slot_key,
    task_key,
)
from zndraw_joblib.server.process.pubsub import PubSub
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.waiters import (
    OPEN,
    CallerAccess,
    Disconnected,
    Wait,
    Waiter,
    Waiters,
    wait_at_most,
    waiting_requests,
)
from zndraw_joblib.server.queue import (
    rules_allocations,
    rules_batches,
    rules_claims,
    rules_ends,
    rules_groups,
    rules_idempotency,
    rules_jobs,
    rules_queues,
    rules_rates,
    rules_successors,
    rules_tasks,
    rules_transitions,
    rules_trees,
    rules_webhooks,
    rules_workers,
)
from zndraw_joblib.server.queue.rules_claims import PlainClaims
from zndraw_joblib.server.queue.rules_details import LogLimits
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder
from zndraw_joblib.server.queue.rules_idempotency import TASKS, Repeat, once_or_repeat
from zndraw_joblib.server.queue.rules_shares import StoredLimits
from zndraw_joblib.server.queue.rules_tasks import KnownJobs
from zndraw_joblib.server.runtime.claims import BatchClaim, ClaimFlow, TimedClaim, key_of
from zndraw_joblib.server.runtime.event_queue import EventQueue, Publish
from zndraw_joblib.server.runtime.payload_validator import PayloadValidator
from zndraw_joblib.server.runtime.recheck import Recheck
from zndraw_joblib.server.runtime.task_tokens import TaskTokens
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import (
    ClaimBatch,
    NamedTask,
    TaskClaimRequest,
    TaskClaimResponse,
    TaskResponse,
    TaskSubmitRequest,
    WorkerResponse,
)
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.problems import (
    Forbidden,
    InvalidRequest,
    InvalidTaskTransition,
    ProblemException,
    TooManyRequests,
    WorkerNotFound,
)
from zndraw_joblib.wire.successors import MAX_BATCH_PREDECESSORS

Pair = tuple[str, UUID]


class LastHeartbeats:
    """The last heartbeats of workers. A request of a worker writes one only if it is due."""

    def __init__(self, settings: JobLibSettings) -> None:
        self._settings = settings
        self._written: dict[UUID, float] = {}
        self._refused: dict[Pair, float] = {}
        self._under_way: set[Pair] = set()

    def force(self, worker_id: UUID) -> None:
        """Make the next heartbeat of a worker due."""
        self._written[worker_id] = -math.inf

    def is_forced(self, worker_id: UUID) -> bool:
        """Return whether the next heartbeat is due, however recent the last one is."""
        return self._written.get(worker_id) == -math.inf

    def add(self, worker_id: UUID) -> None:
        """Record that a heartbeat was written now."""
        self._put(self._written, worker_id)

    def is_due(self, user: str, worker_id: UUID) -> bool:
        """Return whether a request of a user should write a heartbeat.

        Not while another request of the user writes it, and not soon after it was refused.
        """
        pair = user, worker_id
        last = max(self._written.get(worker_id, 0), self._refused.get(pair, -math.inf))
        return pair not in self._under_way and time.monotonic() >= last + self._settings.heartbeat_seconds

    @contextmanager
    def writing(self, user: str, worker_id: UUID) -> Iterator[None]:
        """Write a heartbeat in a block, and record a refusal of it."""
        pair = user, worker_id
        self._under_way.add(pair)
        try:
            yield
        except (Forbidden, WorkerNotFound):
            self._put(self._refused, pair)
            raise
        finally:
            self._under_way.discard(pair)

    def _put(self, times: dict[Any, float], key: Any) -> None:
        if len(times) > 2 * self._settings.max_waiting_requests + 1000:
            times.clear()
        times[key] = time.monotonic()


logger = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
P = ParamSpec("P")
OnceOrRepeat = TaskResponse | Repeat[TaskResponse]
Write = Callable[..., Awaitable[Any]]
SubmitAll = Callable[[Transaction, Sequence[rules_tasks.Submission]], Awaitable[list[TaskResponse]]]

_MAX_CLAIM_PAUSE, _FINISH_SECONDS, _LAST_EVENTS_SECONDS = 0.5, 10.0, 1.0
# A claim whose worker keeps its free slots for a task is woken when it may get one. It also looks this often:
# for urgent tasks, for which it does not wait, and for tasks of its worker that end at other servers.
_KEPT_SECONDS = 2.0
# A write for this many tasks takes a few milliseconds, or a few tens if it changes all of them.
_TASKS_PER_SHORT_WRITE = 500


# The places of results in a payload without any.
_NO_PLACES = frozenset[str]()
# Without a rate of submits.
_NO_RATE = nullcontext(rules_rates.Tokens(0, {}, 0))


class Runtime:
    """The state of one server process.

    `publish` sends each event that `reach()` lets through after its commit, in a task of its own; none if it
    returns None.
    `on_events`, if set, gets them at the commit; `on_appended` gets those that were stored, by room. `on_due`
    gets the seconds until the first task is due that a transaction scheduled, and 0 when a pause gets an end.
    A re-check finds lost wake-ups after `recheck_seconds[0]`, growing to the second.
    """

    on_providers_removed: Callable[[list[str]], Coroutine[Any, Any, None]] | None = None
    on_appended: Callable[[Mapping[str, Sequence[EventRow]]], None] = staticmethod(lambda _: None)

    def __init__(  # noqa: PLR0913 - one argument per part that `mount` connects
        self,
        database: Database | SessionMaker,
        settings: JobLibSettings,
        *,
        publish: Publish | None = None,
        reach: Callable[[], Reaches | None] = lambda: reaches_all,
        on_due: Callable[[float], None] = lambda _: None,
        clock: Clock | None = None,
        recheck_seconds: tuple[float, float] = (1.0, 5.0),
    ) -> None:
        self.settings, limits, self._clock = settings, Limits.of(settings), clock
        self.database = database = (
            database if isinstance(database, Database) else SessionDatabase(database, clock, limits)
        )
        database.keeps_unserved_jobs, database.settle = settings.keeps_unserved_jobs, rules_ends.settle
        self.pubsub = PubSub(self._wake, lambda: self.recheck.run())  # noqa: PLW0108 - it is made below
        self.waiters = Waiters(waiting_requests(settings), self.pubsub.forward, self.pubsub.peers)
        self.waiters.subscribe(PAUSES_KEY, lambda _: on_due(0.0))
        self.recheck = Recheck(self.database, self.waiters, self._keep_alive, settings, recheck_seconds)
        self.events, self._last_heartbeats = EventQueue(settings), LastHeartbeats(settings)
        self._publish, self._reach, self._on_due = publish, reach, on_due
        self.on_events: Callable[[Sequence[Emission]], None] | None = None
        self._batchers: list[Batcher[Any, Any]] = []
        self._writing: set[asyncio.Task[Any]] = set()
        submit, weight = partial(rules_idempotency.submit, jobs=KnownJobs()), attrgetter("weight")
        self.submits: Batcher[rules_tasks.Submission, OnceOrRepeat] = self.batcher(
            submit, weigh=attrgetter("predecessors")
        )
        report = partial(rules_idempotency.report, limits=partial(LogLimits.of, settings))
        self._reports: Batcher[rules_tasks.Report, OnceOrRepeat] = self.batcher(report, tasks_of=weight)
        self._run_times = rules_allocations.RunTimes()
        self._plain_claims, limit = PlainClaims(), attrgetter("task_limit")
        # The second one has the claims that choose their queues.
        self._claims: list[Batcher[rules_claims.Claim, rules_claims.ClaimResult]] = [
            self.batcher(work, tasks_of=limit)
            for work in (self._plain_claims.claim, self._plain_claims.claim_chosen)
        ]
        self.heartbeats: Batcher[rules_workers.Heartbeat, WorkerResponse] = self.batcher(
            partial(rules_workers.heartbeat, limits=partial(LogLimits.of, settings)), tasks_of=weight
        )
        self.payload_validator = PayloadValidator(share=settings.share_of)
        self.batch_items = LocalHistogram((1, 2, 4, 8, 16, 32, 64, 128, 256))
        self.stored = StoredLimits(settings, self.database, self.start)
        self.content_store: ContentStore | None = None

    @cached_property
    def task_tokens(self) -> TaskTokens:
        """What makes and checks the tokens of tasks."""
        now = self._clock.token_time if isinstance(self._clock, TestClock) else None
        return TaskTokens(self.database.read_short, self.write_short, now)

    def _wake(self, key: str, count: int | None) -> None:
        if key.startswith(BEFORE):
            waited, worker_ids = parsed_before(key)
            self.waiters.wake_before(waited, count or 0, worker_ids)
        else:
            self.waiters.wake(key, count)

    async def _keep_alive(self, worker_ids: Sequence[UUID]) -> None:
        await self.write(rules_workers.keep_alive, worker_ids)

    def batcher(
        self,
        apply: Callable[[Transaction, Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        needs: Callable[[Item], str] = attrgetter("needs"),
        tasks_of: Callable[[Item], int] | None = None,
        weigh: Callable[[Item], int] | None = None,
    ) -> Batcher[Item, Result]:
        """Return a batcher that runs `apply(tx, items)` in one transaction for each batch.

        `tasks_of` returns how many tasks an item concerns, by default one: a batch of many does not run on
        the event loop. `weigh` returns how many tasks and groups an item waits for: those of a
        batch are bounded.
        """
        database, share = self.database, self.settings.share_of(MAX_WAITING)

        def commit(items: Sequence[Item], lock_seconds: float) -> Awaitable[Sequence[Result | Exception]]:
            self.batch_items.add(len(items))
            tasks = len(items) if tasks_of is None else sum(map(tasks_of, items))
            is_short = tasks <= _TASKS_PER_SHORT_WRITE
            return self._finish_write(database.write_batch(apply, items, lock_seconds, is_short=is_short))

        batcher = Batcher(
            commit,
            lambda: database.concurrent_writes,
            needs,
            database.lock_seconds,
            share=share,
            weigh=weigh,
            max_weight=MAX_BATCH_PREDECESSORS,
        )
        self._batchers.append(batcher)
        return batcher

    async def write(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run `work(tx, *args, **kwargs)` in a transaction, commit, then wake waiters and publish events.

        A cancelled caller stops neither: what is committed is published.
        """
        return await self._shielded(self.database.write(work, *args, **kwargs))

    async def write_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Write work that takes a few milliseconds: SQLite may run it on the event loop."""
        return await self._shielded(self.database.write_short(work, *args, **kwargs))

    async def _shielded(self, write: Awaitable[tuple[Result, Transaction]]) -> Result:
        return await asyncio.shield(self.start(self._finish_write(write)))

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start work that `finish` waits for."""
        started = asyncio.create_task(work)
        self._writing.add(started)
        started.add_done_callback(self._written)
        return started

    def _written(self, writing: asyncio.Task[Any]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled() and (error := writing.exception()):
            # The caller gets the error; a caller that was cancelled does not retrieve it.
            logger.debug("A transaction was rolled back: %r", error)

    async def finish(self) -> None:
        """Wait for writes under way and their events, before the event loop or the database closes."""
        await self.payload_validator.close()
        batches = [batch for batcher in self._batchers for batch in batcher.batches]
        if writing := self._writing.union(batches):
            await asyncio.wait(writing, timeout=_FINISH_SECONDS)
        await self.events.close(_LAST_EVENTS_SECONDS)

    async def _finish_write(self, write: Awaitable[tuple[Result, Transaction]]) -> Result:
        result, tx = await write
        self.publish(tx)
        return result

    def publish(self, tx: Transaction) -> None:
        """Wake waiters and queue events after the commit. No request waits for the publisher."""
        if tx.wakes:
            self.waiters.notify(tx.wakes)
        if tx.appended:
            self.on_appended(tx.appended)
            self.pubsub.forward([Wake(events_key(room_id), None) for room_id in tx.appended])
        if tx.due is not None:
            self._on_due(tx.seconds_until_due)
        if tx.freed:
            self._wake_for_slots(tx.freed, tx.wakes)
        if tx.removed_providers and self.on_providers_removed is not None:
            self.start(self.on_providers_removed(tx.removed_providers))
        if self.on_events is not None:
            self.on_events(tx.emissions)
        if self._publish is not None and (reaches := self._reach()) is not None:
            self.events.put(self._publish, tx.emissions_to(reaches))

    def _wake_for_slots(self, freed: Sequence[Freed], woken: Sequence[Wake]) -> None:
        for worker_id in {slot.worker_id for slot in freed}:
            self.waiters.wake(slot_key(worker_id))
        if self.settings.room_max_in_flight is not None:
            # Not awaited, because the committed write must not raise its error.
            self.start(self._wake_for_rooms([slot.room_id for slot in freed], woken))

    async def _wake_for_rooms(self, rooms: list[str], woken: Sequence[Wake]) -> None:
        """Wake one waiter for each freed slot of these rooms and each job that has pending tasks there."""
        try:
            waiting = await self.database.read_short(rules_jobs.pending_in_rooms, room_ids=sorted(set(rooms)))
        except Exception as error:
            logger.warning("Claims were not woken for freed room slots; the re-check wakes them: %r", error)
            return
        # Waiters that were already woken use up part of the count.
        counts_woken = Counter(key for key, count in woken for _ in range(count or 0))
        counts = {key: len(rooms) - counts_woken[key] for key in map(job_key, waiting)}
        self.waiters.notify([Wake(key, count) for key, count in counts.items() if count > 0])

    @property
    def order(self) -> ClaimOrder:
        """The order in which tasks are claimed, by the current settings."""
        return ClaimOrder(self.settings.claim_order == "fair", self.settings.room_max_in_flight)

    def submission(
        self,
        caller: Identity,
        room_id: str,
        job: JobName,
        request: TaskSubmitRequest,
        key: RequestKey | None = None,
        traceparent: str | None = None,
    ) -> rules_tasks.Submission:
        """Return the task that a request submits."""
        settings = self.settings
        refusal: ProblemException | None = None
        if request.webhook is not None:
            refusal = rules_webhooks.refusal_of(request.webhook.url, settings, "webhook")
        filled = _NO_PLACES
        if request.after is not None:
            try:
                filled = rules_successors.filled_places(request.payload, request.after)
            except ProblemException as problem:
                refusal = refusal or problem
        return rules_tasks.Submission(
            caller=caller,
            room_id=room_id,
            job=job,
            payload=request.payload,
            options=request,
            is_bounded=settings.room_max_in_flight is not None,
            requires_worker=settings.without_workers == WithoutWorkers.REJECT,
            validate_payload=settings.validate_payload,
            cross_room=settings.cross_room_jobs,
            key=key,
            traceparent=traceparent,
            refusal=refusal,
            filled=filled,
        )

    def take_submits(
        self, user: str, keys: Sequence[RequestKey | None], count: int = 1
    ) -> AbstractAsyncContextManager[rules_rates.Tokens]:
        """Count the tasks of a block for the rate of a user's submits, but no repeats and refused ones.

        `keys` are those of the tasks, or that of all together. The block sets how many were `accepted`,
        unless all were. Raises `TooManyRequests`.
        """
        limit = self.settings.max_submits_per_user
        return _NO_RATE if limit is None else self._take_submits(limit, user, keys, count)

    @asynccontextmanager
    async def _take_submits(
        self, limit: int, user: str, keys: Sequence[RequestKey | None], count: int
    ) -> AsyncGenerator[rules_rates.Tokens]:
        rate = limit, timedelta(seconds=self.settings.submit_window_seconds)
        tokens = await self.write_short(rules_rates.take, user, keys, count, *rate)
        if isinstance(tokens, TooManyRequests):
            raise tokens
        try:
            yield tokens
        except ProblemException as error:
            # After an error of the server the tasks may be there.
            if error.problem.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                tokens.accepted = 0
            raise
        finally:
            if tokens.accepted < tokens.count:
                refused = tokens.count - tokens.accepted
                await self.write_short(rules_rates.give_back, user, refused, *rate)

    async def submit(self, item: rules_tasks.Submission) -> OnceOrRepeat:
        """Add a task. Raises the problem that `rules_tasks.submit` returns, or `InvalidPayload`."""
        user = item.caller.id  # the health check has none, and no limit
        if user and not self.stored.pending_tasks.take_now(user):
            await self._take_pending([item], [item.key])
        if item.options.webhook is not None:
            await self._take_webhooks([item])
        if item.options.unique is None:
            return await self.payload_validator.submit_one(item, self.submits.put)
        await self.set_payload_keys([item])
        answer = await self.payload_validator.submit_one(item, self.submits.put)
        await self._load_duplicates([answer])
        return answer

    async def submit_many(self, items: Sequence[rules_tasks.Submission]) -> list[OnceOrRepeat | Exception]:
        """Add tasks. The result for each is that of `rules_tasks.submit`, or `InvalidPayload`."""
        await self._take_pending(items, [item.key for item in items])
        await self._take_webhooks(items)
        await self.set_payload_keys(items)
        answers = await self.payload_validator.submit(items, self.submits.put_many)
        await self._load_duplicates(answers)
        return answers

    async def submit_all(
        self,
        items: Sequence[rules_tasks.Submission],
        key: RequestKey | None = None,
        write: Write | None = None,
        work: SubmitAll = rules_tasks.submit_all,
    ) -> list[TaskResponse] | Repeat[list[TaskResponse]]:
        """Add tasks in one transaction, that of `write`, by `work`.

        Raises the problem of the first faulty one.
        """
        repeat: Repeat[list[TaskResponse]] | None = None
        if write is None:
            await self._take_pending(items, [key] * len(items))
            await self._take_webhooks(items)

        async def put(validated: Sequence[rules_tasks.Submission]) -> Sequence[TaskResponse | Exception]:
            nonlocal repeat
            try:
                response = await (write or self.write)(once_or_repeat(key, TASKS, work), validated)
            except rules_tasks.NoneSubmitted as error:
                return error.results
            repeat = response if isinstance(response, Repeat) else None
            tasks: list[TaskResponse] = response.result if isinstance(response, Repeat) else response
            return tasks

        await self.set_payload_keys(items)
        results = await self.payload_validator.submit(items, put, is_atomic=True)
        for index, result in enumerate(results):
            if isinstance(result, ProblemException):
                raise rules_transitions.at_item(result, "tasks", index)
        await self._load_duplicates(results, write)
        return repeat or [raised(result) for result in results]

    async def set_payload_keys(self, items: Sequence[rules_tasks.Submission]) -> None:
        """Compute the unique keys that submits without a key have by their payloads."""
        if any(item.options.unique is not None and item.options.unique.key is None for item in items):
            await asyncio.to_thread(rules_tasks.set_payload_keys, items)

    async def _load_duplicates(
        self, answers: Sequence[OnceOrRepeat | Exception], read: Write | None = None
    ) -> None:
        """Read the payloads of large tasks that hold the keys of submits."""
        tasks = [answer for answer in answers if isinstance(answer, TaskResponse)]
        if without := [task for task in tasks if task.duplicate and not rules_tasks.has_body(task)]:
            await (read or self.database.read)(rules_tasks.load_bodies, without)

    async def _take_pending(
        self, items: Sequence[rules_tasks.Submission], keys: Sequence[RequestKey | None]
    ) -> None:
        keys_of: dict[str, list[RequestKey | None]] = {}
        for item, key in zip(items, keys, strict=True):
            keys_of.setdefault(item.caller.id, []).append(key)
        for user, own in keys_of.items():
            await self.stored.take(self.stored.pending_tasks, user, own)

    async def _take_webhooks(self, items: Sequence[rules_tasks.Submission]) -> None:
        """Raise a problem if the submitters of tasks with webhooks have as many as they may."""
        targets: dict[str, set[UUID]] = {}
        for item in items:
            if (webhook := item.options.webhook) is not None:
                target = rules_webhooks.target_id(item.caller, item.room_id, webhook)
                targets.setdefault(item.caller.id, set()).add(target)
        for user, own in targets.items():
            await self.stored.webhooks.take(user, len(own))

    async def report(self, item: rules_tasks.Report) -> TaskResponse:
        """Move a task as its holder, its submitter or a superuser reports."""
        response = await self._reports.put(item)
        task = response.result if isinstance(response, Repeat) else response
        if not rules_tasks.has_body(task):
            await self.database.read(rules_tasks.load_body, task)
        if (reporter := rules_tasks.reporter(item, task)) is not None:
            await self.touch_worker(item.caller, reporter)
        return task

    async def cancel_tree(self, item: rules_tasks.Report) -> TaskResponse:
        """Cancel a task and all tasks below it. Return it; if it has ended otherwise, it stays so."""
        try:
            outcome: TaskResponse | Exception = await self.report(item)
        except InvalidTaskTransition as problem:
            outcome = problem
        return await self.cancel_below(item, outcome)

    async def cancel_below(self, item: rules_tasks.Report, outcome: TaskResponse | Exception) -> TaskResponse:
        """Cancel the tasks below one that was reported with this outcome. Return it.

        Raises the outcome, if it is a problem and not that the task has ended.
        """

        async def write(work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
            async with self.events.room(rules_trees.WAVE):
                return await self.write(work, *args)

        if isinstance(outcome, Exception):
            if not isinstance(outcome, InvalidTaskTransition):
                raise outcome
            task = await self.get_task(item.task_id, with_position=False)
            if not rules_trees.may_cancel_below(item.caller, task, outcome):
                raise outcome
        else:
            task = outcome
        await rules_trees.cancel_tree(self.database.read, write, item.caller, item.task_id, item.request_id)
        return task

    async def report_many(
        self, items: Sequence[rules_tasks.Report], *, bodies: bool = False
    ) -> list[TaskResponse | Exception]:
        """Move tasks as reported; with `bodies`, read their payloads and results, at most 8 MiB in all."""
        responses = await self._reports.put_many(items)
        results = [response.result if isinstance(response, Repeat) else response for response in responses]
        reporters = {
            reporter: item.caller
            for item, task in zip(items, results, strict=True)
            if not isinstance(task, Exception) and (reporter := rules_tasks.reporter(item, task)) is not None
        }
        for reporter, caller in reporters.items():
            await self.touch_worker(caller, reporter)
        if bodies:
            await self.database.read(rules_tasks.load_bodies, results)
        return results

    async def heartbeat(
        self,
        caller: Identity,
        worker_id: UUID,
        named: Sequence[NamedTask] | None = None,
        max_tasks: int | None = None,
        refused: Collection[UUID] = (),
    ) -> WorkerResponse:
        """Record a heartbeat; return a verdict on each named task. With `named` None, it omits no task.

        The tasks in `refused` count as not named.
        """
        interval, is_on = self.settings.heartbeat_seconds, self.settings.unnamed_task_seconds is not None
        item = rules_workers.Heartbeat(caller, worker_id, interval, named, max_tasks, is_on, refused)
        response = await self.heartbeats.put(item)
        self._last_heartbeats.add(worker_id)  # only now: a heartbeat of another user is refused
        return response

    def force_heartbeat(self, worker_id: UUID) -> None:
        """Make the next request of a worker write its heartbeat, however recent the last one is."""
        self._last_heartbeats.force(worker_id)

    async def touch_worker(self, caller: Identity, worker_id: UUID) -> None:
        """Count a request of a worker as a heartbeat, unless one was written lately."""
        if self._last_heartbeats.is_due(caller.id, worker_id):
            try:
                with self._last_heartbeats.writing(caller.id, worker_id):
                    await self.heartbeat(caller, worker_id)
            except ProblemException as problem:
                logger.debug("Did not record a heartbeat of worker %s: %s", worker_id, problem)

    async def claim(
        self,
        caller: Identity,
        request: TaskClaimRequest,
        wait: float = 0,
        disconnected: Disconnected = None,
        access: CallerAccess = OPEN,
    ) -> TaskClaimResponse:
        """Claim the oldest tasks for a worker; wait up to `wait` seconds for the first.

        A client that disconnects gets no task. A repeated `claim_id` gets the tasks of the first claim. With
        `batches` it waits until a batch is full or due, and claims nothing before. With `remaining_seconds`
        it gets only tasks that are expected to end in this time.
        """
        worker_id, count = request.worker_id, request.max
        is_forced = self._last_heartbeats.is_forced(worker_id)
        interval = 0 if is_forced else self.settings.heartbeat_seconds
        item = rules_claims.Claim(
            *(caller, worker_id, interval, request.claim_id, self.order, count or 1, request.start),
            refused_rooms=await access.check(),
        )
        deadline = self.waiters.time() + wait
        batch = self._batch_claim(request, wait, deadline, disconnected) if request.batches else None
        flow = ClaimFlow(self.claim_once if batch is None else batch.claim, batch)
        if request.remaining_seconds is not None:
            flow = self._timed(flow, request.remaining_seconds)
        try:
            result = await self._claim_or_wait(item, deadline, disconnected, access, flow)
        finally:
            if batch is not None:
                self.waiters.notify(batch.unused)
        tasks, reason = (result.tasks, result.reason) if result else ([], None)
        if count is not None:
            return TaskClaimResponse(tasks=tasks, reason=reason)
        return TaskClaimResponse(task=tasks[0] if tasks else None, reason=reason)

    def _batch_claim(
        self, request: TaskClaimRequest, wait: float, deadline: float, disconnected: Disconnected
    ) -> BatchClaim:
        batches = request.batches or ()
        if wait > 0 and any(entry.only_full for entry in batches):
            raise InvalidRequest(
                "batches: a claim with only_full takes a batch that is full now, so it cannot wait; "
                "send it without 'Prefer: wait', or without only_full"
            )
        about = batches, self._read_batches, self.claim_once, deadline, disconnected
        return BatchClaim(*about, time=self.waiters.time)

    async def _read_batches(
        self, item: rules_claims.Claim, batches: Sequence[ClaimBatch]
    ) -> rules_batches.Candidates:
        return await self.database.read_short(rules_batches.read, item, batches, self._plain_claims.sets)

    def _timed(self, flow: ClaimFlow, remaining: float) -> ClaimFlow:
        """Let a claim get only tasks that fit into the remaining seconds."""

        async def read(item: rules_claims.Claim, seconds: float) -> rules_allocations.TimeLeft:
            about = item.worker_id, item.caller.id, seconds, self._run_times
            return await self.database.read_short(rules_allocations.read, *about)

        async def store(item: rules_claims.Claim, ends_at: datetime) -> None:
            await self.write_short(rules_allocations.set_end, item.worker_id, item.caller.id, ends_at)

        timed = TimedClaim(flow.claim, read, store, remaining, self.waiters.time)
        return flow._replace(claim=timed.claim, timed=timed)

    async def _claim_or_wait(
        self,
        item: rules_claims.Claim,
        deadline: float,
        disconnected: Disconnected,
        access: CallerAccess,
        flow: ClaimFlow,
    ) -> rules_claims.ClaimResult | None:
        result: rules_claims.ClaimResult | None = await flow.claim(item)
        while result is not None and not result.is_final and not self.waiters.is_over(deadline, disconnected):
            result = await self._wait_for_claim(item, result, flow, deadline, disconnected, access)
        return result

    async def _wait_for_claim(
        self,
        item: rules_claims.Claim,
        last: rules_claims.ClaimResult,
        flow: ClaimFlow,
        deadline: float,
        disconnected: Disconnected,
        access: CallerAccess,
    ) -> rules_claims.ClaimResult | None:
        """Claim and wait in turns until there is a task, the deadline, or other keys than those of `last`."""
        own, of_jobs = last.keys(item.worker_id)
        wait: Wait | None = None if flow.batch is None else flow.batch.wait
        wait = wait if last.kept_for is None else wait_at_most(_KEPT_SECONDS, disconnected, wait)

        async def check(waiter: Waiter) -> rules_claims.ClaimResult:
            result = await flow.claim(item._replace(refused_rooms=await access.check()))
            if not has_other_keys(result):
                waiter.record(key_of(result.tasks[0]) if result.tasks else None)
            return result

        def has_other_keys(result: rules_claims.ClaimResult) -> bool:
            if result.is_final:
                return False
            new, shared = result.keys(item.worker_id)
            return new != own or (shared is not of_jobs and shared.keys != of_jobs.keys)

        def is_done(result: rules_claims.ClaimResult) -> bool:
            return result.is_final or has_other_keys(result)

        # A client that lost its connection claims again while the server still counts it as connected.
        self.waiters.evict_oldest(own[0], self.settings.max_claims_per_worker)
        claim_keys = [] if item.claim_id is None else [claim_key(item.claim_id)]
        for key in claim_keys:
            self.waiters.evict_oldest(key, 1)
        self.recheck.start()
        return await self.waiters.wait_until(
            [*own, *claim_keys, *access.keys],
            check,
            is_done,
            deadline=flow.until(deadline),
            user=item.caller.id,
            disconnected=disconnected,
            wait=wait,
            shared=of_jobs,
        )

    async def claim_once(self, item: rules_claims.Claim) -> rules_claims.ClaimResult:
        """Claim without a wait; repeat a claim that got no task because of others."""
        backoff = ExponentialBackoff(self.settings.claim_base_delay_seconds, _MAX_CLAIM_PAUSE, jitter=0.5)
        claims = self._claims[item.has_choice]
        for _ in range(self.settings.claim_max_attempts):
            result = await claims.put(item)
            while result.is_left_out:  # others got tasks instead
                result = await claims.put(item)
            if result.tasks or not result.is_contended:
                break
            await asyncio.sleep(backoff.next())
        self._last_heartbeats.add(item.worker_id)
        if result.required:
            needs_of = await self.database.read_short(rules_queues.required, result.required)
            for task in result.tasks:
                if (needs := needs_of.get(task.id)) is not None:
                    task.requires = dict(needs.requires or ()) or None
                    task.cost = max(task.cost or 1, needs.cost or 1) if needs.cost else task.cost
        return result

    async def get_group(
        self, group_id: UUID, wait: float = 0, disconnected: Disconnected = None, access: CallerAccess = OPEN
    ) -> GroupResponse:
        """Return a group; wait up to `wait` seconds for its end."""

        async def check(_: Waiter) -> GroupResponse:
            await access.check()
            return await self.database.read_snapshot(rules_groups.get, group_id)

        if wait > 0:
            self.recheck.start()
            keys, deadline = [group_key(group_id), *access.keys], self.waiters.time() + wait
            group = await self.waiters.wait_until(
                *(keys, check, rules_groups.has_ended),
                deadline=deadline,
                user=access.user,
                disconnected=disconnected,
            )
            if group is not None and rules_groups.has_ended(group):
                return group
        return await self.database.read_snapshot(rules_groups.get, group_id)

    async def get_task(
        self,
        task_id: UUID,
        wait: float = 0,
        disconnected: Disconnected = None,
        access: CallerAccess = OPEN,
        *,
        with_position: bool = True,
        reveal: bool = False,
    ) -> TaskResponse:
        """Return a task; wait up to `wait` seconds for its end. Its position costs more statements.

        `reveal` the secret values of its payload only to the task itself.
        """

        async def read(*, with_position: bool) -> TaskResponse:
            get = partial(rules_tasks.get, with_position=with_position, reveal=reveal)
            return await self.database.read_short(get, task_id)

        async def check(_: Waiter) -> TaskResponse:
            await access.check()
            return await read(with_position=False)

        if wait <= 0:
            return await read(with_position=with_position)
        self.recheck.start()
        keys, deadline = [task_key(task_id), *access.keys], self.waiters.time() + wait
        task = await self.waiters.wait_until(
            *(keys, check, rules_tasks.has_ended),
            deadline=deadline,
            user=access.user,
            disconnected=disconnected,
            wait=access.wait(disconnected),
        )
        if task is not None and rules_tasks.has_ended(task):
            return task
        return await read(with_position=with_position)
