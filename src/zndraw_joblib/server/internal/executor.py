"""The built-in executor of internal tasks: it runs them in threads and reports with fencing tokens."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.jobs.capture import stop_following_threads
from zndraw_joblib.jobs.extensions import job_name_of
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.logs import ExponentialBackoff, log_fields
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.jobs.run import Outcome, end_span
from zndraw_joblib.jobs.task_channel import NO_WORKER, TaskChannel
from zndraw_joblib.jobs.traces import TaskSpan, active, start_run
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.internal.runs import (
    ChannelWriter,
    InternalContext,
    Run,
    RunEnds,
    last_reports,
    outcome_of,
)
from zndraw_joblib.server.process.ports import OpenConnection, SessionMaker, task_key
from zndraw_joblib.server.process.pubsub import connection_factory
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.process.threads import call_in_thread
from zndraw_joblib.server.queue import rules_internal, rules_workers
from zndraw_joblib.server.queue.rules_internal import EXECUTOR
from zndraw_joblib.server.queue.rules_results import Upload
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher
from zndraw_joblib.server.results.inputs import Inputs
from zndraw_joblib.server.results.results import TaskResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import MAX_NAMED_TASKS, NamedTask, Verdict, this_process
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import (
    Conflict,
    ContentTooLarge,
    InvalidRequest,
    InvalidTaskTransition,
    ProblemException,
    ServiceUnavailable,
    WorkerNotFound,
)

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_RETRY_SECONDS = 3600.0
# Far more attempts than lie between two messages of one task.
_REMEMBERED_ATTEMPTS = 10_000


class GuardedExecutor:
    """Runs internal tasks in threads of this process, at most `concurrency` at once.

    A coroutine of a job has an event loop of its own there; with `uses_loop` it runs on that of the process.

    One process starts a task, however many messages name it. The server refuses a report of an attempt that
    lost its task. While the database is unavailable, a report is retried for an hour. The process is a worker
    with heartbeats: when they stop, the job's retry policy decides about its tasks. A run that does not end
    after its time limit frees its slot (`internal_abandon_seconds`).

    `database` is a session maker, or the `runtime` of a `JobLib` in the same process. `context` turns an
    `InternalContext` into the argument of `run`, in the run's thread. Events are sent through `tsio`. With
    `capture_output`, what a job prints, and its warnings, are also written to the task's log.
    """

    exclusive_start = True
    grace_seconds = 5.0

    def __init__(  # noqa: PLR0913 - one keyword for each option
        self,
        database: Runtime | Database | SessionMaker,
        *,
        settings: JobLibSettings | None = None,
        tsio: Any = None,
        concurrency: int = 4,
        context: Callable[[InternalContext], Any] = lambda context: context,
        capture_output: bool = True,
        uses_loop: bool = False,
    ) -> None:
        if not isinstance(database, Runtime | Database) and not callable(database):
            kind = type(database).__name__
            raise TypeError(f"database is a {kind}: pass a session maker, or the `runtime` of a JobLib")
        if isinstance(database, Runtime):
            self._runtime = database
        else:
            publisher = SocketIoPublisher(tsio)
            self._runtime = Runtime(
                database, settings or JobLibSettings(), publish=publisher, reach=publisher.reach
            )
        self._owns_runtime = not isinstance(database, Runtime)
        self._results = InternalResults(self._runtime, is_server=not self._owns_runtime)
        self._concurrency = concurrency
        self._context = context
        self._captures, self._uses_loop = capture_output, uses_loop
        self._channels = ChannelWriter(self._runtime.report)
        self._starts = self._runtime.batcher(rules_internal.start)
        self._worker_id: UUID | None = None
        self._running: dict[tuple[UUID, int], Run] = {}
        self._ends = RunEnds(self._runtime.settings, concurrency)
        self._started: dict[tuple[UUID, int], None] = {}
        self._runs: set[asyncio.Task[Any]] = set()
        self._unstarted: set[UUID] = set()
        self._is_stopping = False
        self._loops: list[asyncio.Task[None]] = []

    async def start(self, _: object = None) -> None:
        """Start to send heartbeats. The first task does so too."""
        if self._loops and self._loops[0].get_loop() is asyncio.get_running_loop():
            return
        self._is_stopping = False
        self._slots = asyncio.Semaphore(self._concurrency)
        self._registering = asyncio.Lock()
        self._loops = [asyncio.create_task(self._send_heartbeats(), name="zndraw-joblib heartbeats")]
        self._loops.append(asyncio.create_task(self._channels.run(), name="zndraw-joblib live reports"))
        if self._owns_runtime:
            self._loops.append(asyncio.create_task(self._run_pubsub()))

    async def stop(self, _: object = None) -> None:
        """Start no more tasks, return those not started, wait `grace_seconds` for the rest, and leave."""
        self._is_stopping = True
        if self._unstarted:
            await self._try(rules_internal.dispatch_again, ids=list(self._unstarted))
        if self._runs:
            await asyncio.wait(self._runs, timeout=self.grace_seconds)
        worker_id, self._worker_id = self._worker_id, None
        loops, self._loops = self._loops, []
        await _end(loops[:2])
        if worker_id is not None:
            await self._try(rules_workers.remove, caller=EXECUTOR, worker_id=worker_id)
        # After the removal: what they report no longer counts, and the policy decides about their tasks.
        self._cancel_coroutines()
        if self._owns_runtime:
            await self._runtime.finish()  # events are published, before the pub/sub connection closes
        await _end(loops[2:])
        stop_following_threads()

    def _cancel_coroutines(self) -> None:
        """Let coroutines on the loop of the process end with it; threads cannot be stopped."""
        if self._uses_loop:
            for run in self._running.values():
                run.lose()

    def check(self) -> str:
        """Return `ok`, or the reason why no internal task can run here, for a server's health check."""
        return self._ends.check()

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str
    ) -> None:
        """Run a task to its end and report it. Do nothing where another process has it or it has ended.

        A message of the broker only announces the task: its payload and room come from the database, and a
        class that is not the task's job does not run.
        """
        own_id = UUID(task_id)
        if self._is_stopping:
            await self._try(rules_internal.dispatch_again, ids=[own_id])
            return
        await self.start()
        self._unstarted.add(own_id)
        try:
            async with self._slots:
                if self._is_stopping:
                    return
                running = asyncio.create_task(self._run(extension_cls, own_id))
                self._runs.add(running)
                running.add_done_callback(self._runs.discard)
                await asyncio.shield(running)
        finally:
            self._unstarted.discard(own_id)

    async def _run(self, cls: type[Any], task_id: UUID) -> None:
        try:
            task = await _retry(partial(self._start, task_id, job_name_of(cls, INTERNAL)))
        except Conflict as conflict:
            logger.warning("Ignored a message of the broker: %s", conflict, extra={"task_id": str(task_id)})
            return
        self._unstarted.discard(task_id)
        if task is not None and self._is_first(task):
            ids = {"task_id": str(task.id), "job": str(task.job), "worker_id": str(task.worker_id)}
            with log_fields(**ids):
                await self._run_attempt(cls, task)

    def _is_first(self, task: TaskRecord) -> bool:
        """Return whether this attempt starts here now, and not by a second message or a repeated start."""
        attempt = task.id, task.attempt
        if attempt in self._started:
            return False
        self._started[attempt] = None
        if len(self._started) > _REMEMBERED_ATTEMPTS:
            self._started.pop(next(iter(self._started)))
        return True

    async def _run_attempt(self, cls: type[Any], task: TaskRecord) -> None:
        channel = self._channel_of(task)
        context = InternalContext(
            str(task.id), task.room_id, task.attempt, channel=channel, traceparent=task.traceparent
        )
        self._running[task.id, task.attempt] = run = Run(context)
        watching = asyncio.create_task(self._watch(context))
        try:
            payload = await self._results.inputs.fill(task.id, task.payload)
            work = partial(
                outcome_of, cls, payload, context, self._context, is_awaited_here=not self._uses_loop
            )
            outcome = await self._ends.wait(run, _start_traced(task, context, work))
            if outcome is not None:
                if outcome.content is not None:
                    outcome = await _retry(partial(self._results.store, task, outcome.content))
                await self._report(channel, outcome)
        finally:
            channel.close()
            watching.cancel()
            del self._running[task.id, task.attempt]

    def _channel_of(self, task: TaskRecord) -> TaskChannel:
        token = str(task.id), task.attempt, task.worker_id or NO_WORKER
        return TaskChannel(*token, captures=self._captures, on_content=self._channels.add)

    async def _report(self, channel: TaskChannel, outcome: Outcome) -> None:
        """Report a run; if the server refuses its log, leave that out; if its result, report a failure."""
        has_content = channel.take() is not None
        try:
            for report in last_reports(channel, **outcome.fields):
                await _retry(partial(self._runtime.report, report))
        except (ContentTooLarge, InvalidRequest) as refusal:
            if has_content:
                channel.close()
                await self._report(channel, outcome)
            elif outcome.error is None:
                await self._report(channel, Outcome(error=f"The server refused the result: {refusal}"))
            else:
                raise
        except ProblemException as problem:
            logger.info(
                "The report of task_id=%s was refused: %s",
                channel.task_id,
                problem,
                extra={"task_id": channel.task_id},
            )

    async def _watch(self, context: InternalContext) -> None:
        """Set `cancelled` when the task ends elsewhere. Heartbeats do so too, only later."""
        waiters = self._runtime.waiters
        with suppress(ServiceUnavailable), waiters.register([task_key(context.task_id)]) as waiter:
            if await waiter.wait(inf) and not waiters.is_closed:
                context.cancelled.set()

    async def _start(self, task_id: UUID, job: JobName) -> TaskRecord | None:
        while True:
            worker_id = await self._worker()
            try:
                task: TaskRecord | None = await self._starts.put(
                    rules_internal.Start(worker_id, task_id, job)
                )
            except WorkerNotFound:
                self._lose(worker_id)
            else:
                return task

    async def _worker(self) -> UUID:
        """Return this process's worker id; register a new worker where the server removed the last one."""
        async with self._registering:
            if self._worker_id is None:
                interval = self._runtime.settings.heartbeat_seconds
                info = this_process(slots=self._concurrency)
                worker = await self._runtime.write(rules_workers.create, EXECUTOR, interval, info)
                self._worker_id = worker.id
            return self._worker_id

    def _lose(self, worker_id: UUID) -> None:
        if worker_id == self._worker_id:
            logger.warning(
                "The server removed worker_id=%s; this process registers as a new worker",
                worker_id,
                extra={"worker_id": str(worker_id)},
            )
            self._worker_id = None
            for run in self._running.values():
                run.lose()

    async def _send_heartbeats(self) -> None:
        while True:
            try:
                await self._beat(await self._worker())
            except Exception as error:
                logger.warning("Did not record a heartbeat: %r", error)
            await asyncio.sleep(self._runtime.settings.heartbeat_seconds)

    async def _beat(self, worker_id: UUID) -> None:
        named = [NamedTask(id=task_id, attempt=attempt) for task_id, attempt in self._running]
        named = named[:MAX_NAMED_TASKS]
        try:
            response = await self._runtime.heartbeat(EXECUTOR, worker_id, named)
        except WorkerNotFound:
            self._lose(worker_id)
            await self._worker()
            return
        for task, answered in zip(named, response.tasks, strict=False):
            run = self._running.get((task.id, task.attempt))
            if run is not None and answered.verdict != Verdict.CONTINUE:
                run.lose()

    async def _run_pubsub(self) -> None:
        open_connection = await _retry(self._connection_factory)
        if open_connection is not None:
            await self._runtime.pubsub.run(open_connection)

    async def _connection_factory(self) -> OpenConnection | None:
        return await connection_factory(self._runtime.settings, self._runtime.database.pubsub_connection)

    async def _try(self, work: Callable[..., Awaitable[Any]], **arguments: Any) -> None:
        try:
            await self._runtime.write(work, **arguments)
        except Exception as error:
            logger.warning("Did not finish at shutdown; another server will: %r", error)


