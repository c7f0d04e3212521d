"""The state of the queue and of a room, with what is wrong first; the statistics of tasks."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.types import Receive, Send

from zndraw_joblib.contract.messages import Moment
from zndraw_joblib.contract.names import RESERVED, parse_job_name
from zndraw_joblib.contract.operations import Overview, RoomOverview
from zndraw_joblib.contract.problems import Forbidden, InvalidRequest
from zndraw_joblib.contract.statistics import HOUR, MINUTE, Statistics
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    Queue,
    ReadableRoom,
    Superuser,
    check_readable,
    current_superuser,
    json_response,
)
from zndraw_joblib.server.http.event_stream import (
    KEEP_ALIVE_SECONDS,
    TRUSTED_SECONDS,
    EventStream,
    Subscription,
    wait_for_disconnect,
)
from zndraw_joblib.server.http.parameters import Omissible, event_stream
from zndraw_joblib.server.http.routing import Route
from zndraw_joblib.server.http.state import QueueState
from zndraw_joblib.server.problem_responses import as_problem
from zndraw_joblib.server.service import overview, statistics
from zndraw_joblib.server.streams.follower import KEEPALIVE_COMMENT, format_sse_event

router = APIRouter(route_class=Route, tags=["overview"])
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The stream",
        "content": event_stream(
            "Server-Sent Events. `overview`: an `Overview`. A comment every 15 s keeps the connection open."
        ),
    }
}


@router.get("/overview", response_model=Overview)
async def get_overview(runtime: CurrentRuntime, caller: Superuser) -> Response:
    """Return the state of the queue: what is wrong first, with a remedy for each finding."""
    heartbeat = runtime.settings.heartbeat_seconds
    return json_response(await runtime.database.read_snapshot(overview.read, heartbeat))


@router.get("/overview/events", response_class=Response, responses=_STREAM)
async def follow_overview(request: Request, queue: Queue, caller: Superuser) -> Response:
    """Stream the state of the queue: at once, and then whenever it has changed, at most every 2 s."""

    async def is_allowed() -> bool:
        try:
            return await current_superuser(Request(dict(request.scope), _no_body)) == caller
        except Exception as error:
            if as_problem(error).problem.status < 500:
                return False
            raise

    wanted = Subscription(caller, "", None, None, is_allowed, None)
    return OverviewStream(queue, wanted, queue.runtime.settings.stream_send_timeout_seconds)


@router.get("/rooms/{room_id}/overview", response_model=RoomOverview)
async def get_room_overview(runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom) -> Response:
    """Return the state of a room. That of a reserved room is for superusers."""
    if room_id in RESERVED and not caller.is_superuser:
        raise Forbidden(f"Only a superuser may read the overview of {room_id}")
    return json_response(await runtime.database.read_snapshot(overview.read_room, room_id))


@router.get("/statistics", response_model=Statistics)
async def get_statistics(  # noqa: PLR0913 - one parameter for each field of the query
    request: Request,
    runtime: CurrentRuntime,
    caller: Caller,
    *,
    job: Annotated[Omissible[str], Query(description="room:category:name")] = None,
    resolution: Annotated[int, Query(description="60 or 3600 seconds")] = MINUTE,
    since: Annotated[Omissible[Moment], Query(description="By default 60 intervals ago.")] = None,
    until: Omissible[Moment] = None,
) -> Response:
    """Return what happened to tasks in each interval: of one job, for superusers also of all jobs.

    Others may read the statistics of the jobs of rooms that they may read, but not of reserved rooms. The
    response has at most 2,880 intervals, the newest before ``until``.
    """
    if resolution not in {MINUTE, HOUR}:
        raise InvalidRequest(f"query.resolution: it must be {MINUTE} or {HOUR}, not {resolution}")
    name = None if job is None else parse_job_name(job)
    if not caller.is_superuser:
        if name is None or name.room_id in RESERVED:
            raise Forbidden("Only a superuser may read these statistics; name a job of one of your rooms")
        await check_readable(request, name.room_id)
    read = runtime.database.read
    return json_response(await read(statistics.read, name, resolution, since, until))


class OverviewStream(EventStream):
    """Sends the overview whenever it has changed."""

    def __init__(self, queue: QueueState, wanted: Subscription, send_seconds: float) -> None:
        super().__init__(queue.streams, wanted, send_seconds)
        self._overviews = queue.overviews

    async def _serve(self, receive: Receive, send: Send) -> None:
        async with self._overviews.reader(self._wanted.caller) as reader:
            gone = asyncio.ensure_future(wait_for_disconnect(receive))
            gone.add_done_callback(reader.close)
            try:
                await self._start(send)
                checked = time.monotonic()
                while not reader.is_closed:
                    text = await reader.next(KEEP_ALIVE_SECONDS)
                    if time.monotonic() >= checked + TRUSTED_SECONDS:
                        checked = time.monotonic()
                        if not await self._wanted.is_allowed():
                            break
                    if not reader.is_closed:
                        await self._send(send, _event(text))
                if not gone.done():
                    await self._send(send, b"", more_body=False)
            finally:
                gone.cancel()


def _event(text: str | None) -> bytes:
    return KEEPALIVE_COMMENT if text is None else format_sse_event(event="overview", data_str=text)


async def _no_body() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}
