"""The bytes of uploads on their way to a result backend: their limits and their ETag."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from zndraw_joblib.contract.problems import ContentTooLarge, ServiceUnavailable, UploadStalled

# Uploads under way may together have this many times the limit of one.
_MAX_UPLOADS = 4
_ETAG_LENGTH = 32


class IncomingBytes:
    """The bytes of all uploads of one kind that this server process receives.

    `limit` returns how many bytes one may have; `setting` is the name of that setting. `timeout` returns how
    many seconds one may pause.
    """

    def __init__(self, limit: Callable[[], int], setting: str, timeout: Callable[[], float]) -> None:
        self._limit = limit
        self._setting = setting
        self._timeout = timeout
        self._size = 0

    async def limited(
        self, chunks: AsyncIterator[bytes], update_digest: Callable[[bytes], None]
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of an upload, and pass each to `update_digest`.

        Raises `ContentTooLarge`, `UploadStalled`, and `ServiceUnavailable` while too many bytes are being
        uploaded.
        """
        limit, size = self._limit(), 0
        try:
            while (chunk := await self._next(chunks)) is not None:
                size += len(chunk)
                self._size += len(chunk)
                if size > limit:
                    raise self.too_large()
                if self._size > _MAX_UPLOADS * limit:
                    raise unavailable("Too many results are being uploaded")
                update_digest(chunk)
                yield chunk
        finally:
            self._size -= size

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        seconds = self._timeout()
        try:
            async with asyncio.timeout(seconds):
                return await anext(chunks, None)
        except TimeoutError as error:
            raise UploadStalled(
                f"No bytes of the upload arrived for {seconds:g} s (setting upload_timeout_seconds); send it "
                "again"
            ) from error

    def too_large(self) -> ContentTooLarge:
        """Return the problem of an upload that is too large."""
        return ContentTooLarge(f"A result may have at most {self._limit()} bytes (setting {self._setting})")


def etag_of(digest: Any) -> str:
    """Return an ETag made of a digest."""
    text: str = digest.hexdigest()
    return text[:_ETAG_LENGTH]


def unavailable(reason: str) -> ServiceUnavailable:
    """Return the problem of an upload that may be repeated at once."""
    return ServiceUnavailable(f"{reason}; try again", headers={"Retry-After": "1"})