def _start_traced(
    task: TaskRecord, context: InternalContext, work: Callable[[], Outcome | Coroutine[Any, Any, Outcome]]
) -> "asyncio.Future[Outcome]":
    """Run a task in a thread, in a span if the program has set up OpenTelemetry.

    A coroutine that `work` returns is awaited here.
    """
    span = _start_span(task)
    with active(span):
        run = asyncio.create_task(_run(f"zndraw-joblib task {task.id}", work))
    if span is not None:
        run.add_done_callback(partial(_end_span, span, context))
    return run


def _start_span(task: TaskRecord) -> TaskSpan | None:
    """Start the span of a run. A failure is logged: the task runs without a span."""
    token = str(task.id), str(task.worker_id), task.attempt
    try:
        return start_run(str(task.job), *token, traceparent=task.traceparent)
    except Exception:
        logger.exception("Task %s runs without a span: the tracer provider of the program failed", task.id)
        return None


async def _run(name: str, work: Callable[[], Outcome | Coroutine[Any, Any, Outcome]]) -> Outcome:
    outcome = await call_in_thread(name, work, lambda error: Outcome(error=error_text(error)))
    return outcome if isinstance(outcome, Outcome) else await outcome


def _end_span(span: TaskSpan, context: InternalContext, run: "asyncio.Future[Outcome]") -> None:
    if not run.cancelled():
        end_span(span, context, run.result())


