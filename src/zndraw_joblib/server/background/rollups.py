"""The loop that keeps the statistics of tasks up to date. Each server runs it; one at a time has work."""

import asyncio
import logging
import random
from datetime import timedelta

from zndraw_joblib.contract.repeats import log_failed_work
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import statistics

logger = logging.getLogger(__name__)

_PAUSE_SECONDS, _SHORTEST_PAUSE_SECONDS = 5.0, 0.25
_CATCH_UP_SECONDS = 0.05
# A pass keeps other writers waiting on SQLite, for about 15 ms with this many occurrences.
_FEW = 1000


class Rollups:
    """Adds what happened to tasks to the statistics, every 5 s, or more often if much happens.

    After a long absence it reads one part of the time after the other, and pauses after each for as long as
    the part took. A pass that has begun when the loop is cancelled goes on: `Runtime.finish` waits for it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._is_failing = False

    async def run(self) -> None:
        """Update the statistics until cancelled."""
        pause = _PAUSE_SECONDS
        while True:
            started = asyncio.get_running_loop().time()
            done = await self._try()
            if done.is_behind:
                seconds = max(_CATCH_UP_SECONDS, asyncio.get_running_loop().time() - started)
            else:
                pause = min(_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, pause * _FEW / max(1, done.number)))
                # Servers that started together take turns.
                seconds = pause * random.uniform(0.8, 1.2)  # noqa: S311
            await asyncio.sleep(seconds)

    async def _try(self) -> statistics.Pass:
        try:
            done = await self.update()
        except Exception as error:
            if not self._is_failing:
                text = "The statistics are not updated; a later pass reads the same time (logged once)"
                log_failed_work(logger, error, text)
            self._is_failing = True
            return statistics.Pass(0, is_behind=False)
        self._is_failing = False
        return done

    async def update(self, settle: timedelta = statistics.SETTLE) -> statistics.Pass:
        """Run one pass."""
        settings = self._runtime.settings
        retention = statistics.Retention(
            timedelta(days=settings.statistics_minutes_days), timedelta(days=settings.statistics_hours_days)
        )
        return await self._runtime.write(statistics.advance, retention, settle)
