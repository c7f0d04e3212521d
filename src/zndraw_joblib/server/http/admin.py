"""Operations of operators: searches, lists, the sweeper, the overview, the audit trail, bulk actions."""

import asyncio
import inspect
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Send

from zndraw_joblib.server.admin import (
    rules_lists,
    rules_overview,
    rules_searches,
    rules_servers,
    rules_statistics,
)
from zndraw_joblib.server.admin.rules_lists import CursorList
from zndraw_joblib.server.admin.rules_searches import BulkLimits, Confirmed
from zndraw_joblib.server.http.access import (
    Guard,
    QueueState,
    check_readable,
    permitted_caller,
    queue_state,
    verify_readable_room,
    verify_writable_room,
)
from zndraw_joblib.server.http.events import EventStream, Subscription, wait_for_disconnect
from zndraw_joblib.server.http.requests import Omissible, event_stream
from zndraw_joblib.server.http.routing import CursorPaging, Endpoint, Parameter, json_response, serves
from zndraw_joblib.server.process import settings as settings_report
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import rules_audit, rules_sweep, rules_task_retention
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, once
from zndraw_joblib.server.realtime.streams import KEEPALIVE_COMMENT, format_sse_event
from zndraw_joblib.server.runtime.problem_responses import as_problem, invalid_part
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import MAX_TAG, Moment, Tag
from zndraw_joblib.wire.messages import SweeperUpdate
from zndraw_joblib.wire.names import RESERVED, parse_job_name, validate_room_id
from zndraw_joblib.wire.operations import Access
from zndraw_joblib.wire.operators import (
    HOUR,
    MINUTE,
    BulkAction,
    BulkPreviewRequest,
    BulkRequest,
    BulkResult,
    FoundTask,
    Me,
    Names,
    Permission,
    SearchedName,
    SweeperDetail,
    TagNames,
    TaskFilter,
    Text,
    Versions,
)
from zndraw_joblib.wire.policy import Keep
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, ProblemException
from zndraw_joblib.wire.scopes import ANY_SCOPE, DEFAULT_SCOPES, Scope
from zndraw_joblib.wire.statuses import TaskStatus

_LISTS = ("status", "job", "version", "room", "error_code", "exception", "tag")
_VALUES = ("worker", "created_by", "text", "since", "until", "scheduled", "parent", "root", "group")
_COUNTED = ("room", "tag", "parent", "root")


def _read_filter(request: Request, names: Collection[str] = (*_LISTS, *_VALUES)) -> TaskFilter:
    query = request.query_params
    fields: dict[str, Any] = {name: query.getlist(name) for name in _LISTS if name in query and name in names}
    fields |= {name: query[name] for name in _VALUES if name in query and name in names}
    try:
        return TaskFilter.model_validate(fields)
    except ValidationError as error:
        raise invalid_part(error, "query") from error


def _read_rooms(request: Request) -> list[str]:
    try:
        return TaskFilter.model_validate({"room": request.query_params.getlist("room")}).room
    except ValidationError as error:
        raise invalid_part(error, "query") from error


