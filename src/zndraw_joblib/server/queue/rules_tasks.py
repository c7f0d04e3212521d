"""Submit and report tasks, read them, and list the tasks of a room.

Submits and reports without special conditions are written with one statement; all others lock and read rows,
and the functions here decide. Ids of new tasks are UUIDs of version 7, which begin with
the time: neighbours in time are neighbours in the index of ids. With random ids a batch of tasks changes as
many pages of a long table's index as it has tasks.
"""

import os
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.process.ports import Identity, Page, RequestKey, job_key
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_details,
    rules_jobs,
    rules_limits,
    rules_payloads,
    rules_queues,
    rules_successors,
    rules_transitions,
    rules_unique,
    rules_webhooks,
    sql_counts,
    sql_details,
    sql_groups,
    sql_jobs,
    sql_results,
    sql_successors,
    sql_tasks,
    sql_transitions,
    sql_trees,
)
from zndraw_joblib.server.queue.rules_details import DEFAULT_LIMITS, HeldAttempt, LogLimits
from zndraw_joblib.server.queue.rules_queues import Needs
from zndraw_joblib.server.queue.rules_successors import Predecessors
from zndraw_joblib.server.queue.rules_unique import Duplicate
from zndraw_joblib.server.queue.sql_groups import OpenGroup
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_reports import FencedReport, report_single_statement
from zndraw_joblib.server.queue.sql_submit import Appended, KnownJob, NewKey, NewMembers, NewTaskRow, append
from zndraw_joblib.server.queue.sql_task_rows import Move, TaskRecord, TaskRow
from zndraw_joblib.server.queue.sql_tasks import positions
from zndraw_joblib.server.queue.sql_trees import Link, Parent
from zndraw_joblib.wire.masks import joined_paths, without_secrets
from zndraw_joblib.wire.messages import (
    PaginatedResponse,
    SubmitOptions,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import INTERNAL, RESERVED, JobName
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.problems import (
    Conflict,
    ContentTooLarge,
    Forbidden,
    GroupNotFound,
    GroupSealed,
    InternalJobNotConfigured,
    InvalidRequest,
    JobNotFound,
    NoWorkersAvailable,
    ProblemException,
    TaskNotFound,
    TooManyRequests,
)
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TRANSITIONS, Role, TaskStatus
from zndraw_joblib.wire.unique import Unique

# The bits of version and variant.
_FIXED_BITS = (0xF << 76) | (0x3 << 62)
_VERSION_7 = (0x7 << 76) | (0x2 << 62)


def new_ids(count: int) -> list[UUID]:
    """Return ids for new tasks."""
    now = time.time_ns() // 1_000_000 << 80
    random = os.urandom(10 * count)
    ids = []
    for start in range(0, 10 * count, 10):
        number = int.from_bytes(random[start : start + 10])
        ids.append(UUID(int=now | (number & ~_FIXED_BITS) | _VERSION_7))
    return ids


# Submit, report and read tasks. Submissions and reports come in lists; each item gets its own result.

ReportResult = TaskResponse | ProblemException
# One answer has at most about this many bytes of payloads and results, as a claim has.
_MAX_BODY_BYTES = 8 * 1024**2


@dataclass(slots=True)
class Submission:
    """A task to submit from a room.

    For an internal job, `is_configured`: this server has an executor; `exclusive_start`: the executor starts
    a task once, however often it is dispatched; `is_deferred`: the dispatcher claims the task later.
    `is_bounded`: the number of held tasks of the room is limited. `requires_worker`: the job needs a worker,
    unless it is internal or its policy says otherwise.
    `payload_json`: the payload as JSON, if it is encoded already.
    `validated_schema`: a schema as JSON that the payload is known to match. `task_id`: the id that the task
    got in an earlier attempt to insert it, which may have succeeded. `traceparent`: the trace context of the
    submit. `on_end`: the name of the host's function to call after the task's end. `payload_key`: the unique
    key that the payload has, if the submit needs it and it was computed already, or why it has none.
    `schedule` and `due_at`: the schedule that submits it, and when it was due. `is_unlimited`: the bounds of
    pending tasks of its job do not apply. `refusal`: why it cannot be submitted, if the server knows
    that already. `filled`: the JSON pointers of the values of the payload that are results of predecessors.
    `masked`: the paths to what was secret when the payload was written.
    """

    caller: Identity
    room_id: str
    job: JobName
    payload: dict[str, Any]
    is_configured: bool = False
    exclusive_start: bool = False
    is_deferred: bool = False
    is_bounded: bool = False
    requires_worker: bool = False
    validate_payload: bool = True
    cross_room: bool = False
    payload_json: str | None = None
    validated_schema: str | None = None
    options: TaskSubmitRequest = field(default_factory=TaskSubmitRequest)
    key: RequestKey | None = None
    task_id: UUID | None = None
    traceparent: str | None = None
    on_end: str | None = None
    payload_key: str | ProblemException | None = None
    schedule: str | None = None
    due_at: datetime | None = None
    is_unlimited: bool = False
    refusal: ProblemException | None = None
    filled: frozenset[str] = frozenset()
    masked: str | None = None

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"job {self.job}"

    @property
    def predecessors(self) -> int:
        """Return how many tasks and groups it waits for."""
        after = self.options.after
        return 0 if after is None else len(after.tasks) + len(after.groups)


class NoneSubmitted(Exception):
    """No item was submitted, because some cannot be: their `results` are exceptions."""

    def __init__(self, results: Sequence[TaskResponse | Exception]) -> None:
        super().__init__("some tasks cannot be submitted")
        self.results = results


class Report(NamedTuple):
    """A report of a task's new status. Its answer has the payload only if it `wants_body`."""

    caller: Identity
    task_id: UUID
    update: TaskUpdateRequest
    key: RequestKey | None = None
    wants_body: bool = True
    request_id: str | None = None

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"task {self.task_id}"

    @property
    def weight(self) -> int:
        """Return how many tasks without a log it takes as long as."""
        log = self.update.log
        return 1 if log is None else 1 + rules_details.weight(log)


_NO_QUEUES = rules_queues.Queues()


class _Related(NamedTuple):
    """The parents, the groups and the predecessors of new tasks; and the outcomes of the items so far.

    `queues` are those for tasks with requirements.
    """

    parents: Mapping[UUID, Parent]
    groups: Mapping[UUID, OpenGroup]
    predecessors: Predecessors | None
    outcomes: "list[_Outcome]"
    queues: rules_queues.Queues = _NO_QUEUES


# When to submit again to a job that has as many pending tasks as it may.
_RETRY_SECONDS = "5"
# A new task, another task that holds the submit's key, or why there is none.
_Outcome = TaskRecord | Duplicate | Exception


async def submit(
    tx: Transaction,
    items: Sequence[Submission],
    learn: Callable[[Iterable[JobRecord]], None] | None = None,
    *,
    is_atomic: bool = False,
) -> list[TaskResponse | Exception]:
    """Insert tasks: pending, or claimed if the job is internal and the server dispatches it at once.

    No payload is validated here. The result for one that was not validated against the job's current schema
    is `UnvalidatedPayload`. `learn` gets the jobs. Raises `ContentTooLarge` for tasks of which, `is_atomic`,
    all or none are inserted, if a job may never have as many pending.
    """
    related = await _lock_related(tx, items)
    jobs, related = await _lock_jobs(tx, items, related)
    if related.predecessors is not None:
        waiting = [(item.options.after, item.options.group) for item in items]
        await related.predecessors.lock_groups(tx, waiting)
    if learn is not None:
        learn(jobs.values())
    now = await tx.now()
    faults = await _faults(tx, items, jobs, related)
    rows = await _open_queues(tx, items, faults, jobs, related.queues)
    holders = await _key_holders(tx, items, faults, {row.id for row in rows}, now)
    limits = await _PendingLimits.of(tx, items, jobs, is_atomic=is_atomic)
    outcomes = _decide(items, faults, jobs, now, holders, limits=limits, related=related)
    tasks, replaced = await _write_submits(tx, outcomes, holders)
    await _keep_masks(tx, items, rows, [*tasks, *replaced])
    if related.predecessors is not None:
        await related.predecessors.write(tx, tasks)
    await _attach_hooks(tx, items, outcomes, now)
    duplicates = {outcome.task.id: outcome.task for outcome in outcomes if isinstance(outcome, Duplicate)}
    position_of = await _submitted_positions(tx, rows, tasks, replaced, list(duplicates.values()))
    await _publish(tx, items, outcomes, [*tasks, *replaced], position_of)
    for item, outcome in zip(items, outcomes, strict=True):
        if item.is_deferred and isinstance(outcome, TaskRecord) and outcome.status is TaskStatus.CLAIMED:
            tx.wake(outcome.job_key, 1)
    return [
        _submit_result(outcome, position_of, item.options)
        for item, outcome in zip(items, outcomes, strict=True)
    ]


async def _publish(
    tx: Transaction,
    items: Sequence[Submission],
    outcomes: Sequence[_Outcome],
    tasks: Sequence[TaskRecord],
    position_of: Mapping[UUID, int],
) -> None:
    """Publish the statuses of submitted tasks, and wake claims, those of preferred workers first."""
    preferring = [
        (outcome, item.options.prefer)
        for item, outcome in zip(items, outcomes, strict=True)
        if isinstance(outcome, TaskRecord) and (item.options.prefer or outcome.policy.prefer)
    ]
    workers_of = await rules_queues.preferred(tx, preferring) if preferring else {}
    for task in tasks:
        before = workers_of.get(task.id, ())
        rules_answers.publish_status(tx, task, position_of.get(task.id), before=before)


async def _lock_jobs(
    tx: Transaction, items: Sequence[Submission], related: _Related
) -> tuple[dict[JobName, JobRecord], _Related]:
    """Lock the active jobs of these items, and the queues of their tasks."""
    wanted: dict[JobName, set[str]] = {item.job: set() for item in items}
    for item in items:
        if (text := Needs.of(item.options).text) is not None:
            wanted[item.job].add(text)
    jobs, queues = await rules_queues.lock(tx, wanted)
    return jobs, related._replace(queues=queues)


async def _open_queues(
    tx: Transaction,
    items: Sequence[Submission],
    faults: Sequence[Exception | None],
    jobs: Mapping[JobName, JobRecord],
    queues: rules_queues.Queues,
) -> list[JobRecord]:
    """Make the queues that tasks with requirements need. Return these, and the jobs."""
    for item, fault in zip(items, faults, strict=True):
        if fault is None:
            await queues.open(tx, item.job, jobs[item.job], Needs.of(item.options))
    return [*jobs.values(), *queues.records]


async def _lock_related(tx: Transaction, items: Sequence[Submission]) -> _Related:
    """Lock parents, predecessors and groups before jobs, as reports lock tasks."""
    ids = {item.options.parent for item in items if item.options.parent is not None}
    parents = await sql_trees.lock_parents(tx, ids) if ids else {}
    predecessors = await Predecessors.lock(tx, [item.options.after for item in items])
    grouped = {item.options.group for item in items if item.options.group is not None}
    groups = await sql_groups.share(tx, grouped) if grouped else {}
    return _Related(parents, groups, predecessors, [])


async def _write_submits(
    tx: Transaction, outcomes: Sequence[_Outcome], holders: rules_unique.KeyHolders | None
) -> tuple[list[TaskRecord], list[TaskRecord]]:
    """Insert the new tasks and write those that were replaced. Return both."""
    tasks = [outcome for outcome in outcomes if isinstance(outcome, TaskRecord)]
    moves: list[Move] = []
    if holders is not None:
        tasks = [holders.latest(task) for task in tasks]
        await holders.write_freed(tx)
        moves = await holders.write_replaced(tx)
    if tasks:
        await sql_transitions.add(tx, tasks)
    added = Counter(task.group_id for task in tasks if task.group_id is not None)
    if added:
        await sql_groups.add_tasks(tx, added)
    return tasks, [after for _, after in moves]


async def _keep_masks(
    tx: Transaction, items: Iterable[Submission], queues: Iterable[JobRecord], tasks: Iterable[TaskRecord]
) -> None:
    """Mask in locked queues what is secret in new tasks of them by an earlier schema."""
    if all(item.masked is None for item in items):
        return
    paths: dict[UUID, set[str | None]] = {}
    for task in tasks:
        paths.setdefault(task.job_id, set()).add(task.masked)
    for queue in queues:
        masked = joined_paths([queue.masked, *paths.get(queue.id, ())])
        if masked != queue.masked:
            await sql_jobs.set_masked(tx, queue.id, masked)


def _submit_result(
    outcome: _Outcome, position_of: Mapping[UUID, int], options: TaskSubmitRequest
) -> TaskResponse | Exception:
    if isinstance(outcome, Exception):
        return outcome
    task = outcome.task if isinstance(outcome, Duplicate) else outcome
    position = position_of.get(task.id) if task.is_queued else None
    response = rules_answers.task_response(task, position, unique_key=task.unique_text)
    if isinstance(outcome, Duplicate):
        return rules_answers.changed(response, duplicate=True)
    if options.requires:
        response = rules_answers.changed(response, requires=options.requires)
    cost = max(task.policy.cost, options.cost or 1) if options.cost is not None else 1
    return rules_answers.changed(response, cost=cost) if cost > 1 else response


async def _key_holders(
    tx: Transaction,
    items: Sequence[Submission],
    faults: Sequence[Exception | None],
    job_ids: Collection[UUID],
    now: datetime,
) -> rules_unique.KeyHolders | None:
    """Return the tasks that hold the keys of these items, of jobs that are locked; None without keys."""
    submits = [
        _unique_submit(item, item.options.unique)
        for item, fault in zip(items, faults, strict=True)
        if fault is None and item.options.unique is not None
    ]
    if not submits:
        return None
    return await rules_unique.KeyHolders.of(tx, submits, job_ids, now, _MAX_BODY_BYTES // len(submits))


def set_payload_keys(items: Iterable[Submission]) -> None:
    """Compute the unique keys of payloads, which takes 100 ms for a payload of 1 MiB."""
    for item in items:
        rule = item.options.unique
        if rule is not None and rule.key is None and item.payload_key is None:
            try:
                item.payload_key = rules_unique.payload_key(item.payload)
            except ProblemException as problem:
                item.payload_key = problem


def _unique_submit(item: Submission, rule: Unique) -> rules_unique.Submit:
    text = rule.key or str(item.payload_key)
    return rules_unique.Submit(
        rules_unique.key_of(rule, text, item.job, item.room_id),
        item.options,
        item.room_id,
        None if item.caller.task is None else item.caller.task.id,
    )


class _PendingLimit(NamedTuple):
    """A limit of pending tasks: a `setting` of a policy, for a `place`, a job or its tasks of a room."""

    setting: str
    most: int
    place: str


class _PendingLimits:
    """How many tasks of the jobs of a batch are pending, in all and from a room, where that is limited."""

    def __init__(
        self, pending: dict[UUID, int], in_rooms: dict[tuple[UUID, str], int], *, is_atomic: bool
    ) -> None:
        self._pending, self._in_rooms, self._is_atomic = pending, in_rooms, is_atomic
        # How many tasks of the batch count for each limit, also those that are refused.
        self._batch = Counter[_PendingLimit]()

    @classmethod
    async def of(
        cls,
        tx: Transaction,
        items: Sequence[Submission],
        jobs: Mapping[JobName, JobRecord],
        *,
        is_atomic: bool,
    ) -> "_PendingLimits | None":
        """Count the pending tasks of locked jobs that have a limit; return None without such jobs."""
        limited = {
            job.id
            for job in jobs.values()
            if job.stored_policy is not None
            if job.policy.max_pending is not None or job.policy.max_pending_per_room is not None
        }
        if not limited:
            return None
        rooms = {item.room_id for item in items}
        versions = await sql_jobs.versions_of(tx, limited)
        ids = sorted(version for of_job in versions.values() for version in of_job)
        pending, in_rooms = await sql_counts.pending(tx, ids, sorted(rooms))
        for job_id, of_job in versions.items():
            pending[job_id] = sum(pending.get(version, 0) for version in of_job)
            for room in rooms:
                in_rooms[job_id, room] = sum(in_rooms.get((version, room), 0) for version in of_job)
        return cls({job_id: pending[job_id] for job_id in versions}, in_rooms, is_atomic=is_atomic)

    def add(self, item: Submission, job: JobRecord) -> None:
        """Count a task. Raises `TooManyRequests` if its job, or its room, has as many as it may."""
        if job.id not in self._pending:
            return
        room, policy = (job.id, item.room_id), job.policy
        where = f"job {str(item.job)!r}"
        exceeded: _PendingLimit | None = None
        count = 0
        for setting, most, number in (
            ("max_pending", policy.max_pending, self._pending[job.id]),
            ("max_pending_per_room", policy.max_pending_per_room, self._in_rooms.get(room, 0)),
        ):
            if most is None:
                continue
            place = where if setting == "max_pending" else f"{where} from room {item.room_id!r}"
            limit = _PendingLimit(setting, most, place)
            self._batch[limit] += 1
            if number >= most and exceeded is None:
                exceeded, count = limit, number
        if exceeded is not None:
            raise TooManyRequests(
                f"{count} tasks of {exceeded.place} are pending, and {exceeded.setting} of its policy "
                f"is {exceeded.most}; retry when there are fewer",
                headers={"Retry-After": _RETRY_SECONDS},
            )
        self._pending[job.id] += 1
        self._in_rooms[room] = self._in_rooms.get(room, 0) + 1

    def check_possible(self) -> None:
        """Raise `ContentTooLarge` if a batch exceeds a limit by itself, and must be submitted as a whole."""
        for limit, count in self._batch.items():
            if self._is_atomic and count > limit.most:
                raise ContentTooLarge(
                    f"tasks: {count} tasks of {limit.place} in one transaction, and {limit.setting} of its "
                    f"policy is {limit.most}: submit at most {limit.most} together, or raise {limit.setting}"
                )


def _decide(  # noqa: PLR0913 - what was read for the decisions
    items: Sequence[Submission],
    faults: Sequence[Exception | None],
    jobs: Mapping[JobName, JobRecord],
    now: datetime,
    holders: rules_unique.KeyHolders | None,
    *,
    limits: _PendingLimits | None,
    related: _Related,
) -> list[_Outcome]:
    """Return the outcome of each item, in order; an item may wait for earlier ones."""
    outcomes = related.outcomes
    for item, fault in zip(items, faults, strict=True):
        outcomes.append(fault or _task_or_duplicate(item, jobs[item.job], now, holders, limits, related))
    if limits is not None:
        limits.check_possible()
    return outcomes


def _task_or_duplicate(
    item: Submission,
    job: JobRecord,
    now: datetime,
    holders: rules_unique.KeyHolders | None,
    limits: _PendingLimits | None,
    related: _Related,
) -> _Outcome:
    parent = None if item.options.parent is None else related.parents[item.options.parent]

    def make(*, is_new: bool = True) -> TaskRecord:
        if limits is not None and is_new and not item.is_unlimited:
            limits.add(item, job)
        queue = related.queues.get(item.job, job, Needs.of(item.options))
        task, group, after = _task(item, queue, now, parent), item.options.group, item.options.after
        if after is not None and related.predecessors is not None:
            own = item.options.priority is None
            task = related.predecessors.wait(
                task, after, related.outcomes, inherits=own, fills=bool(item.filled)
            )
        return task if group is None else _in_group(task, related.groups[group])

    try:
        if holders is None or item.options.unique is None:
            return make()
        # After a lost answer, the repeated transaction finds the task by its id.
        item.task_id = item.task_id or new_ids(1)[0]
        return holders.submit(_unique_submit(item, item.options.unique), make)
    except TooManyRequests as problem:
        return problem


def _in_group(task: TaskRecord, group: OpenGroup) -> TaskRecord:
    """Return a new task as one of a group: if this expires, the task does so too, or before."""
    times = [moment for moment in (task.expires_at, group.expires_at) if moment is not None]
    is_pending = task.status is TaskStatus.PENDING
    return task.changed(group_id=group.id, expires_at=min(times, default=None) if is_pending else None)


async def _attach_hooks(
    tx: Transaction, items: Sequence[Submission], outcomes: Sequence[_Outcome], now: datetime
) -> None:
    names = {
        outcome.id: item.on_end
        for item, outcome in zip(items, outcomes, strict=True)
        if item.on_end is not None and isinstance(outcome, TaskRecord)
    }
    await sql_details.attach(tx, names, now)
    webhooks = {
        outcome.id: (item.caller, item.room_id, item.options.webhook)
        for item, outcome in zip(items, outcomes, strict=True)
        if item.options.webhook is not None and isinstance(outcome, TaskRecord)
    }
    await rules_webhooks.attach(tx, webhooks)


async def submit_all(tx: Transaction, items: Sequence[Submission]) -> list[TaskResponse]:
    """Insert tasks as `submit` does. Raises `NoneSubmitted` unless all can be inserted."""
    results = await submit(tx, items, is_atomic=True)
    tasks = [result for result in results if not isinstance(result, Exception)]
    if len(tasks) < len(results):
        raise NoneSubmitted(results)
    return tasks


async def _faults(
    tx: Transaction, items: Sequence[Submission], jobs: Mapping[JobName, JobRecord], related: _Related
) -> list[Exception | None]:
    """Return why each item cannot be submitted, None for one that can."""
    schemas = {name: to_json(job.schema).decode() for name, job in jobs.items()}
    unserved = await _unserved(tx, items, jobs)
    return [
        _group_fault(item, related.groups)
        or _predecessor_fault(item, related.predecessors)
        or _check(item, schemas.get(item.job), unserved, related.parents)
        or rules_payloads.mask_fault(item.payload, jobs[item.job].masked)
        or rules_queues.fault(item.options, item.job, jobs[item.job].policy)
        for item in items
    ]


def _group_fault(item: Submission, groups: Mapping[UUID, OpenGroup]) -> ProblemException | None:
    if item.options.group is None:
        return None
    group = groups.get(item.options.group)
    if group is None or group.room_id != item.room_id:
        return GroupNotFound(f"group: room {item.room_id!r} has no group {item.options.group}")
    if item.caller.task is not None and group.task_id != item.caller.task.id:
        return rules_transitions.other_task(item.caller, group.id, "group")
    if group.task_id not in {None, item.options.parent}:
        return Forbidden(
            f"Not authorized: group: {group.id} was made with the token of task {group.task_id}, and takes "
            "only tasks whose parent this is. Set parent, or create another group"
        )
    if group.sealed:
        return GroupSealed(f"group: {group.id} is sealed; create another group for more tasks")
    return None


def _predecessor_fault(item: Submission, predecessors: Predecessors | None) -> ProblemException | None:
    after, group = item.options.after, item.options.group
    return None if after is None or predecessors is None else predecessors.fault(item.room_id, after, group)


async def _unserved(
    tx: Transaction, items: Sequence[Submission], jobs: Mapping[JobName, JobRecord]
) -> set[JobName]:
    """Return the jobs that need a worker and have none."""
    requiring = {item.job for item in items if item.requires_worker}
    ids = {
        name: job.id
        for name, job in jobs.items()
        if job.without_workers == WithoutWorkers.REJECT or (job.without_workers is None and name in requiring)
        if name.room_id != INTERNAL
    }
    served = await sql_jobs.served(tx, list(ids.values())) if ids else set()
    return {name for name, job_id in ids.items() if job_id not in served}


def _check(
    item: Submission, schema: str | None, unserved: Collection[JobName], parents: Mapping[UUID, Parent]
) -> Exception | None:
    try:
        if schema is None:
            raise JobNotFound(f"Job {str(item.job)!r} not found")
        rules_transitions.check_room(item.job, item.room_id, cross_room=item.cross_room)
        if item.job.room_id == INTERNAL and not item.is_configured:
            raise InternalJobNotConfigured(f"Job {str(item.job)!r} has no executor in this server")
        if item.job in unserved:
            raise NoWorkersAvailable(
                f"No worker serves job {str(item.job)!r}, and it accepts no task without one "
                "(without_workers of its policy or of the settings); start a worker, or submit it later"
            )
        if isinstance(fault := item.refusal or item.payload_key, ProblemException):
            raise fault
        if item.options.parent is not None:
            _check_parent(item.room_id, item.options.parent, parents.get(item.options.parent))
    except ProblemException as problem:
        return problem
    if item.validate_payload and schema not in {item.validated_schema, rules_payloads.ANY_PAYLOAD}:
        return rules_payloads.UnvalidatedPayload(schema)
    return None


def _check_parent(room_id: str, parent_id: UUID, parent: Parent | None) -> None:
    # Whether another room has the task is not said.
    if parent is None or parent.room_id != room_id:
        detail = (
            f"parent: room {room_id!r} has no task {parent_id}; the parent of a task is a task of the same "
            "room that was not deleted. Submit from its room, or without a parent"
        )
        raise InvalidRequest(
            detail, errors=[{"loc": ["body", "parent"], "message": detail, "type": "unknown_parent"}]
        )
    if parent.status == TaskStatus.CANCELLED:
        raise Conflict(
            f"parent: task {parent_id} was cancelled, and a cancelled task gets no more children; retry it "
            "first, or submit without a parent"
        )


async def _submitted_positions(
    tx: Transaction,
    jobs: Sequence[JobRecord],
    tasks: Sequence[TaskRecord],
    replaced: Sequence[TaskRecord],
    duplicates: Sequence[TaskRecord],
) -> dict[UUID, int]:
    """Return the positions of new, replaced and duplicate tasks in their queues.

    New ones are the last, except in queues with several priorities, or with tasks that were replaced.
    """
    for job in jobs:
        if not job.has_lanes and any(task.job_id == job.id and task.lane for task in (*tasks, *replaced)):
            await sql_jobs.record_priorities(tx, job.id)
    mixed = {job.id for job in jobs if job.has_lanes} | {task.job_id for task in tasks if task.lane}
    mixed |= {task.job_id for task in replaced}
    pending = {job.id: job.pending for job in jobs}
    position_of: dict[UUID, int] = {}
    for task in tasks:
        if task.is_queued and task.job_id not in mixed:
            position_of[task.id] = pending[task.job_id] = pending[task.job_id] + 1
    ids = [task.id for task in tasks if task.job_id in mixed]
    records = list((await sql_tasks.lock(tx, ids, 0)).values()) if ids else []
    # New tasks that a later item of the batch names have no number here.
    records += {task.id: task for task in (*duplicates, *replaced) if task.seq}.values()
    return position_of | (await positions(tx, records) if records else {})


def _run_at(options: TaskSubmitRequest, now: datetime) -> datetime | None:
    """Return when a task enters its queue, None for at once."""
    run_at, debounce = options.run_at, options.debounce
    if options.delay_seconds is not None:
        run_at = now + timedelta(seconds=options.delay_seconds)
    if debounce is not None:
        run_at = now + timedelta(seconds=min(debounce.seconds, debounce.max_seconds or debounce.seconds))
    return None if run_at is not None and run_at <= now else run_at


def _task(item: Submission, job: JobRecord, now: datetime, parent: Parent | None) -> TaskRecord:
    options, policy = item.options, job.policy
    run_at = _run_at(options, now)
    expires_at = None
    if options.expires_in_seconds is not None:
        expires_at = now + timedelta(seconds=options.expires_in_seconds)
    task = TaskRecord(
        seq=0,
        id=item.task_id or new_ids(1)[0],
        job_id=job.id,
        job_name=str(item.job),
        room_id=item.room_id,
        status=TaskStatus.PENDING,
        created_by=item.caller.id,
        payload=item.payload,
        created_at=now,
        lane=-(policy.priority if options.priority is None else options.priority),
        max_attempts=options.max_attempts,
        traceparent=item.traceparent,
        schedule=item.schedule,
        due_at=item.due_at,
        job_version=job.job_version,
        limit_key=rules_limits.key_of(policy.limits, item.payload, item.caller.id) if policy.limits else None,
        tags=options.tags or None,
        parent=None if parent is None else parent.id,
        root=None if parent is None else parent.root or parent.id,
        policy=policy,
        masked=joined_paths([job.masked, item.masked]),
        linked=True if options.webhook is not None else None,
    )
    # A task that may not start at once waits in its queue, where the dispatcher finds it.
    has_limit = policy.max_in_flight is not None or bool(policy.limits)
    may_wait = run_at is not None or job.paused or has_limit or item.is_bounded or options.after is not None
    if item.job.room_id != INTERNAL or may_wait:
        task.run_at, task.expires_at = run_at, expires_at
        return task
    task = task.changed(status=TaskStatus.CLAIMED, claimed_at=now, attempt=1)
    if item.is_deferred:
        task.deadline = now
    else:
        exclusive_start = item.exclusive_start
        task.deadline = rules_transitions.dispatch_deadline(task, now, exclusive_start=exclusive_start)
    return task


def most_body_bytes(items: Sequence[Report]) -> int:
    """Return how large a payload and a result may be to be read in the transaction of these reports.

    Beyond that the answer has none, and `load_bodies` reads them after the commit.
    """
    for item in items:
        if item.wants_body:
            return _MAX_BODY_BYTES // len(items)
    return 0


def _named(items: Iterable[Report]) -> set[UUID]:
    """Return the ids of the tasks of reports, and of those whose tokens cancel the tasks below them."""
    return {item.task_id for item in items} | {item.caller.task.id for item in items if item.caller.task}


def _reportable(item: Report, tasks: Mapping[UUID, TaskRecord]) -> TaskRecord:
    """Return the task of a report. Raises `TaskNotFound`, or `Unauthorized` for a token that has ended."""
    task = tasks.get(item.task_id)
    if task is None:
        raise TaskNotFound(f"Task {item.task_id} not found")
    rules_transitions.check_claim(item.caller, task, tasks)
    return task


async def report(
    tx: Transaction, items: Sequence[Report], limits: LogLimits = DEFAULT_LIMITS
) -> list[ReportResult]:
    """Apply reports of workers, submitters and superusers in the order of the list.

    The payload of a result is None if it is larger than `most_body_bytes`. `limits` are those of each log.
    """
    current = await sql_tasks.lock(tx, list(_named(items)), most_body_bytes(items))
    now = await tx.now()
    decided: list[tuple[TaskRecord, Report, TaskRecord]] = []
    results: list[TaskRecord | ProblemException] = []
    for item in items:
        try:
            task = _reportable(item, current)
            after = rules_transitions.decide(item.caller, task, item.update, now, random.random())  # noqa: S311 - jitter
        except ProblemException as problem:
            results.append(problem)
            continue
        decided.append((task, item, after))
        current[item.task_id] = after
        results.append(after)
    moves: list[Move] = [(task, after) for task, _, after in decided if after is not task]
    emptied = await _move(tx, moves)
    details = [
        (HeldAttempt.of(task), item.update)
        for task, item, _ in decided
        if task.status in HELD and item.update.has_details
    ]
    await rules_details.record(tx, details, limits)
    await _record_cancels(tx, decided)
    await rules_jobs.restore_needed(tx, [after for _, after in moves])
    queue_positions = await positions(tx, [task for task in results if isinstance(task, TaskRecord)])
    for _, after in moves:
        rules_answers.publish_status(tx, after, queue_positions.get(after.id))
    await rules_jobs.record_unserved(tx, emptied)
    return [
        rules_answers.task_response(task, queue_positions.get(task.id))
        if isinstance(task, TaskRecord)
        else task
        for task in results
    ]


async def cancel(tx: Transaction, ids: Collection[UUID]) -> int:
    """Cancel those of these tasks that have not ended, soon with what waits for them. Return how many."""
    locked = await sql_tasks.lock(tx, list(ids), 0)
    now = await tx.now()
    moves: list[Move] = [
        (task, rules_transitions.ended(task, TaskStatus.CANCELLED, now, None, None))
        for task in locked.values()
        if task.status not in TERMINAL
    ]
    tx.cancelling.update(task.seq for task, _ in moves)
    emptied = await _move(tx, moves)
    for _, after in moves:
        rules_answers.publish_status(tx, after)
    await rules_jobs.record_unserved(tx, emptied)
    return len(moves)


async def _move(tx: Transaction, moves: Sequence[Move]) -> list[UUID]:
    """Write moves. Return the ids of the jobs that may be unserved now; all their versions are locked."""
    # Only a task that was pending could keep its job from being an orphan.
    emptied = {before.job_id for before, _ in moves if before.status is TaskStatus.PENDING}
    if emptied:
        requeued = {after.job_id for _, after in moves if after.status is TaskStatus.PENDING}
        await sql_jobs.lock_with_versions(tx, emptied | requeued)
    await sql_transitions.move(tx, moves)
    return sorted(emptied)


async def _record_cancels(tx: Transaction, decided: Iterable[tuple[TaskRecord, Report, TaskRecord]]) -> None:
    for task, item, after in decided:
        is_cancel = after.status is TaskStatus.CANCELLED and after is not task
        if is_cancel and item.update.tree:
            tx.cancelling.add(task.seq)
        if is_cancel and rules_audit.is_by_operator(item.caller, task):
            tx.request_id = item.request_id
            await rules_audit.record(tx, item.caller, "task.cancel", str(task.id), task.room_id)


async def load_body(tx: Transaction, reported: TaskResponse) -> None:
    """Set payload and result of a task. Raises `TaskNotFound`."""
    await load_bodies(tx, [reported])
    if not has_body(reported):
        raise TaskNotFound(f"Task {reported.id} was removed since it was reported")


async def load_bodies(tx: Transaction, reported: Sequence[TaskResponse | Exception]) -> None:
    """Set payload and result of tasks, in order, while they have at most 8 MiB in all; the first always.

    Neither changes without the status. The payload of a task that was removed stays None.
    """
    responses = [task for task in reported if isinstance(task, TaskResponse)]
    sizes = await sql_tasks.body_sizes(tx, list({task.id for task in responses}))
    free_bytes = _MAX_BODY_BYTES
    small: list[TaskResponse] = []
    for task in responses:
        free_bytes -= sizes.get(task.id, 0)
        if small and free_bytes < 0:
            break
        small.append(task)
    bodies = await sql_tasks.bodies(tx, list({task.id for task in small}))
    for task in small:
        if task.id in bodies:
            payload, result, masked = bodies[task.id]
            task.payload = without_secrets(payload, masked)
            task.result = result if task.status is TaskStatus.COMPLETED else None


async def get(
    tx: Transaction, task_id: UUID, *, with_position: bool = True, reveal: bool = False
) -> TaskResponse:
    """Return one task; `with_position` costs more statements while it is queued. Raises `TaskNotFound`.

    `reveal` the secret values of its payload only to the task itself.
    """
    record = await sql_details.by_id(tx, task_id)
    if record is None:
        raise TaskNotFound(f"Task {task_id} not found")
    task, detail, has_stored, has_predecessors = record
    queue_positions = await positions(tx, [task]) if with_position else {}
    stored = await sql_results.current(tx, [task]) if has_stored else {}
    response = rules_answers.task_response(
        *(task, queue_positions.get(task.id), detail, stored.get(task.id)),
        unique_key=task.unique_text,
        reveal=reveal,
    )
    if has_predecessors:
        response.after = await rules_successors.after_of(tx, task)
    if task.linked:
        response.successors = await sql_successors.successors_of(tx, task.seq) or None
    own = (await rules_queues.required(tx, [task])).get(task.id, Needs())
    if own.requires:
        response.requires = dict(own.requires)
    if (cost := max(task.policy.cost, own.cost or 1)) > 1:
        response.cost = cost
    return response


async def page(  # noqa: PLR0913 - what selects the tasks
    tx: Transaction,
    room_id: str,
    status: TaskStatus | None,
    *,
    part: Page,
    jobs: Sequence[UUID] = (),
    tag: str | None = None,
    parent: UUID | None = None,
    root: UUID | None = None,
) -> PaginatedResponse[TaskResponse]:
    """Return one page of a room's tasks, optionally of one status and of one job, by its versions.

    Or those with a tag, a parent or a root.
    """
    link = Link(tag, parent, root)
    records, total = await sql_tasks.page(tx, room_id, status, part=part, job_ids=jobs, link=link)
    queue_positions, detail_of = await positions(tx, records), await sql_details.current(tx, records)
    stored = await sql_results.current(tx, records)
    items = [
        rules_answers.task_response(
            *(task, queue_positions.get(task.id), detail_of.get(task.id), stored.get(task.id)),
            unique_key=task.unique_text,
        )
        for task in records
    ]
    return rules_answers.page_response(PaginatedResponse[TaskResponse], items, total, part)


async def ended(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these tasks have ended."""
    return await sql_tasks.finished(tx, ids)


def has_body(task: TaskResponse) -> bool:
    """Return whether the payload of a reported task was read."""
    return task.payload is not None


def has_ended(task: TaskResponse) -> bool:
    """Return whether a task has ended."""
    return task.status in TERMINAL


def reporter(item: Report, task: TaskResponse) -> UUID | None:
    """Return the worker that reported. Clients of version 0.1.x send no id; workers cancel no tasks."""
    is_cancelled = item.update.status == TaskStatus.CANCELLED
    return item.update.worker_id or (None if is_cancelled else task.worker_id)


# Submit plain tasks: those of one remote job, without options, as nearly all are.
#
# They are written with the fewest statements, by what the server knows about the job from an earlier
# submit. If that is outdated, or a task is not plain, `submit` takes the whole batch.

_MAX_JOBS = 1000
# The statement contains the schema.
_MAX_SCHEMA_CHARACTERS = 16_384
_OPTIONS = frozenset(SubmitOptions.__annotations__) - {"group"}


class KnownJobs:
    """The jobs of which this server knows schema and policy, as they were in a recent transaction."""

    def __init__(self) -> None:
        # In the order of their last use.
        self._jobs: OrderedDict[JobName, KnownJob] = OrderedDict()

    def get(self, name: JobName) -> KnownJob | None:
        """Return what is known of a job."""
        job = self._jobs.get(name)
        if job is not None:
            self._jobs.move_to_end(name)
        return job

    def learn(self, jobs: Iterable[JobRecord]) -> None:
        """Remember jobs whose tasks may be plain."""
        for job in jobs:
            schema = to_json(job.schema).decode()
            may_be_plain = job.room_id != INTERNAL and not job.has_lanes and job.policy.priority == 0
            may_be_plain = may_be_plain and not job.policy.limits
            may_be_plain = may_be_plain and job.without_workers != WithoutWorkers.REJECT
            may_be_plain = may_be_plain and job.policy.max_pending is None
            may_be_plain = may_be_plain and job.policy.max_pending_per_room is None
            may_be_plain = may_be_plain and job.masked is None and not job.policy.prefer
            if may_be_plain and len(schema) <= _MAX_SCHEMA_CHARACTERS:
                self._jobs[job.name] = KnownJob(
                    job.id, str(job.name), schema, job.stored_policy, job.job_version
                )
                if len(self._jobs) > _MAX_JOBS:
                    self._jobs.popitem(last=False)

    def forget(self, name: JobName) -> KnownJob | None:
        """Forget a job, until the next transaction that reads it. Return what was known of it."""
        return self._jobs.pop(name, None)


async def submit_plain(
    tx: Transaction, items: Sequence[Submission], jobs: KnownJobs
) -> list[TaskResponse] | None:
    """Insert plain tasks. Return None, after which nothing was written, unless all are plain."""
    name = items[0].job
    job = jobs.get(name)
    if job is None:
        return None
    if not _are_plain(items, name, job.schema):
        return None
    has_keys = any(item.key is not None for item in items)
    ids, tasks = list[UUID](), list[NewTaskRow]()
    for item, new_id in zip(items, new_ids(len(items)), strict=True):
        task_id = item.task_id = item.task_id or new_id
        ids.append(task_id)
        payload = item.payload_json or to_json(item.payload).decode()
        tasks.append(NewTaskRow(task_id.hex, item.room_id, item.caller.id, payload, item.traceparent))
    try:
        appended = await append(
            tx, job, tasks, _new_keys(job, ids, items) if has_keys else [], _members(items[0])
        )
    except RepeatTransaction:
        jobs.forget(name)
        raise
    if appended is None:
        jobs.forget(name)
        return None
    responses = _new_tasks(job, ids, items, appended)
    rules_answers.publish_new(tx, responses)
    tx.wake(job_key(job.full_name, job.job_version), len(responses))
    return responses


def _new_tasks(
    job: KnownJob, ids: Sequence[UUID], items: Sequence[Submission], appended: Appended
) -> list[TaskResponse]:
    responses, position = list[TaskResponse](), appended.ahead
    for task_id, item in zip(ids, items, strict=True):
        position += 1
        responses.append(
            rules_answers.new_response(
                id=task_id,
                job_name=job.full_name,
                room_id=item.room_id,
                created_by=item.caller.id,
                payload=item.payload,
                created_at=appended.at,
                queue_position=position,
                version=job.job_version,
                group=item.options.group,
            )
        )
    return responses


async def find_written(tx: Transaction, items: Sequence[Submission]) -> dict[int, TaskResponse]:
    """Return the tasks of an earlier attempt whose response was lost, by the indexes of their items."""
    indexes = {item.task_id: index for index, item in enumerate(items) if item.task_id is not None}
    records = await sql_tasks.lock(tx, list(indexes)) if indexes else {}
    queue_positions = await positions(tx, list(records.values())) if records else {}
    written = {}
    for task_id, record in records.items():
        written[indexes[task_id]] = rules_answers.task_response(
            record, queue_positions.get(task_id), unique_key=record.unique_text
        )
        rules_answers.publish_status(tx, record, queue_positions.get(task_id), is_new=False)
    return written


def _members(item: Submission) -> NewMembers | None:
    """Return the group of a task with its room: tasks of different ones are not plain together."""
    group = item.options.group
    return None if group is None else NewMembers(group, item.room_id)


def _are_plain(items: Sequence[Submission], name: JobName, schema: str) -> bool:
    keys, first = set[UUID](), items[0]
    group = first.options.group
    for item in items:
        if not _is_plain(item, name, schema) or item.options.group != group:
            return False
        if group is not None and item.room_id != first.room_id:
            return False
        if item.key is not None:
            if item.key.id in keys:
                return False
            keys.add(item.key.id)
    return True


def _is_plain(item: Submission, name: JobName, schema: str) -> bool:
    if item.job != name or item.on_end is not None or item.requires_worker or item.schedule is not None:
        return False
    if not item.options.model_fields_set.isdisjoint(_OPTIONS):
        return False
    if not (name.room_id in RESERVED or item.cross_room or item.room_id == name.room_id):
        return False
    return not item.validate_payload or schema in {rules_payloads.ANY_PAYLOAD, item.validated_schema}


def _new_keys(job: KnownJob, ids: Sequence[UUID], items: Sequence[Submission]) -> list[NewKey]:
    """Return the keys with the beginnings of their answers: a `TaskResponse` without default values.

    The statement adds the ends. A new field of an answer belongs here if a plain task has a value of it.
    """
    shared_by_owner: dict[tuple[str, str], str] = {}
    keys = []
    for place, (task_id, item) in enumerate(zip(ids, items, strict=True), 1):
        if item.key is None:
            continue
        shared = shared_by_owner.get((item.room_id, item.caller.id))
        if shared is None:
            fields: dict[str, Any] = {
                "job_name": job.full_name,
                "room_id": item.room_id,
                "created_by": item.caller.id,
            }
            fields["status"] = "pending"
            if job.job_version > 1:
                fields["version"] = job.job_version
            if item.options.group is not None:
                fields["group"] = item.options.group
            shared = shared_by_owner[item.room_id, item.caller.id] = to_json(fields).decode()[1:-1]
        answer = f'{{"id":"{task_id}",{shared},"created_at":"'
        keys.append(NewKey(item.key.id, item.key.fingerprint, item.key.user_id, place, answer))
    return keys


# Apply plain reports: starts and ends without an error by the holder of the task, as nearly all are, with
# their progress and lines of the log.
#
# They are written with one statement that has all conditions. If a task is not as assumed, or a report is
# not plain, `report` decides.

# From which status a worker starts or completes a task.
_SOURCES: dict[TaskStatus, TaskStatus] = {
    target: source
    for (source, target), roles in TRANSITIONS.items()
    if target in {TaskStatus.RUNNING, TaskStatus.COMPLETED} and Role.WORKER in roles
}
_MAX_ATTEMPT = 2**31 - 1


async def report_plain(
    tx: Transaction, items: Sequence[Report], most_bytes: int, limits: LogLimits
) -> dict[int, TaskResponse]:
    """Apply plain reports; return their results by the indexes of the items. The others were not applied.

    On PostgreSQL either all are applied or none. `most_bytes`: the size of the largest payload to read.
    """
    report_of = _fenced_reports(items)
    reports = [report for report in report_of.values() if report is not None]
    if not reports or not (tx.is_sqlite or len(reports) == len(report_of)):
        return {}
    has_details = any(item.update.has_details for item in items)
    rows = await report_single_statement(tx, reports, most_bytes, is_alone=not has_details)
    written = {task.id: (seq, task) for seq, task in rows}
    results: dict[int, TaskResponse] = {}
    details = []
    for index, item in enumerate(items):
        if item.task_id in written:
            seq, task = written[item.task_id]
            results[index] = rules_answers.task_response(_reported(task, item.update))
            if item.update.has_details:
                held = HeldAttempt(seq, task.id, task.room_id, task.job_name, task.attempt)
                details.append((held, item.update))
    await rules_details.record(tx, details, limits)
    rules_answers.publish_changed(tx, list(results.values()))
    return results


def _reported(task: TaskRow, report: TaskUpdateRequest) -> TaskRow:
    """Return a written task after one of its reports: its end may have been written with its start."""
    if report.status is not task.status:
        return task.changed(status=TaskStatus.RUNNING, completed_at=None)
    if report.status is TaskStatus.COMPLETED:
        task.result = report.result
    return task


def _fenced_reports(items: Sequence[Report]) -> dict[UUID, FencedReport | None]:
    """Return the report of each task, None if one of its reports needs the general path."""
    report_of: dict[UUID, FencedReport | None] = {}
    for item in items:
        report = _fenced_report(item)
        earlier = report_of.setdefault(item.task_id, report)
        if earlier is not report:
            report_of[item.task_id] = _joined(earlier, report)
    return report_of


def _fenced_report(item: Report) -> FencedReport | None:
    update = item.update
    if update.status is None or (source := _SOURCES.get(update.status)) is None:
        return None
    if item.key is not None or update.error or update.failure is not None:
        return None
    if update.attempt is not None and not 0 <= update.attempt <= _MAX_ATTEMPT:
        return None
    result = None
    if update.status is TaskStatus.COMPLETED and update.result is not None:
        result = to_json(update.result).decode()
    claim = (item.task_id, item.caller.id, update.worker_id, update.attempt)
    return FencedReport(*claim, source, update.status, result, *rules_transitions.ages(update))


def _joined(first: FencedReport | None, then: FencedReport | None) -> FencedReport | None:
    """Return the report of a start and an end together."""
    if first is None or then is None or first.claim != then.claim or first.target is not then.source:
        return None
    started_ago = first.started_ago if then.started_ago is None else then.started_ago
    return then._replace(source=first.source, started_ago=started_ago)
