"""Read the figures of the whole queue for metrics: one read at a time, at most one each second."""

import asyncio
import logging
import time

from zndraw_joblib.contract.logs import create_shared_task
from zndraw_joblib.contract.repeats import log_failed_work
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import metrics

logger = logging.getLogger(__name__)

_CACHE_SECONDS = 1.0
_READ_SECONDS = 5.0
Read = tuple[float, metrics.QueueMetrics | None]


class Metrics:
    """The figures of the queue for any number of readers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cached: Read | None = None
        self._running: asyncio.Task[Read] | None = None

    async def read(self) -> metrics.QueueMetrics | None:
        """Return the figures, at most a second old; None if the database did not answer within 5 s."""
        if self._cached is not None and time.monotonic() <= self._cached[0]:
            return self._cached[1]
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = create_shared_task(self._read())
        return (await asyncio.shield(self._running))[1]

    async def _read(self) -> Read:
        found, heartbeat = None, self._runtime.settings.heartbeat_seconds
        try:
            async with asyncio.timeout(_READ_SECONDS):
                found = await self._runtime.database.read_snapshot(metrics.read, heartbeat)
        except Exception as error:
            log_failed_work(logger, error, "The metrics of the queue cannot be read")
        self._cached = time.monotonic() + _CACHE_SECONDS, found
        return self._cached
