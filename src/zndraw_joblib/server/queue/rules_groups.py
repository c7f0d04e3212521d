"""Groups: tasks that are counted together, and what follows when the last of them has ended.

A group ends once, in the transaction of its last end, which also submits the task of `on_end`. How a
transaction knows that it has the last one is in `sql_groups`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.process.ports import Identity, group_key
from zndraw_joblib.server.queue import (
    rules_jobs,
    rules_payloads,
    rules_tasks,
    rules_transitions,
    rules_webhooks,
    sql_groups,
    sql_jobs,
    sql_successors,
)
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.queue.sql_groups import GroupChange, GroupRecord, Taken
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.wire.groups import (
    GROUP_VALUE,
    GroupFailure,
    GroupOnEnd,
    GroupResponse,
    NewGroup,
    OnEndState,
    OnEndWhen,
)
from zndraw_joblib.wire.masks import ALL_PATHS, joined_paths, without_secrets
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import INTERNAL, split_name
from zndraw_joblib.wire.pointers import MAX_POINTER, beginning_of, find, pointer_of
from zndraw_joblib.wire.problems import GroupNotFound, InvalidPayload, JobNotFound, ProblemException
from zndraw_joblib.wire.statuses import StatusCounts, TaskStatus

# A group that was not sealed by then, and does not expire, is sealed.
SEALED_AFTER = timedelta(days=7)
_MAX_FAILURES = 10
_MAX_ERROR_BYTES = 2000
# Each of these results may have 1 MiB: a part has fewer, if these have more than so many bytes together.
_RESULTS_AT_ONCE, _RESULT_BYTES = 32, 1024 * 1024
_DUE_AT_ONCE = 100


class GroupToMake(NamedTuple):
    """A group to create. `schema` is that of the job of `on_end`, as JSON, which its payload matches.

    `add_group()` raises a problem if the caller may have no further one.
    """

    caller: Identity
    room_id: str
    group: NewGroup
    schema: str | None = None
    add_group: Callable[[], None] = lambda: None


async def create(tx: Transaction, item: GroupToMake) -> GroupResponse:
    """Create a group that is open."""
    group = await make(tx, item)
    return response(group, GroupChange(), StatusCounts(), masks=await masks(tx, [group]))


async def make(tx: Transaction, item: GroupToMake) -> GroupRecord:
    """Insert a group and return its row."""
    now, new = await tx.now(), item.group
    seconds = new.expires_in_seconds
    expires_at = None if seconds is None else now + timedelta(seconds=seconds)
    on_end, masked = None, None
    if new.on_end is not None:
        on_end = new.on_end.model_dump_json(exclude_defaults=True)
        masked = (await sql_jobs.masks(tx, [new.on_end.job])).get(new.on_end.job)
    group = GroupRecord(
        n=0,
        id=rules_tasks.new_ids(1)[0],
        room_id=item.room_id,
        name=new.name,
        created_by=item.caller.id,
        created_at=now,
        sealed=False,
        expires_at=expires_at,
        due_at=expires_at or now + SEALED_AFTER,
        ended_at=None,
        on_end=on_end,
        on_end_schema=None if item.schema is None else _digest(item.schema),
        on_end_task=None,
        error=None,
        task_id=None if item.caller.task is None else item.caller.task.id,
        masked=masked,
    )
    item.add_group()
    await sql_groups.add(tx, group)
    return group


def _digest(schema: str) -> str:
    return hashlib.sha256(schema.encode()).hexdigest()


async def record(tx: Transaction, group_id: UUID) -> GroupRecord:
    """Return a group's row. Raises `GroupNotFound`."""
    group = await sql_groups.get(tx, group_id)
    if group is None:
        raise GroupNotFound(f"Group {group_id} not found")
    return group


async def get(tx: Transaction, group_id: UUID, caller: Identity | None = None) -> GroupResponse:
    """Return a group with its counts, progress and first failures; read it in a snapshot.

    A `caller` sees the failures of its own tasks only, unless it may read those of others.
    """
    group = await record(tx, group_id)
    sums, counts = await sql_groups.counts(tx, [group_id])
    failures = []
    if sums[group_id].failed:
        of_user = None if caller is None or caller.sees(None) else caller.id
        rows = await sql_groups.failed(tx, group_id, _MAX_FAILURES, of_user)
        failures = [GroupFailure.model_construct(**row._asdict()) for row in rows]
    running = counts[group_id].running and await _running(tx, group_id)
    of_end = await masks(tx, [group])
    return response(group, sums[group_id], counts[group_id], failures, running, masks=of_end)


