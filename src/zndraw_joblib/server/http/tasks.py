"""Operations of tasks: submit, claim, report, read and act on them, alone and in batches."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from zndraw_joblib.jobs import traces
from zndraw_joblib.jobs.logs import fields_here
from zndraw_joblib.server.http.access import (
    QueueState,
    access_of,
    check_job,
    check_readable,
    check_task_readable,
    not_below,
    queue_state,
    unrelated,
    verify_writable_room,
)
from zndraw_joblib.server.http.groups import checked_group
from zndraw_joblib.server.http.middleware import tracer_provider
from zndraw_joblib.server.http.requests import BODY, DisconnectWatcher, Omissible
from zndraw_joblib.server.http.routing import (
    JsonResponse,
    Minimal,
    NamedJob,
    Paging,
    Parameter,
    Wait,
    claim_id_of,
    item_key,
    json_response,
    key_of,
    serves,
)
from zndraw_joblib.server.process.ports import Identity, RequestKey
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_details,
    rules_groups,
    rules_history,
    rules_successors,
    rules_task_actions,
    rules_tasks,
    rules_transitions,
)
from zndraw_joblib.server.queue.rules_idempotency import TASK, Repeat, once
from zndraw_joblib.server.queue.rules_tasks import Report, Submission, has_body
from zndraw_joblib.server.runtime.problem_responses import MAX_LISTED_ERRORS, as_problem, prefixed
from zndraw_joblib.server.runtime.runtime import Runtime, SubmitAll
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.bodies import Tag
from zndraw_joblib.wire.messages import (
    MAX_JSON_BYTES,
    BatchReportRequest,
    BatchSubmitRequest,
    EmptyReason,
    TaskActionRequest,
    TaskClaimRequest,
    TaskResponse,
    TaskSubmitRequest,
    TaskToSubmit,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import INTERNAL, JobName, parse_job_name
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.problems import (
    DuplicateTask,
    Forbidden,
    InvalidPayload,
    ProblemException,
    TaskNotFound,
)
from zndraw_joblib.wire.progress import MAX_LINE_NUMBER, MAX_LOG_LINES
from zndraw_joblib.wire.scopes import Scope
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

# The trace context of a submit: the header `traceparent`, or a span of OpenTelemetry.

_HEADER = traces.TRACEPARENT.encode()


def _read_traceparent(request: Request) -> str | None:
    values = [value for name, value in request.scope["headers"] if name == _HEADER]
    return traces.parse_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None


_TRACEPARENT = Annotated[
    Omissible[str],
    Header(
        description="The trace context of the submit (W3C Trace Context), kept with the task for its "
        "workers. An invalid one is ignored."
    ),
]
Traceparent = Annotated[
    str | None, Parameter(_read_traceparent, header=_HEADER, traceparent=(_TRACEPARENT, None))
]


def submit_span(
    request: Request, traceparent: str | None, job: JobName | None, count: int | None = None
) -> AbstractContextManager[str | None]:
    """Return a block that submits tasks, which gets the trace context to keep with them.

    If the request has a span, because OpenTelemetry follows it, that is the context of a new span in it;
    otherwise it is the header's. `job` is None for a batch of several jobs, `count` the size of a batch.
    """
    return _span(request, job, count) if traces.has_current_span() else nullcontext(traceparent)


@contextmanager
def _span(request: Request, job: JobName | None, count: int | None) -> Iterator[str | None]:
    about = {"messaging.operation.type": "send", "messaging.operation.name": "submit"}
    about |= {} if job is None else {"messaging.destination.name": str(job)}
    sizes = {} if count is None else {"messaging.batch.message_count": count}
    name = "submit" if job is None else f"submit {job}"
    provider = tracer_provider(request.app)
    span = traces.start_span(name, "PRODUCER", about | sizes, provider=provider)
    if span is None:
        yield traces.current_traceparent()
        return
    try:
        with span.active():
            yield span.traceparent
    except BaseException as error:
        span.end(str(error) or type(error).__name__)
        raise
    span.end()


# Endpoints of tasks.


TASK_PATH = PREFIX + ops.GET_TASK.path(task_id="")
Number = Annotated[int, Query(ge=0, le=MAX_LINE_NUMBER)]


# The response to a submit contains a longer payload as it was encoded for the database.
_MIN_ENCODED_CHARACTERS = 1_000


@serves(
    ops.SUBMIT_TASK,
    responses={200: {"model": TaskResponse, "description": "The task that holds the unique key already"}},
)
async def submit_task(  # noqa: PLR0913 - one parameter each
    request: Request,
    queue: QueueState,
    caller: Identity,
    room_id: str,
    name: NamedJob,
    *,
    body: TaskSubmitRequest,
    key: RequestKey | None,
    traceparent: Traceparent,
) -> Response:
    """Submit a task of a job. The payload must fit the job's schema."""
    check_job(caller, name)
    _set_parent(caller, body)
    encoded = rules_transitions.check_size("payload", body.payload)
    rules_successors.check_ids(body.after)
    if body.parent is not None or body.after is not None:
        for refusal in (await _unreadable(request, caller, _related(room_id, body))).values():
            raise refusal
    async with queue.runtime.take_submits(caller.id, [key]) as tokens:
        with submit_span(request, traceparent, name) as trace:
            item = queue.runtime.submission(caller, room_id, name, body, key, trace)
            item.payload_json = encoded
            with _naming_payload(body):
                if name.room_id == INTERNAL:
                    task = await queue.dispatcher.submit(item)
                else:
                    answer = await queue.runtime.submit(item)
                    task = answer.result if isinstance(answer, Repeat) else answer
    headers = {"Location": f"{queue.prefix}{TASK_PATH}{task.id}", "Retry-After": "1", **tokens.headers}
    if task.duplicate:
        await check_duplicate(request, caller, room_id, task, body.payload)
        return json_response(task, 200, headers)
    if task.payload is not body.payload or len(encoded) < _MIN_ENCODED_CHARACTERS:
        return json_response(task, 202, headers)
    response = to_json(rules_answers.changed(task, payload={}), by_alias=True)
    content = response.replace(b'"payload":{}', b'"payload":%b' % encoded.encode(), 1)
    return JsonResponse(content, 202, headers)