_JOBS = Annotated[Names, Query(description="Full names of jobs.")]
_VERSIONS = Annotated[Versions, Query(description="Numbers of versions of these jobs.")]
_WORKER = Annotated[Omissible[UUID], Query(description="The current or last worker.")]
_EXCEPTIONS = Annotated[Names, Query(description="Texts before the first colon of the error.")]
_TEXT = Annotated[Omissible[Text], Query(description="Part of the payload as JSON, or of the error.")]
_SCHEDULED = Annotated[Omissible[bool], Query(description="Pending and not due yet; false: all others.")]
_SINCE = Annotated[Omissible[Moment], Query(description="Created at this time or later.")]
_UNTIL = Annotated[Omissible[Moment], Query(description="Created before this time.")]
_TAGS = Annotated[TagNames, Query(description="Tags of tasks; a task has one of them.")]
_PARENT = Annotated[Omissible[UUID], Query(description="The task that has submitted them.")]
_ROOT = Annotated[Omissible[UUID], Query(description="The first task of their tree, without itself.")]
_LINKS: dict[str, Any] = {"tag": (_TAGS, []), "parent": (_PARENT, None), "root": (_ROOT, None)}
QueryFilter = Annotated[
    TaskFilter,
    Parameter(
        _read_filter,
        status=(Annotated[list[TaskStatus], Query()], []),
        job=(_JOBS, []),
        version=(_VERSIONS, []),
        room=(Annotated[Names, Query()], []),
        worker=(_WORKER, None),
        created_by=(Annotated[Omissible[SearchedName], Query()], None),
        error_code=(Annotated[Names, Query()], []),
        exception=(_EXCEPTIONS, []),
        text=(_TEXT, None),
        since=(_SINCE, None),
        until=(_UNTIL, None),
        scheduled=(_SCHEDULED, None),
        **_LINKS,
        group=(Annotated[Omissible[UUID], Query()], None),
    ),
]
QueryCounted = Annotated[
    TaskFilter,
    Parameter(partial(_read_filter, names=_COUNTED), room=(Annotated[Names, Query()], []), **_LINKS),
]
QueryRooms = Annotated[list[str], Parameter(_read_rooms, room=(Annotated[Names, Query()], []))]


# The statement of a list has a part for each room, and SQLite takes 500 parts.
MAX_ROOMS = 200


async def allowed_rooms(
    request: Request, caller: Identity, rooms: list[str], guard: Guard = verify_readable_room
) -> list[str]:
    """Return the rooms that a request names after the host's guards have passed; superusers may use all.

    A caller with rights in some rooms that names none means these; raises `InvalidRequest` if these are too
    many. Raises `Forbidden` for others that name none, and for a reserved room that is not the caller's.
    """
    if caller.is_superuser:
        return rooms
    own = caller.rooms or ()
    rooms = rooms or sorted(own)
    if len(rooms) > MAX_ROOMS:
        raise InvalidRequest(
            f"room: the caller has rights in {len(rooms)} rooms, and one request is about at most "
            f"{MAX_ROOMS} of them; name rooms with `room` (--room)"
        )
    if not rooms:
        raise Forbidden("Not authorized: only superusers may use all rooms; name rooms with `room` (--room)")
    if reserved := RESERVED.intersection(rooms).difference(own):
        raise Forbidden(f"Not authorized: only superusers may use the reserved room {min(reserved)}")
    guards = queue_state(request).guards
    return [await guards.resolve(request, guard, room) for room in rooms]


@serves(ops.SEARCH_TASKS)
async def search_tasks(
    request: Request,
    runtime: Runtime,
    caller: Identity,
    filters: QueryFilter,
    page: CursorPaging,
    *,
    oldest_first: Annotated[bool, Query(description="The oldest tasks first.")] = False,
) -> Response:
    """Search tasks, newest first or `oldest_first`; callers that are no superusers name readable rooms.

    A search that reads many tasks to find few returns early: read on with `cursor`, the `next` of the
    response, while that is not null.
    """
    filters.room = await allowed_rooms(request, caller, filters.room)
    tasks = await runtime.database.read(rules_searches.find, filters, page, oldest_first=oldest_first)
    _hide_workers(caller, tasks.items)
    return json_response(tasks)


def _hide_workers(caller: Identity, tasks: Sequence[FoundTask]) -> None:
    """Remove what only superusers and the owner of a worker may read about it."""
    for task in () if caller.is_superuser else tasks:
        task.worker_name = None


@serves(ops.GROUP_FAILURES)
async def group_failures(
    request: Request, runtime: Runtime, caller: Identity, filters: QueryFilter
) -> Response:
    """Group the newest failed tasks that match a filter by job, error code and exception.

    The status of the filter is not used. Callers that are no superusers name rooms that they may read.
    """
    filters.room = await allowed_rooms(request, caller, filters.room)
    return json_response(await runtime.database.read(rules_searches.group_failures, filters))


