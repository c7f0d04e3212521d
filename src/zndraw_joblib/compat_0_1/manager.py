"""The `JobManager` of version 0.1.x."""

from contextlib import suppress
from typing import Any
from uuid import UUID

from zndraw_joblib.compat_0_1.sockets import by_model
from zndraw_joblib.worker import manager
from zndraw_joblib.worker.tasks import ClaimedTask

_FIRST_PAUSE_SECONDS = 0.25


class JobManager(manager.JobManager):
    """`JobManager` with what only version 0.1.x had: `fail_by_id`, and ids as strings.

    While the server cannot be reached, a registration is repeated about `max_startup_retries` times, in
    growing intervals; by default for 30 seconds.
    """

    def __init__(
        self,
        api: Any,
        tsio: Any = None,
        execute: Any = None,
        *,
        max_startup_retries: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(api, by_model(tsio), execute=execute, **options)
        if max_startup_retries is not None:
            if max_startup_retries < 0:
                raise ValueError(f"max_startup_retries must not be negative, not {max_startup_retries}")
            # The sum of the pauses, each twice as long as the one before.
            self._register_seconds = _FIRST_PAUSE_SECONDS * (2.0**max_startup_retries - 1)

    @property
    def worker_id(self) -> str | None:  # type: ignore[override]
        """The worker's id on the server; None before the first registration."""
        return None if super().worker_id is None else str(super().worker_id)

    def create_worker(self) -> str:  # type: ignore[override]
        """Create the worker before it has any job, start its heartbeats, and return its id."""
        return str(super().create_worker())

    def register_provider(self, *args: Any, **options: Any) -> str:  # type: ignore[override]
        """Register a class as a provider, and return its id; see `zndraw_joblib.JobManager`."""
        return str(super().register_provider(*args, **options))

    def unregister_provider(self, provider: UUID | str) -> None:
        """Unregister a provider, given its id or full name. An unknown one is ignored."""
        with suppress(KeyError):
            super().unregister_provider(provider)

    def fail_by_id(self, task_id: UUID | str, error: str) -> None:
        """Report that a task failed, which this program may not have claimed itself."""
        self.fail(ClaimedTask(str(task_id), "", "", None), error)