@contextmanager
def _naming_payload(body: TaskSubmitRequest) -> Iterator[None]:
    """Say in the refusal of a payload that the body has none: its fields may stand beside it."""
    try:
        yield
    except InvalidPayload as problem:
        if "payload" in body.model_fields_set:
            raise
        detail = f'{problem}. The body has no field "payload", which holds the fields of the job'
        raise InvalidPayload(detail, **(problem.problem.model_extra or {})) from None


def _set_parent(caller: Identity, task: TaskSubmitRequest) -> None:
    """Make a task that is submitted with the token of a task its child. Raises `Forbidden` for others."""
    if caller.task is None:
        return
    if task.parent not in {None, caller.task.id}:
        raise Forbidden(
            f"Not authorized: parent: the token is of task {caller.task.id}, which is the parent of what it "
            "submits. Leave out parent"
        )
    task.parent = caller.task.id


def _with_parents(caller: Identity, batch: BatchSubmitRequest) -> Sequence[TaskToSubmit]:
    """Return the tasks of a batch; those that are submitted with the token of a task are its children."""
    for task in batch.tasks if caller.task is not None else ():
        _set_parent(caller, task)
    return batch.tasks


def _related(room_id: str, task: TaskSubmitRequest) -> list[tuple[str, UUID]]:
    """Return the parent and the predecessors of a task to submit, with its room."""
    ids = [] if task.parent is None else [task.parent]
    if task.after is not None:
        ids += [*(entry for entry in task.after.tasks if isinstance(entry, UUID)), *task.after.groups]
    return [(room_id, id_) for id_ in ids]


