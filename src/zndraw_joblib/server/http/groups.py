"""Operations of groups: tasks that are counted and followed together."""

from collections.abc import AsyncIterator
from functools import partial
from math import ceil
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request, Response
from pydantic_core import to_json

from zndraw_joblib.server.http.access import (
    QueueState,
    access_of,
    check_group_room,
    check_job,
    check_task_readable,
    verify_writable_room,
)
from zndraw_joblib.server.http.requests import DisconnectWatcher, Omissible
from zndraw_joblib.server.http.routing import Download, Wait, json_response, serves
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import rules_groups, rules_jobs, rules_payloads, rules_transitions
from zndraw_joblib.server.queue.rules_groups import GroupToMake
from zndraw_joblib.server.queue.rules_idempotency import Answers, answers_of, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupOnEnd, GroupRequest, GroupResponse, GroupUpdate, NewGroup
from zndraw_joblib.wire.masks import masked_paths
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.names import INTERNAL, JobName, parse_job_name
from zndraw_joblib.wire.problems import (
    ContentTooLarge,
    Forbidden,
    GroupNotFound,
    InternalJobNotConfigured,
    JobNotFound,
    TaskNotFound,
)

# Lists of groups have the payloads too.
MAX_ON_END_BYTES = 64 * 1024
_GROUP: Answers[GroupResponse] = answers_of(GroupResponse)


@serves(ops.CREATE_GROUP)
async def create_group(
    request: Request, queue: QueueState, caller: Identity, body: GroupRequest, key: RequestKey | None
) -> Response:
    """Create a group in a room to which the caller may write. Submit tasks with its id as `group`."""
    room_id = await queue.guards.resolve(request, verify_writable_room, body.room)
    item = await checked_group(queue, caller, room_id, body)
    work = once(key, _GROUP, rules_groups.create)
    if body.on_end is None:
        return json_response(await queue.runtime.write_short(work, item), 201)
    async with queue.runtime.take_submits(caller.id, [key]) as tokens:
        return json_response(await queue.runtime.write_short(work, item), 201, tokens.headers)


async def checked_group(queue: QueueState, caller: Identity, room_id: str, group: NewGroup) -> GroupToMake:
    """Return a group that the caller may create. Raises the problem of its `on_end`."""
    schema, stored = None, queue.runtime.stored
    if group.on_end is not None and caller.task is not None:
        raise Forbidden(
            "Not authorized: on_end: its task would have no parent, and the token of a task submits only "
            "tasks below this one. Submit a task after the group instead (`after`), or leave out on_end"
        )
    if group.on_end is not None:
        schema = await _checked_schema(queue, caller, room_id, group.on_end)
    await stored.groups.prepare(caller.id)
    return GroupToMake(caller, room_id, group, schema, partial(stored.groups.check, caller.id))


async def _checked_schema(queue: QueueState, caller: Identity, room_id: str, on_end: GroupOnEnd) -> str:
    """Return the schema of the job of `on_end`, which its payload matches, as JSON."""
    runtime = queue.runtime
    known, job = await _job_of_end(queue, caller, room_id, on_end.job)
    size = len(rules_transitions.check_size("on_end.payload", on_end.payload))
    if size > MAX_ON_END_BYTES:
        raise ContentTooLarge(
            f"on_end.payload has {size} bytes; at most {MAX_ON_END_BYTES} are allowed. "
            "Return large values from a task of the group, and read them in its results"
        )
    if job.room_id == INTERNAL and queue.dispatcher.mode(job) is None:
        raise InternalJobNotConfigured(f"on_end.job: {on_end.job!r} has no executor in this server")
    schema = to_json(known.schema_).decode()
    if fault := rules_payloads.mask_fault(on_end.payload, masked_paths(known.schema_)):
        raise fault
    if runtime.settings.validate_payload:
        fault = await runtime.payload_validator.fault(schema, on_end.payload, caller.id)
    errors = [] if fault is None else (fault.problem.model_extra or {}).get("errors", [])
    rules_groups.raise_unless_filled(on_end.payload, errors)
    return schema


