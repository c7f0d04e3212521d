"""Sends internal tasks to their broker: at submit, and later tasks that wait for it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from zndraw_joblib.jobs.logs import ExponentialBackoff, log_failed_work
from zndraw_joblib.server.internal.registry import InternalRegistry, OrderedTask, TokenRequest, WorkerTokens
from zndraw_joblib.server.process.ports import DispatchMode, InternalTask, RequestKey, job_key
from zndraw_joblib.server.queue import rules_answers, rules_internal, rules_tasks
from zndraw_joblib.server.queue.rules_idempotency import Repeat
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.runtime.runtime import Runtime, SubmitAll
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import ServiceUnavailable
from zndraw_joblib.wire.statuses import TaskStatus

logger = logging.getLogger(__name__)

_INTERNAL_JOBS = job_key(f"{INTERNAL}:")
_BATCH = 100
_MAX_FAILURES_IN_A_ROW = 3
# More than any time in milliseconds until the year 2090. Its product with MAX_PRIORITY is exact as a float.
_MILLISECONDS = 4 * 10**12


class Dispatcher:
    """Finds internal tasks that wait to be sent to their broker, whenever it is woken.

    `registry` returns the internal jobs that this server runs; None while there are none. `tokens` are for
    executors that take one.
    """

    # Less than a lease: what takes longer counts as a failure before another dispatcher sends it.
    send_seconds = 20.0

    def __init__(
        self,
        runtime: Runtime,
        registry: Callable[[], InternalRegistry | None],
        tokens: WorkerTokens | None = None,
    ) -> None:
        self._runtime = runtime
        self.registry = registry
        self._tokens = tokens or WorkerTokens()
        self._confirms = runtime.batcher(rules_internal.confirm_dispatch, lambda task_id: f"task {task_id}")
        self._woken: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_failing = False
        runtime.waiters.subscribe(_INTERNAL_JOBS, lambda _: self.wake())

    def mode(self, job: JobName) -> DispatchMode | None:
        """Return how tasks of a job are dispatched; None for a job that is not internal or not known here."""
        registry = self.registry() if job.room_id == INTERNAL else None
        handle = registry.tasks.get(str(job)) if registry is not None else None
        if registry is None or handle is None:
            return None
        return DispatchMode(handle, registry.exclusive_start, registry.free is not None, registry.takes_token)

    async def submit(self, item: Submission) -> TaskResponse:
        """Add a task; if its job is internal, send it to the broker. A repeated request does neither."""
        mode = self.configure(item)
        answer = await self._runtime.submit(item)
        if isinstance(answer, Repeat):
            stored: TaskResponse = answer.result
            return stored
        if mode is None or answer.duplicate:
            return answer
        return await self._dispatch_new(answer, item.payload, mode)

    async def submit_many(self, items: Sequence[Submission]) -> list[TaskResponse | Exception]:
        """Add tasks, and send those of internal jobs to the broker. A repeated request does neither.

        Tasks that the broker refuses stay claimed, and are dispatched later.
        """
        for item in items:
            self.configure(item)
        async with self._runtime.events.room(len(items)):
            answers = await self._runtime.submit_many(items)
        await self._dispatch_many(items, answers)
        return [answer.result if isinstance(answer, Repeat) else answer for answer in answers]

    async def submit_all(
        self, items: Sequence[Submission], key: RequestKey | None, work: SubmitAll = rules_tasks.submit_all
    ) -> list[TaskResponse]:
        """Do what `submit_many` does in one transaction. Raises the problem of the first faulty item.

        `work` submits them.
        """
        for item in items:
            self.configure(item)
        async with self._runtime.events.room(len(items)):
            answer = await self._runtime.submit_all(items, key, work=work)
        if isinstance(answer, Repeat):
            stored: list[TaskResponse] = answer.result
            return stored
        await self._dispatch_many(items, answer)
        return answer

    def configure(self, item: Submission) -> DispatchMode | None:
        """Set how a task is dispatched, if its job is internal. Return it."""
        mode = self.mode(item.job) if item.job.room_id == INTERNAL else None
        if mode is not None:
            item.is_configured, item.exclusive_start = True, mode.exclusive_start
            item.is_deferred = mode.is_bounded
        return mode

    async def _dispatch_new(
        self, task: TaskResponse, payload: dict[str, Any], mode: DispatchMode
    ) -> TaskResponse:
        if mode.is_bounded or task.status != TaskStatus.CLAIMED:
            return task
        return await self._send_submitted(task, payload, mode)

    async def _send_submitted(
        self, task: TaskResponse, payload: dict[str, Any], mode: DispatchMode
    ) -> TaskResponse:
        """Send a task to its broker after its submit. Return it as it is then: it may have failed."""
        sent = rules_answers.changed(task, payload=payload)
        try:
            await self._send(mode.handle, sent, self.send_seconds, takes_token=mode.takes_token)
        except Exception as error:
            log_failed_work(logger, error, f"Did not dispatch task_id={task.id}", task_id=str(task.id))
            return await self._runtime.write(rules_internal.fail_dispatch, task.id)
        if not mode.exclusive_start:
            await self._confirm(task.id)
        return task

    async def _dispatch_many(self, items: Sequence[Submission], answers: Sequence[object]) -> None:
        registry = self.registry()
        if registry is None or registry.free is not None:
            return
        # The answers have no secret values.
        batch = [
            rules_answers.changed(task, payload=item.payload)
            for item, task in zip(items, answers, strict=True)
            if isinstance(task, TaskResponse) and _is_claimed_for(task, registry)
        ]
        if refused := await self._send_batch(registry, batch):
            try:
                await self._runtime.write(rules_internal.retry_dispatch_later, refused)
            except ServiceUnavailable as error:
                # At the end of their leases they are sent.
                logger.warning(
                    "Did not record that %d tasks wait for their dispatch: %r", len(refused), error
                )
            self.wake()

    def wake(self) -> None:
        """Make `run` look for waiting tasks soon. Any thread may call it."""
        if self._loop is not None and self._woken is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Dispatch until cancelled."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._woken.set()
        backoff = ExponentialBackoff(first=1.0, longest=30.0, jitter=0)
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                is_done = await self.dispatch()
            except Exception as error:
                self._log_failure(error)
                is_done = False
            if is_done:
                backoff.reset()
                continue
            await asyncio.sleep(backoff.next())
            self._woken.set()

    async def dispatch(self) -> bool:
        """Send all that is due, in batches. Return whether the broker took it; the rest waits."""
        registry = self.registry()
        if registry is None or not registry.tasks:
            return True
        while (limit := _BATCH if registry.free is None else min(_BATCH, registry.free())) > 0:
            batch = await self._claim(registry, limit)
            refused = await self._send_batch(registry, batch)
            if refused:
                await self._runtime.write(rules_internal.retry_dispatch_later, refused)
                return False
            if not batch:
                break
        return True

    async def _claim(self, registry: InternalRegistry, limit: int) -> list[TaskRecord]:
        """Claim tasks of all jobs together or, if that fails, of each job separately: one may be locked."""

        async def claim(names: list[str], limit: int) -> list[TaskRecord]:
            order, exclusive = self._runtime.order, registry.exclusive_start
            return await self._runtime.write(
                rules_internal.claim, names, limit, order, exclusive_start=exclusive
            )

        names, tasks = list(registry.tasks), list[TaskRecord]()
        try:
            return await claim(names, limit)
        except ServiceUnavailable as problem:
            for name in names if len(names) > 1 else []:
                if len(tasks) < limit:
                    with suppress(ServiceUnavailable):
                        tasks += await claim([name], limit - len(tasks))
            if not tasks:
                raise problem from None
        return tasks

    async def _send_batch(
        self, registry: InternalRegistry, batch: Sequence[TaskRecord | TaskResponse]
    ) -> list[UUID]:
        """Send each task to the broker. Return the tasks that it did not take."""
        refused: list[UUID] = []
        sent: list[UUID] = []
        failures = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + self.send_seconds
        for task in batch:
            if failures == _MAX_FAILURES_IN_A_ROW or (seconds := until - loop.time()) <= 0:
                refused.append(task.id)
                continue
            try:
                handle = registry.tasks[_job_name(task)]
                await self._send(handle, task, seconds, takes_token=registry.takes_token)
            except Exception as error:
                failures += 1
                refused.append(task.id)
                self._log_failure(error)
            else:
                failures, self._is_failing = 0, False
                sent.append(task.id)
        if not registry.exclusive_start:
            await asyncio.gather(*map(self._confirm, sent))
        return refused

    async def _send(
        self, handle: InternalTask, task: TaskRecord | TaskResponse, seconds: float, *, takes_token: bool
    ) -> None:
        async with asyncio.timeout(seconds):
            token = await self._tokens.of_task(_token_request(task)) if takes_token else None
            await send_to_broker(handle, task, seconds, token)

    async def _confirm(self, task_id: UUID) -> None:
        try:
            await self._confirms.put(task_id)
        except Exception as error:
            # At the end of its lease it is sent once more.
            logger.warning(
                "Did not confirm the dispatch of task_id=%s: %r",
                task_id,
                error,
                extra={"task_id": str(task_id)},
            )

    def _log_failure(self, error: Exception) -> None:
        # One warning until a task goes through again.
        level = logging.DEBUG if self._is_failing else logging.WARNING
        self._is_failing = True
        cause = error.__cause__ or error
        logger.log(level, "Internal tasks wait and will be dispatched later: %r", cause)


def _is_claimed_for(task: TaskResponse, registry: InternalRegistry) -> bool:
    is_new = task.status == TaskStatus.CLAIMED and not task.duplicate
    return is_new and task.job_name in registry.tasks


def _token_request(task: TaskRecord | TaskResponse) -> TokenRequest:
    return TokenRequest(_job_name(task), task.room_id, task.id, task.attempt, task.created_by)


def _job_name(task: TaskRecord | TaskResponse) -> str:
    return task.job_name if isinstance(task, TaskResponse) else str(task.job)


async def send_to_broker(
    handle: InternalTask, task: TaskRecord | TaskResponse, seconds: float, token: str | None = None
) -> None:
    """Send a task to the broker of its job. Raises TimeoutError after `seconds`."""
    call: dict[str, Any] = {"task_id": str(task.id), "room_id": task.room_id, "payload": task.payload}
    if token is not None:
        call["token"] = token
    async with asyncio.timeout(seconds):
        if isinstance(handle, OrderedTask):
            await handle.kiq_at(_place(task), **call)
        else:
            await handle.kiq(**call)


def _place(task: TaskRecord | TaskResponse) -> float:
    """Return a number that is lower for a higher priority and, for the same one, for an older task."""
    lane = task.lane if isinstance(task, TaskRecord) else -task.priority
    return lane * _MILLISECONDS + round(task.created_at.timestamp() * 1000)
