"""The `JobManager` of version 0.1.x, and Socket.IO wrappers that it may get."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from zndraw_joblib.compat_0_1 import messages
from zndraw_joblib.worker import manager
from zndraw_joblib.worker.subscriptions import is_wrapper
from zndraw_joblib.worker.tasks import ClaimedTask

_OLD: dict[Any, Any] = {
    cls.__bases__[0]: cls
    for cls in (messages.ProviderRequest, messages.TaskAvailable, messages.TaskStatusEvent)
}


def by_model(tsio: Any) -> Any:
    """Return a Socket.IO client as it is, and a wrapper of one as `ByModel`."""
    return ByModel(tsio) if is_wrapper(tsio) else tsio


class ByModel:
    """A wrapper of a Socket.IO client, whose `on` gets the classes of version 0.1.x, with texts as ids."""

    def __init__(self, tsio: Any) -> None:
        self._tsio = tsio

    def on(self, event: Any, handler: Callable[..., Any]) -> Any:
        """Register a handler."""
        return self._tsio.on(_OLD.get(event, event), handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tsio, name)


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
