"""The event streams of one server process: a follower for each watched room, and bounds on their readers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from uuid import UUID
from weakref import WeakKeyDictionary

from zndraw_joblib.contract.problems import ServiceUnavailable, TooManyRequests
from zndraw_joblib.server.ports import Identity, events_key, identity_key
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import streams
from zndraw_joblib.server.service.streams import Part
from zndraw_joblib.server.shared_limit import SharedLimit
from zndraw_joblib.server.streams.follower import Follower, Reader

_EVENTS = events_key("")
_IDENTITY = identity_key("")
_RETRY = {"Retry-After": "5"}


class Streams:
    """Opens event streams. `max_streams` and `max_streams_per_user` bound how many are open at once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
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
        runtime.waiters.subscribe(_EVENTS, self._on_events)
        runtime.waiters.subscribe(_IDENTITY, self._on_identity)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def followed_rooms(self) -> list[str]:
        """The rooms that are followed, also those that nobody reads any more."""
        return [follower.room_id for follower in self._all_followers()]

    @asynccontextmanager
    async def reader(
        self, caller: Identity, room_id: str, task_id: UUID | None = None
    ) -> AsyncIterator[Reader]:
        """Open a stream of a room or of one of its tasks, whose caller may read it.

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
            yield

    async def read(self, reader: Reader, room_id: str, after: int | None) -> Part:
        """Return what a client gets first, or next if it has fallen behind: all from the database.

        Raises `ServiceUnavailable` if events may be missing, because the room was not kept watched.
        """
        reader.begin_read()
        part = await self._runtime.database.read_snapshot(streams.read, room_id, reader.task_id, after)
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
            followers[room_id] = Follower(room_id, caller.id, self._runtime, self._forget)
        return followers[room_id]

    def _make_room(self, followers: dict[str, Follower]) -> None:
        """Stop followers that nobody reads, the oldest first, so that there are at most `max_streams`."""
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
        return [follower for each in self._followers.values() for follower in each.values()]

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