async def masks(tx: Transaction, groups: Sequence[GroupRecord]) -> dict[str, str | None]:
    """Return the paths to the secret values of payloads of `on_end`, by those of the jobs that exist."""
    ends = [GroupOnEnd.model_validate_json(group.on_end).job for group in groups if group.on_end is not None]
    return await sql_jobs.masks(tx, ends) if ends else {}


async def _running(tx: Transaction, group_id: UUID) -> float:
    """Return how many tasks the progress of the running ones amounts to."""
    return sum(map(_share, await sql_groups.progress(tx, group_id)))


def _share(progress: Mapping[str, Any]) -> float:
    current, total = progress.get("current"), progress.get("total")
    return min(1.0, max(0.0, current / total)) if current and total else 0.0


def response(
    group: GroupRecord,
    sums: GroupChange,
    counts: StatusCounts,
    failures: Sequence[GroupFailure] = (),
    running: float = 0.0,
    *,
    masks: Mapping[str, str | None],
) -> GroupResponse:
    """Return a group as responses contain it. `masks` are those of the job of its `on_end`."""
    ended, total = sums.completed + sums.failed + sums.cancelled, sum(sums)
    on_end = None if group.on_end is None else GroupOnEnd.model_validate_json(group.on_end)
    if on_end is not None:
        masked = joined_paths([group.masked, masks.get(on_end.job, ALL_PATHS)])
        on_end.payload = without_secrets(on_end.payload, masked)
    return GroupResponse.model_construct(
        id=group.id,
        room=group.room_id,
        name=group.name,
        created_by=group.created_by,
        parent=group.task_id,
        created_at=group.created_at,
        sealed=group.sealed,
        expires_at=None if group.ended_at else group.expires_at,
        ended_at=group.ended_at,
        total=total,
        counts=counts,
        progress=round((ended + running) / total, 4) if total else None,
        failures=list(failures),
        on_end=on_end,
        on_end_state=_state(group) if on_end else None,
        on_end_task=group.on_end_task,
        error=group.error,
    )


def _state(group: GroupRecord) -> OnEndState:
    if group.error is not None:
        return OnEndState.FAILED
    if group.on_end_task is not None:
        return OnEndState.SUBMITTED
    return OnEndState.WAITING if group.ended_at is None else OnEndState.SKIPPED


async def submit_all(
    tx: Transaction, items: Sequence[Submission], new: GroupToMake, *, sealed: bool
) -> list[TaskResponse]:
    """Make a group of new tasks, in one transaction. Raises `NoneSubmitted` unless all can be submitted."""
    group = await make(tx, new)
    for item in items:
        item.options = item.options.model_copy(update={"group": group.id})
    tasks = await rules_tasks.submit_all(tx, items)
    if sealed:
        await _seal(tx, group)
    return tasks


async def seal(tx: Transaction, group_id: UUID, caller: Identity | None = None) -> GroupResponse:
    """Seal a group; one without open tasks ends. A sealed one stays as it is.

    Raises `GroupNotFound`, and `Forbidden` for a group that the `caller` may not see.
    """
    group = await sql_groups.lock_to_seal(tx, group_id)
    if group is None:
        raise GroupNotFound(f"Group {group_id} not found")
    if caller is not None:
        rules_transitions.check_sees(caller, group.created_by, f"group {group_id}")
    await _seal(tx, group)
    return await get(tx, group_id, caller)


async def _seal(tx: Transaction, group: GroupRecord) -> None:
    """Seal a group that is locked, and end it if it has no open tasks."""
    if group.sealed:
        return
    await sql_groups.seal(tx, group)
    group = group._replace(sealed=True)
    # A statement after the lock: it has all that was committed before.
    sums = await sql_groups.kept_counts(tx, [group.id])
    if sums[group.id].open <= 0:
        await _end(tx, group)


