"""The response that sends the events of a room or of a task as they happen: Server-Sent Events."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from zndraw_joblib.server.http.uvicorn_internals import abort
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.problem_responses import as_problem, problem_response
from zndraw_joblib.server.service.streams import Part
from zndraw_joblib.server.streams.follower import KEEPALIVE_COMMENT, Reader, format_sse_event
from zndraw_joblib.server.streams.streams import Streams

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
# Access that was checked longer ago is checked again before events are sent.
TRUSTED_SECONDS = 2.0
# Clients that lost the connection connect again after this time.
_RETRY = format_sse_event(retry=1000)


class Subscription(NamedTuple):
    """What a client wants to read: the events of a room or of one task, from a position on.

    `is_allowed` checks again that the caller may read them; the stream ends after `max_seconds`.
    """

    caller: Identity
    room_id: str
    task_id: UUID | None
    after: int | None
    is_allowed: Callable[[], Awaitable[bool]]
    max_seconds: float | None


class _ClientStopped(Exception):
    """The client takes no bytes."""


class EventStream(Response):
    """Sends a snapshot, or what follows the client's position, and then each new event.

    A client that does not take bytes for `send_seconds` is cut off. It may connect again, and continues
    after the last event that it got.
    """

    def __init__(self, streams: Streams, wanted: Subscription, send_seconds: float, prefix: str = "") -> None:
        self._prefix = prefix
        self.status_code, self.background = 200, None
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._own_headers = len(self.raw_headers)
        self._streams = streams
        self._wanted = wanted
        self._send_seconds = send_seconds
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the task ends, the client disconnects or the server stops."""
        try:
            await self._serve(receive, send)
        except _ClientStopped:
            await self._cut_off(scope, send)
        except Exception as error:
            if not self._has_started:
                problem = problem_response(as_problem(error), self._prefix)
                # Those that were added to this response, such as a request id.
                problem.raw_headers += self.raw_headers[self._own_headers :]
                await problem(scope, receive, send)
                return
            logger.warning("Closed an event stream; its client may connect again: %r", error)
            with suppress(_ClientStopped):
                await self._send(send, b"", more_body=False)
        if self.background is not None:
            await self.background()

    async def _serve(self, receive: Receive, send: Send) -> None:
        wanted = self._wanted
        async with self._streams.reader(wanted.caller, wanted.room_id, wanted.task_id) as reader:
            gone = asyncio.ensure_future(wait_for_disconnect(receive))
            gone.add_done_callback(reader.close)
            try:
                await self._stream(reader, send)
                if not gone.done():
                    await self._send(send, b"", more_body=False)
            finally:
                gone.cancel()

    async def _cut_off(self, scope: Scope, send: Send) -> None:
        logger.info(
            "Cut off a client that did not read its event stream for %g s (stream_send_timeout_seconds): "
            "user=%s room=%s",
            *(self._send_seconds, self._wanted.caller.id, self._wanted.room_id),
        )
        abort(scope, send)
        # Then uvicorn knows that the connection is lost, and logs no incomplete response.
        await asyncio.sleep(0)

    async def _stream(self, reader: Reader, send: Send) -> None:
        text, is_over = await self._read(reader, self._wanted.after)
        await self._start(send)
        opened = checked = time.monotonic()
        while True:
            if text:
                now = time.monotonic()
                if now >= checked + TRUSTED_SECONDS:
                    checked = now
                    if not await self._may_continue(now - opened):
                        return
                await self._send(send, text)
            text = b""  # an idle stream keeps no snapshot in memory
            if is_over or reader.is_closed:
                return
            text, is_over = await self._next(reader)

    async def _may_continue(self, seconds: float) -> bool:
        most = self._wanted.max_seconds
        return (most is None or seconds < most) and await self._wanted.is_allowed()

    async def _next(self, reader: Reader) -> tuple[bytes, bool]:
        """Return what to send next, and whether it is the end of the stream."""
        if not reader.has_new:
            await reader.wait(KEEP_ALIVE_SECONDS)
            return (b"" if reader.has_new or reader.is_closed else KEEPALIVE_COMMENT), False
        entries = reader.take()
        if entries is None:
            return await self._read(reader, reader.position)
        is_end = reader.task_id is not None and bool(entries) and entries[-1].is_end
        end = [_end(reader.position)] if is_end else []
        return b"".join([*(entry.sse for entry in entries), *end]), is_end

    async def _read(self, reader: Reader, after: int | None) -> tuple[bytes, bool]:
        return _sent(reader, await self._streams.read(reader, self._wanted.room_id, after))

    async def _start(self, send: Send) -> None:
        self._has_started = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(send, _RETRY)

    async def _send(self, send: Send, body: bytes, *, more_body: bool = True) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more_body})
        except TimeoutError:
            raise _ClientStopped from None


def _sent(reader: Reader, part: Part) -> tuple[bytes, bool]:
    """Return what a client gets of a part from the database, and whether it is the end of the stream."""
    if not part.is_last:
        reader.must_read()
    texts = []
    if part.resync is not None:
        texts.append(format_sse_event(event="resync", data_str=part.resync.model_dump_json()))
    if part.snapshot is not None:
        data = to_json(part.snapshot).decode()
        texts.append(format_sse_event(event="snapshot", data_str=data, id=str(part.next)))
    texts += [format_sse_event(data_str=item.json, event=item.kind, id=str(item.n)) for item in part.events]
    if part.ended:
        texts.append(_end(part.next))
    return b"".join(texts), part.ended


def _end(position: int) -> bytes:
    return format_sse_event(event="end", data_str=f'{{"next":{position}}}', id=str(position))


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
