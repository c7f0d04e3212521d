"""The `JobManager` of version 0.1.x."""

from contextlib import suppress
from typing import Any
from uuid import UUID

from zndraw_joblib.compat_0_1.sockets import by_model
from zndraw_joblib.worker import manager
from zndraw_joblib.worker.tasks import ClaimedTask


class JobManager(manager.JobManager):
    """`JobManager` with what only version 0.1.x had: `fail_by_id`, and ids as strings."""

    def __init__(self, api: Any, tsio: Any = None, execute: Any = None, **options: Any) -> None:
        super().__init__(api, by_model(tsio), execute=execute, **options)
        self.tsio = tsio

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