async def _unreadable(
    request: Request, caller: Identity, related: Iterable[tuple[str, UUID]]
) -> dict[tuple[str, UUID], Exception]:
    """Return why the caller may not read parents or predecessors of tasks to submit: by their rooms and ids.

    The guard runs once for each room; a worker may also name the tasks that it runs. A caller without the
    scope `read` names what it has made itself: a submit may put the result of a predecessor into its payload.
    """
    refusals: dict[str, Exception] = {}
    distinct = list(dict.fromkeys(related))
    if caller.task is not None:
        others = await unrelated(request, caller, {id_ for _, id_ in distinct})
        refusal = partial(rules_transitions.other_task, caller, kind="task or group")
        return {(room, id_): refusal(id_) for room, id_ in distinct if id_ in others}
    for room_id in dict.fromkeys(room_id for room_id, _ in distinct):
        try:
            await check_readable(request, room_id)
        except (ProblemException, HTTPException) as error:
            refusals[room_id] = as_problem(error)
    refused = {(room_id, id_): refusals[room_id] for room_id, id_ in distinct if room_id in refusals}
    queue = queue_state(request)
    if distinct and not caller.sees(None):
        read, missing = queue.runtime.database.read_short, rules_transitions.missing_scope(caller, Scope.READ)
        made = await read(rules_successors.made_by, caller.id, {id_ for _, id_ in distinct})
        refused = {pair: missing for pair in distinct if pair[1] not in made} | refused
    own_tasks = queue.worker_rooms.own_tasks
    own = await own_tasks(request, caller, {id_ for _, id_ in refused}) if refused else ()
    return {pair: refusal for pair, refusal in refused.items() if pair[1] not in own}


# Other answers of a guard are a fault of it, or a state of the room.
_REFUSALS = {401, 403, 404}


async def check_duplicate(
    request: Request, caller: Identity, room_id: str, task: TaskResponse, payload: Any
) -> None:
    """Raise `DuplicateTask` if the task that holds a submit's key is one that the caller may not read."""
    # A submit may have replaced the payload.
    is_known = task.status is TaskStatus.PENDING and task.payload == payload
    if not (is_known or caller.sees(task.created_by)):
        raise DuplicateTask(
            f"Task {task.id} of another user holds the unique key, and the caller has no right to read it",
            task_id=str(task.id),
        )
    if task.room_id != room_id or caller.task is not None:
        try:
            await check_task_readable(request, caller, task.id, task.room_id)
        except (ProblemException, HTTPException) as error:
            if as_problem(error).problem.status not in _REFUSALS:
                raise
            raise DuplicateTask(
                f"Task {task.id} of another room, which you may not read, holds the unique key",
                task_id=str(task.id),
            ) from error


@serves(ops.CLAIM_TASK)
async def claim_task(
    request: Request,
    queue: QueueState,
    caller: Identity,
    body: TaskClaimRequest,
    wait: Wait,
    key: RequestKey | None,
) -> Response:
    """Claim the oldest pending tasks of the worker's jobs; with ``Prefer: wait=N``, wait for the first.

    Jobs of rooms to which the caller may no longer write are left out; if no others are left, the response
    is the refusal of the room.
    """
    runtime = queue.runtime
    refused_rooms = partial(queue.worker_rooms.refused_jobs, request, caller, body.worker_id)
    access = access_of(request, caller, refused_rooms=refused_rooms)
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    headers = {}
    body.claim_id = claim_id_of(body.claim_id, key)
    if wait <= 0:
        response = await runtime.claim(caller, body, access=access)
    else:
        async with DisconnectWatcher(request) as watcher:
            response = await runtime.claim(caller, body, wait, watcher.disconnected, access)
        headers["Preference-Applied"] = f"wait={ceil(wait)}"
    if body.tokens:
        claimed = response.tasks or filter(None, [response.task])
        await runtime.task_tokens.add(caller, claimed, body.token_seconds)
    if response.reason not in {None, EmptyReason.EMPTY}:
        headers["Retry-After"] = "1"
    return json_response(response, headers=headers, exclude={"tasks" if body.max is None else "task"})


