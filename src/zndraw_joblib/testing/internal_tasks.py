"""Internal jobs of a test: their tasks wait until the test runs them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fastapi import FastAPI

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.server.internal.executor import GuardedExecutor
from zndraw_joblib.server.internal.registration import offer_of
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.service import internal


@dataclass
class _Handle:
    """In place of a broker's task: keeps the calls that the app sends."""

    cls: type[Any]
    calls: deque[dict[str, Any]] = field(default_factory=deque)

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any], **_: Any) -> None:
        self.calls.append({"task_id": task_id, "room_id": room_id, "payload": payload})


class InternalTasks:
    """Offers internal jobs in an app beside those that it has, and runs their tasks as the app's executor."""

    def __init__(self, app: FastAPI, joblib: JobLib) -> None:
        self._app, self._joblib = app, joblib
        self._handles: dict[JobName, _Handle] = {}
        self._restore: Callable[[], None] = lambda: None

    async def register(self, cls: type[Any]) -> None:
        """Register a class as an internal job. Raises ValueError for one that cannot be a job."""
        offer = offer_of(cls)
        await self._joblib.runtime.write(internal.register, [offer])
        # A host that names the queue has its registry there.
        holder: Any = self._app.state if self._joblib.internal_registry is None else self._joblib
        before = getattr(holder, "internal_registry", None)
        if not self._handles:
            self._restore = lambda: setattr(holder, "internal_registry", before)
        self._handles[offer.name] = handle = _Handle(cls)
        known = before or InternalRegistry({})
        tasks = {**known.tasks, str(offer.name): handle}
        executor = getattr(known, "executor", None) or GuardedExecutor(self._joblib.runtime)
        holder.internal_registry = InternalRegistry(tasks, executor=executor)

    async def run_next(self, name: JobName, vis: Any) -> UUID | None:
        """Run the next task of a job; return its id, None if none may start now."""
        await self._joblib.dispatcher.dispatch()
        handle = self._handles[name]
        if not handle.calls:
            return None
        call = handle.calls.popleft()
        executor = GuardedExecutor(
            self._joblib.runtime, context=lambda given: given if vis is None else vis, capture_output=False
        )
        await executor.start()
        try:
            await executor(handle.cls, call["payload"], call["room_id"], call["task_id"])
        finally:
            await executor.stop()
        return UUID(call["task_id"])

    def close(self) -> None:
        """Give the app its own internal jobs back."""
        self._restore()
