"""Write the progress and the log of internal tasks while they run, at most twice a second."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.messages import TaskUpdateRequest
from zndraw_joblib.contract.problems import (
    ContentTooLarge,
    InvalidRequest,
    ProblemException,
    ServiceUnavailable,
)
from zndraw_joblib.contract.task_channel import LiveReport, TaskChannel
from zndraw_joblib.server.service.internal import EXECUTOR
from zndraw_joblib.server.service.tasks import Report

logger = logging.getLogger(__name__)

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
