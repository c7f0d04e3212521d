"""The progress and the log of an attempt, until they are reported."""

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from math import inf
from time import time
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.wire.progress import MAX_LINE_CHARACTERS, MAX_LOG_LINES, LogLevel, LogSource

log = logging.getLogger(__name__)

# The content of channels is reported at most twice a second.
REPORT_INTERVAL_SECONDS = 0.5
MAX_WAITING_LINES = 10_000
MAX_WAITING_BYTES = 1024 * 1024
NO_WORKER = UUID(int=0)
_MAX_PART_BYTES = 64 * 1024
_MAX_PARTIAL_LINES = 100
_LINE_BYTES = 64
_TRUNCATED = " … (truncated)"


class Line(NamedTuple):
    """A line of a log. `at` are seconds since the epoch; `text` has no line break."""

    at: float
    text: str
    level: LogLevel = LogLevel.INFO
    source: LogSource = LogSource.LOG

    def as_fields(self) -> dict[str, str]:
        """Return the fields of a `LogLine`."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat()
        return {"at": at, "text": self.text, "level": self.level, "source": self.source}


class LiveReport:
    """What a report says of the progress and the log of an attempt: lines from number `first` on."""

    def __init__(self, progress: dict[str, Any] | None, version: int, first: int, lines: Sequence[Line]):
        self.progress = progress
        self.version = version
        self.first = first
        self.lines = lines

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Return the fields `progress` and `log` of a `TaskUpdateRequest`, as plain JSON."""
        log = {"first": self.first, "lines": [line.as_fields() for line in self.lines]}
        return {
            **({} if self.progress is None else {"progress": self.progress}),
            **({"log": log} if self.lines else {}),
        }

    @cached_property
    def json(self) -> bytes:
        """Return the same fields as JSON, without the braces around them."""
        return json.dumps(self.fields, ensure_ascii=False, separators=(",", ":")).encode()[1:-1]


class TaskChannel:
    """Holds the progress and the log of one attempt until they are reported. Thread-safe.

    Only the latest progress is kept, and at most 10,000 lines or 1 MiB: then the oldest lines are dropped.
    Lines are numbered from 1 on. `on_content` is called with the channel when there is something to report
    again. `captures`: what the job prints is logged. A copy in another process is a new channel.

    Nothing is kept after `close`, nor in a forked process.
    """

    __slots__ = ("_forks", "attempt", "captures", "content", "on_content", "task_id", "worker_id")

    def __init__(
        self,
        task_id: str = "",
        attempt: int = 0,
        worker_id: UUID = NO_WORKER,
        *,
        captures: bool = False,
        on_content: "Callable[[TaskChannel], None] | None" = None,
    ) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.worker_id = worker_id
        self.captures = captures
        self.on_content = on_content
        self._forks = _forks
        self.content: _Content | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the content and the callback out of pickles and deep copies."""
        return _copy, (self.task_id, self.attempt, self.worker_id, self.captures)

    @property
    def size(self) -> int:
        """Return about how many bytes of log lines wait to be reported."""
        content = self.content
        return 0 if content is None else content.size

    def set_progress(self, changes: dict[str, Any]) -> None:
        """Change fields of the progress; values must be those of a `Progress`, as plain JSON."""
        self._change(lambda content: content.set_progress(changes))

    def add(self, lines: Iterable[Line], dropped: int = 0) -> None:
        """Add lines to the log, after as many that were `dropped` before."""
        self._change(lambda content: content.add(lines, dropped))

    def write(self, text: str, source: LogSource) -> None:
        """Add captured text; a line is added once its end is written, or at `finish`."""
        self._change(lambda content: content.write(text, source))

    def finish(self) -> None:
        """Add the lines whose end was not written."""
        if self.content is not None:
            self._change(lambda content: content.end_partial_lines())

    def take(self) -> LiveReport | None:
        """Return the next report, None if there is nothing to report; `acknowledge` it when it has arrived.

        Until then the next call returns the same lines again. It has at most 1,000 lines or about 64 KiB.
        """
        content = self.content
        if content is None:
            return None
        with content.lock:
            return next(content.reports(), None)

    def take_all(self) -> Sequence[LiveReport]:
        """Return all reports."""
        content = self.content
        if content is None:
            return ()
        with content.lock:
            return list(content.reports())

    def acknowledge(self, *reports: LiveReport) -> None:
        """Forget what has been reported."""
        content = self.content
        if content is not None:
            with content.lock:
                for report in reports:
                    content.forget(report)

    def close(self) -> None:
        """Forget everything, and keep nothing from now on."""
        content = self.content
        # A task that runs on, although it is no longer this worker's, has its channel closed too.
        self.content = _closed
        if content is not None and content is not _closed:
            with content.lock:
                content.close()

    def _change(self, change: "Callable[[_Content], None]") -> None:
        # In a forked process a lock may be held forever.
        if self._forks != _forks:
            return
        content = self.content or self._start()
        if content.is_closed:
            return
        with content.lock:
            change(content)
            is_new = content.is_waiting and not content.is_noticed
            content.is_noticed |= is_new
        if is_new and self.on_content is not None:
            self.on_content(self)

    def notice_again(self) -> None:
        """Call `on_content` for the next content, and at once if something waits already."""
        content = self.content
        if content is None:
            return
        with content.lock:
            content.is_noticed = content.is_waiting
        if content.is_waiting and self.on_content is not None:
            self.on_content(self)

    def _start(self) -> "_Content":
        with _start_lock:
            if self.content is None:
                self.content = _Content()
            return self.content


class TakenReport(NamedTuple):
    """A report that was taken from a channel, and is under way."""

    channel: TaskChannel
    report: LiveReport

    def drop(self, reason: str) -> None:
        """Forget a report whose content the server refuses."""
        task_id = self.channel.task_id
        log.warning("Dropped log lines of task %s: %s", task_id, reason, extra={"task_id": task_id})
        self.channel.acknowledge(self.report)


class WaitingChannels:
    """Channels whose content waits to be reported, the oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[TaskChannel, None] = {}

    def add(self, channel: TaskChannel) -> None:
        """Add a channel."""
        with self._lock:
            self._channels[channel] = None

    def take(self, max_bytes: float = inf, max_reports: float = inf) -> list[TakenReport]:
        """Return one report of each channel, as many as fit into a request; the others wait.

        Call `notice_again` of each of these channels after its report has arrived or failed.
        """
        reports: list[TakenReport] = []
        size = 0
        while size < max_bytes and len(reports) < max_reports:
            with self._lock:
                channel = next(iter(self._channels), None)
                if channel is None:
                    break
                del self._channels[channel]
            report = channel.take()
            if report is None:
                channel.notice_again()
            else:
                reports.append(TakenReport(channel, report))
                size += len(report.json)
        return reports

    def __bool__(self) -> bool:
        """Return whether any channel waits."""
        return bool(self._channels)


