"""Health checks: whether requests go through this server."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from zndraw_joblib.contract.logs import create_shared_task
from zndraw_joblib.contract.messages import TaskClaimRequest, TaskUpdateRequest
from zndraw_joblib.contract.names import GLOBAL, JobName
from zndraw_joblib.contract.problems import NotFound, ProblemException
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import health, tasks

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 3.0
_CACHE_SECONDS = 1.0


class Health:
    """Runs the health checks. Each of `checks` returns `ok` or a reason."""

    def __init__(self, runtime: Runtime, checks: Mapping[str, Callable[[], str]]) -> None:
        self._runtime = runtime
        self._checks = checks
        self._cached: tuple[float, dict[str, str]] | None = None
        self._running: asyncio.Task[dict[str, str]] | None = None

    async def check(self) -> dict[str, str]:
        """Return `ok` or a reason for each check, from a cache for one second. One check runs at a time."""
        if self._cached is not None and time.monotonic() <= self._cached[0]:
            return self._cached[1]
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._running.get_loop() is not loop:
            self._running = create_shared_task(self._check())
        return await asyncio.shield(self._running)

    async def _check(self) -> dict[str, str]:
        results = {"work": await self._probe(), **{name: run() for name, run in self._checks.items()}}
        self._cached = time.monotonic() + _CACHE_SECONDS, results
        return results

    async def _probe(self) -> str:
        """Return `ok`, or why a request of some kind would not succeed now."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                answers = await asyncio.gather(*self._requests(), return_exceptions=True)
        except TimeoutError:
            return f"a submit, a claim, a report, a heartbeat or a write took more than {_PROBE_SECONDS:g} s"
        for error in answers:
            if isinstance(error, Exception) and not isinstance(error, NotFound):
                logger.warning("The health check of the write path failed: %r", error)
                return str(error) if isinstance(error, ProblemException) else type(error).__name__
        return "ok"

    def _requests(self) -> list[Awaitable[Any]]:
        """Return a request of each kind that is written in batches, and one that changes the database.

        The requests for a job, a task and a worker that do not exist take the same path as real ones.
        """
        unknown, any_id = Identity("", is_superuser=False), uuid4()
        submission = tasks.Submission(unknown, GLOBAL, JobName(GLOBAL, "health", str(any_id)), {})
        return [
            self._runtime.submit(submission),
            self._runtime.claim(unknown, TaskClaimRequest(worker_id=any_id)),
            self._runtime.report(tasks.Report(unknown, any_id, TaskUpdateRequest(status=TaskStatus.RUNNING))),
            self._runtime.heartbeat(unknown, any_id),
            self._runtime.write_short(health.write),
        ]
