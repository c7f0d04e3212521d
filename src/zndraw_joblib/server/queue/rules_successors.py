"""Successors: tasks that wait for the ends of others, from their submit until they are put into their queues.

A task that waits is pending, and in no queue. The transaction that ends a predecessor adds a row, a wave, and
`rules_waves` handles the tasks that wait for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.queue import sql_successors
from zndraw_joblib.server.queue.sql_successors import (
    NewEdge,
    NewSuccessor,
    PredecessorGroup,
    PredecessorTask,
    ShownEdge,
)
from zndraw_joblib.server.queue.sql_task_rows import WAITING, TaskRecord
from zndraw_joblib.wire.history import Reason
from zndraw_joblib.wire.problems import InvalidRequest, ProblemException
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import (
    RESULT_VALUE,
    After,
    OnFailure,
    TaskAfter,
    places,
    result_nodes,
    result_of,
    with_values,
)

_MAX_NAMED = 10


# What a submit needs of the predecessors.


def filled_places(payload: Mapping[str, Any], after: After) -> frozenset[str]:
    """Return the JSON pointers of the values of a payload that are results. Raises `InvalidRequest`."""
    found = set()
    try:
        values = list(places(payload))
    except ValueError as error:
        raise _invalid(f"payload: a $result: {error}", "payload", "invalid_result_value") from None
    for place, value in values:
        try:
            result = result_of(value)
        except ValueError as error:
            raise _invalid(f"payload{place}/$result: {error}", "payload", "invalid_result_value") from None
        if result is not None and result.task not in after.tasks:
            raise _invalid(
                f"payload{place}/$result: task {result.task} is not among after.tasks; a task gets results "
                "of its predecessors only, so add it there",
                *("payload", "invalid_result_value"),
            )
        found.add(place)
    return frozenset(found)


def check_ids(after: After | None) -> None:
    """Raise `InvalidRequest` if a task that is submitted alone waits for items of a batch."""
    if after is not None and any(isinstance(entry, int) for entry in after.tasks):
        raise _invalid(
            "after.tasks: only a batch takes indexes (submit_many, POST /tasks/submit with atomic); name ids",
            *("after", "tasks", "no_batch"),
        )


async def made_by(tx: Transaction, user_id: str, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these tasks and groups that a user has submitted or created."""
    return await sql_successors.made_by(tx, user_id, ids)


def _invalid(detail: str, *place: str) -> InvalidRequest:
    *loc, kind = place
    return InvalidRequest(detail, errors=[{"loc": ["body", *loc], "message": detail, "type": kind}])