async def _job_of_end(
    queue: QueueState, caller: Identity, room_id: str, name: str
) -> tuple[JobResponse, JobName]:
    """Return the job of `on_end`. Raises its problem, with the name of the field."""
    settings, read = queue.runtime.settings, queue.runtime.database.read
    try:
        job = parse_job_name(name)
        check_job(caller, job)
        return await read(rules_jobs.get, room_id, job, cross_room=settings.cross_room_jobs), job
    except (Forbidden, JobNotFound) as problem:
        raise type(problem)(f"on_end.job: {problem}") from problem


@serves(ops.GET_GROUP)
async def get_group(
    request: Request, runtime: Runtime, caller: Identity, group_id: UUID, wait: Wait
) -> Response:
    """Return a group with its counts and first failures; with ``Prefer: wait=N``, wait for its end."""
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    group = await runtime.get_group(group_id)
    await check_group_room(request, group_id, group.room)
    if wait <= 0 or rules_groups.has_ended(group):
        return json_response(group)
    access = access_of(request, caller, partial(check_group_room, group_id=group_id, room_id=group.room))
    async with DisconnectWatcher(request) as watcher:
        group = await runtime.get_group(group_id, wait, watcher.disconnected, access)
    return json_response(group, headers={"Preference-Applied": f"wait={ceil(wait)}"})


_RESULTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A `GroupResult` in each line, in the order of submission",
        # Generators of clients know no NDJSON: they take it as bytes.
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


@serves(ops.READ_GROUP_RESULTS, responses=_RESULTS)
async def read_group_results(
    request: Request,
    runtime: Runtime,
    caller: Identity,
    group_id: UUID,
    on_end_task: Annotated[
        Omissible[UUID], Query(description="Only if the group has submitted this task at its end")
    ] = None,
) -> Response:
    """Stream the tasks of a group with their results, a line of JSON for each, as they are now.

    The worker that has the task of `on_end` needs no right to read the room.
    """
    group = await runtime.database.read_short(rules_groups.record, group_id)
    if on_end_task not in {None, group.on_end_task}:
        raise GroupNotFound(f"Task {on_end_task} was not submitted at the end of group {group_id}")
    about = group_id, group.room_id, group.on_end_task
    check = partial(_check_results, caller=caller, about=about)
    await check(request)
    access = access_of(request, caller, check)

    async def lines() -> AsyncIterator[bytes]:
        after: int | None = 0
        while after is not None:
            # A refusal after the first part breaks the response off.
            await access.check()
            part = await runtime.database.read(rules_groups.results, group_id, after)
            yield part.lines
            after = part.after

    return Download(lines(), media_type="application/x-ndjson", headers={"Cache-Control": "no-store"})


async def _check_results(request: Request, caller: Identity, about: tuple[UUID, str, UUID | None]) -> None:
    """Raise the problem of a caller who may not read the results of a group.

    It is `about` the group, its room, and the task that it has submitted at its end.
    """
    group_id, room_id, on_end_task = about
    if on_end_task is None:
        await check_group_room(request, group_id, room_id)
        return
    try:
        await check_task_readable(request, caller, on_end_task, room_id)
    except TaskNotFound as error:
        raise GroupNotFound(f"Group {group_id} not found") from error


@serves(ops.UPDATE_GROUP)
async def update_group(
    request: Request,
    runtime: Runtime,
    caller: Identity,
    group_id: UUID,
    body: GroupUpdate,
    key: RequestKey | None,
) -> Response:
    """Seal a group of a room to which the caller may write: no more tasks can be added.

    It ends when all its tasks have ended, so one without tasks ends at once.
    """
    room_id = (await runtime.database.read_short(rules_groups.record, group_id)).room_id
    await check_group_room(request, group_id, room_id, verify_writable_room)
    seal = once(key, _GROUP, rules_groups.seal)
    return json_response(await runtime.write(seal, group_id, caller))