class _Content:
    """The content of a channel; each method needs the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_closed = False
        self.is_noticed = False
        self._progress: dict[str, Any] = {}
        self._version = 0
        self._reported = 0
        self._lines: deque[Line] = deque()
        self._first = 1
        self.size = 0
        self._partial: dict[tuple[LogSource, int], str] = {}

    @property
    def is_waiting(self) -> bool:
        return bool(self._lines) or self._version > self._reported

    def set_progress(self, changes: dict[str, Any]) -> None:
        self._progress = {**self._progress, **changes}
        self._version += 1

    def add(self, lines: Iterable[Line], dropped: int = 0) -> None:
        if dropped:
            self._drop(len(self._lines))
            self._first += dropped
        for line in lines:
            clean = line._replace(text=clean_line(line.text))
            self._lines.append(clean)
            self.size += _size(clean)
            while self.size > MAX_WAITING_BYTES or len(self._lines) > MAX_WAITING_LINES:
                self._drop(1)

    def write(self, text: str, source: LogSource) -> None:
        now, key = time(), (source, threading.get_ident())
        begun = self._partial.pop(key, "")
        skipped = 0
        if len(text) > MAX_WAITING_BYTES:
            # Most of it would be dropped at once.
            cut = text.rfind("\n", 0, len(text) - MAX_WAITING_BYTES) + 1
            if cut:
                skipped, begun, text = text.count("\n", 0, cut), "", text[cut:]
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = begun + lines[0]
            self.add([Line(now, _shown(line), source=source) for line in lines], skipped)
        else:
            rest = begun + rest
        if rest:
            if len(self._partial) >= _MAX_PARTIAL_LINES:
                self.end_partial_lines()
            self._partial[key] = _shown_last(rest)

    def end_partial_lines(self) -> None:
        now, partial = time(), self._partial
        self._partial = {}
        self.add([Line(now, _shown(text), source=source) for (source, _), text in partial.items()])

    def reports(self) -> Iterator[LiveReport]:
        first, lines = self._first, iter(self._lines)
        progress = self._progress if self._version > self._reported else None
        while (part := list(_part(lines))) or progress is not None:
            yield LiveReport(progress, self._version, first, part)
            progress = None
            first += len(part)

    def forget(self, report: LiveReport) -> None:
        self._drop(min(len(self._lines), max(0, report.first + len(report.lines) - self._first)))
        if report.progress is not None:
            self._reported = max(self._reported, report.version)

    def close(self) -> None:
        self.is_closed = True
        self._drop(len(self._lines))
        self._reported = self._version
        self._partial.clear()

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self.size -= _size(self._lines.popleft())
        self._first += count


_start_lock = threading.Lock()
_forks = 0
_closed = _Content()
_closed.close()


def _in_child() -> None:
    global _start_lock, _forks  # noqa: PLW0603 - they belong to the process
    _start_lock = threading.Lock()
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_in_child)


def _copy(task_id: str, attempt: int, worker_id: UUID, captures: bool) -> TaskChannel:
    return TaskChannel(task_id, attempt, worker_id, captures=captures)


def _part(lines: Iterator[Line]) -> Iterator[Line]:
    size = 0
    for line in islice(lines, MAX_LOG_LINES):
        yield line
        size += _size(line)
        if size >= _MAX_PART_BYTES:
            return


def _size(line: Line) -> int:
    return _LINE_BYTES + (len(line.text) if line.text.isascii() else len(line.text.encode()))


def _shown(line: str) -> str:
    """Return what a terminal would show of a line that was written over, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def _shown_last(begun: str) -> str:
    """Return as much of a line that has begun as its end may still need."""
    last = begun.rpartition("\r")[2] if "\r" in begun.rstrip("\r") else begun
    return last[: MAX_LINE_CHARACTERS + 1]


def clean_text(text: str) -> str:
    """Return text that JSON and every database can store: without lone surrogates and NUL."""
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def clean_line(text: str) -> str:
    """Return the text of a log line: clean, on one line, at most 8,192 characters."""
    text = clean_text(text[: MAX_LINE_CHARACTERS + 1])
    if len(text) > MAX_LINE_CHARACTERS:
        text = text[: MAX_LINE_CHARACTERS - len(_TRUNCATED)] + _TRUNCATED
    return text
