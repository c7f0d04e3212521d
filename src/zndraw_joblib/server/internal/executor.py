"""The executor of internal tasks that comes with us: it runs them in threads, by guarded moves."""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.extensions import NonRetryable
from zndraw_joblib.contract.messages import (
    MAX_JSON_BYTES,
    MAX_NAMED_TASKS,
    NamedTask,
    TaskUpdateRequest,
    Verdict,
)
from zndraw_joblib.contract.problems import ProblemException, ServiceUnavailable, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.batcher import Batcher
from zndraw_joblib.server.ports import SessionMaker, task_key
from zndraw_joblib.server.pubsub.connections import connection_factory
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import internal, workers
from zndraw_joblib.server.service.internal import EXECUTOR
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.tasks import TaskRecord

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_PATIENCE_SECONDS = 3600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_DAY_SECONDS = 86_400.0
# Far more than can be between two messages of a task that a process takes at the same time.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class InternalContext:
    """What the `run` of an internal task gets, unless a host makes something else of it.

    `cancelled` is set once nobody waits for the end of this attempt any more: a job that looks may stop.
    """

    task_id: str
    room_id: str
    attempt: int
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)


class Outcome(NamedTuple):
    """How a run ended: with a result, or with an error, after which another attempt may be of use."""

    result: Any = None
    error: str | None = None
    retry: bool = True


