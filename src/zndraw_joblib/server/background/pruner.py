"""Delete a limited number of old rows in each cycle of the sweeper, so that other writes are not delayed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_retention, rules_task_retention
from zndraw_joblib.server.queue.rules_retention import GROUPS, RETENTIONS, Pruned, Retention
from zndraw_joblib.server.queue.rules_task_retention import PrunedTasks, TaskPruning
from zndraw_joblib.wire.operators import KeptTasks

logger = logging.getLogger(__name__)
# Counting all idempotency keys reads an index of up to `max_idempotency_keys` entries.
KEY_COUNT_SECONDS = 600
Write = Callable[..., Awaitable[Any]]
Batch = Callable[[], Awaitable[Pruned]]
TASKS = "tasks"


class Pruner:
    """Deletes batches of each kind of old rows in turn, until none is left or the budget is spent.

    The budget of a cycle is `prune_max_rows` and `prune_max_seconds`; the next cycle continues where the
    last one ended. After each batch it pauses for as long as the batch took, so that others can write.
    `prune_content` deletes a batch of the content of task results.
    """

    # The number of cycles in a row with remaining old rows that is reported as a backlog.
    max_cycles_behind = 20

    def __init__(
        self,
        write: Write,
        settings: JobLibSettings,
        monotonic: Callable[[], float],
        batch_seconds: float,
        prune_content: Batch | None,
    ) -> None:
        self._prune_content = prune_content
        self._write = write
        self._settings = settings
        self._monotonic = monotonic
        self._batch_seconds = batch_seconds
        # Where the next batch of each kind begins.
        self._next: dict[Retention, Any] = {}
        self._tasks = TaskPruning()
        self._is_announced = False
        self._next_room = rules_retention.FIRST_ROOM
        self._next_job: UUID | None = UUID(int=0)
        self._count_keys_at = monotonic()
        self._surplus_keys: rules_retention.SurplusKeys | None = None
        self._cycles_behind = 0
        self.failures = 0

    async def cycle(self, *, with_tasks: bool) -> int:
        """Delete old rows within the budget. Return the number of deleted tasks; count failures.

        Without `with_tasks`, tasks and what belongs to them stay.
        """
        self.failures = 0
        until = self._monotonic() + self._settings.prune_max_seconds
        rows_left = self._settings.prune_max_rows
        deleted_tasks = 0
        batches = self._batches(with_tasks=with_tasks)
        while batches and rows_left > 0 and self._monotonic() < until:
            for kind, batch in list(batches.items()):
                started = asyncio.get_running_loop().time()
                if self._monotonic() >= until:
                    break
                deleted, may_be_more = await self._run(batch)
                rows_left -= deleted
                deleted_tasks += deleted if kind is TASKS else 0
                if not may_be_more:
                    del batches[kind]
                elif rows_left > 0:
                    await asyncio.sleep(asyncio.get_running_loop().time() - started)
        self._warn_of_backlog(is_left=bool(batches))
        return deleted_tasks

    def _batches(self, *, with_tasks: bool) -> dict[object, Batch]:
        batches: dict[object, Batch] = {}
        for retention in RETENTIONS:
            if retention is GROUPS and with_tasks:  # groups and jobs without tasks are deleted after them
                batches[TASKS] = self._prune_tasks
            if with_tasks or not retention.of_tasks:
                batches[retention] = partial(self._prune, retention)
        if self._prune_content is not None:
            batches["content"] = self._prune_content
        batches["surplus keys"] = self._prune_surplus_keys
        if with_tasks:
            batches["room queues"] = self._prune_room_queues
        return batches

    def _warn_of_backlog(self, *, is_left: bool) -> None:
        self._cycles_behind = self._cycles_behind + 1 if is_left else 0
        if self._cycles_behind == self.max_cycles_behind:
            logger.warning(
                "Old rows remained after each of the last %d cycles of the sweeper: if their number grows, "
                "raise prune_max_rows (%d) and prune_max_seconds (%g)",
                self.max_cycles_behind,
                self._settings.prune_max_rows,
                self._settings.prune_max_seconds,
            )

    async def _run(self, batch: Batch) -> Pruned:
        try:
            async with asyncio.timeout(self._batch_seconds):
                return await batch()
        except Exception as error:
            self.failures += 1
            log_failed_work(logger, error, "A batch of old rows was not deleted; the next cycle retries it")
            return Pruned(0, may_be_more=False)

    async def _prune(self, retention: Retention) -> Pruned:
        keep = retention.keep_time(self._settings)
        if keep is None:
            return Pruned(0, may_be_more=False)
        after = self._next.get(retention, retention.first)
        work = partial(rules_retention.prune, retention=retention, keep=keep, after=after)
        pruned: Pruned
        pruned, self._next[retention] = await self._write(work)
        return pruned

    async def _prune_tasks(self) -> Pruned:
        if not self._is_announced:
            _log_times(await self._write(partial(rules_task_retention.announce, settings=self._settings)))
            self._is_announced = True
        work = partial(rules_task_retention.prune, settings=self._settings, state=self._tasks)
        pruned: PrunedTasks = await self._write(work)
        self._tasks = pruned.state
        return Pruned(pruned.deleted, pruned.may_be_more)

    async def _prune_surplus_keys(self) -> Pruned:
        if self._surplus_keys is None:
            if self._monotonic() < self._count_keys_at:
                return Pruned(0, may_be_more=False)
            limit = self._settings.max_idempotency_keys
            self._surplus_keys = await self._write(partial(rules_retention.surplus_keys, limit=limit))
            self._count_keys_at = self._monotonic() + KEY_COUNT_SECONDS
        deleted = 0
        if self._surplus_keys is not None:
            work = partial(rules_retention.prune_surplus_keys, surplus=self._surplus_keys)
            deleted, self._surplus_keys = await self._write(work)
        return Pruned(deleted, may_be_more=self._surplus_keys is not None)

    async def _prune_room_queues(self) -> Pruned:
        if self._next_job is not None:
            # Once after each start: the last server that an upgrade starts finds the tasks of older servers.
            self._next_job = await self._write(
                partial(rules_retention.restore_room_queues, after=self._next_job)
            )
        empty, following = await self._write(
            partial(rules_retention.empty_room_queues, after=self._next_room)
        )
        deleted = 0
        for job_id, rooms in empty.items():
            deleted += await self._write(
                partial(rules_retention.prune_room_queues, job_id=job_id, rooms=rooms)
            )
        self._next_room = following
        return Pruned(deleted, following != rules_retention.FIRST_ROOM or self._next_job is not None)


def _log_times(summary: KeptTasks) -> None:
    """Log once how long ended tasks are kept, and before default times apply what will be deleted."""
    times = {name: getattr(summary, name) for name in ("completed", "failed", "cancelled")}
    if all(time.keep_seconds is None for time in times.values()):
        return
    shown = ", ".join(
        f"{name} for ever" if time.keep_seconds is None else f"{name} {time.keep_seconds / 86_400:g} days"
        for name, time in times.items()
    )
    older = sum(time.older for time in times.values())
    if summary.applies_at is None:
        logger.info("Ended tasks are kept: %s", shown)
    else:
        logger.log(
            logging.WARNING if older else logging.INFO,
            "Ended tasks are kept: %s. From %s on the server deletes older ones, now %s%d; to keep them, set "
            "keep_completed_days, keep_failed_days and keep_cancelled_days (0: for ever)",
            *(shown, summary.applies_at.isoformat(timespec="minutes")),
            *("" if summary.is_complete else "more than ", older),
        )
