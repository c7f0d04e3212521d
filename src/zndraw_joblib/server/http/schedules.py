"""Operations of schedules."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic_core import to_json

from zndraw_joblib.server.http.access import QueueState, check_job, check_room_writer
from zndraw_joblib.server.http.routing import Paging, json_response, serves
from zndraw_joblib.server.http.tasks import TASK_PATH, Traceparent, check_duplicate, submit_span
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import (
    rules_audit,
    rules_jobs,
    rules_schedules,
    rules_transitions,
    rules_unique,
)
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, Answers, answers_of, once
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import Name
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.schedules import MAX_NEXT, ScheduleRequest, ScheduleResponse, ScheduleUpdate

_SCHEDULE: Answers[ScheduleResponse] = answers_of(ScheduleResponse)
_PUT: Answers[tuple[ScheduleResponse, bool]] = answers_of(tuple[ScheduleResponse, bool])


@serves(
    ops.PUT_SCHEDULE, responses={200: {"model": ScheduleResponse, "description": "The schedule was replaced"}}
)
async def put_schedule(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    schedule: Name,
    *,
    body: ScheduleRequest,
    key: RequestKey | None,
) -> Response:
    """Create or replace a schedule of a job. Its tasks are submitted as the caller's.

    With the same times it keeps its next due time. Only superusers may do so in reserved rooms.
    """
    check_room_writer(caller, room_id, "schedules")
    job, cross_room = parse_job_name(body.job), runtime.settings.cross_room_jobs
    check_job(caller, job)
    known = await runtime.database.read(rules_jobs.get, room_id, job, cross_room=cross_room)
    schema = to_json(known.schema_).decode()
    item = rules_schedules.NewSchedule(caller, room_id, schedule, job, body, body.paused, cross_room)
    item = await checked_schedule(runtime, item, schema)
    work = rules_schedules.of_seen(rules_schedules.put, caller, room_id, schedule)
    work = rules_audit.of_operator(work, caller, "schedule.put", schedule, room_id)
    answer, is_new = await runtime.write(once(key, _PUT, work), item=item)
    return json_response(answer, 201 if is_new else 200)


async def checked_schedule(
    runtime: Runtime, item: rules_schedules.NewSchedule, schema: str
) -> rules_schedules.NewSchedule:
    """Return a schedule with the limits that it must not exceed.

    Raises the problem of its times, or of a payload that does not match the schema, which is JSON.
    """
    settings, user = runtime.settings, item.caller.id
    rules_schedules.check(item.times)
    rules_transitions.check_size("payload", item.times.payload)
    unique = item.times.unique
    if unique is not None and unique.key is None:
        await asyncio.to_thread(rules_unique.payload_key, item.times.payload)
    if settings.validate_payload:
        fault = await runtime.payload_validator.fault(schema, item.times.payload, user)
        if fault is not None:
            raise fault
    await runtime.stored.schedules.prepare(user)
    add = partial(runtime.stored.schedules.check, user)
    return item._replace(max_schedules=settings.max_schedules_per_room, add_schedule=add)


@serves(ops.LIST_SCHEDULES)
async def list_schedules(runtime: Runtime, caller: Identity, room_id: str, page: Paging) -> Response:
    """List the schedules of a room, by name."""
    return json_response(await runtime.database.read(rules_schedules.page, room_id, page))


@serves(ops.GET_SCHEDULE)
async def get_schedule(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    schedule: Name,
    next: Annotated[int, Query(ge=0, le=MAX_NEXT)] = 0,
) -> Response:
    """Return a schedule; with ``?next=5``, also its next five due times."""
    return json_response(await runtime.database.read(rules_schedules.get, room_id, schedule, next))


@serves(ops.UPDATE_SCHEDULE)
async def update_schedule(
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    schedule: Name,
    *,
    body: ScheduleUpdate,
    key: RequestKey | None,
) -> Response:
    """Pause or resume a schedule. What was due meanwhile follows its `catch_up`.

    Only superusers may do so in reserved rooms.
    """
    check_room_writer(caller, room_id, "schedules")
    action = "schedule.pause" if body.paused else "schedule.resume"
    work = rules_schedules.of_seen(rules_schedules.pause, caller, room_id, schedule)
    work = rules_audit.of_operator(work, caller, action, schedule, room_id)
    answer = await runtime.write(once(key, _SCHEDULE, work), room_id, schedule, paused=body.paused)
    return json_response(answer)


@serves(
    ops.RUN_SCHEDULE,
    responses={200: {"model": TaskResponse, "description": "The task that holds the unique key already"}},
)
async def run_schedule(  # noqa: PLR0913 - one parameter each
    request: Request,
    queue: QueueState,
    caller: Identity,
    room_id: str,
    schedule: Name,
    *,
    key: RequestKey | None,
    traceparent: Traceparent,
) -> Response:
    """Submit a task of a schedule now, as the caller's, also while the schedule is paused."""
    record = await queue.runtime.database.read(rules_schedules.record, room_id, schedule)
    rules_schedules.check_sees(caller, record)
    check_job(caller, record.job)
    options = rules_schedules.options(record)
    async with queue.runtime.take_submits(caller.id, [key]) as tokens:
        with submit_span(request, traceparent, record.job) as trace:
            item = queue.runtime.submission(caller, room_id, record.job, options, key, trace)
            item.schedule, item.masked = schedule, record.masked
            task = await queue.dispatcher.submit(item)
    headers = {"Location": f"{queue.prefix}{TASK_PATH}{task.id}", "Retry-After": "1", **tokens.headers}
    if task.duplicate:
        await check_duplicate(request, caller, room_id, task, options.payload)
    return json_response(task, 200 if task.duplicate else 202, headers)


@serves(ops.DELETE_SCHEDULE)
async def delete_schedule(
    runtime: Runtime, caller: Identity, room_id: str, schedule: Name, key: RequestKey | None
) -> Response:
    """Delete a schedule. Its tasks stay. Only superusers may do so in reserved rooms."""
    check_room_writer(caller, room_id, "schedules")
    work = rules_schedules.of_seen(rules_schedules.delete, caller, room_id, schedule)
    work = rules_audit.of_operator(work, caller, "schedule.delete", schedule, room_id)
    await runtime.write(once(key, NOTHING, work), room_id, schedule)
    return Response(status_code=204)
