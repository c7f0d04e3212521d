"""Whether work goes through this server."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from zndraw_joblib.contract.problems import WorkerNotFound
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.runtime import Runtime

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 3.0


class Health:
    """Looks at all that must work. `checks` return `ok` or a reason."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.checks: dict[str, Callable[[], str]] = {}
        self._known: tuple[float, dict[str, str]] | None = None

    async def look(self) -> dict[str, str]:
        """Return `ok` or a reason for each thing that must work; the same answer for a second."""
        if self._known is None or time.monotonic() > self._known[0]:
            found = {"work": await self._probe(), **{name: check() for name, check in self.checks.items()}}
            self._known = time.monotonic() + 1, found
        return self._known[1]

    async def _probe(self) -> str:
        # A claim and a heartbeat of a worker that does not exist take the whole way of real ones.
        nobody, worker_id = Identity("", is_superuser=False), uuid4()
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                with suppress(WorkerNotFound):
                    await self._runtime.beat(nobody, worker_id)
                with suppress(WorkerNotFound):
                    await self._runtime.claim(nobody, worker_id)
        except TimeoutError:
            return f"a claim and a heartbeat took more than {_PROBE_SECONDS:g} s"
        except Exception as error:
            logger.warning("a probe of the write path failed: %r", error)
            return f"a claim and a heartbeat did not go through ({type(error).__name__})"
        return "ok"