@serves(ops.COUNT_TASKS)
async def count_tasks(
    request: Request, runtime: Runtime, caller: Identity, filters: QueryCounted
) -> Response:
    """Return how many tasks have each status; callers that are no superusers name rooms.

    With `tag`, `parent` or `root`, count at most the newest 10,000 of these tasks.
    """
    filters.room = await allowed_rooms(request, caller, filters.room)
    return json_response(await runtime.database.read(rules_searches.count, filters))


@serves(ops.LIST_TAGS)
async def list_tags(
    request: Request,
    runtime: Runtime,
    caller: Identity,
    rooms: QueryRooms,
    *,
    prefix: Annotated[str, Query(description="The first characters of a tag.", max_length=MAX_TAG)] = "",
) -> Response:
    """Return up to 50 tags that tasks have; callers that are no superusers name rooms."""
    rooms = await allowed_rooms(request, caller, rooms)
    return json_response(await runtime.database.read(rules_searches.tags, rooms, prefix))


# Operators' endpoints for the sweeper and the settings; superusers only.


@serves(ops.GET_SWEEPER)
async def get_sweeper(queue: QueueState, caller: Identity) -> Response:
    """Return the mode and the last cycles, newest first, of the sweeper of the server that responds.

    `servers` and `history` have all servers and the last cycles of their sweepers.
    """
    return json_response(await _state(queue))


@serves(ops.UPDATE_SWEEPER)
async def update_sweeper(
    queue: QueueState, caller: Identity, body: SweeperUpdate, key: RequestKey | None
) -> Response:
    """Change the mode of the sweepers of all servers, from their next cycle on."""
    detail = {"mode": body.mode.value}
    work = rules_audit.recorded(rules_sweep.set_mode, caller, "sweeper.mode", "sweeper", detail=detail)
    await queue.runtime.write(once(key, NOTHING, work), body.mode)
    return json_response(await _state(queue))


@serves(ops.GET_SETTINGS)
async def get_settings(runtime: Runtime, caller: Identity) -> Response:
    """Return the settings in force of the server that responds, without secrets, and misspelt variables."""
    return json_response(await asyncio.to_thread(settings_report.report, runtime.settings))


@serves(ops.GET_RETENTION)
async def get_retention(
    runtime: Runtime,
    caller: Identity,
    *,
    job: Omissible[str] = None,
    completed: Omissible[str] = None,
    failed: Omissible[str] = None,
    cancelled: Omissible[str] = None,
) -> Response:
    """Return how long ended tasks are kept, and how many are older: of a job, or of all without own times.

    `completed`, `failed` and `cancelled` are times to try: the answer is what they would delete, and nothing
    changes. They are written as in a policy's `keep`: seconds, `90s`, `15m`, `12h`, `30d` or `forever`.
    """
    asked = {"completed": completed, "failed": failed, "cancelled": cancelled}
    keep = _keep_of({name: value for name, value in asked.items() if value is not None})
    name = None if job is None else parse_job_name(job)
    return json_response(await runtime.database.read(rules_task_retention.read, runtime.settings, name, keep))


def _keep_of(values: dict[str, str]) -> Keep:
    try:
        return Keep.model_validate(values)
    except ValidationError as error:
        [name, *_] = error.errors()[0]["loc"]
        raise InvalidRequest(
            f"query.{name}: {values[str(name)][:100]!r} is no time to keep tasks: pass seconds, or 90s, 15m, "
            "12h, 30d, or forever"
        ) from error


@serves(ops.PREVIEW_SWEEPER)
async def preview_sweeper(queue: QueueState, caller: Identity) -> Response:
    """Return what a cycle would do now. It changes nothing."""
    return json_response(await queue.runtime.database.read(queue.sweeper.preview))


async def _state(queue: QueueState) -> SweeperDetail:
    sweeper, settings = queue.sweeper, queue.runtime.settings
    read = queue.runtime.database.read
    return SweeperDetail(
        mode=await read(rules_sweep.mode, default=settings.sweeper_mode),
        interval_seconds=settings.sweeper_interval_seconds,
        grace_remaining_seconds=sweeper.grace_remaining,
        cycles=[cycle.summary for cycle in reversed(sweeper.last_cycles)],
        servers=await read(rules_servers.entries),
        history=await read(rules_servers.history),
    )