@serves(ops.GET_TASK)
async def get_task(
    request: Request, runtime: Runtime, caller: Identity, task_id: UUID, wait: Wait
) -> Response:
    """Return a task; with ``Prefer: wait=N``, wait for its end."""
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    # The token of a task reads what the worker got with the claim.
    is_own = caller.task is not None and caller.task.id == task_id
    task = await runtime.get_task(task_id, with_position=wait <= 0, reveal=is_own)
    await check_task_readable(request, caller, task_id, task.room_id)
    if wait <= 0 or task.status in TERMINAL:
        return json_response(task)

    async def recheck(copy: Request) -> None:
        await check_task_readable(copy, caller, task_id, task.room_id)

    access = access_of(request, caller, recheck)
    async with DisconnectWatcher(request) as watcher:
        task = await runtime.get_task(task_id, wait, watcher.disconnected, access)
    return json_response(task, headers={"Preference-Applied": f"wait={ceil(wait)}"})


@serves(ops.GET_TASK_HISTORY)
async def get_task_history(request: Request, runtime: Runtime, caller: Identity, task_id: UUID) -> Response:
    """List all transitions of a task, and the details of its last 20 attempts, oldest first."""
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(rules_history.history, task_id=task_id))


@serves(ops.GET_TASK_LOG)
async def get_task_log(  # noqa: PLR0913 - one parameter each
    request: Request,
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    *,
    attempt: Omissible[Number] = None,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LOG_LINES)] = MAX_LOG_LINES,
) -> Response:
    """Return lines of the log of an attempt, by default the current or last one, oldest first.

    The lines after the number `after`: at most `limit`, and about 1 MiB.
    """
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(rules_details.log, task_id, attempt, after, limit))


@serves(ops.EXPLAIN_TASK)
async def explain_task(request: Request, runtime: Runtime, caller: Identity, task_id: UUID) -> Response:
    """Explain why a task is pending, or which worker holds it; the most important reason first."""
    await _check_readable(request, runtime, caller, task_id)
    return json_response(await runtime.database.read(rules_history.explain, task_id, runtime.order))


async def _check_readable(request: Request, runtime: Runtime, caller: Identity, task_id: UUID) -> None:
    task = await runtime.get_task(task_id, with_position=False)
    await check_task_readable(request, caller, task_id, task.room_id)


@serves(ops.RELEASE_TASK)
async def release_task(
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    key: RequestKey | None,
    body: TaskActionRequest | None = None,
) -> Response:
    """Put a held task back into its queue without counting a failure. Its worker or a superuser may do so."""
    return await _act(runtime, caller, task_id, body, key, rules_task_actions.release)


@serves(ops.RETRY_TASK)
async def retry_task(
    request: Request,
    queue: QueueState,
    caller: Identity,
    task_id: UUID,
    key: RequestKey | None,
    body: TaskActionRequest | None = None,
) -> Response:
    """Put a failed or cancelled task into its queue again.

    Its submitter, who must be able to write to its room as for a submit, or a superuser may do so.
    """
    await _check_may_resubmit(request, queue, caller, task_id)
    await queue.runtime.stored.take(queue.runtime.stored.pending_tasks, caller.id, [key])
    return await _act(queue.runtime, caller, task_id, body, key, rules_task_actions.retry)


@serves(ops.RUN_TASK_NOW)
async def run_task_now(
    request: Request,
    queue: QueueState,
    caller: Identity,
    task_id: UUID,
    key: RequestKey | None,
    body: TaskActionRequest | None = None,
) -> Response:
    """Put a task with a delay, a `run_at` or a pause before its next attempt into its queue now.

    A task that is in its queue already stays there. Its submitter, who must be able to write to its room as
    for a submit, or a superuser may do so.
    """
    await _check_may_resubmit(request, queue, caller, task_id)
    work = partial(rules_task_actions.run_now, validate=queue.runtime.settings.validate_payload)
    return await _act(queue.runtime, caller, task_id, body, key, work)


async def _check_may_resubmit(request: Request, queue: QueueState, caller: Identity, task_id: UUID) -> None:
    if caller.is_superuser:
        return
    if caller.rooms is not None or queue.guards.has(request, verify_writable_room):
        room_id = (await queue.runtime.get_task(task_id, with_position=False)).room_id
        if not caller.is_in(room_id):
            raise TaskNotFound(f"Task {task_id} not found")
        await queue.guards.check(request, verify_writable_room, room_id)


@serves(ops.FAIL_TASK)
async def fail_task(
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    key: RequestKey | None,
    body: TaskActionRequest | None = None,
) -> Response:
    """Fail a task that has not ended, also while a worker holds it. Superusers only."""
    return await _act(runtime, caller, task_id, body, key, rules_task_actions.fail)