@dataclass
class Predecessors:
    """The predecessors of the new tasks of a batch. They are locked, except those that are new too."""

    tasks: dict[UUID, PredecessorTask]
    groups: dict[UUID, PredecessorGroup] = field(default_factory=dict)
    # The groups of new tasks that wait, if tasks wait for these groups.
    awaited: set[UUID] = field(default_factory=set)
    # The new tasks that wait, by their ids.
    new: dict[UUID, "_New"] = field(default_factory=dict)

    @classmethod
    async def lock(cls, tx: Transaction, afters: Iterable[After | None]) -> "Predecessors | None":
        """Lock the tasks that others are to wait for, before the jobs. Return None if none is to wait."""
        waiting = [after for after in afters if after is not None]
        if not waiting:
            return None
        ids = {task for after in waiting for task in after.tasks if isinstance(task, UUID)}
        return cls(await sql_successors.lock_tasks(tx, ids))

    async def lock_groups(self, tx: Transaction, afters: Iterable[tuple[After | None, UUID | None]]) -> None:
        """Lock the groups that tasks, which belong to other groups or none, are to wait for, after the jobs.

        It waits for no other transaction, because one that ends a group may submit a task of a job that is
        locked here. Raises `RepeatTransaction` instead.
        """
        waiting = [(after, group) for after, group in afters if after is not None]
        ids = {group for after, _ in waiting for group in after.groups}
        if ids:
            self.groups, is_any_locked = await sql_successors.lock_groups(tx, ids)
            if is_any_locked:
                raise RepeatTransaction("A group that a task is to wait for is ending")
        if grouped := {group for _, group in waiting if group is not None}:
            self.awaited = ids & grouped | await sql_successors.awaited_groups(tx, grouped)

    def fault(self, room_id: str, after: After, group_id: UUID | None) -> ProblemException | None:
        """Return why a task of a room, and of a group, cannot wait for these predecessors.

        A group waits for its tasks. So that no task ever waits for itself, one that waits cannot be added to
        a group that is waited for, and one of a group waits for no group that may get further tasks.
        """
        rows: list[tuple[str, Any, Any]] = [
            *(("tasks", id_, self.tasks.get(id_)) for id_ in after.tasks if isinstance(id_, UUID)),
            *(("groups", id_, self.groups.get(id_)) for id_ in after.groups),
        ]
        for name, id_, row in rows:
            if row is None or row.room_id != room_id:  # whether another room has it is not said
                return _invalid(
                    f"after.{name}: room {room_id!r} has no {name[:-1]} {id_}; a task waits for tasks and "
                    "groups of its own room that were not deleted. Check the id, or submit without it",
                    *("after", name, "unknown_predecessor"),
                )
        return None if group_id is None else self._cycle(after, group_id)

    def _cycle(self, after: After, group_id: UUID) -> ProblemException | None:
        unsealed = [id_ for id_ in after.groups if not self.groups[id_].sealed]
        if unsealed:
            return _invalid(
                f"after.groups: group {unsealed[0]} is open, and could get tasks that wait for group "
                f"{group_id}; seal it before you submit tasks of other groups that wait for it",
                *("after", "groups", "open_predecessor"),
            )
        if group_id in self.awaited:
            return _invalid(
                f"group: tasks wait for group {group_id} already, so its further tasks cannot wait for "
                "others; submit them before, or to another group",
                *("group", "awaited_group"),
            )
        return None

    def wait(
        self, task: TaskRecord, after: After, earlier: Sequence[Any], *, inherits: bool, fills: bool
    ) -> TaskRecord:
        """Return a new task as one that waits. `earlier` are the tasks of the batch so far.

        With `inherits` its priority is the highest of its own and those of its predecessors.
        """
        ids = list[UUID]()
        for entry in after.tasks:
            before = entry if isinstance(entry, UUID) else _task_of(earlier[entry])
            if isinstance(before, TaskRecord):
                if not before.seq:
                    before.linked = True
                lane, before = before.lane, before.id
            elif before is None:
                return task  # nothing is submitted, because an earlier item cannot be
            else:
                lane = self.tasks[before].lane
            ids.append(before)
            task = task.changed(lane=min(task.lane, lane)) if inherits else task
        payload = task.payload
        if fills:
            payload = with_values(payload, lambda node: _with_id(node, ids, after))
        new = _New(list(dict.fromkeys([*ids, *after.groups])), after.on_failure, task.run_at, fills)
        self.new[task.id] = new
        return task.changed(run_at=WAITING, payload=payload)

    async def write(self, tx: Transaction, tasks: Sequence[TaskRecord]) -> None:
        """Insert what new tasks wait for. Ends of predecessors that ended before are handled at once."""
        new = {task.id: self.new[task.id] for task in tasks if task.id in self.new}
        if not new:
            return
        ids = {id_ for one in new.values() for id_ in one.predecessors} - self.groups.keys()
        seqs = await sql_successors.seqs(tx, [*new, *(ids - self.tasks.keys())])
        await self._lock_holders(tx, ids - self.tasks.keys() - {task.id for task in tasks})
        source_of = seqs | {task.id: task.seq for task in self.tasks.values()}
        source_of |= {group.id: -group.n for group in self.groups.values()}
        edges = [
            NewEdge(seqs[id_], source_of[before], position, before)
            for id_, one in new.items()
            for position, before in enumerate(one.predecessors)
        ]
        successors = [
            NewSuccessor(seqs[id_], one.on_failure.value, one.run_at, one.fills) for id_, one in new.items()
        ]
        linked = [self.tasks[id_].seq for id_ in ids if id_ in self.tasks]
        await sql_successors.add(tx, successors, edges, linked)
        ended = [task.seq for id_, task in self.tasks.items() if id_ in ids and task.status in TERMINAL]
        ended += [-group.n for group in self.groups.values() if group.ended_at is not None]
        await sql_successors.add_waves(tx, ended)

    async def _lock_holders(self, tx: Transaction, ids: Collection[UUID]) -> None:
        """Lock tasks that hold unique keys of earlier items. Raises `RepeatTransaction` if one is locked."""
        if ids:
            holders = await sql_successors.lock_free_tasks(tx, ids)
            if len(holders) < len(ids):
                raise RepeatTransaction("A task that another is to wait for is being changed")
            self.tasks |= holders


