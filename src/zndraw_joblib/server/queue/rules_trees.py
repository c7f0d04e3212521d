"""Cancel the tasks below others: in waves, each a transaction of its own, without recursion.

What waits for a task that is cancelled so is cancelled soon after it, by `rules_waves`.

The submitter of a task with a parent accepts that it is cancelled with its tree, also by the submitter of the
parent. A cancelled parent gets no more children, and a task is cancelled before those that are below it, so
the tree stops growing behind the waves. After a kill the committed waves stay; a repeat cancels the rest.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import (
    rules_audit,
    rules_successors,
    rules_tasks,
    rules_transitions,
    sql_trees,
)
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import InvalidTaskTransition, StaleReport
from zndraw_joblib.wire.scopes import Scope
from zndraw_joblib.wire.statuses import TERMINAL

Run = Callable[..., Awaitable[Any]]
# How many tasks one statement reads, and how many one transaction cancels.
_READ, WAVE = 2_000, 500
# Tasks that are submitted during a pass are cancelled by the next one.
_MAX_PASSES = 10


class Tops(NamedTuple):
    """The tasks of a tree that are cancelled with all below them; `after` is the smallest `seq` of them.

    `root` is the first task of the tree.
    """

    root: UUID
    ids: Collection[UUID]
    after: int


class Wave(NamedTuple):
    """How many tasks were cancelled so far, and the number of the operator's entry in the audit trail."""

    affected: int = 0
    entry: int | None = None


async def live_below(read_in: Run, tops: Tops) -> AsyncGenerator[list[UUID]]:
    """Yield the tasks below others that have not ended, oldest first, in lists of at most `WAVE`.

    `read_in` runs a function in a transaction.
    """
    # Of the whole tree, no ids have to be kept.
    above = None if tops.root in tops.ids else set(tops.ids)
    after, is_over = tops.after, False
    while not is_over:
        tasks: list[sql_trees.TreeTask] = await read_in(sql_trees.scan, tops.root, after, _READ)
        is_over = len(tasks) < _READ
        live = []
        for task in tasks:
            after = task.seq
            if above is None or task.parent in above:
                if above is not None:
                    above.add(task.id)
                if not task.has_ended:
                    live.append(task.id)
        for start in range(0, len(live), WAVE):
            yield live[start : start + WAVE]


async def cancel_below(read_in: Run, tops: Tops, cancel: Run) -> None:
    """Call `cancel(ids)` with the tasks below others until none of them is left that has not ended."""
    for _ in range(_MAX_PASSES):
        is_over = True
        async with aclosing(live_below(read_in, tops)) as waves:
            async for ids in waves:
                is_over = False
                await cancel(ids)
        if is_over:
            return


def may_cancel_below(caller: Identity, task: TaskResponse, problem: InvalidTaskTransition) -> bool:
    """Return whether the tasks below one that cannot be cancelled are, because it has ended."""
    if caller.task is not None:
        is_allowed = rules_transitions.is_below(caller, task)
    else:
        is_own = task.created_by == caller.id and caller.may(Scope.SUBMIT) and caller.is_in(task.room_id)
        is_allowed = is_own or caller.operates(task.room_id)
    return is_allowed and task.status in TERMINAL and not isinstance(problem, StaleReport)


async def cancel_tree(
    read_in: Run, write_in: Run, caller: Identity, task_id: UUID, request_id: str | None = None
) -> int:
    """Cancel the tasks below one that was cancelled or has ended. Return how many.

    The caller may cancel that task. `read_in` and `write_in` run a function in a transaction.
    """
    top: sql_trees.Top | None = await read_in(sql_trees.top, task_id)
    if top is None:
        return 0
    wave = Wave()
    await write_in(rules_successors.cancel_waiting, top.seq)
    is_by_operator = caller.is_operator and caller.id not in {top.created_by, top.worker_owner_id}

    async def cancel(ids: Collection[UUID]) -> None:
        nonlocal wave
        wave = await write_in(_cancel, ids, wave, caller if is_by_operator else None, top, request_id)

    await cancel_below(read_in, Tops(top.root or top.id, {top.id}, top.seq), cancel)
    return wave.affected


async def _cancel(
    tx: Transaction,
    ids: Collection[UUID],
    wave: Wave,
    operator: Identity | None,
    top: sql_trees.Top,
    request_id: str | None,
) -> Wave:
    affected, entry = wave.affected + await rules_tasks.cancel(tx, ids), wave.entry
    if operator is not None:
        detail = {"affected": affected}
        if entry is None:
            tx.request_id = request_id
            entry = await rules_audit.record(
                tx, operator, "task.cancel-tree", str(top.id), top.room_id, detail
            )
        else:
            await rules_audit.update(tx, entry, detail)
    return Wave(affected, entry)
