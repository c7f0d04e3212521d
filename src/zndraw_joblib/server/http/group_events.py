"""Operations of the event stream of a group, as Server-Sent Events or as JSON."""

import asyncio
import time
from math import ceil
from typing import Any
from uuid import UUID

from fastapi import Request, Response
from starlette.types import Receive, Send

from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.events import (
    EventStream,
    GroupAccess,
    Position,
    StreamAccess,
    Subscription,
    WantsStream,
    wait_for_disconnect,
)
from zndraw_joblib.server.http.requests import DisconnectWatcher, event_stream
from zndraw_joblib.server.http.routing import Wait, json_response, serves
from zndraw_joblib.server.realtime.group_streams import GroupReader, GroupState
from zndraw_joblib.server.realtime.streams import KEEPALIVE_COMMENT, format_sse_event
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupCounts, GroupEvents
from zndraw_joblib.wire.problems import Unauthorized

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The stream, or with `Accept: application/json` the group, if it has changed",
        "content": event_stream(
            "Server-Sent Events. `snapshot`: the `GroupResponse`, first. `counts`: a `GroupCounts`, when it "
            "has changed, at most four times a second. `end`: the `GroupResponse`; the group has ended, and "
            "the stream closes. A comment every 15 s keeps the connection open."
        ),
    }
}


@serves(ops.FOLLOW_GROUP, responses=_STREAM)
async def follow_group(
    request: Request,
    queue: QueueState,
    access: GroupAccess,
    after: Position,
    is_stream: WantsStream,
    wait: Wait,
) -> Response:
    """Return a group and how it changes: a stream with ``Accept: text/event-stream``, else JSON.

    As JSON it is the group, unless its state is that of ``after``; with ``Prefer: wait=N``, wait for another.
    """
    group_id = access.group_id
    assert group_id is not None  # noqa: S101 - it is in the path
    if is_stream:
        subscription = Subscription(
            *(access.caller, access.room_id, None, after, access.is_allowed, access.max_seconds)
        )
        return GroupStream(queue, subscription, group_id)
    wait = min(wait, queue.runtime.settings.long_poll_max_wait_seconds)
    headers = {"Preference-Applied": f"wait={ceil(wait)}"} if wait > 0 else None
    return json_response(await _events(request, queue, access, group_id, after, wait), headers=headers)


async def _events(
    request: Request, queue: QueueState, access: StreamAccess, group_id: UUID, after: int | None, wait: float
) -> GroupEvents:
    if after is None or wait <= 0:
        state = await queue.group_streams.read(group_id)
        return _changes(state, after)
    async with queue.group_streams.reader(access.caller, group_id, after) as reader:
        async with DisconnectWatcher(request) as watcher:
            if watcher.disconnected is not None:
                watcher.disconnected.add_done_callback(reader.close)
            new = await reader.next(wait)
        if not await access.is_allowed():
            raise Unauthorized("The caller's access has ended while the request waited")
    return GroupEvents(next=after) if new is None else _changes(new, after)


def _changes(state: GroupState, after: int | None) -> GroupEvents:
    is_known = state.n == after and not state.has_ended
    return GroupEvents.model_construct(
        group=None if is_known else state.group, next=state.n, ended=state.has_ended
    )


class GroupStream(EventStream):
    """Sends the state of a group, unless the client has it, and then each change until the end."""

    def __init__(self, queue: QueueState, subscription: Subscription, group_id: UUID) -> None:
        super().__init__(queue, subscription)
        self._group_id = group_id

    async def _serve(self, receive: Receive, send: Send) -> None:
        caller, after = self._subscription.caller, self._subscription.after
        async with self._queue.group_streams.reader(caller, self._group_id, after) as reader:
            disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
            disconnect.add_done_callback(reader.close)
            try:
                await self._start(send)
                await self._send_states(reader, send)
                if not disconnect.done():
                    await self._send(send, b"", more_body=False)
            finally:
                disconnect.cancel()

    async def _send_states(self, reader: GroupReader, send: Send) -> None:
        opened = checked = time.monotonic()
        kind = "snapshot"
        while not reader.is_closed:
            state = await reader.next(self.idle_seconds)
            now = time.monotonic()
            if now >= checked + self._queue.trusted_seconds:
                checked = now
                if not await self.may_continue(now - opened):
                    return
            if reader.is_closed:
                return
            if state is None:
                await self._send(send, KEEPALIVE_COMMENT)
                continue
            await self._send(send, _event("end" if state.has_ended else kind, state))
            if state.has_ended:
                return
            kind = "counts"


def _event(kind: str, state: GroupState) -> bytes:
    group = state.group
    body = (
        GroupCounts(sealed=group.sealed, total=group.total, counts=group.counts, progress=group.progress)
        if kind == "counts"
        else group
    )
    return format_sse_event(event=kind, data_str=body.model_dump_json(), id=str(state.n))
