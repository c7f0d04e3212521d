"""Follow the event stream of a task through lost connections. No I/O."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.retry import RequestBackoff, RetryRule
from zndraw_joblib.wire.statuses import TaskStatus

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
