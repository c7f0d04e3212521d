"""Results of tasks and of providers: limits of uploads, the content of task results, the choice of stores."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any, NamedTuple, Protocol
from uuid import UUID, uuid4

from cachetools import TTLCache

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.server.db.values import KEPT
from zndraw_joblib.server.process.ports import ContentStore, ResultBackend
from zndraw_joblib.server.process.settings import MIB, JobLibSettings, ServerSettings
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.queue import rules_results
from zndraw_joblib.server.queue.rules_results import LEASE, STEP_BYTES, Upload
from zndraw_joblib.server.queue.rules_retention import Pruned
from zndraw_joblib.server.queue.sql_results import Deletable, NewResult, Quota, ResultRecord, Unconfirmed
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.stores import FileStore, MemoryResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import Conflict, ContentTooLarge, ServiceUnavailable, UploadStalled
from zndraw_joblib.wire.progress import StoredResult

logger = logging.getLogger(__name__)
_EXTEND_SECONDS = LEASE.total_seconds() / 5
# Failures in a row that end a batch of deletions; the contents that are left out afterwards, and how long.
_MAX_FAILURES, _MAX_UNDELETED, _UNDELETED_SECONDS = 3, 1000, 600.0
# Each step in which an upload reserves room doubles what it has, up to this size.
_LONGEST_STEP = 16 * STEP_BYTES


# The bytes of uploads on their way to a store: their limits and their ETag.

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


# The content of task results.


class ContentInfo(NamedTuple):
    """What an upload says of its content; `size` is 0 if it is unknown."""

    content_type: str
    filename: str | None
    size: int = 0


class _Ending(NamedTuple):
    """How to end an upload that is under way: by the timeout of a block, in its event loop."""

    scope: asyncio.Timeout
    loop: asyncio.AbstractEventLoop

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._expire)

    def _expire(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self.scope.reschedule(self.loop.time())


class TaskResults:
    """The results of tasks that are stored as bytes. All objects of one runtime use the same store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._incoming = IncomingBytes(runtime.settings, "max_task_result_bytes")
        self._under_way: dict[UUID, _Ending] = {}
        # The numbers of results whose content the store did not delete.
        self._undeleted: TTLCache[int, None] = TTLCache(_MAX_UNDELETED, _UNDELETED_SECONDS)

    async def upload(self, upload: Upload, info: ContentInfo, chunks: AsyncIterator[bytes]) -> StoredResult:
        """Store the content of a task's result, and make it the result while the attempt holds the task.

        It ends an earlier upload of the same result. Raises `TaskNotFound`, `Forbidden`, `StaleReport`,
        `Conflict`, `ContentTooLarge`, `UploadStalled`, `ResultStoreFull`, `TooManyRequests` and
        `ServiceUnavailable`; then the content is deleted.
        """
        if info.size > self._runtime.settings.max_task_result_bytes:
            raise self._incoming.too_large()
        write, quota, key = self._runtime.write, self._quota, f"{KEPT}{uuid4().hex}"
        n = await write(rules_results.begin, upload, key, info.size, quota)
        try:
            digest, size = sha256(), 0

            def count(chunk: bytes) -> None:
                nonlocal size
                digest.update(chunk)
                size += len(chunk)

            limited = self._incoming.limited(chunks, count, upload.caller.id)
            async with self._only(upload.task_id), aclosing(limited):
                ttl = round((quota.keep + 2 * LEASE).total_seconds())
                await self._store.store_stream(key, self._reserving(n, info.size, limited), ttl)
                new = NewResult(size, info.content_type, etag_of(digest), info.filename)
                stored: StoredResult = await write(rules_results.finish, upload, n, new, quota)
        except BaseException:
            # Also when this request is cancelled: it must not leave content behind.
            await asyncio.shield(asyncio.ensure_future(self._abandon(n, key)))
            raise
        return stored

    async def upload_content(self, upload: Upload, content: Content) -> StoredResult:
        """Store the content that a job in this process returned. Raises as `upload`, and OSError."""
        info = ContentInfo(content.content_type, content.filename, content.size)
        return await self.upload(upload, info, _pieces(content))

    @asynccontextmanager
    async def _only(self, task_id: UUID) -> AsyncIterator[None]:
        """End an earlier upload of the result of a task. Raises `Conflict` when a later one begins."""
        earlier = self._under_way.get(task_id)
        if earlier is not None:
            earlier.end()
        own = self._under_way[task_id] = _Ending(asyncio.timeout(None), asyncio.get_running_loop())
        try:
            async with own.scope:
                yield
        except TimeoutError as error:
            if not own.scope.expired():
                raise
            raise Conflict("A later upload of the result of this task has begun") from error
        finally:
            if self._under_way.get(task_id) is own:
                del self._under_way[task_id]

    async def _reserving(self, n: int, announced: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the chunks of an upload; reserve room for them in steps, and extend it."""
        extended_at, size, reserved = time.monotonic(), 0, min(announced, STEP_BYTES)
        async for chunk in chunks:
            size += len(chunk)
            if size > reserved:
                step = min(max(reserved, STEP_BYTES), _LONGEST_STEP)
                if announced:
                    step = min(step, announced - reserved)
                more = max(size - reserved, step)
                rules_results.check_possible(size, self._quota)
                await self._runtime.write(rules_results.reserve, n, more, self._quota)
                reserved += more
            if time.monotonic() > extended_at + _EXTEND_SECONDS:
                await self._runtime.write(rules_results.extend, n)
                extended_at = time.monotonic()
            yield chunk

    async def _abandon(self, n: int, key: str) -> None:
        """Delete the content of an upload that failed; `prune` does so again later, and if that fails."""
        try:
            if await self._runtime.write(rules_results.abandon, n):
                await self._store.delete(key)
                await self._runtime.write(rules_results.uncount, n)
        except Exception as error:
            logger.warning("The content of a failed upload is deleted later: %r", error)

    async def open(self, record: ResultRecord, start: int = 0) -> AsyncIterator[bytes]:
        """Return the content of a result from `start` on. Raises `ResultExpired`."""
        key = record.content_key
        opened = None if key is None else await self._store.open_stream(key, start)
        if opened is None or opened[0] != record.size:
            raise rules_results.expired(record)
        return opened[1]

    async def prune(self) -> Pruned:
        """Delete a batch of content that has expired, was replaced, or whose upload or attempt failed."""
        unconfirmed: list[Unconfirmed] = await self._runtime.database.read(rules_results.to_check)
        rest = Pruned(0, may_be_more=False)
        if unconfirmed:
            rest = await self._runtime.write(rules_results.checked, unconfirmed)
        needed: list[int] = await self._runtime.database.read(rules_results.needed_content)
        if needed:
            postponed: Pruned = await self._runtime.write(rules_results.postpone, needed)
            return Pruned(rest.deleted, postponed.may_be_more)
        expired: list[Deletable] = await self._runtime.database.read(
            rules_results.expired_content, sorted(self._undeleted)
        )
        pruned = await self._delete(expired)
        return Pruned(pruned.deleted, pruned.may_be_more or rest.may_be_more)

    async def _delete(self, results: Sequence[Deletable]) -> Pruned:
        """Delete content. What the store does not delete is left out for a while: it stops no other.

        After some failures in a row it ends, and raises the last: the store may be away.
        """
        deleted: list[Deletable] = []
        failures, failure = 0, None
        for result in results:
            try:
                await self._store.delete(result.content_key)
            except Exception as error:
                failures, failure = failures + 1, error
                self._undeleted[result.n] = None
                log_failed_work(logger, error, f"A result is deleted later (n={result.n})")
                if failures == _MAX_FAILURES:
                    break
            else:
                failures = 0
                deleted.append(result)
        if deleted:
            await self._runtime.write(rules_results.forget, deleted)
        if failure is not None and failures == _MAX_FAILURES:
            raise failure
        return Pruned(len(deleted), may_be_more=len(results) == rules_results.PER_BATCH)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        with suppress(ConnectionError):
            await self._store.close()

    @property
    def _store(self) -> ContentStore:
        return content_store(self._runtime)

    @property
    def _quota(self) -> Quota:
        settings = self._runtime.settings
        limit = settings.max_stored_result_bytes
        return Quota(limit, settings.share_of(limit), timedelta(days=settings.task_result_days))


async def _pieces(content: Content) -> AsyncIterator[bytes]:
    pieces = content.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


# The choice of the stores.

_NO_LIMIT = 2**53


class Store(ResultBackend, ContentStore, Protocol):
    """A store of this package, for results of providers and for content of task results."""


def select_result_backend(settings: JobLibSettings, runtime: Runtime) -> Store:
    """Return the backend of the setting `result_backend`.

    `auto` selects Redis if `redis_url` is set, else the database if several processes may share it, else
    memory. Call it after the first use of the runtime's database: only then is a host's dialect known.
    """
    kind: str = settings.provider_result_backend
    if kind == "auto":
        kind = _select(settings, runtime)
    if kind == "database":
        return DatabaseResults(runtime)
    if kind == "memory":
        return MemoryResults(lambda: settings.max_cached_bytes)
    return _redis(settings, settings.redis_prefix, lambda: settings.max_cached_bytes)


def _select(settings: JobLibSettings, runtime: Runtime) -> str:
    if settings.redis_url is not None:
        return "redis"
    processes = settings.processes if isinstance(settings, ServerSettings) else 1
    return "database" if processes > 1 or not runtime.database.is_sqlite else "memory"


def content_store(runtime: Runtime) -> ContentStore:
    """Return the store of the setting `task_result_backend`, the same one for all users of a runtime.

    It keeps what it gets: `max_stored_result_bytes` is checked before.
    """
    if runtime.content_store is None:
        runtime.content_store = _select_content_store(runtime)
    return runtime.content_store


def _select_content_store(runtime: Runtime) -> ContentStore:
    settings = runtime.settings
    kind = settings.task_result_backend
    if kind == "memory":
        return MemoryResults(_NO_LIMIT, max_values=_NO_LIMIT)
    if kind == "files" and settings.task_result_directory is not None:
        return FileStore(settings.task_result_directory)
    if kind == "s3" and settings.task_result_bucket is not None:
        from zndraw_joblib.server.results.s3 import S3Store  # noqa: PLC0415 - it needs an extra

        return S3Store(settings.task_result_bucket)
    if kind == "redis" and settings.redis_url is not None:
        return _redis(settings, f"{settings.redis_prefix}:tasks", lambda: _NO_LIMIT)
    return DatabaseResults(runtime, evicts=False)


def _redis(settings: JobLibSettings, prefix: str, max_bytes: Callable[[], int]) -> Store:
    if settings.redis_url is None:
        raise ValueError("result_backend is 'redis', but redis_url is not set")
    from zndraw_joblib.server.results.redis import RedisResults  # noqa: PLC0415 - few servers need it

    return RedisResults(settings.redis_url, prefix, max_bytes)