async def _act(
    runtime: Runtime,
    caller: Identity,
    task_id: UUID,
    body: TaskActionRequest | None,
    key: RequestKey | None,
    work: rules_task_actions.TaskAction,
) -> Response:
    task = await runtime.write(once(key, TASK, work), caller, task_id, body or TaskActionRequest())
    return json_response(task)


@serves(ops.UPDATE_TASK)
async def update_task(
    request: Request,
    queue: QueueState,
    caller: Identity,
    task_id: UUID,
    body: TaskUpdateRequest,
    key: RequestKey | None,
) -> Response:
    """Report on a task, or cancel it. A repeated report changes nothing."""
    rules_transitions.check_size("result", body.result)
    _set_attempt(caller, body, task_id)
    # The batch of reports knows no request.
    request_id = fields_here.get().get("request_id")
    report = rules_tasks.Report(caller, task_id, body, key, request_id=request_id)
    refusals = await queue.worker_rooms.refused_reports(request, caller, [report])
    if refusals:
        raise refusals[task_id]
    task = await (queue.runtime.cancel_tree if body.tree else queue.runtime.report)(report)
    return json_response(task)


def _set_attempt(
    caller: Identity, update: TaskUpdateRequest, task_id: UUID, foreign: Collection[UUID] = ()
) -> None:
    """Let a report with the token of a task count for this attempt alone.

    Raises `Forbidden` for other tasks, except that it may cancel those below its own; `foreign` are not.
    """
    if caller.task is not None:
        if task_id != caller.task.id:
            if task_id in foreign or update.status != TaskStatus.CANCELLED:
                raise rules_transitions.not_below(caller, task_id)
        elif update.attempt is None:
            update.attempt = caller.task.attempt


@serves(ops.LIST_TASKS)
async def list_tasks(  # noqa: PLR0913 - one parameter each
    runtime: Runtime,
    caller: Identity,
    room_id: str,
    page: Paging,
    status: Omissible[TaskStatus] = None,
    *,
    tag: Omissible[Annotated[Tag, Query(description="A tag of the tasks.")]] = None,
    parent: Omissible[Annotated[UUID, Query(description="The task that has submitted them.")]] = None,
    root: Omissible[Annotated[UUID, Query(description="The first task of their tree.")]] = None,
) -> Response:
    """List a room's tasks, newest first.

    With `tag`, `parent` or `root`, `total` is at most 10,000. Of one status, or with several of these, the
    newest 10,000 tasks are looked at; `GET /tasks` reads all of them, in parts.
    """
    read = partial(
        rules_tasks.page, room_id=room_id, status=status, part=page, tag=tag, parent=parent, root=root
    )
    return json_response(await runtime.database.read(read))


# Endpoints that submit many tasks, or report on many, in one request.


Outcome = TaskResponse | Exception
# No value in a body of this size is larger than 1 MiB: a number may grow from 4 to 18 bytes.
_MAX_SURELY_SMALL = MAX_JSON_BYTES // 8