async def due(tx: Transaction, after: tuple[datetime, int] | None) -> list[GroupRecord]:
    """Return some groups that have expired, or were not sealed for long, after a due time and an `n`."""
    return await sql_groups.due(tx, after, _DUE_AT_ONCE)


async def seal_due(tx: Transaction, group_id: UUID) -> None:
    """Seal a group that is due, unless another transaction has locked it."""
    group = await sql_groups.lock_due(tx, group_id)
    if group is not None:
        await _seal(tx, group)


async def settle(tx: Transaction, ended: Mapping[int, TaskEnd]) -> Taken:
    """Count the ends of tasks in their groups, and end the groups whose last task has ended.

    Return also whether the tasks may have webhooks of their own, and successors.
    """
    taken = await sql_groups.take(tx, ended)
    for group in taken.emptied.values():
        if group.sealed and group.ended_at is None:
            await _end(tx, group)
        elif group.ended_at is not None:
            # Its last retried task has ended: those that it holds are looked at again.
            await sql_successors.add_wave_of_group(tx, group.n)
    return taken


async def _end(tx: Transaction, group: GroupRecord) -> None:
    """End a group that is locked, sealed, and has no open tasks; submit its task."""
    group = group._replace(ended_at=await tx.now())
    if group.on_end is not None:
        sums = await sql_groups.kept_counts(tx, [group.id])
        group = await _submit_on_end(tx, group, GroupOnEnd.model_validate_json(group.on_end), sums[group.id])
    await sql_groups.end(tx, group)
    await sql_successors.add_wave_of_group(tx, group.n)
    tx.wake(group_key(group.id))
    rules_webhooks.group_ended(tx, group.room_id, partial(_facts, tx, group))


async def _facts(tx: Transaction, group: GroupRecord) -> dict[str, Any]:
    """Return what webhooks say about a group that has ended."""
    sums, counts = await sql_groups.counts(tx, [group.id])
    ended = response(group, sums[group.id], counts[group.id], masks=await masks(tx, [group]))
    return ended.model_dump(mode="json", exclude={"on_end", "failures", "expires_at", "progress"})


async def _submit_on_end(
    tx: Transaction, group: GroupRecord, on_end: GroupOnEnd, sums: GroupChange
) -> GroupRecord:
    if on_end.when is OnEndWhen.COMPLETED and (sums.failed or sums.cancelled):
        return group
    job = split_name(on_end.job)
    try:
        record = await _job_of(tx, group, on_end)
    except ProblemException as problem:
        return group._replace(error=_text(problem))
    if record.deleted:
        # Its workers have left meanwhile: the task waits for the next one, as those do that were pending.
        await rules_jobs.restore(tx, [record.id])
    counts = {"total": sum(sums), **sums._asdict()}
    del counts["open"]
    item = Submission(
        caller=Identity(group.created_by, is_superuser=False),
        room_id=group.room_id,
        job=job,
        payload=_filled(on_end.payload, group.id, counts),
        is_configured=job.room_id == INTERNAL,
        is_deferred=job.room_id == INTERNAL,
        validate_payload=False,
        cross_room=True,
        # Its tasks were bounded; without tasks, groups would be a way around the bounds.
        is_unlimited=sum(sums) > 0,
        masked=group.masked,
    )
    [result] = await rules_tasks.submit(tx, [item])
    if isinstance(result, Exception) and record.deleted:
        await sql_jobs.delete_unused(tx, record.id)
    if isinstance(result, ProblemException):
        return group._replace(error=_text(result))
    if isinstance(result, Exception):
        raise result
    return group._replace(on_end_task=result.id)


