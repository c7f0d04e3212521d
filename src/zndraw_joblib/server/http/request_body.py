"""Read the body of a request in a host's dependencies and again in the endpoint."""

import asyncio
from collections.abc import Awaitable

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from zndraw_joblib.contract.batches import MAX_BATCH_BYTES
from zndraw_joblib.contract.messages import MAX_JSON_BYTES
from zndraw_joblib.contract.problems import ContentTooLarge, UploadStalled
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.shared_limit import SharedLimit

# A body has at most one JSON value of 1 MiB and an error text. Escapes at most triple the size of a text.
MAX_BODY_BYTES = 4 * MAX_JSON_BYTES
# All requests of a process together have bodies of this size, beyond the first 64 KiB of each.
MAX_BODIES_BYTES = 256 * 1024 * 1024
_UNCOUNTED_BYTES = 64 * 1024
# A body that arrives at this rate may take longer than the time limit of a request.
_MIN_BYTES_PER_SECOND = 64 * 1024
# The key of a body that was read, in the request's scope.
BODY = "zndraw_joblib.body"
# The key of the `HeldBytes` of a large body, in the request's scope.
HELD_BYTES = "zndraw_joblib.held_bytes"


def bytes_of_bodies(settings: JobLibSettings) -> SharedLimit:
    """Return the limit of the bodies that the requests of a process have. One user may always send one."""
    return SharedLimit(
        "bytes of bodies",
        "are being received",
        lambda: MAX_BODIES_BYTES,
        lambda: max(MAX_BATCH_BYTES, settings.share_of(MAX_BODIES_BYTES)),
        (f"{MAX_BODIES_BYTES} in a server process", "max_share_per_user"),
    )


class HeldBytes:
    """The bytes of one request's body that count for a user until the end of the request."""

    __slots__ = ("_amount", "_limit", "_user")

    def __init__(self, limit: SharedLimit, user: str) -> None:
        self._limit, self._user, self._amount = limit, user, 0

    def grow(self, size: int) -> None:
        """Count a body that has `size` bytes now. Raises `ServiceUnavailable` or `TooManyRequests`."""
        more = size - _UNCOUNTED_BYTES - self._amount
        self._limit.take(self._user, more)
        self._amount += more

    def give_back(self) -> None:
        """Count the body no more."""
        self._limit.give_back(self._user, self._amount)
        self._amount = 0


async def read_body(
    request: Request, seconds: float, bodies: SharedLimit, user: str, most: int = MAX_BODY_BYTES
) -> bytes:
    """Return the body. Raises `ContentTooLarge` as soon as it has more than `most` bytes.

    Raises `UploadStalled` if it is not complete after `seconds`, and one more for each 64 KiB of it. Beyond
    the first 64 KiB it counts in `bodies` for a user; the caller gives back the `HeldBytes` of the request.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _read_in_time(request, HeldBytes(bodies, user), most, limit)
    except TimeoutError as error:
        if not limit.expired():
            raise
        # The rest of the body may never arrive, so the connection cannot be used again.
        headers = {"Connection": "close"} if request.scope.get("http_version", "").startswith("1") else {}
        raise UploadStalled(
            f"The body of the request did not arrive within {seconds:g} s and one more for each 64 KiB "
            "(setting request_timeout_seconds); send it again",
            headers=headers,
        ) from error


async def _read_in_time(request: Request, held: HeldBytes, most: int, limit: asyncio.Timeout) -> bytes:
    chunks, size, end = list[bytes](), 0, limit.when() or 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        _check_size(size, most)
        if size > _UNCOUNTED_BYTES:
            request.scope[HELD_BYTES] = held
            held.grow(size)
        if not message.get("more_body", False):
            return chunk if not chunks else b"".join([*chunks, chunk])
        chunks.append(chunk)
        limit.reschedule(end + size / _MIN_BYTES_PER_SECOND)


class Rereadable:
    """The `receive` of a request of the queue. After a reader of the body, `source` is replaced."""

    __slots__ = ("source",)

    def __init__(self, source: Receive) -> None:
        self.source = source

    def __call__(self) -> Awaitable[Message]:
        """Return the next message."""
        return self.source()


class RecordedBody:
    """A `receive` that keeps the parts of a body, at most `most` bytes, for the next reader."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._most = most
        self._size = 0
        self._parts: list[Message] = []

    async def __call__(self) -> Message:
        """Return the next message. Raises `ContentTooLarge` when the body has more than `most` bytes."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            _check_size(self._size, self._most)
            self._parts.append(message)
        return message

    def from_start(self) -> Receive:
        """Return a `receive` that repeats the parts and then continues."""
        if not self._parts:
            return self._receive
        parts = iter(self._parts)

        async def receive() -> Message:
            part = next(parts, None)
            return await self._receive() if part is None else part

        return receive


def read_again(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns a body that was read, and then continues with `receive`."""
    parts = iter((content,))

    async def receive_again() -> Message:
        part = next(parts, None)
        return await receive() if part is None else {"type": "http.request", "body": part}

    return receive_again


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ContentTooLarge(f"The body has more than {most} bytes, which is the limit; send less")
