"""Runs of internal tasks: their context, their end, and what is written of them while they run."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from zndraw_joblib.jobs.failures import one_line
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.run import Outcome, await_job, prepare_extension, run_job, run_to_end
from zndraw_joblib.jobs.task_channel import (
    REPORT_INTERVAL_SECONDS,
    LiveReport,
    TakenReport,
    TaskChannel,
    WaitingChannels,
)
from zndraw_joblib.jobs.task_context import CancelEvent, TaskContext, call_run
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue.rules_internal import EXECUTOR
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.problems import ContentTooLarge, InvalidRequest, ProblemException, ServiceUnavailable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class InternalContext(TaskContext):
    """The default argument of an internal job's `run`.

    `cancelled` is set when the task is cancelled or this attempt no longer holds it: a job may then stop.
    `channel` holds what the job reports of its progress and its log. `traceparent` is the trace context of
    the submit (W3C Trace Context).
    """

    task_id: str
    room_id: str
    attempt: int
    cancelled: CancelEvent = field(default_factory=CancelEvent, repr=False)
    channel: TaskChannel = field(default_factory=TaskChannel, repr=False)
    traceparent: str | None = None


@dataclass(slots=True, eq=False)
class Run:
    """A run of an attempt. `lost` is set when the attempt has ended before the run."""

    context: InternalContext
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def lose(self) -> None:
        """Mark the attempt as lost, and ask the job to stop."""
        self.context.cancelled.set()
        self.lost.set()


class RunEnds:
    """Waits for runs, and frees the slot of a run that continues after its attempt has ended.

    A thread cannot be stopped: after `internal_abandon_seconds` it is abandoned, and continues outside the
    slots. With `internal_max_abandoned` such threads, further runs keep their slots.
    """

    def __init__(self, settings: JobLibSettings, concurrency: int) -> None:
        self._settings = settings
        self._concurrency = concurrency
        self._abandoned: set[Run] = set()
        self._stuck: set[Run] = set()

    def check(self) -> str:
        """Return `ok`, or the reason why no internal task can run in this process."""
        if len(self._stuck) < self._concurrency:
            return "ok"
        return (
            f"all {self._concurrency} slots run internal tasks that have ended, and {len(self._abandoned)} "
            "more threads are abandoned (internal_max_abandoned): restart this process"
        )

    async def wait(self, run: Run, future: "asyncio.Future[Outcome]") -> Outcome | None:
        """Return the outcome of a run; None if its slot is freed before it ends."""
        losing = asyncio.create_task(run.lost.wait())
        either: set[asyncio.Future[Any]] = {future, losing}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            while not future.done():
                await asyncio.wait({future}, timeout=self._settings.internal_abandon_seconds)
                if not future.done() and self._abandon(run, future):
                    return None
            return future.result()
        finally:
            losing.cancel()
            self._stuck.discard(run)

    def _abandon(self, run: Run, future: "asyncio.Future[Outcome]") -> bool:
        limit, task_id = self._settings.internal_max_abandoned, run.context.task_id
        if len(self._abandoned) < limit:
            self._abandoned.add(run)
            future.add_done_callback(lambda _: self._end(run))
            logger.warning(
                "The run of task_id=%s continues after the task has ended: its thread is abandoned and its "
                "slot freed (abandoned=%d, internal_max_abandoned=%d)",
                *(task_id, len(self._abandoned), limit),
                extra={"task_id": task_id},
            )
            return True
        if run not in self._stuck:
            self._stuck.add(run)
            logger.error(
                "The run of task_id=%s continues after the task has ended, and keeps its slot: %d threads "
                "are abandoned already (internal_max_abandoned). Restart this process, and let the job check "
                "`cancelled` or limit its own waits",
                *(task_id, len(self._abandoned)),
                extra={"task_id": task_id},
            )
        return False

    def _end(self, run: Run) -> None:
        self._abandoned.discard(run)
        logger.info(
            "The abandoned run of task_id=%s ended", run.context.task_id, extra=task_fields(run.context)
        )


def outcome_of(
    cls: type[Any],
    payload: dict[str, Any],
    context: InternalContext,
    argument_of: Callable[[InternalContext], Any],
    *,
    is_awaited_here: bool = True,
) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Run a task and return its outcome, whatever exception the job's code raises.

    A coroutine of the job runs in an event loop of this thread; unless `is_awaited_here`, it is returned.
    """
    extension, fault = prepare_extension(cls, payload)
    if fault is not None:
        return fault
    run = run_to_end if is_awaited_here else run_job
    outcome = run(lambda: call_run(extension, argument_of(context), context), context, extension, os.getpid())
    if isinstance(outcome, Outcome):
        return _logged(outcome, context)
    return _await_outcome(outcome, context, extension)


async def _await_outcome(work: Coroutine[Any, Any, Any], context: InternalContext, extension: Any) -> Outcome:
    return _logged(await await_job(work, context, extension, os.getpid()), context)


def _logged(outcome: Outcome, context: InternalContext) -> Outcome:
    """Return the outcome of a run; log it if the run failed."""
    if outcome.error is not None and outcome.failure is not None:
        about = context.task_id, one_line(outcome.error, outcome.failure)
        level = logging.INFO if context.cancelled.is_set() else logging.WARNING
        logger.log(level, "Failed task_id=%s: %s", *about, extra=task_fields(context))
    return outcome


class ChannelWriter:
    """Writes what channels hold, all at once, half a second after the last time.

    What belongs to a task that ends is written with its outcome. While the database is unavailable, the
    channels keep it, within their bounds.
    """

    def __init__(self, write: Callable[[Report], Awaitable[Any]]) -> None:
        self._write = write
        self._waiting = WaitingChannels()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()

    def add(self, channel: TaskChannel) -> None:
        """Write the content of a channel soon. Thread-safe."""
        loop = self._loop
        if loop is not None:
            self._waiting.add(channel)
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._arrived.set)

    async def run(self) -> None:
        """Write until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        while True:
            await self._arrived.wait()
            await asyncio.sleep(REPORT_INTERVAL_SECONDS)
            self._arrived.clear()
            await asyncio.gather(*map(self._report, self._waiting.take()))

    async def _report(self, sent: TakenReport) -> None:
        channel, report = sent
        about = {"task_id": channel.task_id}
        try:
            await self._write(report_of(channel, report))
        except ServiceUnavailable:
            pass  # it is written again
        except (ContentTooLarge, InvalidRequest) as problem:
            sent.drop(str(problem))
        except ProblemException as problem:
            logger.info("The log of task_id=%s has ended: %s", channel.task_id, problem, extra=about)
            channel.close()
        except Exception as error:
            logger.warning("Did not write the log of task_id=%s: %r", channel.task_id, error, extra=about)
        else:
            channel.acknowledge(report)
        channel.notice_again()


def report_of(channel: TaskChannel, report: LiveReport | None, **outcome: Any) -> Report:
    """Return what to write of a task: what its channel held, and its outcome, if it has one."""
    live = report.fields if report else {}
    update = TaskUpdateRequest(worker_id=channel.worker_id, attempt=channel.attempt, **live, **outcome)
    return Report(EXECUTOR, UUID(channel.task_id), update)


def last_reports(channel: TaskChannel, **outcome: Any) -> Sequence[Report]:
    """Return all that is left to write of a task that ends, the outcome last."""
    live = channel.take_all()
    earlier = [report_of(channel, part) for part in live[:-1]]
    return [*earlier, report_of(channel, live[-1] if live else None, **outcome)]
