"""Hands internal tasks to their broker: at a submit, and whatever waits for it since."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.server.ports import InternalTask, job_key
from zndraw_joblib.server.service import internal
from zndraw_joblib.server.service.fairness import ClaimOrder
from zndraw_joblib.server.store.tasks import TaskRecord

logger = logging.getLogger(__name__)
Write = Callable[..., Awaitable[Any]]

_KEYS = job_key(f"{INTERNAL}:")
# Less than a lease: what takes longer is taken for a failure before anybody else hands it over.
_KIQ_SECONDS = 20.0
_BATCH = 100
_FAULTS_IN_A_ROW = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class DispatchMode(NamedTuple):
    """How the tasks of an internal job get to whoever runs them.

    `exclusive_start`: that starts a task once, however often it is told of it. `is_bounded`: it takes only so many
    at once, so that the dispatcher alone tells it.
    """

    handle: InternalTask
    exclusive_start: bool
    is_bounded: bool


class Dispatcher:
    """Finds internal tasks that wait to be handed to their broker, whenever it is poked.

    `registry` returns what a host keeps in ``app.state.internal_registry``, or None: its jobs are minded.
    """

    def __init__(
        self, write: Write, confirm: Callable[[UUID], Awaitable[None]], order: Callable[[], ClaimOrder]
    ) -> None:
        self.registry: Callable[[], Any] = lambda: None
        self._write = write
        self._confirm = confirm
        self._order = order
        self._poked: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_broken = False

    def way(self, job: JobName) -> DispatchMode | None:
        """Return how tasks of a job are handed over, None for one that is not internal or not known here."""
        registry = self.registry() if job.room_id == INTERNAL else None
        handle = registry.tasks.get(str(job)) if registry is not None else None
        if handle is None:
            return None
        return DispatchMode(handle, _exclusive_start(registry), getattr(registry, "free", None) is not None)

    async def hand_over(self, task: TaskResponse, way: DispatchMode) -> TaskResponse:
        """Hand a task that was just submitted to its broker. Return it as it is then: it may have failed."""
        try:
            await _kiq(way.handle, task)
        except Exception:
            logger.exception("task %s was not dispatched", task.id)
            failed: TaskResponse = await self._write(internal.fail_dispatch, task_id=task.id)
            return failed
        if not way.exclusive_start:
            await self._confirm_quietly(task.id)
        return task

    def hear(self, key: str) -> None:
        """Look at the queues if a wake-up is for an internal job."""
        if key.startswith(_KEYS):
            self.poke()

    def poke(self) -> None:
        """Look soon for tasks that wait. Any thread may call it."""
        if self._loop is not None and self._poked is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._poked.set)

    async def run(self) -> None:
        """Dispatch until cancelled."""
        self._loop, self._poked = asyncio.get_running_loop(), asyncio.Event()
        self._poked.set()
        pause = _FIRST_PAUSE
        while True:
            await self._poked.wait()
            self._poked.clear()
            try:
                is_done = await self.dispatch()
            except Exception as error:
                self._note_fault(error)
                is_done = False
            if is_done:
                pause = _FIRST_PAUSE
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._poked.set()

    async def dispatch(self) -> bool:
        """Hand over all that is due, in batches. Tell whether the broker took it; else it waits."""
        registry = self.registry()
        if registry is None or not registry.tasks:
            return True
        names, free = list(registry.tasks), getattr(registry, "free", None)
        while (limit := _BATCH if free is None else min(_BATCH, free())) > 0:
            exclusive_start = _exclusive_start(registry)
            take = partial(internal.claim, names=names, limit=limit, order=self._order())
            batch: list[TaskRecord] = await self._write(take, exclusive_start=exclusive_start)
            refused = await self._hand(registry, batch, exclusive_start=exclusive_start)
            if refused:
                await self._write(internal.retry_dispatch_later, ids=refused)
                return False
            if not batch:
                break
        return True

    async def _hand(self, registry: Any, batch: Sequence[TaskRecord], *, exclusive_start: bool) -> list[UUID]:
        """Tell the broker of each task. Return those that it did not take."""
        refused: list[UUID] = []
        taken: list[UUID] = []
        faults = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + _KIQ_SECONDS
        for task in batch:
            if faults == _FAULTS_IN_A_ROW or loop.time() > until:
                refused.append(task.id)
                continue
            try:
                await _kiq(registry.tasks[str(task.job)], task)
            except Exception as error:
                faults += 1
                refused.append(task.id)
                self._note_fault(error)
            else:
                faults, self._is_broken = 0, False
                taken.append(task.id)
        if not exclusive_start:
            await asyncio.gather(*map(self._confirm_quietly, taken))
        return refused

    async def _confirm_quietly(self, task_id: UUID) -> None:
        try:
            await self._confirm(task_id)
        except Exception as error:
            # At the end of its lease it is handed over once more.
            logger.warning("that task %s was dispatched could not be noted: %r", task_id, error)

    def _note_fault(self, error: Exception) -> None:
        # Said once, until something goes through again.
        level = logging.DEBUG if self._is_broken else logging.WARNING
        self._is_broken = True
        cause = error.__cause__ or error
        logger.log(level, "internal tasks wait, and will be dispatched later: %r", cause)


def _exclusive_start(registry: Any) -> bool:
    return bool(getattr(getattr(registry, "executor", None), "exclusive_start", False))


async def _kiq(handle: InternalTask, task: TaskRecord | TaskResponse) -> None:
    async with asyncio.timeout(_KIQ_SECONDS):
        await handle.kiq(task_id=str(task.id), room_id=task.room_id, payload=task.payload)
