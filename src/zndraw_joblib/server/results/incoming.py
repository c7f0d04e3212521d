"""The bytes of uploads on their way to a result backend: their limits and their ETag."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from zndraw_joblib.server.process.settings import MIB, JobLibSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.wire.problems import ContentTooLarge, ServiceUnavailable, UploadStalled

# Uploads under way may together have this many times the limit of one.
MAX_UPLOADS = 8
_ETAG_LENGTH = 32


class IncomingBytes:
    """The bytes of all uploads of one kind that this server process receives.

    `setting` is the name of the setting for the most bytes of one. One user may always upload one, and
    further ones within its share.
    """

    def __init__(self, settings: JobLibSettings, setting: str) -> None:
        self._settings = settings
        self._setting = setting
        self._bytes = SharedLimit(
            "bytes of results",
            "are being uploaded",
            lambda: MAX_UPLOADS * self._limit,
            lambda: max(self._limit, settings.share_of(MAX_UPLOADS * self._limit)),
            (f"{MAX_UPLOADS} times {setting}", "max_share_per_user"),
        )

    @property
    def _limit(self) -> int:
        limit: int = getattr(self._settings, self._setting)
        return limit

    async def limited(
        self, chunks: AsyncIterator[bytes], update_digest: Callable[[bytes], None], user: str
    ) -> AsyncGenerator[bytes]:
        """Yield the chunks of a user's upload, and pass each to `update_digest`.

        Raises `ContentTooLarge`, `UploadStalled`, and `ServiceUnavailable` or `TooManyRequests` while too
        many bytes are being uploaded.
        """
        size, waited = 0, 0.0
        try:
            while True:
                began = time.monotonic()
                chunk = await self._next(chunks, size, waited)
                if chunk is None:
                    return
                waited += time.monotonic() - began
                if size + len(chunk) > self._limit:
                    raise self.too_large()
                self._bytes.take(user, len(chunk))
                size += len(chunk)
                update_digest(chunk)
                yield chunk
        finally:
            self._bytes.give_back(user, size)

    async def _next(self, chunks: AsyncIterator[bytes], size: int, waited: float) -> bytes | None:
        """Return the next chunk, None after the last one.

        It must arrive within `upload_timeout_seconds`, and 1 MiB in each such time spent waiting.
        """
        seconds = self._settings.upload_timeout_seconds
        try:
            async with asyncio.timeout(min(seconds, seconds * (1 + size / MIB) - waited)):
                return await anext(chunks, None)
        except TimeoutError as error:
            raise UploadStalled(
                f"The upload is too slow: it may pause for {seconds:g} s (setting upload_timeout_seconds), "
                f"and must send 1 MiB in each {seconds:g} s; it sent {size} bytes. Send it again"
            ) from error

    def too_large(self) -> ContentTooLarge:
        """Return the problem of an upload that is too large."""
        return ContentTooLarge(f"A result may have at most {self._limit} bytes (setting {self._setting})")


def etag_of(digest: Any) -> str:
    """Return an ETag made of a digest."""
    text: str = digest.hexdigest()
    return text[:_ETAG_LENGTH]


def unavailable(reason: str) -> ServiceUnavailable:
    """Return the problem of an upload that may be repeated at once."""
    return ServiceUnavailable(f"{reason}; try again", headers={"Retry-After": "1"})