class _New(NamedTuple):
    """What a new task waits for, and what it does then."""

    predecessors: list[UUID]
    on_failure: OnFailure
    run_at: datetime | None
    fills: bool


def _task_of(outcome: Any) -> TaskRecord | None:
    """Return the task of an earlier item: a new one, or the one that holds its key."""
    outcome = getattr(outcome, "task", outcome)
    return outcome if isinstance(outcome, TaskRecord) else None


def _with_id(node: Any, ids: Sequence[UUID], after: After) -> Any:
    result = result_of(node)
    if result is None or isinstance(result.task, UUID):
        return node
    return {RESULT_VALUE: {"task": str(ids[after.tasks.index(result.task)]), "pointer": result.pointer}}


# What the end of a predecessor causes.


async def settle(tx: Transaction, ended: Collection[int]) -> None:
    """Record the ends of tasks for which others wait; those that were cancelled with a tree cancel them."""
    cancelling = tx.cancelling.intersection(ended)
    if cancelling:
        await sql_successors.add_waves_of_tasks(tx, cancelling, cancels=True)
    if others := set(ended) - cancelling:
        await sql_successors.add_waves_of_tasks(tx, others)


async def cancel_waiting(tx: Transaction, seq: int) -> None:
    """Cancel what waits for a task that has ended, soon."""
    await sql_successors.add_waves_of_tasks(tx, [seq], cancels=True)


async def wait_again(tx: Transaction, retried: Sequence[TaskRecord]) -> list[TaskRecord]:
    """Return tasks that are retried; those that never were released wait for their predecessors again.

    What their predecessors have done meanwhile is looked at soon. One that ends at the same time sees that
    they are waited for again, or has ended before. Raises `RepeatTransaction` if one is being changed.
    """
    linked = await sql_successors.unreleased(tx, [task.seq for task in retried])
    if linked:
        if not tx.is_sqlite and not await sql_successors.lock_sources(tx, linked):
            raise RepeatTransaction("A task or group that another is to wait for again is being changed")
        await sql_successors.reopen(tx, linked, {task.seq for task in retried})
    return [task.changed(run_at=WAITING) if task.seq in linked else task for task in retried]


# What is shown of predecessors.


async def after_of(tx: Transaction, task: TaskRecord) -> TaskAfter | None:
    """Return what a task waits for, or has waited for."""
    edges = await sql_successors.edges_of(tx, task.seq)
    if not edges:
        return None
    return TaskAfter.model_construct(
        tasks=[edge.predecessor for edge in edges if edge.source > 0],
        groups=[edge.predecessor for edge in edges if edge.source < 0],
        on_failure=OnFailure(edges[0].on_failure),
        waits_for=[edge.predecessor for edge in edges if edge.is_open and task.is_waiting],
    )


async def status_of_successor(tx: Transaction, successor_id: UUID, task_id: UUID) -> TaskStatus | None:
    """Return the status of a task that waits for another one, or has waited; None if it does not."""
    status = await sql_successors.status_of_successor(tx, successor_id, task_id)
    return None if status is None else TaskStatus(status)


async def reasons(tx: Transaction, task: TaskRecord) -> list[Reason]:
    """Return for which predecessors a task waits."""
    edges = [edge for edge in await sql_successors.edges_of(tx, task.seq) if edge.is_open]
    held = [edge for edge in edges if edge.status is not None]
    if held:
        # `run-now` refuses a task whose payload has no value without the result.
        needed = {result.task for value in result_nodes(task.payload) if (result := result_of(value))}
        run = "" if any(edge.predecessor in needed for edge in held) else "run this task now, or "
        what = "its tasks that failed" if held[0].source < 0 else "that"
        detail = f"It is held (on_failure=hold), because {_named(held)} did not complete: retry {what}, or "
        return [Reason(code="predecessor", detail=f"{detail}{run}cancel this one")]
    detail = f"It waits until {_named(edges)} {'has' if len(edges) == 1 else 'have'} ended"
    return [Reason(code="predecessor", detail=detail)]


def _named(edges: Sequence[ShownEdge]) -> str:
    names = [f"{'group' if edge.source < 0 else 'task'} {edge.predecessor}" for edge in edges[:_MAX_NAMED]]
    more = len(edges) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
