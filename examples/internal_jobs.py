"""Internal jobs: they run inside the server and need no worker.

On a standalone server, in its own threads:

    ZNDRAW_JOBLIB_INTERNAL_EXTENSIONS=examples.internal_jobs:Center zndraw-joblib serve
    zndraw-joblib submit @internal:modifiers:Center positions='[[0, 0], [2, 4]]' --wait

With ZNDRAW_JOBLIB_REDIS_URL they run in any number of separate processes, on PostgreSQL:

    zndraw-joblib internal-worker

In a host's app, with a taskiq broker: see `offer`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from fastapi import FastAPI
from taskiq import AsyncBroker

from zndraw_joblib import Category, Extension, GuardedExecutor, JobPolicy, register_internal_jobs


class Center(Extension):
    """Move points so that their centre is the origin. The task is retried if its process is lost."""

    category: ClassVar[Category] = Category.MODIFIER
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=3, timeout_seconds=60)
    positions: list[tuple[float, float]]

    def run(self, vis: Any, **kwargs: Any) -> list[tuple[float, float]]:
        """Return the moved points; stop early if the task was cancelled."""
        count = len(self.positions) or 1
        x, y = (sum(point[axis] for point in self.positions) / count for axis in (0, 1))
        moved = []
        for point in self.positions:
            if vis.cancelled.is_set():
                break
            moved.append((point[0] - x, point[1] - y))
        return moved


def offer(app: FastAPI, broker: AsyncBroker, session_maker: Callable[[], Any]) -> None:
    """Run the job in a host's app, into which a `JobLib` is mounted, with the host's own broker."""
    hosts_own = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(asgi: FastAPI) -> AsyncIterator[Any]:
        async with hosts_own(asgi) as state:
            executor = GuardedExecutor(app.state.joblib.runtime, concurrency=2)
            await register_internal_jobs(app, broker, [Center], executor, session_maker)
            await broker.startup()
            try:
                yield state
            finally:
                await broker.shutdown()

    app.router.lifespan_context = lifespan
