"""Health checks: whether requests go through this server."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from uuid import uuid4

from zndraw_joblib.contract.problems import ServiceUnavailable, WorkerNotFound
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.runtime import Runtime

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 3.0
_CACHE_SECONDS = 1.0


class Health:
    """Runs the health checks. Each of `checks` returns `ok` or a reason."""

    def __init__(self, runtime: Runtime, checks: Mapping[str, Callable[[], str]]) -> None:
        self._runtime = runtime
        self._checks = checks
        self._cached: tuple[float, dict[str, str]] | None = None

    async def check(self) -> dict[str, str]:
        """Return `ok` or a reason for each check; a cached answer for a second."""
        if self._cached is None or time.monotonic() > self._cached[0]:
            results = {"work": await self._probe(), **{name: run() for name, run in self._checks.items()}}
            self._cached = time.monotonic() + _CACHE_SECONDS, results
        return self._cached[1]

    async def _probe(self) -> str:
        # A claim and a heartbeat of a worker that does not exist take the same path as real ones.
        unknown, worker_id = Identity("", is_superuser=False), uuid4()
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                with suppress(WorkerNotFound):
                    await self._runtime.heartbeat(unknown, worker_id)
                with suppress(WorkerNotFound):
                    await self._runtime.claim(unknown, worker_id)
        except TimeoutError:
            return f"a claim and a heartbeat took more than {_PROBE_SECONDS:g} s"
        except ServiceUnavailable as problem:
            return problem.problem.detail or problem.problem.title
        except Exception as error:
            logger.warning("The health check of the write path failed: %r", error)
            return f"a claim and a heartbeat did not go through ({type(error).__name__})"
        return "ok"