@serves(ops.SUBMIT_TASKS)
async def submit_tasks(  # noqa: PLR0913 - one parameter each
    request: Request,
    queue: QueueState,
    caller: Identity,
    body: BatchSubmitRequest,
    *,
    minimal: Minimal,
    key: RequestKey | None,
    traceparent: Traceparent,
) -> Response:
    """Submit up to 1,000 tasks; the response has a result or a problem for each, in order.

    A body with a malformed item is refused as a whole. With `atomic` or `group`, all are submitted or none.
    """
    rooms = await _writable_rooms(request, queue, _with_parents(caller, body))
    jobs = {name: _job_name(name, caller) for name in {task.job_name for task in body.tasks}}
    unreadable = await _unreadable(request, caller, _all_related(body.tasks, rooms))
    may_be_large = len(request.scope[BODY]) > _MAX_SURELY_SMALL
    only = next((job for job in jobs.values() if len(jobs) == 1 and isinstance(job, JobName)), None)
    keys = [key] if body.atomic else _item_keys(request, body.tasks, key)
    async with queue.runtime.take_submits(caller.id, keys, len(body.tasks)) as tokens:
        with submit_span(request, traceparent, only, len(body.tasks)) as trace:
            items = list[Submission | Exception]()
            for index, task in enumerate(body.tasks):
                room, job = rooms[task.room_id], jobs[task.job_name]
                if isinstance(room, Exception):
                    items.append(room)
                elif isinstance(job, Exception):
                    items.append(job)
                elif problem := unreadable and _refused(room, task, unreadable):
                    items.append(problem)
                else:
                    item = queue.runtime.submission(
                        *(caller, room, job, task), None if body.atomic else keys[index], trace
                    )
                    items.append(_encoded(item) if may_be_large else item)
            outcomes = await _submit(request, queue, caller, body, items, key)
        tokens.accepted = tokens.count and sum(isinstance(each, TaskResponse) for each in outcomes)
    if any(task.unique is not None for task in body.tasks):
        outcomes = [
            await _readable(request, caller, task, outcome)
            for task, outcome in zip(body.tasks, outcomes, strict=True)
        ]
    respond = partial(_response, has_group=body.group is not None, more_headers=tokens.headers)
    return respond(outcomes, 202, queue.prefix, is_minimal=minimal)


def _item_keys(
    request: Request, tasks: Sequence[TaskToSubmit], key: RequestKey | None
) -> list[RequestKey | None]:
    return [
        item_key(key, index)
        if task.idempotency_key is None
        else key_of(request, task.idempotency_key, task.model_dump_json(exclude_unset=True).encode())
        for index, task in enumerate(tasks)
    ]


def _all_related(
    tasks: Sequence[TaskToSubmit], rooms: Mapping[str, str | Exception]
) -> Iterator[tuple[str, UUID]]:
    for task in tasks:
        if task.parent is None and task.after is None:
            continue
        if isinstance(room := rooms[task.room_id], str):
            yield from _related(room, task)


def _refused(
    room: str, task: TaskToSubmit, unreadable: Mapping[tuple[str, UUID], Exception]
) -> Exception | None:
    return next((unreadable[pair] for pair in _related(room, task) if pair in unreadable), None)


async def _readable(request: Request, caller: Identity, task: TaskToSubmit, outcome: Outcome) -> Outcome:
    """Return the outcome of a submit, or its refusal if it is a task that the caller may not read."""
    if isinstance(outcome, TaskResponse) and outcome.duplicate:
        try:
            await check_duplicate(request, caller, task.room_id, outcome, task.payload)
        except (ProblemException, HTTPException) as problem:
            return problem
    return outcome


async def _submit(
    request: Request,
    queue: QueueState,
    caller: Identity,
    body: BatchSubmitRequest,
    items: Sequence[Submission | Exception],
    key: RequestKey | None,
) -> Sequence[Outcome]:
    submissions = [item for item in items if isinstance(item, Submission)]
    if body.atomic:
        for index, item in enumerate(items):
            if isinstance(item, ProblemException):
                raise rules_transitions.at_item(item, "tasks", index)
        work: SubmitAll = rules_tasks.submit_all
        if body.group is not None:
            room_id = await queue.guards.resolve(request, verify_writable_room, body.group.room)
            group = await checked_group(queue, caller, room_id, body.group)
            work = partial(rules_groups.submit_all, new=group, sealed=body.group.sealed)
        return await queue.dispatcher.submit_all(submissions, key, work)
    tasks = iter(await queue.dispatcher.submit_many(submissions))
    return [item if isinstance(item, Exception) else next(tasks) for item in items]