# Lists that are read in parts.

_OMISSIBLE: Any = Omissible


def _serve(cursor_list: CursorList) -> Endpoint:
    """Return the endpoint of a list: it takes the filters of the list and a page."""
    row = cursor_list.operation

    async def work(
        request: Request, runtime: Runtime, caller: Identity, page: CursorPaging, **values: Any
    ) -> Response:
        rooms: list[str] = []
        if Access.NAMED_ROOMS in row.access:
            named = [] if values["room"] is None else [values["room"]]
            rooms = await allowed_rooms(request, caller, named)
            # A caller with rights in several rooms that names none gets the items of these.
            values["room"] = rooms.pop() if len(rooms) == 1 else None
        return json_response(
            await runtime.database.read_snapshot(rules_lists.read, cursor_list, page, values, rooms)
        )

    *parameters, _ = inspect.signature(work).parameters.values()
    for name, listed in cursor_list.filters.items():
        annotation = listed.annotation if listed.default is not None else _OMISSIBLE[listed.annotation]
        mark = Query(description=listed.description)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=listed.default,
                annotation=Annotated[annotation, mark],
            )
        )
    work.__name__, work.__doc__ = row.name, cursor_list.description
    work.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return serves(row)(work)


list_endpoints = [_serve(cursor_list) for cursor_list in rules_lists.LISTS]

# The endpoint that finds ids by their first characters.


@serves(ops.FIND_IDS)
async def find_ids(
    request: Request,
    runtime: Runtime,
    caller: Identity,
    rooms: QueryRooms,
    *,
    prefix: Annotated[str, Query(description="The first 4 to 36 characters of an id.")] = "",
) -> Response:
    """Find tasks, workers and groups by the first characters of their ids, at most ten of each.

    Callers that are no superusers name rooms that they may read; they find their own workers only.
    """
    rooms = await allowed_rooms(request, caller, rooms)
    return json_response(
        await runtime.database.read(rules_lists.find_ids, caller, rules_lists.parse_prefix(prefix), rooms)
    )


# The caller and what it may do; the release of the server.

_GUARDS = {
    Permission.READ_ROOM: (verify_readable_room, Scope.READ),
    Permission.WRITE_ROOM: (verify_writable_room, Scope.SUBMIT),
}


@serves(ops.GET_CALLER)
async def get_caller(
    request: Request, queue: QueueState, caller: Identity, room: Omissible[str] = None
) -> Response:
    """Return the caller and what it may do; with `room`, also in that room."""
    permissions = [Permission.READ_ALL, Permission.OPERATE] if caller.is_superuser else []
    if room is not None:
        validate_room_id(room)
        for permission, (guard, scope) in _GUARDS.items():
            if caller.may(scope) and await _passes(request, queue, guard, room):
                permissions.append(permission)
        if Permission.WRITE_ROOM in permissions and caller.operates(room):
            permissions.append(Permission.OPERATE_ROOM)
    scopes = caller.scopes or (ANY_SCOPE if caller.is_superuser else DEFAULT_SCOPES)
    me = Me(
        id=caller.id,
        is_superuser=caller.is_superuser,
        roles=sorted(caller.roles or ()),
        scopes=scopes.names,
        rooms=None if caller.rooms is None else sorted(caller.rooms),
        jobs=None if caller.jobs is None else sorted(caller.jobs),
        room=room,
        permissions=permissions,
        expires_in_seconds=queue.token_seconds(request),
        clock_ahead_seconds=queue.clock.ahead_seconds if isinstance(queue.clock, TestClock) else None,
    )
    return json_response(me)


async def _passes(request: Request, queue: QueueState, guard: Guard, room_id: str) -> bool:
    """Return whether a guard lets the caller into a room. Raises the error of a guard that has failed."""
    try:
        await queue.guards.resolve(request, guard, room_id)
    except (ProblemException, HTTPException, RequestValidationError) as error:
        if as_problem(error).problem.status >= 500:
            raise
        return False
    return True