class GuardedExecutor:
    """Runs internal tasks in threads of this process, at most `concurrency` at once.

    A task is started by one process, however often it is told of it; a report by whoever does not hold it any
    more is refused, and one that the database cannot take is tried again for an hour. While it runs, the
    process is a worker with heartbeats: where they end, the job's policy says what becomes of its tasks.

    `database` is a session maker or what an app in the same process has as ``app.state.joblib``. `context`
    makes what a `run` gets of an `InternalContext`, in the run's thread. Events are sent by `tsio`.
    """

    exclusive_start = True
    grace_seconds = 5.0

    def __init__(
        self,
        database: Runtime | Database | SessionMaker,
        *,
        settings: JobLibSettings | None = None,
        tsio: Any = None,
        concurrency: int = 4,
        context: Callable[[InternalContext], Any] = lambda context: context,
    ) -> None:
        if isinstance(database, Runtime):
            self._runtime = database
        else:
            publish = None if tsio is None else SocketIoPublisher(tsio)
            self._runtime = Runtime(database, settings or JobLibSettings(), publish=publish)
        self._is_alone = not isinstance(database, Runtime)
        self._concurrency = concurrency
        self._context = context
        runtime = self._runtime
        self._starts = Batcher(self._start_tasks, lambda: runtime.database.concurrent_writes)
        self._worker_id: UUID | None = None
        self._running: dict[tuple[UUID, int], InternalContext] = {}
        self._begun: dict[tuple[UUID, int], None] = {}
        self._runs: set[asyncio.Task[Any]] = set()
        self._unstarted: set[UUID] = set()
        self._is_stopping = False
        self._aides: list[asyncio.Task[None]] = []

    async def start(self, _: object = None) -> None:
        """Begin to show that this process lives. The first task does so too."""
        if self._aides and self._aides[0].get_loop() is asyncio.get_running_loop():
            return
        self._is_stopping = False
        self._places = asyncio.Semaphore(self._concurrency)
        self._registering = asyncio.Lock()
        self._aides = [asyncio.create_task(self._live(), name="zndraw-joblib heartbeats")]
        if self._is_alone:
            self._aides.append(asyncio.create_task(self._relay()))

    async def stop(self, _: object = None) -> None:
        """Start nothing more, hand back what was not started, give the rest some seconds, and leave."""
        self._is_stopping = True
        if self._unstarted:
            await self._try(internal.dispatch_again, ids=list(self._unstarted))
        if self._runs:
            await asyncio.wait(self._runs, timeout=self.grace_seconds)
        worker_id, self._worker_id = self._worker_id, None
        aides, self._aides = self._aides, []
        await _end(aides[:1])
        if worker_id is not None:
            await self._try(workers.remove, caller=EXECUTOR, worker_id=worker_id)
        await _end(aides[1:])

    async def __call__(
        self, extension_cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str
    ) -> None:
        """Run a task to its end, and report it; nothing, where somebody else has it or it has ended."""
        wanted = UUID(task_id)
        if self._is_stopping:
            await self._try(internal.dispatch_again, ids=[wanted])
            return
        await self.start()
        self._unstarted.add(wanted)
        try:
            async with self._places:
                if self._is_stopping:
                    return
                running = asyncio.create_task(self._run(extension_cls, payload, wanted))
                self._runs.add(running)
                running.add_done_callback(self._runs.discard)
                await asyncio.shield(running)
        finally:
            self._unstarted.discard(wanted)

    async def _run(self, cls: type[Any], payload: dict[str, Any], task_id: UUID) -> None:
        task = await _insist(partial(self._start, task_id))
        self._unstarted.discard(task_id)
        if task is not None and self._is_first(task):
            await self._carry_out(cls, payload, task)

    def _is_first(self, task: TaskRecord) -> bool:
        """Note that an attempt is begun here; not again, for a second message of it, or a repeated start."""
        claim = task.id, task.attempt
        if claim in self._begun:
            return False
        self._begun[claim] = None
        if len(self._begun) > _REMEMBERED:
            self._begun.pop(next(iter(self._begun)))
        return True

    async def _carry_out(self, cls: type[Any], payload: dict[str, Any], task: TaskRecord) -> None:
        context = InternalContext(str(task.id), task.room_id, task.attempt)
        self._running[task.id, task.attempt] = context
        try:
            outcome = await self._in_thread(partial(self._outcome, cls, payload, context), context)
            status = TaskStatus.COMPLETED if outcome.error is None else TaskStatus.FAILED
            update = TaskUpdateRequest(
                status=status, **outcome._asdict(), worker_id=task.worker_id, attempt=task.attempt
            )
            await _insist(partial(self._runtime.report, EXECUTOR, task.id, update))
        except ProblemException as problem:
            logger.info("task %s ended without us: %s", task.id, problem)
        finally:
            del self._running[task.id, task.attempt]

    async def _in_thread(self, work: Callable[[], Outcome], context: InternalContext) -> Outcome:
        # Not a pool's thread: Python would wait for it at its exit, however long it takes.
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()

        def tell(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        def run() -> None:
            outcome = work()
            with suppress(RuntimeError):  # nobody is there any more
                loop.call_soon_threadsafe(tell, outcome)

        watching = asyncio.create_task(self._watch(context))
        threading.Thread(target=run, name=f"zndraw-joblib task {context.task_id}", daemon=True).start()
        try:
            return await done
        finally:
            watching.cancel()

    async def _watch(self, context: InternalContext) -> None:
        """Tell a run of its task's end by somebody else. Heartbeats do so too, only later."""
        waiters = self._runtime.waiters
        with suppress(ServiceUnavailable), waiters.enter([task_key(context.task_id)]) as waiter:
            if await waiter.sleep(_DAY_SECONDS) and not waiters.is_closed:
                context.cancelled.set()

    def _outcome(self, cls: type[Any], payload: dict[str, Any], context: InternalContext) -> Outcome:
        try:
            extension = cls.model_validate(payload)
        except Exception as error:
            return Outcome(error=f"The payload does not fit {cls.__name__}: {error}", retry=False)
        try:
            value = extension.run(self._context(context))
        # Whatever it is: SystemExit and the like end the task, not us.
        except BaseException as error:
            logger.warning("task %s failed", context.task_id, exc_info=True)
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            return Outcome(error=text, retry=not isinstance(error, NonRetryable))
        return _result(value)

    async def _start(self, task_id: UUID) -> TaskRecord | None:
        while True:
            worker_id = await self._worker()
            try:
                task: TaskRecord | None = await self._starts.put(internal.Start(worker_id, task_id))
            except WorkerNotFound:
                self._lose(worker_id)
            else:
                return task

    async def _start_tasks(self, items: Any) -> Any:
        return await self._runtime.write(internal.start, items=items)

    async def _worker(self) -> UUID:
        """Return the id of this process as a worker; another one where the former was removed."""
        async with self._registering:
            if self._worker_id is None:
                interval = self._runtime.settings.heartbeat_seconds
                made = await self._runtime.write(workers.create, caller=EXECUTOR, interval=interval)
                self._worker_id = made.id
            return self._worker_id

    def _lose(self, worker_id: UUID) -> None:
        if worker_id == self._worker_id:
            logger.warning("worker %s was taken for dead; this process goes on as another one", worker_id)
            self._worker_id = None
            for context in self._running.values():
                context.cancelled.set()

    async def _live(self) -> None:
        while True:
            try:
                await self._beat(await self._worker())
            except Exception as error:
                logger.warning("a heartbeat was not noted: %r", error)
            await asyncio.sleep(self._runtime.settings.heartbeat_seconds)

    async def _beat(self, worker_id: UUID) -> None:
        named = [NamedTask(id=task_id, attempt=attempt) for task_id, attempt in self._running]
        named = named[:MAX_NAMED_TASKS]
        try:
            answer = await self._runtime.beat(EXECUTOR, worker_id, named)
        except WorkerNotFound:
            self._lose(worker_id)
            await self._worker()
            return
        for task, said in zip(named, answer.tasks, strict=False):
            context = self._running.get((task.id, task.attempt))
            if context is not None and said.verdict != Verdict.CONTINUE:
                context.cancelled.set()

    async def _relay(self) -> None:
        line = await _insist(partial(connection_factory, self._runtime))
        if line is not None:
            await self._runtime.pubsub.run(line)

    async def _try(self, work: Callable[..., Awaitable[Any]], **given: Any) -> None:
        try:
            await self._runtime.write(work, **given)
        except Exception as error:
            logger.warning("not done at the end, others will find it: %r", error)


def _result(value: Any) -> Outcome:
    """Return the result of a task, or why it cannot be kept."""
    try:
        plain = to_jsonable_python(value)
        size = len(json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    except (ValueError, TypeError, RecursionError) as error:
        return Outcome(error=f"The result cannot be kept as JSON: {error}")
    if size > MAX_JSON_BYTES:
        return Outcome(error=f"The result has {size:,} bytes as JSON; {MAX_JSON_BYTES:,} are allowed")
    return Outcome(plain)


async def _insist(work: Callable[[], Awaitable[Result]]) -> Result:
    """Return what `work` returns, trying for an hour while the database does not answer.

    Raises the problem that the server has with it.
    """
    until, pause = monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return await work()
        except Exception as error:
            is_final = isinstance(error, ProblemException) and not isinstance(error, ServiceUnavailable)
            if is_final or monotonic() > until:
                raise
            logger.debug("tried again in %g s: %r", pause, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def _end(aides: "list[asyncio.Task[None]]") -> None:
    for aide in aides:
        aide.cancel()
        await asyncio.wait([aide])