@serves(ops.REPORT_TASKS)
async def report_tasks(
    request: Request,
    queue: QueueState,
    caller: Identity,
    body: BatchReportRequest,
    minimal: Minimal,
    key: RequestKey | None,
) -> Response:
    """Report on up to 1,000 tasks; the response has a result or a problem for each, in order.

    A body with a malformed item is refused as a whole. The payloads and results in the response have at most
    8 MiB in all; the result of an item beyond has only its status and id.
    """
    items: list[Report | Exception] = []
    own = None if caller.task is None else caller.task.id
    foreign = await not_below(request, caller, {update.id for update in body.reports} - {own})
    for index, update in enumerate(body.reports):
        if update.worker_id is None:
            update.worker_id = body.worker_id
        try:
            rules_transitions.check_size("result", update.result)
            _set_attempt(caller, update, update.id, foreign)
        except ProblemException as problem:
            items.append(problem)
        else:
            items.append(Report(caller, update.id, update, item_key(key, index), wants_body=False))
    reports = [item for item in items if isinstance(item, Report)]
    if refusals := await queue.worker_rooms.refused_reports(request, caller, reports):
        items = [refusals.get(item.task_id, item) if isinstance(item, Report) else item for item in items]
        reports = [item for item in items if isinstance(item, Report)]
    tasks = iter(await queue.runtime.report_many(reports, bodies=not minimal))
    outcomes = [item if isinstance(item, Exception) else next(tasks) for item in items]
    for index, item in enumerate(items):
        if isinstance(item, Report) and item.update.tree:
            outcomes[index] = await _cancel_tree(queue, item, outcomes[index])
    return _response(outcomes, 200, queue.prefix, is_minimal=minimal)


async def _cancel_tree(queue: QueueState, item: Report, outcome: Outcome) -> Outcome:
    """Cancel the tasks below one that was reported. Return the outcome of its report."""
    try:
        return await queue.runtime.cancel_below(item, outcome)
    except ProblemException as problem:
        return problem


async def _writable_rooms(
    request: Request, queue: QueueState, tasks: Sequence[TaskToSubmit]
) -> dict[str, str | Exception]:
    """Return each room after the guards have passed, or the problem of a room that they refuse."""
    rooms: dict[str, str | Exception] = {}
    for room_id in dict.fromkeys(task.room_id for task in tasks):
        try:
            rooms[room_id] = await queue.guards.resolve(request, verify_writable_room, room_id)
        except (ProblemException, HTTPException, RequestValidationError) as error:
            rooms[room_id] = as_problem(error)
    return rooms


def _job_name(full_name: str, caller: Identity) -> JobName | ProblemException:
    try:
        name = parse_job_name(full_name)
        check_job(caller, name)
    except ProblemException as problem:
        return problem
    return name


def _encoded(item: Submission) -> Submission | ProblemException:
    """Encode the payload once, to check its size and to store it. Return the problem of a large one."""
    try:
        item.payload_json = rules_transitions.check_size("payload", item.payload)
    except ProblemException as problem:
        return problem
    return item


def _response(
    outcomes: Sequence[Outcome],
    status: int,
    prefix: str,
    *,
    is_minimal: bool,
    more_headers: Mapping[str, str] = MappingProxyType({}),
    has_group: bool = False,
) -> Response:
    results = [_result(outcome, status, prefix, is_minimal=is_minimal) for outcome in outcomes]
    _cut_errors(results)
    headers = {"Preference-Applied": "return=minimal"} if is_minimal else {}
    body: dict[str, Any] = {"results": results}
    if has_group and isinstance(outcomes[0], TaskResponse):
        body["group"] = outcomes[0].group
    return JsonResponse(to_json(body), 200, {**headers, **more_headers})


def _cut_errors(results: Sequence[dict[str, Any]]) -> None:
    """Keep as many errors of all problems as one answer lists, and the first one of each problem."""
    remaining = MAX_LISTED_ERRORS
    for result in results:
        errors: list[Any] = result.get("problem", {}).get("errors", [])
        del errors[max(1, remaining) :]
        remaining -= len(errors)


def _result(outcome: Outcome, status: int, prefix: str, *, is_minimal: bool) -> dict[str, Any]:
    """Return a `BatchResult` without the fields that it does not have."""
    if isinstance(outcome, Exception):
        problem = prefixed(as_problem(outcome).problem, prefix)
        return {"status": problem.status, "problem": problem.model_dump(exclude_none=True)}
    result: dict[str, Any] = {"status": 200 if outcome.duplicate else status, "id": outcome.id}
    if outcome.waits:
        result["waits"] = True
    return result if is_minimal or not has_body(outcome) else {**result, "task": outcome}