@serves(ops.GET_VERSION)
async def get_version(runtime: Runtime, queue: QueueState, caller: Identity) -> Response:
    """Return the release of the server that responds, and of its database; also whether it has Socket.IO."""
    read = partial(rules_servers.version, socketio=queue.publisher.is_open, page=queue.page)
    return json_response(await runtime.database.read_short(read, runtime.settings.build))


# The state of the queue and of a room, with what is wrong first; the statistics of tasks.

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The stream",
        "content": event_stream(
            "Server-Sent Events. `overview`: an `Overview`. A comment every 15 s keeps the connection open."
        ),
    }
}


@serves(ops.GET_OVERVIEW)
async def get_overview(queue: QueueState, caller: Identity) -> Response:
    """Return the state of the queue: what is wrong first, with a remedy for each finding."""
    return json_response(await queue.overviews.read())


@serves(ops.FOLLOW_OVERVIEW, responses=_STREAM)
async def follow_overview(request: Request, queue: QueueState, caller: Identity) -> Response:
    """Stream the state of the queue: at once, and then whenever it has changed, at most every 2 s."""

    async def is_allowed() -> bool:
        try:
            copy = Request(dict(request.scope), _no_body)
            return await permitted_caller(copy, ops.FOLLOW_OVERVIEW) == caller
        except Exception as error:
            if as_problem(error).problem.status < 500:
                return False
            raise

    subscription = Subscription(caller, "", None, None, is_allowed, None)
    return OverviewStream(queue, subscription)


@serves(ops.GET_ROOM_OVERVIEW)
async def get_room_overview(runtime: Runtime, caller: Identity, room_id: str) -> Response:
    """Return the state of a room. That of a reserved room is for superusers."""
    if room_id in RESERVED and not caller.operates(room_id):
        raise Forbidden(f"Only a superuser may read the overview of {room_id}")
    return json_response(await runtime.database.read_snapshot(rules_overview.read_room, room_id))


@serves(ops.GET_STATISTICS)
async def get_statistics(  # noqa: PLR0913 - one parameter for each field of the query
    request: Request,
    runtime: Runtime,
    caller: Identity,
    *,
    job: Annotated[Omissible[str], Query(description="room:category:name")] = None,
    resolution: Annotated[int, Query(description="60 or 3600 seconds")] = MINUTE,
    since: Annotated[Omissible[Moment], Query(description="By default 60 intervals ago.")] = None,
    until: Omissible[Moment] = None,
    tag: Annotated[Omissible[Tag], Query(description="A tag of tasks, instead of a job.")] = None,
    room: Annotated[Omissible[str], Query(description="The room of the tasks with the tag.")] = None,
) -> Response:
    """Return what happened to tasks in each interval: of one job or tag, for superusers also of all jobs.

    Others may read the statistics of the jobs of rooms that they may read, but not of reserved rooms, and of
    a tag in a room that they name. The response has at most 2,880 intervals, the newest before ``until``.
    """
    if resolution not in {MINUTE, HOUR}:
        raise InvalidRequest(f"query.resolution: it must be {MINUTE} or {HOUR}, not {resolution}")
    if tag is not None and job is None:
        rooms = await allowed_rooms(request, caller, [] if room is None else [room])
        if len(rooms) > 1:
            raise InvalidRequest(f"query.room: name one of the caller's rooms: {', '.join(rooms)}")
        read_tagged = partial(rules_statistics.read_tagged, tag=tag, room_id=next(iter(rooms), None))
        return json_response(
            await runtime.database.read(read_tagged, resolution=resolution, since=since, until=until)
        )
    if tag is not None or room is not None:
        raise InvalidRequest("query.tag: give a job, or a tag with or without a room")
    name = None if job is None else parse_job_name(job)
    if not caller.is_superuser:
        if name is None or (name.room_id in RESERVED and not caller.operates(name.room_id)):
            raise Forbidden("Only a superuser may read these statistics; name a job of one of your rooms")
        await check_readable(request, name.room_id)
    read = runtime.database.read
    return json_response(await read(rules_statistics.read, name, resolution, since, until))


