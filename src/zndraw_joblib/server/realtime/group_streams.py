"""Event streams of groups: a poller reads each followed group once, for all clients of this process.

An event has the whole state of a group, and its number is made of that: whichever server a client reconnects
to, it gets the state unless it has it. So nothing is recorded for groups that no client follows.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.logs import ExponentialBackoff, create_shared_task, log_failed_work
from zndraw_joblib.server.process.ports import Identity, group_key, identity_key
from zndraw_joblib.server.queue import rules_groups
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.problems import GroupNotFound
from zndraw_joblib.wire.statuses import StatusCounts

logger = logging.getLogger(__name__)

# Between two reads of a group that changes.
_PAUSE_SECONDS = 0.25
# Ends and new tasks wake the poller; starts and progress are found by a re-check.
_LONGEST_PAUSE_SECONDS = {False: 5.0, True: 1.0}
# How long a poller without readers stays, so that clients that poll cause no more reads than others.
_LINGER_SECONDS = 1.0
_MAX_IDLE = 100
_GROUP = group_key("")
_IDENTITY = identity_key("")
_NUMBER_BYTES = 6  # a number that JavaScript can represent


class GroupState(NamedTuple):
    """A group as it was read, and the number of this state."""

    group: GroupResponse
    n: int

    @classmethod
    def of(cls, group: GroupResponse) -> "GroupState":
        """Return the state of a group that was read."""
        content = group.model_dump_json(exclude={"on_end"}).encode()
        return cls(group, int.from_bytes(blake2b(content, digest_size=_NUMBER_BYTES).digest()))

    @property
    def has_ended(self) -> bool:
        """Whether the group has ended."""
        return self.group.ended_at is not None


class GroupReader:
    """A client that follows a group. `position` is the number of the last state that it got."""

    def __init__(self, caller: Identity, position: int | None) -> None:
        self.caller = caller
        self.position = position
        self.is_closed = False
        self._state: GroupState | None = None
        self._is_new = asyncio.Event()

    def put(self, state: GroupState) -> None:
        """Let the reader get this state next, unless it has it; one that it has not read yet is dropped."""
        is_known = state.n == self.position and not state.has_ended
        self._state = None if is_known else state
        if not is_known:
            self._is_new.set()

    def close(self, _: object = None) -> None:
        """End the stream."""
        self.is_closed = True
        self._is_new.set()

    async def next(self, seconds: float) -> GroupState | None:
        """Wait for the next state and return it; None without one in this time, or at the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_new.wait()
        except TimeoutError:
            return None
        self._is_new.clear()
        state, self._state = self._state, None
        if self.is_closed or state is None:
            return None
        self.position = state.n
        return state


class _Poller:
    """Reads a group while it has readers: after a wake-up, at most four times a second, and now and then."""

    def __init__(self, group_id: UUID, runtime: Runtime, forget: Callable[["_Poller"], None]) -> None:
        self.group_id = group_id
        self.readers: set[GroupReader] = set()
        self._runtime = runtime
        self._forget = forget
        self._is_woken, self._is_joined = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._last: int | None = None
        self._task = create_shared_task(self._run(), name=f"zndraw-joblib events of group {group_id}")

    def add(self, reader: GroupReader) -> None:
        """Let a reader get the state of the next read, which follows at once or after the pause."""
        self.readers.add(reader)
        self._is_joined.set()
        self._is_woken.set()

    def remove(self, reader: GroupReader) -> None:
        """Give a reader no more states."""
        self.readers.discard(reader)
        self._is_joined.clear()

    def wake(self) -> None:
        """Read the group again. Another thread may call it."""
        self._loop.call_soon_threadsafe(self._is_woken.set)

    def stop(self) -> None:
        """End all streams."""
        for reader in self.readers:
            reader.close()
        self._task.cancel()

    async def _run(self) -> None:
        backoff = ExponentialBackoff(
            _PAUSE_SECONDS, max(_LONGEST_PAUSE_SECONDS.values()), jitter=0, growth=1.5
        )
        is_held = False
        try:
            while self.readers or await _is_set(self._is_joined, _LINGER_SECONDS):
                self._is_woken.clear()
                state = await self._read()
                if state is not None and state.n != self._last:
                    self._last, is_held = state.n, _has_held(state.group.counts)
                    backoff.reset()
                await asyncio.sleep(_PAUSE_SECONDS)
                if self.readers:
                    await _is_set(self._is_woken, min(backoff.next(), _LONGEST_PAUSE_SECONDS[is_held]))
        except GroupNotFound:
            logger.debug("Group %s was deleted while clients followed it", self.group_id)
        finally:
            self._forget(self)
            for reader in self.readers:
                reader.close()

    async def _read(self) -> GroupState | None:
        """Read the group for its readers. Raises `GroupNotFound`."""
        try:
            group = await self._runtime.database.read_snapshot(rules_groups.get, self.group_id)
        except GroupNotFound:
            raise
        except Exception as error:
            log_failed_work(logger, error, f"Group {self.group_id} was not read; its readers wait")
            return None
        state = GroupState.of(group)
        for reader in self.readers:
            reader.put(state)
        return state


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for some seconds, and return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _has_held(counts: StatusCounts) -> bool:
    return counts.claimed + counts.running > 0


class GroupStreams:
    """Opens streams of groups. They count as event streams."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams
        # A host's test client may run each request in an event loop of its own.
        self._pollers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[UUID, _Poller]]
        self._pollers = WeakKeyDictionary()
        runtime.waiters.subscribe(_GROUP, self._on_group)
        runtime.waiters.subscribe(_IDENTITY, self._on_identity)

    async def read(self, group_id: UUID) -> GroupState:
        """Return the state of a group now. Raises `GroupNotFound`."""
        return GroupState.of(await self._runtime.get_group(group_id))

    @asynccontextmanager
    async def reader(
        self, caller: Identity, group_id: UUID, position: int | None
    ) -> AsyncIterator[GroupReader]:
        """Open a stream of a group for a caller that may read it and has the state with a number.

        Raises `ServiceUnavailable` and `TooManyRequests`.
        """
        with self._streams.slot(caller):
            pollers = self._pollers.setdefault(asyncio.get_running_loop(), {})
            poller = pollers.get(group_id)
            if poller is None:
                poller = pollers[group_id] = _Poller(group_id, self._runtime, self._forget)
            reader = GroupReader(caller, position)
            poller.add(reader)
            try:
                yield reader
            finally:
                poller.remove(reader)
                if not poller.readers and len(pollers) > _MAX_IDLE:
                    poller.stop()
                    self._forget(poller)

    def close(self) -> None:
        """End all streams: the server stops."""
        for poller in self.pollers():
            poller.stop()

    def _forget(self, poller: _Poller) -> None:
        pollers = self._pollers.get(asyncio.get_running_loop(), {})
        if pollers.get(poller.group_id) is poller:
            del pollers[poller.group_id]

    def pollers(self) -> Iterator[_Poller]:
        """Return what reads groups for clients."""
        return iter([poller for of_loop in list(self._pollers.values()) for poller in of_loop.values()])

    def _on_group(self, key: str) -> None:
        group_id = None
        for pollers in list(self._pollers.values()):
            if pollers:
                group_id = group_id or UUID(key.removeprefix(_GROUP)[:36])
                if (poller := pollers.get(group_id)) is not None:
                    poller.wake()

    def _on_identity(self, key: str) -> None:
        user_id = key.removeprefix(_IDENTITY)
        for poller in self.pollers():
            for reader in poller.readers:
                if reader.caller.id == user_id:
                    reader.close()