async def _retry(work: Callable[[], Awaitable[Result]]) -> Result:
    """Return the result of `work`, retried for an hour while the database is unavailable.

    Raises the problem with which the server refuses it.
    """
    until, backoff = monotonic() + _RETRY_SECONDS, ExponentialBackoff(first=0.1, longest=5.0)
    while True:
        try:
            return await work()
        except Exception as error:
            is_final = isinstance(error, ProblemException) and not isinstance(error, ServiceUnavailable)
            if is_final or monotonic() > until:
                raise
            logger.debug("Retrying after %r", error)
        await asyncio.sleep(backoff.next())


async def _end(loops: "list[asyncio.Task[None]]") -> None:
    for loop in loops:
        loop.cancel()
        await asyncio.wait([loop])


# Store the results of internal tasks that are too large, or not JSON, for a report.

_NO_STORE = (
    "The result cannot be stored: task_result_backend is 'memory', which only the server itself can read. "
    "Choose 'database', 'files' or 'redis'"
)


class InternalResults:
    """Stores and reads results without HTTP. `is_server`: this process also answers requests for results."""

    def __init__(self, runtime: Runtime, *, is_server: bool) -> None:
        self._results = TaskResults(runtime)
        self.inputs = Inputs(runtime, self._results)
        self._can_store = is_server or runtime.settings.task_result_backend != "memory"

    async def store(self, task: TaskRecord, content: Content) -> Outcome:
        """Store the content of a result; return what to report. Raises `ServiceUnavailable`: repeat it."""
        if not self._can_store:
            return Outcome(error=_NO_STORE)
        upload = Upload(EXECUTOR, task.id, task.attempt)
        outcome = Outcome()
        try:
            await self._results.upload_content(upload, content)
        except ServiceUnavailable:
            raise
        except InvalidTaskTransition as problem:
            logger.info(
                "The result of task_id=%s is not needed: %s",
                task.id,
                problem,
                extra={"task_id": str(task.id)},
            )
        except (ProblemException, OSError) as error:
            outcome = Outcome(error=error_text(f"The result cannot be stored: {error}"))
        await asyncio.to_thread(content.discard)
        return outcome
