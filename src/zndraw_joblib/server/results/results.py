"""The content of task results: upload, read and delete it. The choice of the stores of a server."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple, Protocol
from uuid import UUID, uuid4

from zndraw_joblib.server.db.values import KEPT
from zndraw_joblib.server.process.ports import ContentStore, ResultBackend
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings
from zndraw_joblib.server.queue import rules_results
from zndraw_joblib.server.queue.rules_results import LEASE, STEP_BYTES, Upload
from zndraw_joblib.server.queue.rules_retention import Pruned
from zndraw_joblib.server.queue.sql_results import Deletable, NewResult, Quota, ResultRecord, Unconfirmed
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.incoming import IncomingBytes, etag_of
from zndraw_joblib.server.results.stores import FileContent, MemoryResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import Conflict
from zndraw_joblib.wire.progress import StoredResult

logger = logging.getLogger(__name__)
_EXTEND_SECONDS = LEASE.total_seconds() / 5
# Each step in which an upload reserves room doubles what it has, up to this size.
_LONGEST_STEP = 16 * STEP_BYTES


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
            await asyncio.shield(asyncio.ensure_future(self._abandon(n)))
            raise
        return stored

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
                await self._runtime.write(rules_results.reserve, n, more, self._quota)
                reserved += more
            if time.monotonic() > extended_at + _EXTEND_SECONDS:
                await self._runtime.write(rules_results.extend, n)
                extended_at = time.monotonic()
            yield chunk

    async def _abandon(self, n: int) -> None:
        """Delete the content of an upload that failed; if that fails, too, `prune` does so later."""
        try:
            deletable: Deletable | None = await self._runtime.write(rules_results.abandon, n)
            if deletable is not None:
                await self._delete([deletable])
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
        found: list[Deletable] = await self._runtime.database.read(rules_results.expired_content)
        pruned = await self._delete(found)
        return Pruned(pruned.deleted, pruned.may_be_more or rest.may_be_more)

    async def _delete(self, found: Sequence[Deletable]) -> Pruned:
        for each in found:
            await self._store.delete(each.content_key)
        if not found:
            return Pruned(0, may_be_more=False)
        pruned: Pruned = await self._runtime.write(rules_results.forget, list(found))
        return pruned

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
        most = settings.max_stored_result_bytes
        return Quota(most, settings.share_of(most), timedelta(days=settings.task_result_days))


# The choice of the stores of results.


class Results(ResultBackend, Protocol):
    """A built-in result backend."""

    async def close(self) -> None:
        """Close the connections of this event loop."""


def select_result_backend(settings: JobLibSettings, runtime: Runtime) -> Results:
    """Return the backend of the setting `result_backend`.

    `auto` selects Redis if `redis_url` is set, else the database if several processes may share it, else
    memory. Call it after the first use of the runtime's database: only then is a host's dialect known.
    """
    kind: str = settings.result_backend
    if kind == "auto":
        kind = _select(settings, runtime)
    if kind == "database":
        return DatabaseResults(runtime)
    if kind == "memory":
        return MemoryResults(lambda: settings.max_cached_bytes)
    if settings.redis_url is None:
        raise ValueError("result_backend is 'redis', but redis_url is not set")
    from zndraw_joblib.server.results.redis import RedisResults  # noqa: PLC0415 - few servers need it

    return RedisResults(settings.redis_url, settings.redis_prefix, lambda: settings.max_cached_bytes)


def _select(settings: JobLibSettings, runtime: Runtime) -> str:
    if settings.redis_url is not None:
        return "redis"
    workers = settings.workers if isinstance(settings, ServerSettings) else 1
    return "database" if workers > 1 or not runtime.database.is_sqlite else "memory"


_NO_LIMIT = sys.maxsize


def content_store(runtime: Runtime) -> ContentStore:
    """Return the store of the setting `task_result_backend`, the same one for all users of a runtime.

    It keeps what it gets: `max_stored_result_bytes` is checked before.
    """
    if runtime.content_store is None:
        runtime.content_store = _select_store(runtime)
    return runtime.content_store


def _select_store(runtime: Runtime) -> ContentStore:
    settings = runtime.settings
    kind = settings.task_result_backend
    if kind == "memory":
        return MemoryResults(_NO_LIMIT, max_values=_NO_LIMIT)
    if kind == "files" and settings.task_result_directory is not None:
        return FileContent(settings.task_result_directory)
    if kind == "redis" and settings.redis_url is not None:
        from zndraw_joblib.server.results.redis import RedisResults  # noqa: PLC0415 - few servers need it

        return RedisResults(settings.redis_url, f"{settings.redis_prefix}:tasks", lambda: 2**53)
    return DatabaseResults(runtime, evicts=False)
