"""Event streams: a follower reads each watched room once, for all clients of this process; their bounds."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import islice
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task
from zndraw_joblib.server.db.room_events import EventRow
from zndraw_joblib.server.process.ports import Identity, events_key, identity_key
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.queue import rules_room_events
from zndraw_joblib.server.queue.rules_room_events import Item, Part
from zndraw_joblib.server.queue.sql_streams import Bounds
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.history import EventKind
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests
from zndraw_joblib.wire.statuses import TERMINAL

logger = logging.getLogger(__name__)

# How long a follower without readers stays, for clients that poll.
_LINGER_SECONDS = 30.0
# Between two reads of a busy room; events in between are read together.
_PAUSE_SECONDS = 0.005
_MAX_TOUCH_SECONDS = 60.0
_MAX_RECENT = 1000
_MAX_RECENT_BYTES = 512 * 1024
_ENDS = [f'"status":"{status}"' for status in sorted(TERMINAL)]


# Keeps the connection of an idle stream open: a comment.
KEEPALIVE_COMMENT = b": ping\n\n"


def format_sse_event(
    data_str: str | None = None, *, event: str | None = None, id: str | None = None, retry: int | None = None
) -> bytes:
    """Return an event in the format of Server-Sent Events. No text but the data may have line breaks."""
    fields = [] if event is None else [("event", event)]
    # The line breaks of the format; `splitlines` knows more.
    lines = [] if data_str is None else data_str.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields += [("data", line) for line in lines]
    fields += [] if id is None else [("id", id)]
    fields += [] if retry is None else [("retry", str(retry))]
    return "".join([*(f"{name}: {value}\n" for name, value in fields), "\n"]).encode()


class Entry(NamedTuple):
    """An event as a client gets it. `is_end`: it is the end of its task."""

    task_id: UUID
    sse: bytes
    is_end: bool


def entry_of(item: Item) -> Entry:
    """Return an event in the format of Server-Sent Events."""
    # In a text within the JSON the quotes are escaped.
    is_end = item.kind == EventKind.STATUS and any(end in item.json for end in _ENDS)
    return Entry(item.task_id, item_as_sse(item), is_end)


def item_as_sse(item: Item) -> bytes:
    """Return an event in this format, whose JSON has no line breaks."""
    return f"event: {item.kind}\ndata: {item.json}\nid: {item.n}\n\n".encode()


class Reader:
    """A client that reads the events of a room or of one of its tasks.

    `position` is the number of the last event that it got. It keeps no events: `take` copies them from its
    follower's buffer, or returns None if they must be read from the database.
    """

    __slots__ = ("_follower", "_future", "_unseen", "caller", "is_closed", "position", "task_id")

    def __init__(self, follower: "Follower", caller: Identity, task_id: UUID | None) -> None:
        self._follower = follower
        self._future: asyncio.Future[None] | None = None
        self._unseen: int | None = None
        self.caller = caller
        self.task_id = task_id
        self.position = 0
        self.is_closed = False

    @property
    def has_new(self) -> bool:
        """Whether there are events that it has not taken."""
        return self._unseen is not None

    def notify(self, n: int) -> None:
        """Record that there is an event with this number, and end the wait."""
        self._unseen = n if self._unseen is None else min(n, self._unseen)
        self._resume()

    def must_read(self) -> None:
        """Let the next `take` return None."""
        self.notify(0)

    def take(self) -> list[Entry] | None:
        """Return the new events; None if the follower does not have all of them."""
        unseen, self._unseen = self._unseen, None
        entries = [] if unseen is None else self._follower.since(unseen, self.position)
        if entries is None:
            return None
        self.position = max(self.position, self._follower.last)
        return [entry for entry in entries if self.task_id in (None, entry.task_id)]

    @property
    def is_exact(self) -> bool:
        """Whether what it reads from the database lacks no event; `Follower.is_exact`."""
        return self._follower.is_exact

    def begin_read(self) -> None:
        """Forget what it was notified of, because a read of the database follows."""
        self._unseen = None

    async def wait(self, seconds: float) -> None:
        """Wait for an event, the end of the stream, or `seconds`."""
        if self._unseen is not None or self.is_closed:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self._resume)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    def leave(self) -> None:
        """Get no more events."""
        self._follower.remove(self)

    def close(self, _: object = None) -> None:
        """End the stream."""
        self.is_closed = True
        self._resume()

    def _resume(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Follower:
    """Follows the events of one room: those that this server commits, and after a wake-up those of others.

    A re-check in between finds those whose wake-up was lost.

    It keeps the room watched for one of its readers, and a bounded buffer of the newest events. `ready` is
    done once all transactions record their events. Then the database has a state of the room, and all that
    follows it.
    """

    def __init__(
        self,
        room_id: str,
        user: str,
        runtime: Runtime,
        forget: Callable[["Follower"], None],
        writers_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        self.room_id = room_id
        self.user = user
        self._runtime = runtime
        self._forget = forget
        self._writers_seconds = writers_seconds
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._readers: dict[UUID | None, set[Reader]] = {}
        self._recent: list[Entry] = []
        self._recent_bytes = 0
        self.last = -1
        self._is_woken = asyncio.Event()
        self._committed: list[EventRow] = []
        self._must_read = True
        self._is_pausing = False
        self._touch_at = self._used_at = self._known_until = 0.0
        self._was_empty = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        # Several clients may wait for it, or none.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.task = create_shared_task(self._run(), name=f"zndraw-joblib events of room {room_id}")

    @property
    def is_exact(self) -> bool:
        """Whether all transactions record their events in the log that clients have read.

        If the log was not touched for too long, the sweeper may have deleted it. Transactions that ran then
        record nothing, and a server that begins a new log must wait for them.
        """
        return self._monotonic() < self._known_until

    @property
    def readers(self) -> list[Reader]:
        """All clients that read it."""
        return [reader for readers in self._readers.values() for reader in readers]

    def add(self, reader: Reader) -> None:
        """Notify a client of new events from now on."""
        self._readers.setdefault(reader.task_id, set()).add(reader)

    def remove(self, reader: Reader) -> None:
        """Notify a client no longer."""
        readers = self._readers[reader.task_id]
        readers.discard(reader)
        if not readers:
            del self._readers[reader.task_id]
        self._used_at = self._monotonic()

    def wake(self) -> None:
        """Read new events. Another thread may call it."""
        self._must_read = True
        self._loop.call_soon_threadsafe(self._is_woken.set)

    def commit(self, rows: Sequence[EventRow]) -> None:
        """Take new events that this server has committed, so that they need not be read."""
        if self._loop is not asyncio.get_running_loop() or len(self._committed) > _MAX_RECENT:
            self.wake()
            return
        follows = not self._committed and (rows[0].n, rows[-1].n) == (self.last + 1, self.last + len(rows))
        if follows and self._is_pausing and not self._must_read and self.is_exact:
            self._push(list(map(rules_room_events.item_of, rows)))
        else:
            self._committed += rows
            self._is_woken.set()

    def since(self, n: int, position: int) -> list[Entry] | None:
        """Return the events from a number on that follow a position; None if some are not in the buffer."""
        first = self.last + 1 - len(self._recent)
        start = max(n, position + 1)
        return None if start < first else self._recent[start - first :]

    async def _run(self) -> None:
        try:
            try:
                await self._watch()
            except Exception as error:
                self.ready.set_exception(error)
                return
            self.ready.set_result(None)
            self._used_at = self._monotonic()
            backoff = ExponentialBackoff(*self._runtime.recheck.seconds, jitter=0, growth=1.5)
            while self._readers or self._monotonic() < self._used_at + _LINGER_SECONDS:
                try:
                    if self.is_exact:
                        await self._read_new()
                    if not self.is_exact or self._monotonic() >= self._touch_at:
                        await self._watch()
                except Exception as error:
                    self._must_read = True
                    logger.warning("Did not read the events of room %r; will retry: %r", self.room_id, error)
                await self._pause(backoff)
        finally:
            self._forget(self)
            if not self.ready.done():
                self.ready.set_exception(ServiceUnavailable("The server is stopping; connect again"))
            for reader in self.readers:
                reader.close()

    async def _pause(self, backoff: ExponentialBackoff) -> None:
        """Wait until there may be new events."""
        self._is_pausing = True
        try:
            await asyncio.sleep(_PAUSE_SECONDS)
            async with asyncio.timeout(backoff.next()):
                await self._is_woken.wait()
        except TimeoutError:
            self._must_read = True
            if not any(reader.has_new for reader in self.readers):
                self._clear()
        else:
            backoff.reset()
            self._is_woken.clear()
        finally:
            self._is_pausing = False

    async def _watch(self, *, has_gap: bool = False) -> None:
        """Keep the room watched. Begin anew if the log is new, or lacks events that were not read."""
        settings, asked = self._runtime.settings, self._monotonic()
        bounds = Bounds.of(settings)
        users = {reader.caller.id for reader in self.readers}
        if users and self.user not in users:
            self.user = min(users)
        kept = await self._runtime.write_short(rules_room_events.watch, self.room_id, bounds, self.user)
        if has_gap or self.last < kept.first:
            await self._wait_for_writers()
            self._restart(kept.last)
        # Not before: until the writers have ended, clients may miss their events.
        self._touch_at = asked + min(_MAX_TOUCH_SECONDS, settings.event_retention_seconds / 4)
        self._known_until = asked + kept.keep.total_seconds()
        self._was_empty = kept.keep < bounds.keep

    async def _wait_for_writers(self) -> None:
        """Wait until no transaction is under way that may not know yet that the room is watched."""
        database = self._runtime.database
        longest = timedelta(seconds=2 * self._runtime.settings.database_statement_timeout_seconds)
        deadline = self._monotonic() + self._writers_seconds
        backoff = ExponentialBackoff(first=0.002, longest=0.1, jitter=0)
        older = await database.read_short(rules_room_events.transactions_under_way, longest)
        while older:
            if self._monotonic() > deadline:
                raise ServiceUnavailable(
                    f"The events of room {self.room_id!r} cannot be followed yet: {len(older)} transactions "
                    f"of the database that began earlier have not ended within {self._writers_seconds:g} s; "
                    "retry later",
                    headers={"Retry-After": "5"},
                )
            await asyncio.sleep(backoff.next())
            older &= await database.read_short(rules_room_events.transactions_under_way, longest)

    def _take_committed(self) -> bool:
        """Take the events that this server has committed. Return whether no others precede them."""
        committed, self._committed = self._committed, []
        # Concurrent commits may have been announced in another order.
        rows = sorted((row for row in committed if row.n > self.last), key=attrgetter("n"))
        if self._must_read or (rows and rows[-1].n - self.last != len(rows)):
            return False
        if rows:
            self._push(list(map(rules_room_events.item_of, rows)))
        return True

    async def _read_new(self) -> None:
        if self._take_committed():
            return
        self._must_read = False
        while True:
            items = await self._runtime.database.read_short(
                rules_room_events.new_events, self.room_id, self.last
            )
            if not items:
                return
            if items[0].n == self.last + 1:
                self._push(items)
            else:
                # The oldest events were deleted, or the log was: a new one may lack events.
                self._known_until = 0.0
                await self._watch(has_gap=True)

    def _push(self, items: list[Item]) -> None:
        new = list(map(entry_of, items))
        first = self.last + 1
        if self._was_empty:
            self._was_empty, self._touch_at = False, 0.0  # its events are kept for longer now
            self._is_woken.set()
        self.last += len(new)
        self._recent += new
        self._recent_bytes += sum(len(entry.sse) for entry in new)
        surplus = 0
        while len(self._recent) - surplus > _MAX_RECENT or self._recent_bytes > _MAX_RECENT_BYTES:
            self._recent_bytes -= len(self._recent[surplus].sse)
            surplus += 1
        del self._recent[:surplus]
        seen: set[UUID | None] = {None, *(entry.task_id for entry in new)}
        for task_id in seen & self._readers.keys():
            for reader in self._readers[task_id]:
                reader.notify(first)

    def _restart(self, last: int) -> None:
        """Continue after a number; clients read the database, which has what they have missed."""
        self.last = last
        self._clear()
        for reader in self.readers:
            reader.must_read()

    def _clear(self) -> None:
        self._recent, self._recent_bytes = [], 0


# The event streams of one server process: a follower for each watched room, and bounds on their readers.

_EVENTS = events_key("")
_IDENTITY = identity_key("")
_RETRY = {"Retry-After": "5"}


class Streams:
    """Opens event streams. `max_streams` and `max_streams_per_user` bound how many are open at once."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        writers_seconds: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._writers_seconds = writers_seconds
        self._monotonic = monotonic
        # A host's test client may run each request in an event loop of its own.
        self._followers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Follower]]
        self._followers = WeakKeyDictionary()
        settings = runtime.settings
        self._open = SharedLimit(
            "event streams",
            "are open",
            lambda: settings.max_streams,
            lambda: settings.max_streams_per_user,
            ("max_streams", "max_streams_per_user"),
            "close one, or retry later",
        )
        # Of the open streams.
        self.callers: Counter[Identity] = Counter()
        runtime.waiters.subscribe(_EVENTS, self._on_events)
        runtime.waiters.subscribe(_IDENTITY, self._on_identity)
        runtime.on_appended = self._on_appended

    def __len__(self) -> int:
        return len(self._open)

    @property
    def followed_rooms(self) -> list[str]:
        """The rooms that are followed, also those without readers."""
        return [follower.room_id for follower in self._all_followers()]

    @asynccontextmanager
    async def reader(
        self, caller: Identity, room_id: str, task_id: UUID | None = None
    ) -> AsyncIterator[Reader]:
        """Open a stream of a room, or of one of its tasks, for a caller that may read it.

        Raises `ServiceUnavailable` and `TooManyRequests`.
        """
        with self.slot(caller):
            reader = await self._open_reader(caller, room_id, task_id)
            try:
                yield reader
            finally:
                reader.leave()

    async def _open_reader(self, caller: Identity, room_id: str, task_id: UUID | None) -> Reader:
        while True:
            follower = self._follower(room_id, caller)
            reader = Reader(follower, caller, task_id)
            follower.add(reader)
            try:
                await asyncio.shield(follower.ready)
            except TooManyRequests:
                reader.leave()
                if follower.user == caller.id:
                    raise
                # Another user's share is used up; this caller's may not be.
            except BaseException:
                reader.leave()
                raise
            else:
                return reader

    @contextmanager
    def slot(self, caller: Identity) -> Iterator[None]:
        """Count an open stream of a caller. Raises `ServiceUnavailable` and `TooManyRequests`."""
        if self._runtime.waiters.is_closed:
            raise ServiceUnavailable("The server is stopping; connect again", headers={"Retry-After": "1"})
        with self._open.held(caller.id):
            self.callers[caller] += 1
            try:
                yield
            finally:
                self.callers[caller] -= 1
                if not self.callers[caller]:
                    del self.callers[caller]

    async def read(self, reader: Reader, room_id: str, after: int | None) -> Part:
        """Return what a client gets first, or next if it has fallen behind: all from the database.

        Raises `ServiceUnavailable` if events may be missing, because the room was not kept watched.
        """
        reader.begin_read()
        part = await self._runtime.database.read_snapshot(
            rules_room_events.read, room_id, reader.task_id, after
        )
        if not reader.is_exact:
            raise ServiceUnavailable(
                f"The events of room {room_id!r} were not recorded for some time; retry later", headers=_RETRY
            )
        reader.position = part.next
        return part

    def close(self) -> None:
        """End all streams: the server stops, and its waiters are closed."""
        for follower in self._all_followers():
            for reader in follower.readers:
                reader.close()

    def wake_all(self) -> None:
        """Let all readers look whether their wait is over."""
        for follower in self._all_followers():
            for reader in follower.readers:
                reader.must_read()

    async def stop(self) -> None:
        """Stop the followers of this event loop."""
        followers = list(self._followers.get(asyncio.get_running_loop(), {}).values())
        for follower in followers:
            follower.task.cancel()
        if followers:
            await asyncio.wait([follower.task for follower in followers])

    def _follower(self, room_id: str, caller: Identity) -> Follower:
        followers = self._followers.setdefault(asyncio.get_running_loop(), {})
        if room_id not in followers:
            self._make_room(followers)
            followers[room_id] = Follower(
                room_id, caller.id, self._runtime, self._forget, self._writers_seconds, self._monotonic
            )
        return followers[room_id]

    def _make_room(self, followers: dict[str, Follower]) -> None:
        """Stop followers without readers, the oldest first, so that there are at most `max_streams`."""
        surplus = len(followers) + 1 - self._runtime.settings.max_streams
        idle = (follower for follower in list(followers.values()) if not follower.readers)
        for follower in islice(idle, max(0, surplus)):
            del followers[follower.room_id]
            follower.task.cancel()

    def _forget(self, follower: Follower) -> None:
        followers = self._followers.get(asyncio.get_running_loop(), {})
        if followers.get(follower.room_id) is follower:
            del followers[follower.room_id]

    def _all_followers(self) -> list[Follower]:
        return [follower for of_loop in self._followers.values() for follower in of_loop.values()]

    def _on_appended(self, appended: Mapping[str, Sequence[EventRow]]) -> None:
        for followers in list(self._followers.values()):
            for room_id, rows in appended.items():
                if (follower := followers.get(room_id)) is not None:
                    follower.commit(rows)

    def _on_events(self, key: str) -> None:
        room_id = key.removeprefix(_EVENTS)
        for followers in list(self._followers.values()):
            if (follower := followers.get(room_id)) is not None:
                follower.wake()

    def _on_identity(self, key: str) -> None:
        user_id = key.removeprefix(_IDENTITY)
        for follower in self._all_followers():
            for reader in follower.readers:
                if reader.caller.id == user_id:
                    reader.close()