class OverviewStream(EventStream):
    """Sends the overview whenever it has changed."""

    async def _serve(self, receive: Receive, send: Send) -> None:
        async with self._queue.overviews.reader(self._subscription.caller) as reader:
            disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
            disconnect.add_done_callback(reader.close)
            try:
                await self._start(send)
                checked = time.monotonic()
                while not reader.is_closed:
                    text = await reader.next(self._queue.keep_alive_seconds)
                    if time.monotonic() >= checked + self._queue.trusted_seconds:
                        checked = time.monotonic()
                        if not await self._subscription.is_allowed():
                            break
                    if not reader.is_closed:
                        await self._send(send, _event(text))
                if not disconnect.done():
                    await self._send(send, b"", more_body=False)
            finally:
                disconnect.cancel()


def _event(text: str | None) -> bytes:
    return KEEPALIVE_COMMENT if text is None else format_sse_event(event="overview", data_str=text)


async def _no_body() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


# Endpoints that act on all tasks that match a filter, after a preview.


_OWN_ACTIONS = {BulkAction.RETRY, BulkAction.CANCEL}


@serves(ops.PREVIEW_BULK_ACTION)
async def preview_bulk_action(
    request: Request, runtime: Runtime, caller: Identity, body: BulkPreviewRequest
) -> Response:
    """Count the tasks that an action would affect. It changes nothing; its `token` confirms the action.

    Callers that are no superusers may retry and cancel their own tasks, in rooms that they name.
    """
    filters = await _allowed_filter(request, caller, body.action, body.filter)
    confirmed = Confirmed(caller, body.action, filters, 0, body.tree)
    preview = await rules_searches.preview(runtime.database.read, runtime.write, confirmed)
    _hide_workers(caller, preview.examples)
    return json_response(preview)


@serves(ops.APPLY_BULK_ACTION)
async def apply_bulk_action(
    request: Request, runtime: Runtime, caller: Identity, body: BulkRequest, key: RequestKey | None
) -> Response:
    """Apply an action to up to 10,000 tasks that match the filter of its preview.

    These are the newest, for a retry the oldest: repeats of it reach the end of any chain of steps.

    Tasks that another request changes meanwhile, or that are newer than the preview, are not affected.
    """
    filters = await _allowed_filter(request, caller, body.action, body.filter)
    if (first := await rules_searches.first_result(runtime.write, key)) is not None:
        return json_response(first)
    requested = Confirmed(caller, body.action, filters, 0, body.tree)
    confirmed = await runtime.database.read(rules_searches.verify, body.token, requested)
    return json_response(await apply_confirmed(runtime, confirmed, key))


async def apply_confirmed(runtime: Runtime, confirmed: Confirmed, key: RequestKey | None) -> BulkResult:
    """Apply an action, in transactions that leave room for the events of others."""

    async def write(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async with runtime.events.room(BulkLimits().batch):
            return await runtime.write(work, *args, **kwargs)

    read, fault = runtime.database.read, runtime.payload_validator.fault
    result: BulkResult = await rules_searches.apply(read, write, confirmed, key, fault=fault)
    return result


async def _allowed_filter(
    request: Request, caller: Identity, action: BulkAction, filters: TaskFilter
) -> TaskFilter:
    """Return the filter that the caller may use.

    Raises `Forbidden`, and `InvalidRequest` for tasks to retarget of any job.
    """
    if action is BulkAction.RETARGET and not filters.job:
        raise InvalidRequest("body.filter.job: name the jobs whose tasks to retarget")
    rooms = await allowed_rooms(request, caller, filters.room, verify_writable_room)
    if caller.is_superuser:
        return filters
    if caller.is_operator and action is not BulkAction.RETARGET:
        return filters.model_copy(update={"room": rooms})
    if action not in _OWN_ACTIONS:
        raise Forbidden(f"Not authorized: only superusers may {action} tasks in bulk")
    if filters.created_by not in {None, caller.id}:
        raise Forbidden("Not authorized: only superusers may act on tasks of others; omit `created_by`")
    return filters.model_copy(update={"room": rooms, "created_by": caller.id})
