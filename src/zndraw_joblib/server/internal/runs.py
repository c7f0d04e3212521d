"""Run internal tasks, each in its own thread."""

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import iscoroutine
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.jobs.capture import running
from zndraw_joblib.jobs.codecs import NotSerializable, decode
from zndraw_joblib.jobs.extensions import NonRetryable
from zndraw_joblib.jobs.failures import error_text, failure_of, misfit_text, one_line
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.results import Content, encode_result
from zndraw_joblib.jobs.task_channel import LiveReport, TaskChannel
from zndraw_joblib.jobs.task_context import CancelEvent, TaskContext, await_until_set, call_run
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue.rules_internal import EXECUTOR
from zndraw_joblib.server.queue.rules_tasks import Report
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.problems import (
    ContentTooLarge,
    InvalidRequest,
    ProblemException,
    ResultNotSerializable,
    ServiceUnavailable,
)
from zndraw_joblib.wire.progress import Failure

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


class Outcome(NamedTuple):
    """The end of a run: a result as plain JSON, content to store, or an error.

    `retry` is false if another attempt would fail, too. `failure` describes the exception of the job.
    """

    result: Any = None
    error: str | None = None
    retry: bool = True
    failure: Failure | None = None
    error_code: str | None = None
    content: Content | None = None

    def fields(self) -> dict[str, Any]:
        """Return what a report has of it."""
        return {name: value for name, value in self._asdict().items() if name != "content"}


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

    async def wait(self, run: Run, done: "asyncio.Future[Outcome]") -> Outcome | None:
        """Return the outcome of a run; None if its slot is freed before it ends."""
        losing = asyncio.create_task(run.lost.wait())
        either: set[asyncio.Future[Any]] = {done, losing}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            while not done.done():
                await asyncio.wait({done}, timeout=self._settings.internal_abandon_seconds)
                if not done.done() and self._abandon(run, done):
                    return None
            return done.result()
        finally:
            losing.cancel()
            self._stuck.discard(run)

    def _abandon(self, run: Run, done: "asyncio.Future[Outcome]") -> bool:
        limit, task_id = self._settings.internal_max_abandoned, run.context.task_id
        if len(self._abandoned) < limit:
            self._abandoned.add(run)
            done.add_done_callback(lambda _: self._end(run))
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
) -> Outcome:
    """Run a task and return its outcome, whatever exception the job's code raises."""
    # BaseException: SystemExit and KeyboardInterrupt end the task, not this process.
    try:
        extension = cls.model_validate(decode(payload))
    except BaseException as error:
        return Outcome(error=misfit_text(cls, error), retry=False)
    pid = os.getpid()
    try:
        with running(context):
            value = call_run(extension, argument_of(context), context)
            value = asyncio.run(await_until_set(value, context.cancelled)) if iscoroutine(value) else value
            exit_if_forked(pid)
            encoded = encode_result(value)
            return Outcome(content=encoded) if isinstance(encoded, Content) else Outcome(json.loads(encoded))
    except NotSerializable as error:
        text = error_text(f"The result cannot be sent as JSON: {error}")
        return Outcome(error=text, error_code=ResultNotSerializable.problem_id())
    except BaseException as error:
        exit_if_forked(pid, error)
        text, failure = error_text(error), failure_of(error, extension)
        shown = error if logger.isEnabledFor(logging.DEBUG) else None
        found = context.task_id, one_line(text, failure)
        level = logging.INFO if context.cancelled.is_set() else logging.WARNING
        logger.log(level, "Failed task_id=%s: %s", *found, exc_info=shown, extra=task_fields(context))
        return Outcome(error=text, retry=not isinstance(error, NonRetryable), failure=failure)


# Write the progress and the log of internal tasks while they run, at most twice a second.

_INTERVAL_SECONDS = 0.5
_REFUSALS = (ContentTooLarge, InvalidRequest)


class LiveReports:
    """Writes what channels hold, all at once, half a second after the last time.

    What belongs to a task that ends is written with its outcome. While the database is unavailable, the
    channels keep it, within their bounds.
    """

    def __init__(self, write: Callable[[Report], Awaitable[Any]]) -> None:
        self._write = write
        self._waiting: dict[TaskChannel, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()

    def add(self, channel: TaskChannel) -> None:
        """Write the content of a channel soon. Thread-safe."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._add, channel)

    async def run(self) -> None:
        """Write until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        while True:
            await self._arrived.wait()
            await asyncio.sleep(_INTERVAL_SECONDS)
            self._arrived.clear()
            channels, self._waiting = list(self._waiting), {}
            await asyncio.gather(*map(self._report, channels))

    def _add(self, channel: TaskChannel) -> None:
        self._waiting[channel] = None
        self._arrived.set()

    async def _report(self, channel: TaskChannel) -> None:
        report = channel.take()
        if report is not None:
            try:
                await self._write(report_of(channel, report))
            except (ServiceUnavailable, *_REFUSALS) as problem:
                if not isinstance(problem, ServiceUnavailable):
                    logger.warning(
                        "Dropped log lines of task_id=%s: %s",
                        channel.task_id,
                        problem,
                        extra={"task_id": channel.task_id},
                    )
                    channel.acknowledge(report)
            except ProblemException as problem:
                logger.info(
                    "The log of task_id=%s has ended: %s",
                    channel.task_id,
                    problem,
                    extra={"task_id": channel.task_id},
                )
                channel.close()
            except Exception as error:
                logger.warning(
                    "Did not write the log of task_id=%s: %r",
                    channel.task_id,
                    error,
                    extra={"task_id": channel.task_id},
                )
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
    earlier = [report_of(channel, each) for each in live[:-1]]
    return [*earlier, report_of(channel, live[-1] if live else None, **outcome)]
