"""Follow the event stream of a task through lost connections, and wait for many tasks at a time. No I/O.

Many tasks need one request at a time: the events of their rooms, and pages of tasks.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, inf
from typing import Any

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.flows import WAIT_SECONDS, Flow, Pause, Polling, TaskFailed, ask, read, result_of
from zndraw_joblib.client.retry import RequestBackoff, RetryRule
from zndraw_joblib.client.task_id import id_of
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.history import EventKind, RoomEvents
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

# A snapshot has a payload and a result of up to 1 MiB each.
_MAX_EVENT_BYTES = 16 * 1024 * 1024
_SHOWN = frozenset({"snapshot", "status", "progress", "log", "result"})


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """An event of a task.

    The first one has the kind ``snapshot``, and the task as `data`; another one follows if events were missed
    because the server no longer keeps them. The others have the kinds and the data of `StreamEvent`:
    ``status``, ``progress``, ``log`` and ``result``. `n` grows from event to event.
    """

    kind: str
    data: dict[str, Any]
    n: int
    at: datetime | None = None

    @property
    def status(self) -> TaskStatus | None:
        """The status of the task; None for events of other kinds than ``snapshot`` and ``status``."""
        return TaskStatus(self.data["status"]) if self.kind in {"snapshot", "status"} else None


@dataclass(slots=True)
class ServerEvent:
    """An event of a stream as it was sent."""

    kind: str = "message"
    id: str = ""
    data: list[str] = field(default_factory=list)


class EventParser:
    """Parses Server-Sent Events from pieces of bytes."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ServerEvent()

    def feed(self, content: bytes) -> list[ServerEvent]:
        """Return the events that are complete after another piece."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise ValueError(f"An event of the stream has more than {_MAX_EVENT_BYTES:,} bytes")
        return [
            event for line in lines if (event := self._add(line.removesuffix(b"\r").decode())) is not None
        ]

    def _add(self, line: str) -> ServerEvent | None:
        if not line:
            event, self._event = self._event, ServerEvent()
            return event if event.data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event.kind = value
        elif name == "id":
            self._event.id = value
        elif name == "data":
            self._event.data.append(value)
        return None


class Following:
    """The state of a client that follows a task: its last event, and whether the task has ended."""

    def __init__(self, task_id: str, rule: RetryRule) -> None:
        self._task_id = task_id
        self._rule = rule
        self._last: int | None = None
        self._parser = EventParser()
        self._backoff = RequestBackoff()
        self.has_ended = False

    def open(self) -> Call[None]:
        """Return the request that opens the stream, after the last event."""
        self._parser = EventParser()
        return calls.event_stream(self._task_id, self._last)

    def feed(self, content: bytes) -> list[TaskEvent]:
        """Return the events that are complete after another piece of the stream."""
        events: list[TaskEvent] = []
        for event in self._parser.feed(content):
            self._backoff.reset()
            if event.id:
                self._last = int(event.id)
            self.has_ended |= event.kind == "end"
            if event.kind in _SHOWN:
                events.append(self._task_event(event))
        return events

    def lost(self, error: Exception | None) -> float:
        """Return the pause after the stream ended, with an error or without. Raises a final error."""
        if error is None:
            return self._backoff.next()
        if not self._rule.may_wait_on(error):
            raise error
        return self._backoff.after(error)

    def _task_event(self, event: ServerEvent) -> TaskEvent:
        data = json.loads("\n".join(event.data))
        if event.kind == "snapshot":
            return TaskEvent("snapshot", data, self._last or 0)
        return TaskEvent(event.kind, data["data"], data["n"], datetime.fromisoformat(data["at"]))


# Many tasks.


# A page of tasks has their payloads and results.
_PAGE = 100
_FEW = 5
# The events of many tasks that end at once are read together.
_PAUSE_SECONDS = 0.2
States = dict[str, TaskResponse]


class Watch:
    """Finds out which of some tasks have ended.

    `rooms` are the rooms of the tasks, None for a task whose room is unknown.
    """

    def __init__(self, rooms: Mapping[str, str | None], rule: RetryRule) -> None:
        self._rule = rule
        self._positions: dict[str, int | None] = {}
        self._open: dict[str, set[str]] = {}
        self._polling = Polling(f"{len(rooms):,} tasks", rule)
        self._next_poll = 0.0
        self._rooms: dict[str, str] = {}
        self.total = len(rooms)
        self.states: States = {}
        self.failed: set[str] = set()
        self._unknown: list[str] = []
        for task_id, room in rooms.items():
            if room is None:
                self._unknown.append(task_id)
            else:
                self._watch(task_id, room)

    def __len__(self) -> int:
        return len(self._unknown) + sum(map(len, self._open.values()))

    def next_ended(self, deadline: float = inf) -> Flow[list[str]]:
        """Return the tasks that have ended since the last call; wait for at least one.

        `failed` has those that failed or were cancelled, `states` those that were read at their end. Raises
        TimeoutError at the time `deadline`.
        """
        ended = yield from self._read_unknown()
        while not ended and self._open:
            for room in list(self._open):
                ended += yield from self._step(room, deadline)
        return ended

    def read_ended(self, task_ids: Iterable[str]) -> Flow[None]:
        """Read the states of tasks that have ended. One that was retried since is watched again."""
        by_room: dict[str, list[str]] = {}
        for task_id in task_ids:
            if task_id not in self.states:
                by_room.setdefault(self._rooms[task_id], []).append(task_id)
        for room, missing in by_room.items():
            states = yield from self._read_states(missing, room)
            for task_id in missing:
                self._watch(task_id, room)
            self._add(room, states)

    def raise_failure(self) -> Flow[None]:
        """Raise `TaskFailed` for a task that has failed; return if it was retried since."""
        yield from self.read_ended(self.failed)
        for state in self.states.values():
            if state.status != TaskStatus.COMPLETED:
                raise TaskFailed.of(state)

    def _watch(self, task_id: str, room: str) -> None:
        self._rooms[task_id] = room
        self._open.setdefault(room, set()).add(task_id)
        self.failed.discard(task_id)

    def _read_states(self, task_ids: Iterable[str], room: str) -> Flow[States]:
        """Return tasks of a room as they are now: a few one by one, many from the pages of the room."""
        missing = set(task_ids)
        states: States = {}
        for number in range(3 * ceil(len(missing) / _PAGE) if len(missing) > _FEW else 0):
            query = {"limit": _PAGE, "offset": number * _PAGE}
            call = calls.call(ops.LIST_TASKS, query=query, room_id=room)
            page = yield from read(call, f"Reading the tasks of room {room}", self._rule)
            states |= {str(task.id): task for task in page.items if str(task.id) in missing}
            missing -= states.keys()
            if not missing or not page.items:
                break
        for task_id in missing:
            states[task_id] = yield from self._read_one(task_id)
        return states

    def _read_unknown(self) -> Flow[list[str]]:
        ended: list[str] = []
        while self._unknown:
            task_id = self._unknown.pop()
            task = yield from self._read_one(task_id)
            self._watch(task_id, task.room_id)
            ended += self._add(task.room_id, {task_id: task})
        return ended

    def _read_one(self, task_id: str) -> Flow[TaskResponse]:
        task, _ = yield from read(calls.get_task(task_id), f"Reading task {task_id}", self._rule)
        return task

    def _step(self, room: str, deadline: float) -> Flow[list[str]]:
        """Read the next events of a room. Raises TimeoutError."""
        now = time.monotonic()
        if now >= deadline:
            raise TimeoutError(f"{len(self):,} of {self.total:,} tasks have not ended")
        if self._next_poll > now:
            yield Pause(self._next_poll - now)
        wait = WAIT_SECONDS if len(self._open) == 1 else 1.0
        position = self._positions.get(room)
        seconds = 0 if position is None else round(min(wait, deadline - now))
        try:
            part, _ = yield from ask(calls.room_events(room, position, seconds))
        except Exception as error:
            yield Pause(min(self._polling.failed(error), max(0.0, deadline - now)))
            return []
        self._polling.answered(0, 0)
        self._next_poll = time.monotonic() + _PAUSE_SECONDS
        self._positions[room] = part.next
        if part.snapshot is not None:
            return self._add(room, (yield from self._read_states(self._open[room], room)))
        return self._close(room, _ended(part))

    def _add(self, room: str, states: States) -> list[str]:
        """Keep the tasks that have ended, and return them."""
        ended = {task_id: task for task_id, task in states.items() if task.status in TERMINAL}
        self.states |= ended
        return self._close(room, {task_id: task.status for task_id, task in ended.items()})

    def _close(self, room: str, statuses: Mapping[str, str]) -> list[str]:
        watched = self._open.get(room, set())
        ended = [task_id for task_id in statuses if task_id in watched]
        self.failed.update(task_id for task_id in ended if statuses[task_id] != TaskStatus.COMPLETED)
        watched.difference_update(ended)
        if not watched:
            self._open.pop(room, None)
        return ended


class TaskWatch(Watch):
    """Finds out which of some tasks have ended without reading their rooms: by a read of each in turn.

    It is for callers that may read these tasks alone.
    """

    def __init__(self, rooms: Mapping[str, str | None], rule: RetryRule) -> None:
        super().__init__(rooms, rule)
        self._turns: list[str] = []

    def _step(self, room: str, deadline: float) -> Flow[list[str]]:
        """Wait for the end of the next task, with others for a second. Raises TimeoutError."""
        now, watched = time.monotonic(), self._open[room]
        if now >= deadline:
            raise TimeoutError(f"{len(self):,} of {self.total:,} tasks have not ended")
        # Ids begin with the time, so the oldest task comes first.
        self._turns = [task_id for task_id in self._turns if task_id in watched] or sorted(watched)
        task_id = self._turns.pop(0)
        seconds = round(min(WAIT_SECONDS if len(self) == 1 else 1.0, deadline - now))
        try:
            task, applied = yield from ask(calls.get_task(task_id, seconds))
        except Exception as error:
            yield Pause(min(self._polling.failed(error), max(0.0, deadline - now)))
            return []
        ended = self._add(room, {task_id: task})
        pause = self._polling.answered(applied, time.monotonic() - now)
        if not ended:
            yield Pause(min(pause, max(0.0, deadline - time.monotonic())))
        return ended

    def _read_states(self, task_ids: Iterable[str], room: str) -> Flow[States]:
        states: States = {}
        for task_id in list(task_ids):
            states[task_id] = yield from self._read_one(task_id)
        return states


def _ended(part: RoomEvents) -> dict[str, str]:
    """Return the tasks that have ended, with their last status."""
    last = {
        str(event.task_id): event.data["status"] for event in part.events if event.kind == EventKind.STATUS
    }
    return {task_id: status for task_id, status in last.items() if status in TERMINAL}


def rooms_of(tasks: Iterable[str]) -> dict[str, str | None]:
    """Return the rooms of tasks, if known, by their ids. Raises as `id_of`."""
    return {str(id_of(task)): getattr(task, "room_id", None) for task in tasks}


def gather(
    tasks: Mapping[str, str | None],
    timeout: float | None,
    rule: RetryRule,
    *,
    return_exceptions: bool,
    show: Callable[[int, int], object] = lambda ended, total: None,
    kind: type[Watch] = Watch,
) -> Flow[dict[str, Any]]:
    """Return the results of tasks, and with `return_exceptions` the failures too.

    Otherwise the first failure that is seen is raised. `show` gets how many tasks have ended, and how many
    there are. Raises TimeoutError after `timeout` seconds.
    """
    watch = kind(tasks, rule)
    deadline = inf if timeout is None else time.monotonic() + timeout
    while len(watch):
        yield from watch.next_ended(deadline)
        show(watch.total - len(watch), watch.total)
        if watch.failed and not return_exceptions:
            yield from watch.raise_failure()
        if not len(watch):
            yield from watch.read_ended(tasks)
    results: dict[str, Any] = {}
    for task_id in tasks:
        try:
            results[task_id] = yield from result_of(watch.states[task_id], rule)
        except Exception as error:
            if not return_exceptions:
                raise
            results[task_id] = error
    return results
