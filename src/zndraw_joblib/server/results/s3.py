"""The store of task results in a bucket of S3, or of a service with its API."""

import asyncio
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from zndraw_joblib.jobs.failures import missing_extra
from zndraw_joblib.jobs.logs import create_shared_task
from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.server.results.stores import rechunk, stream
from zndraw_joblib.wire.problems import ServiceUnavailable

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store as Bucket
except ImportError as missing:
    raise ImportError(missing_extra("task_result_backend 's3'", "s3", missing)) from missing

logger = logging.getLogger(__name__)
# A larger value is sent in parts of this size, two at a time. S3 takes at most 10,000 parts.
_UPLOAD_PART_BYTES = 8 * 1024 * 1024
_UPLOADS_AT_ONCE = 2
_READ_SECONDS, _CONNECT_SECONDS, _RETRY_SECONDS = 20, 5, 15
# A reader may take its time; the limit of each read ends a request that makes no progress.
_REQUEST_SECONDS = 24 * 3600
# Of a request that carries no content.
_SHORT_SECONDS = 45.0
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class S3Store:
    """A `ContentStore` in a bucket, ``s3://bucket/prefix``, for all servers of a database.

    Credentials, region and endpoint are those of the environment (``AWS_…``). An object is visible after its
    last byte has come. S3 may keep the parts of an upload whose server was killed: a rule of the bucket
    deletes them.
    """

    def __init__(self, url: str) -> None:
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
        options: Any = {
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=_READ_SECONDS),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
            "allow_http": endpoint.startswith("http://"),
        }
        retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        self._bucket = Bucket.from_url(url, client_options=options, retry_config=retry)

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a new key. `ttl` has no effect: objects stay until they are deleted."""
        parts = rechunk(chunks)
        first = [part async for part in _until(parts, _UPLOAD_PART_BYTES)]
        if sum(map(len, first)) >= _UPLOAD_PART_BYTES:
            await self._store_in_parts(key, first, parts)
            return
        with _explained():
            async with asyncio.timeout(_SHORT_SECONDS):
                await obstore.put_async(self._bucket, _name(key), b"".join(first), use_multipart=False)

    async def _store_in_parts(self, key: str, first: list[bytes], rest: AsyncIterator[bytes]) -> None:
        """Store the content with several requests, and let S3 drop its parts if it ends early.

        The request that sends the content reads it here, so its end is raised here. Obstore tells S3 to drop
        the parts after an error of what it reads, not after it was cancelled.
        """
        handover = _Handover()
        sending = create_shared_task(self._send(key, handover))
        sending.add_done_callback(handover.stop)
        try:
            for part in first:
                await handover.send(part)
            async for part in rest:
                if sending.done():
                    break
                await handover.send(part)
            handover.end()
            with _explained():
                await asyncio.shield(sending)
        except BaseException:
            handover.end(_Dropped())
            await asyncio.wait([create_shared_task(self._drop(key, sending))], timeout=_SHORT_SECONDS)
            raise

    async def _send(self, key: str, parts: AsyncIterable[bytes]) -> None:
        await obstore.put_async(
            self._bucket,
            _name(key),
            aiter(parts),
            chunk_size=_UPLOAD_PART_BYTES,
            max_concurrency=_UPLOADS_AT_ONCE,
        )

    async def _drop(self, key: str, sending: "asyncio.Task[None]") -> None:
        """Delete the object of an upload that ended early while its last request was under way."""
        with suppress(_Dropped, BaseError, OSError):
            await sending
            await self.delete(key)

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start` on."""
        try:
            with _explained():
                async with asyncio.timeout(_SHORT_SECONDS):
                    if start:
                        size = (await obstore.head_async(self._bucket, _name(key)))["size"]
                        if start >= size:
                            return size, stream(b"")
                        result = await obstore.get_async(
                            self._bucket, _name(key), options={"range": {"offset": start}}
                        )
                    else:
                        result = await obstore.get_async(self._bucket, _name(key))
        except FileNotFoundError:
            return None
        return result.meta["size"], _read(result)

    async def delete(self, key: str) -> None:
        """Delete a value, if there is one."""
        with _explained():
            async with asyncio.timeout(_SHORT_SECONDS):
                try:
                    await obstore.delete_async(self._bucket, _name(key))
                except FileNotFoundError:  # S3 itself does not say so
                    return

    async def close(self) -> None:
        """Do nothing: the connections are of the process."""


class _Dropped(Exception):
    """The content of an upload ended early."""


class _Handover:
    """The parts of one upload, passed one at a time from the request that sends them to the bucket."""

    def __init__(self) -> None:
        self._part: bytes | None = None
        self._error: Exception | None = None
        self._has_ended = False
        self._is_filled, self._is_free = asyncio.Event(), asyncio.Event()
        self._is_free.set()

    async def send(self, part: bytes) -> None:
        """Pass a part, after the former one was taken; do nothing after `stop`."""
        await self._is_free.wait()
        if not self._has_ended:
            self._is_free.clear()
            self._part = part
            self._is_filled.set()

    def end(self, error: Exception | None = None) -> None:
        """Let the reader end after the last part; with an error, let it raise that at once."""
        self._has_ended, self._error = True, error
        self._is_filled.set()

    def stop(self, _: "asyncio.Task[None]") -> None:
        """End both sides: the reader takes no more parts."""
        self.end()
        self._is_free.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await self._is_filled.wait()
            if self._error is not None:
                raise self._error
            part, self._part = self._part, None
            if part is None:
                return
            if not self._has_ended:
                self._is_filled.clear()
            self._is_free.set()
            yield part


async def _until(parts: AsyncIterator[bytes], least: int) -> AsyncIterator[bytes]:
    """Yield parts until they have at least this number of bytes; the others stay."""
    size = 0
    while size < least and (part := await anext(parts, None)) is not None:
        size += len(part)
        yield part


def _name(key: str) -> str:
    name = key.rpartition(":")[2]
    return f"{name[:2]}/{name}"


async def _read(result: Any) -> AsyncIterator[bytes]:
    with _explained():
        async for chunk in result.stream(min_chunk_size=PART_BYTES):
            data = memoryview(chunk)
            for start in range(0, len(data), PART_BYTES):
                yield bytes(data[start : start + PART_BYTES])


@contextmanager
def _explained() -> Iterator[None]:
    """Raise `ServiceUnavailable` for errors of the bucket, whose text has the names of objects."""
    try:
        yield
    except TimeoutError as error:
        raise ServiceUnavailable(
            f"The bucket of the task results did not respond in {_SHORT_SECONDS:g} s"
        ) from error
    except (BaseError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        logger.warning("The bucket of the task results failed: %s", " ".join(str(error).split())[:500])
        raise ServiceUnavailable(
            "The bucket of the task results failed; the log of the server says why"
        ) from error
