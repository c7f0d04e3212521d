"""The store of task results in a bucket of S3, or of a service with its API."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from zndraw_joblib.jobs.failures import missing_extra
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
        content = _Content(chunks)
        first = await content.first()
        try:
            with _explained():
                if content.is_short:
                    async with asyncio.timeout(_SHORT_SECONDS):
                        await obstore.put_async(self._bucket, _name(key), first, use_multipart=False)
                    return
                await obstore.put_async(
                    self._bucket,
                    _name(key),
                    content.parts(),
                    chunk_size=_UPLOAD_PART_BYTES,
                    max_concurrency=_UPLOADS_AT_ONCE,
                )
        except Exception:
            if content.error is not None:  # of the upload, not of the bucket
                raise content.error from None
            raise

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


class _Content:
    """The chunks of an upload, and the error that ended them."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._parts = rechunk(chunks)
        self._first: list[bytes] = []
        self.is_short = False
        self.error: BaseException | None = None

    async def first(self) -> bytes:
        """Return the content, if it fits into one request."""
        size = 0
        async for part in self._parts:
            self._first.append(part)
            size += len(part)
            if size >= _UPLOAD_PART_BYTES:
                return b""
        self.is_short = True
        return b"".join(self._first)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the whole content."""
        try:
            for part in self._first:
                yield part
            self._first = []
            async for part in self._parts:
                yield part
        except BaseException as error:
            self.error = error
            raise


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
