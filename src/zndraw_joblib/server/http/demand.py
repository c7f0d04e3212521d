"""The demand for workers, as autoscalers read it."""

from functools import partial
from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import ValidationError

from zndraw_joblib.server.admin import rules_demand
from zndraw_joblib.server.admin.rules_demand import Wanted
from zndraw_joblib.server.http.access import check_readable
from zndraw_joblib.server.http.admin import allowed_rooms
from zndraw_joblib.server.http.requests import Omissible
from zndraw_joblib.server.http.routing import NamedJob, Parameter, json_response, serves
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.runtime.problem_responses import invalid_part
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.names import RESERVED, JobName, parse_job_name
from zndraw_joblib.wire.operators import Demand, DemandFilter, DemandJobs, Names
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest
from zndraw_joblib.wire.requirements import AnyLabels, parsed_label
from zndraw_joblib.wire.scopes import Scope

_MAX_TEXT = 4096


def _read_labels(request: Request) -> AnyLabels:
    """Return the labels in the query; None without the parameter, which counts all workers."""
    text = request.query_params.get("labels")
    if text is None:
        return None
    if len(text) > _MAX_TEXT:
        raise InvalidRequest(f"query.labels: it has {len(text)} characters; send at most {_MAX_TEXT}")
    try:
        labels = dict(parsed_label(part) for part in text.split(",") if part.strip())
        return WorkerInfo(labels=labels).labels or {}
    except ValidationError as error:
        # The last one is of the text, which a value may be besides a number.
        text = error.errors()[-1]["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"query.labels: {text}") from error
    except ValueError as error:
        raise InvalidRequest(f"query.labels: {error}") from error


def _read_names(request: Request) -> DemandFilter:
    query = request.query_params
    try:
        return DemandFilter.model_validate({name: query.getlist(name) for name in ("job", "room")})
    except ValidationError as error:
        raise invalid_part(error, "query") from error


_LABELS = Annotated[
    Omissible[str],
    Query(
        description="The labels of a worker, like `gpu=a100,memory_gb=80`: count only tasks that it may run, "
        "and workers that have these labels. Empty: a worker without labels."
    ),
]
_JOBS = Annotated[DemandJobs, Query(description="Full names of jobs.")]
_ROOMS = Annotated[Names, Query(description="Rooms whose jobs count.")]
QueryLabels = Annotated[AnyLabels, Parameter(_read_labels, labels=(_LABELS, None))]
QueryNames = Annotated[DemandFilter, Parameter(_read_names, job=(_JOBS, []), room=(_ROOMS, []))]


@serves(ops.GET_DEMAND)
async def get_demand(
    request: Request, runtime: Runtime, caller: Identity, names: QueryNames, labels: QueryLabels
) -> Response:
    """Return how many slots of workers would run all tasks that wait or run, of these jobs or rooms.

    Callers without the scope `metrics` in all rooms name jobs or rooms that they may read.
    """
    jobs = [parse_job_name(name) for name in names.job]
    if jobs and names.room:
        raise InvalidRequest("query.room: give jobs or rooms, not both")
    for name in {name.room_id: name for name in jobs}.values():
        await _check(request, caller, name)
    rooms = names.room
    if not jobs and not _reads_all(caller):
        # A worker of `@global` gets the payloads of its tasks.
        served = [room for room in rooms if room in RESERVED and caller.serves(room)]
        others = [room for room in rooms if room not in served]
        rooms = [*served, *(await allowed_rooms(request, caller, others) if others or not served else ())]
    return await _answer(runtime, Wanted(jobs, rooms, labels))


@serves(ops.GET_JOB_DEMAND)
async def get_job_demand(
    request: Request, runtime: Runtime, caller: Identity, name: NamedJob, labels: QueryLabels
) -> Response:
    """Return how many slots of workers would run all tasks of a job that wait or run.

    A job that was forgotten has none, and is restored with the first of its tasks that waits again.
    """
    await _check(request, caller, name)
    return await _answer(runtime, Wanted([name], (), labels))


def _reads_all(caller: Identity) -> bool:
    """Return whether the caller may read figures of all rooms, as it may read the metrics."""
    return caller.is_superuser or (
        caller.scopes is not None and Scope.METRICS in caller.scopes and caller.rooms is None
    )


async def _check(request: Request, caller: Identity, name: JobName) -> None:
    """Raise `Forbidden` for a job whose room the caller may not read."""
    if _reads_all(caller):
        return
    if name.room_id in RESERVED:
        if caller.serves(name.room_id) or name.room_id in (caller.rooms or ()):
            return
        raise Forbidden(
            f"Not authorized: only superusers and tokens with the scope metrics may read the demand of {name}"
        )
    await check_readable(request, name.room_id)


async def _answer(runtime: Runtime, wanted: Wanted) -> Response:
    read = partial(rules_demand.read, heartbeat_seconds=runtime.settings.heartbeat_seconds)
    demand: Demand = await runtime.database.read_snapshot(read, wanted)
    return json_response(demand)
