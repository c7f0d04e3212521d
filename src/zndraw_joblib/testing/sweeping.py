"""Run cycles of an app's sweeper at the moment that a test chooses."""

import time

from zndraw_joblib.contract.messages import SweeperCycle
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.mount import JobLib


class QueueSweeper:
    """A sweeper without what protects workers from a server that was away: grace and mass-expiry guard."""

    def __init__(self, joblib: JobLib) -> None:
        runtime = joblib.runtime
        self._timeout = joblib.settings.worker_timeout_seconds
        self._ahead = 0.0
        self._sweeper = Sweeper(
            runtime.write,
            joblib.settings,
            joblib.dispatcher.wake,
            write_short=runtime.write_short,
            monotonic=lambda: time.monotonic() + self._ahead,
            prune_content=joblib.task_results.prune,
        )

    async def sweep(self) -> SweeperCycle:
        """Run one cycle, and the one after it if the guard held the first one back."""
        self._ahead += self._timeout + 1
        self._sweeper.absence.forget()
        cycle = await self._sweeper.cycle()
        if cycle.is_held_back or cycle.held_users:
            self._sweeper.absence.forget()
            cycle = await self._sweeper.cycle()
        return cycle.summary