async def _job_of(tx: Transaction, group: GroupRecord, on_end: GroupOnEnd) -> JobRecord:
    """Lock and return the job of `on_end`, also if it is soft-deleted; an internal one must be active.

    Raises `JobNotFound`, and `InvalidPayload` if its schema has changed and the payload does not match it.
    """
    job = split_name(on_end.job)
    record = (await sql_jobs.lock_by_names(tx, [job])).get(job)
    if record is None and job.room_id != INTERNAL:
        await sql_jobs.lock_named(tx, [job])
        record = await sql_jobs.by_name_with_deleted(tx, job)
    if record is None:
        raise JobNotFound(f"Job {on_end.job!r} not found")
    schema = to_json(record.schema).decode()
    if group.on_end_schema is None or _digest(schema) == group.on_end_schema:
        return record
    errors = rules_payloads.check_quickly(schema, on_end.payload).errors
    if errors is None:
        raise InvalidPayload(f"The schema of job {on_end.job!r} has changed, and a check takes too long")
    raise_unless_filled(on_end.payload, errors)
    return record


def raise_unless_filled(payload: Mapping[str, Any], errors: Iterable[Mapping[str, str]]) -> None:
    """Raise `InvalidPayload` with these errors, except those of values that the end of the group fills in."""
    rules_payloads.raise_if_invalid(rules_payloads.errors_outside(errors, set(_places(payload))))


def is_filled(value: Any) -> bool:
    """Return whether a value of a payload stands for results or counts."""
    return isinstance(value, dict) and value.keys() == {GROUP_VALUE}


def _places(payload: Any) -> Iterable[str]:
    """Yield the JSON pointers of the values that are filled in. Raises `InvalidPayload` for unknown ones."""
    for way, node in find(payload, is_filled):
        if node[GROUP_VALUE] not in _FILLED:
            raise InvalidPayload(
                f"payload{beginning_of(way)[:MAX_POINTER]}/{GROUP_VALUE}: it must be one of "
                f"{', '.join(_FILLED)}, not {node[GROUP_VALUE]!r:.100}"
            )
        try:
            yield pointer_of(way)
        except ValueError as error:
            raise InvalidPayload(f"payload: a {GROUP_VALUE}: {error}") from None


_FILLED = ("counts", "results")


def _filled(value: Any, group_id: UUID, counts: Mapping[str, int]) -> Any:
    """Return a payload with the counts, and with a reference to the results."""
    if is_filled(value):
        return dict(counts) if value[GROUP_VALUE] == "counts" else {**value, "id": str(group_id)}
    if isinstance(value, dict):
        return {key: _filled(part, group_id, counts) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, group_id, counts) for part in value]
    return value


def _text(problem: ProblemException) -> str | None:
    return rules_transitions.truncate_error(f"{problem.problem_id()}: {problem}", _MAX_ERROR_BYTES)


class ResultLines(NamedTuple):
    """Lines of the results of a group, and where to continue: None at the end."""

    lines: bytes
    after: int | None


async def results(tx: Transaction, group_id: UUID, after: int = 0) -> ResultLines:
    """Return the next tasks of a group in the order of submission, a `GroupResult` as JSON in each line.

    Their results have at most 1 MiB together, or it is one.
    """
    sizes = await sql_groups.result_sizes(tx, group_id, after, _RESULTS_AT_ONCE)
    count = max(1, sum(total <= _RESULT_BYTES for total in accumulate(sizes)))
    rows = await sql_groups.results(tx, group_id, after, count) if sizes else []
    is_last = len(rows) == len(sizes) < _RESULTS_AT_ONCE or not rows
    return ResultLines(b"".join(map(_line, rows)), None if is_last else rows[-1].seq)


def _line(row: Any) -> bytes:
    fields: dict[str, Any] = {"id": row.id, "status": row.status}
    fields |= {name: value for name in ("error", "error_code", "stored") if (value := getattr(row, name))}
    has_result = row.status == TaskStatus.COMPLETED and row.result_json is not None
    result = row.result_json if has_result else "null"
    return b'%s,"result":%s}\n' % (to_json(fields)[:-1], result.encode())


async def results_for(tx: Transaction, group_id: UUID, task_id: UUID, *, after: int) -> ResultLines | None:
    """Return the next results for the task that a group has submitted at its end; None for another task."""
    group = await sql_groups.get(tx, group_id)
    if group is None or group.on_end_task != task_id:
        return None
    return await results(tx, group_id, after)


async def ended(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return which of these groups have ended."""
    return await sql_groups.ended(tx, ids)


def has_ended(group: GroupResponse) -> bool:
    """Return whether a group has ended."""
    return group.ended_at is not None
