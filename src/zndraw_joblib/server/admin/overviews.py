"""The stream of the overview: one read of the database for all readers of a process."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.logs import create_shared_task, log_failed_work
from zndraw_joblib.server.admin import rules_overview
from zndraw_joblib.server.admin.rules_capacity import PENDING_TASKS, UserShare, limits_of, near
from zndraw_joblib.server.process.ports import Identity, identity_key
from zndraw_joblib.server.queue import sql_shares
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.operators import Overview

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 2.0
_COUNT_SECONDS, _COUNTED_SECONDS, _PAUSES_PER_COUNT = 5.0, 10.0, 20
# They change without a change of the queue.
_NOT_COMPARED = {"at", "statistics_until"}
_IDENTITY = identity_key("")


class Shares:
    """The user with the most pending tasks. The tasks are counted only if one user may have many.

    A count is used for 10 s, and for 20 times as long as it took; one that takes 5 s is given up.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._largest: UserShare | None = None
        self._until = -math.inf

    def forget(self) -> None:
        """Count again for the next reader."""
        self._until = -math.inf

    async def largest(self) -> UserShare | None:
        """Return the user, None while all users together have too few pending tasks."""
        start = time.monotonic()
        if start >= self._until:
            self._until = start + _COUNT_SECONDS
            self._largest = None
            try:
                async with asyncio.timeout(_COUNT_SECONDS):
                    self._largest = await self._count()
            except TimeoutError:
                logger.info("The pending tasks of the users were not counted within %g s", _COUNT_SECONDS)
            took = time.monotonic() - start
            self._until = start + max(_COUNTED_SECONDS, _PAUSES_PER_COUNT * took)
        return self._largest

    async def _count(self) -> UserShare | None:
        allowed = self._runtime.settings.share_of_setting(PENDING_TASKS)
        enough = near(allowed) - 1
        _, by_user = await self._runtime.database.read(sql_shares.pending_tasks, enough)
        user = max(by_user, key=by_user.__getitem__, default=None) if by_user else None
        return None if by_user is None or user is None else UserShare(user, by_user[user], allowed)


class OverviewReader:
    """One open stream. Each text is the overview as JSON."""

    def __init__(self, caller: Identity) -> None:
        self.caller = caller
        self.is_closed = False
        self._text: str | None = None
        self._event = asyncio.Event()

    def put(self, text: str) -> None:
        """Let the reader read this text next; one that it has not read yet is dropped."""
        self._text = text
        self._event.set()

    def close(self, _: object = None) -> None:
        """End the stream."""
        self.is_closed = True
        self._event.set()

    async def next(self, seconds: float) -> str | None:
        """Wait for the next text and return it; None without one in this time, or at the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return None
        self._event.clear()
        text, self._text = self._text, None
        return None if self.is_closed else text


class _Poller:
    """Reads the overview every 2 s while there are readers in its event loop."""

    def __init__(self, read: Callable[[], Awaitable[Overview]]) -> None:
        self._read_overview = read
        self.readers: set[OverviewReader] = set()
        self._compared: str | None = None
        self._last: str | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, reader: OverviewReader) -> None:
        """Add a reader. It reads the last overview at once."""
        self.readers.add(reader)
        if self._task is None or self._task.done():
            self._compared = self._last = None
            self._task = create_shared_task(self._run())
        elif self._last is not None:
            reader.put(self._last)

    async def _run(self) -> None:
        while self.readers:
            try:
                await self._read()
            except Exception as error:
                log_failed_work(logger, error, "The overview was not read; its readers wait for the next one")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _read(self) -> None:
        overview = await self._read_overview()
        self._last = overview.model_dump_json()
        compared = overview.model_dump_json(exclude=_NOT_COMPARED)
        if compared != self._compared:
            self._compared = compared
            for reader in self.readers:
                reader.put(self._last)

    def stop(self) -> None:
        """End all streams."""
        for reader in self.readers:
            reader.close()
        if self._task is not None:
            self._task.cancel()


class Overviews:
    """Opens streams of the overview. They count as event streams."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams
        self.shares = Shares(runtime)
        # A host's test client may run each request in an event loop of its own.
        self._pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Poller] = WeakKeyDictionary()
        runtime.waiters.subscribe(_IDENTITY, self._on_identity)

    async def read(self) -> Overview:
        """Return the state of the queue."""
        settings = self._runtime.settings
        overview: Overview = await self._runtime.database.read_snapshot(
            rules_overview.read_overview,
            settings.heartbeat_seconds,
            limits_of(settings),
            await self.shares.largest(),
        )
        return overview

    @asynccontextmanager
    async def reader(self, caller: Identity) -> AsyncIterator[OverviewReader]:
        """Open a stream of a superuser. Raises `ServiceUnavailable` and `TooManyRequests`."""
        with self._streams.slot(caller):
            loop = asyncio.get_running_loop()
            poller = self._pollers.setdefault(loop, _Poller(self.read))
            reader = OverviewReader(caller)
            poller.add(reader)
            try:
                yield reader
            finally:
                poller.readers.discard(reader)

    def close(self) -> None:
        """End all streams: the server stops."""
        for poller in list(self._pollers.values()):
            poller.stop()

    def _on_identity(self, key: str) -> None:
        user_id = key.removeprefix(_IDENTITY)
        for poller in list(self._pollers.values()):
            for reader in poller.readers:
                if reader.caller.id == user_id:
                    reader.close()
