"""This server process reports itself to operators after each cycle of its sweeper."""

import asyncio
import logging
import os
import socket
import time
from importlib.metadata import version
from uuid import uuid4

from zndraw_joblib.contract.messages import SweeperCycle
from zndraw_joblib.contract.repeats import log_failed_work
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import servers

logger = logging.getLogger(__name__)

_REPORT_SECONDS = 5.0
_LEAVE_SECONDS = 1.0
# Old rows are deleted with the fifth report, and then with each twentieth.
_REPORTS_PER_PRUNE, _FIRST_PRUNE = 20, 5


class ServerReports:
    """Stores the state of this server. A failure is logged, and never fails a cycle or a stop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._started = time.monotonic()
        self.process = servers.Process(
            uuid4(), socket.gethostname()[:255], os.getpid(), version("zndraw-joblib")[:64]
        )
        self._is_known = False
        self._reports = 0

    async def report(self, cycle: SweeperCycle, last_good_ago: float, grace_seconds: float) -> None:
        """Store a cycle, and that this server works."""
        state = servers.Report(
            started_ago=time.monotonic() - self._started,
            last_good_ago=last_good_ago,
            grace_remaining_seconds=grace_seconds,
            sweep_interval_seconds=self._runtime.settings.sweeper_interval_seconds,
        )
        self._is_known = True
        self._reports += 1
        is_pruning = self._reports % _REPORTS_PER_PRUNE == _FIRST_PRUNE
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                await self._runtime.write(servers.report, self.process, state, cycle, prune=is_pruning)
        except Exception as error:
            log_failed_work(logger, error, "This server did not report its cycle; the next cycle does so")

    async def leave(self) -> None:
        """Delete this server, which stops: others do not take it for a silent one."""
        if not self._is_known:
            return
        self._is_known = False
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._runtime.write(servers.leave, self.process)
        except Exception as error:
            logger.info("This server stays listed for an hour, because it could not sign off: %r", error)
