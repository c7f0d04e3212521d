"""Record the progress, the log and the failure of an attempt, and return it to readers."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Self
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import NewEvent
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import sql_details, sql_tasks
from zndraw_joblib.server.queue.sql_details import Change, Detail, Lease, LogCounts, StoredLogPart
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.events import Emission, TaskProgress, room_of
from zndraw_joblib.wire.history import AttemptDetail, EventKind, NumberedLine, TaskLog
from zndraw_joblib.wire.messages import NamedTask, TaskUpdateRequest
from zndraw_joblib.wire.problems import TaskNotFound
from zndraw_joblib.wire.progress import MAX_LOG_LINES, Failure, LogPart, Progress

# A task keeps the details of this many of its attempts.
MAX_ATTEMPTS = 20
# A log at its bound loses its oldest quarter, so that not every new part deletes one.
_KEPT_QUARTERS = 3
_PARTS_PER_BOUND = 8
_MAX_PART_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 1024 * 1024
_PARTS_PER_READ = 64
_LINES_PER_REPORT = 20


class LogLimits(NamedTuple):
    """How many lines, and bytes of their texts as JSON, of an attempt's log are kept."""

    lines: int = 10_000
    size: int = 256 * 1024

    @classmethod
    def of(cls, settings: JobLibSettings) -> Self:
        """Return the limits of these settings."""
        return cls(settings.task_log_max_lines, settings.task_log_max_bytes)


def weight(log: LogPart | None) -> int:
    """Return how many reports without a log take about as long to write as this log."""
    return 0 if log is None else len(log.lines) // _LINES_PER_REPORT


DEFAULT_LIMITS = LogLimits()


# A line with its number, as JSON, and the bytes of its text in it.
Line = tuple[int, bytes, int]


class HeldAttempt(NamedTuple):
    """The attempt of a task whose details are stored."""

    seq: int
    id: UUID
    room_id: str
    job_name: str
    attempt: int

    @classmethod
    def of(cls, task: TaskRecord) -> Self:
        """Return the current attempt of a task."""
        return cls(task.seq, task.id, task.room_id, task.job_name, task.attempt)


@dataclass
class Reported:
    """What one transaction stores of a held attempt: its last progress, its failure, and lines of its log."""

    task: HeldAttempt
    progress: Progress | None = None
    failure: Failure | None = None
    parts: list[LogPart] = field(default_factory=list)

    @property
    def is_more(self) -> bool:
        """Whether it is more than lines of the log."""
        return self.progress is not None or self.failure is not None

    def add(self, report: TaskUpdateRequest | NamedTask) -> None:
        """Add a report, which is later than those before."""
        self.progress = report.progress or self.progress
        if report.log is not None:
            self.parts.append(report.log)
        if isinstance(report, TaskUpdateRequest):
            self.failure = report.failure or self.failure


async def record(
    tx: Transaction,
    reports: Iterable[tuple[HeldAttempt, TaskUpdateRequest | NamedTask]],
    limits: LogLimits = DEFAULT_LIMITS,
) -> None:
    """Store the details in reports, in order. The caller has locked the tasks and checked the fences.

    Lines that the log has are ignored. Beyond `limits` the oldest lines are deleted.
    """
    reported: dict[int, Reported] = {}
    for task, report in reports:
        reported.setdefault(task.seq, Reported(task)).add(report)
    if not reported:
        return
    added = await _add_lines(tx, [entry for entry in reported.values() if entry.parts], limits)
    now = await tx.now()
    changes = [
        _change(entry, added.get(seq), now)
        for seq, entry in reported.items()
        if seq in added or entry.is_more
    ]
    if changes:
        await sql_details.write(tx, changes)
    for seq, entry in reported.items():
        if entry.task.attempt > MAX_ATTEMPTS:
            await sql_details.forget(tx, seq, entry.task.attempt - MAX_ATTEMPTS)
    progress = [(entry.task, entry.progress) for entry in reported.values() if entry.progress is not None]
    if progress:
        tx.emit_many(
            lambda reaches: [
                _progress_emission(*entry) for entry in progress if reaches(room_of(entry[0].room_id))
            ]
        )
        tx.record_unknown()


async def _add_lines(
    tx: Transaction, reported: Sequence[Reported], limits: LogLimits
) -> dict[int, LogCounts]:
    """Add the new lines of logs; return the changes of their counts by the `seq` of the tasks."""
    if not reported:
        return {}
    counts = await sql_details.log_counts(tx, {entry.task.seq: entry.task.attempt for entry in reported})
    changes: dict[int, LogCounts] = {}
    new: list[tuple[int, int, StoredLogPart]] = []
    for entry in reported:
        seq, before = entry.task.seq, counts.get(entry.task.seq, LogCounts())
        lines = list(_new_lines(entry.parts, before.last))
        if lines:
            parts = list(_parts(_newest(lines, limits), limits))
            for part in parts:
                new.append((seq, entry.task.attempt, part))
                tx.record_event(partial(_log_event, entry.task, part))
            count = sum(part.last - part.first + 1 for part in parts)
            changes[seq] = LogCounts(lines[-1][0] - before.last, count, sum(part.size for part in parts))
    await sql_details.add_parts(tx, new)
    for entry in reported:
        seq, before = entry.task.seq, counts.get(entry.task.seq, LogCounts())
        added = changes.get(seq)
        if added and (before.lines + added.lines > limits.lines or before.size + added.size > limits.size):
            most_lines, most_bytes = [_KEPT_QUARTERS * bound // 4 for bound in limits]
            lost_lines, lost_bytes = await sql_details.trim_log(
                tx, seq, entry.task.attempt, most_lines=most_lines, most_bytes=most_bytes
            )
            changes[seq] = LogCounts(added.last, added.lines - lost_lines, added.size - lost_bytes)
    return changes


def _new_lines(parts: Iterable[LogPart], last: int) -> Iterator[Line]:
    for part in parts:
        for number, line in enumerate(part.lines, part.first):
            if number > last:
                last = number
                encoded = line.model_dump_json(exclude_defaults=True).encode()
                yield number, encoded, len(to_json(line.text))


def _newest(lines: Sequence[Line], limits: LogLimits) -> Sequence[Line]:
    """Return the newest of these lines that a log of the largest size can have."""
    size = 0
    for place in range(len(lines) - 1, -1, -1):
        size += lines[place][2]
        if size > limits.size or len(lines) - place > limits.lines:
            return lines[place + 1 :]
    return lines


def _parts(lines: Iterable[Line], limits: LogLimits) -> Iterator[StoredLogPart]:
    """Return lines as parts of consecutive numbers, which are small enough to delete them one by one."""
    most_bytes = min(limits.size // _PARTS_PER_BOUND, _MAX_PART_BYTES)
    most_lines = min(limits.lines // _PARTS_PER_BOUND + 1, MAX_LOG_LINES)
    part: list[Line] = []
    size = last = 0
    for line in lines:
        number, encoded, _ = line
        is_full = size + len(encoded) > most_bytes or len(part) >= most_lines
        if part and (number != last + 1 or is_full):
            yield _part(part)
            part, size = [], 0
        part.append(line)
        size += len(encoded)
        last = number
    if part:
        yield _part(part)


def _part(lines: Sequence[Line]) -> StoredLogPart:
    texts = b"[%b]" % b",".join([encoded for _, encoded, _ in lines])
    return StoredLogPart(lines[0][0], lines[-1][0], sum([size for _, _, size in lines]), texts.decode())


def _change(reported: Reported, added: LogCounts | None, now: datetime) -> Change:
    progress, failure = reported.progress, reported.failure
    added = added or LogCounts()
    return Change(
        task_seq=reported.task.seq,
        attempt=reported.task.attempt,
        progress=None if progress is None else progress.model_dump(exclude_defaults=True),
        progress_at=None if progress is None else now,
        failure=None if failure is None else failure.model_dump(exclude={"full_traceback"}),
        full_traceback=None if failure is None else failure.full_traceback,
        log_last=added.last,
        log_lines=added.lines,
        log_bytes=added.size,
    )


def _log_event(task: HeldAttempt, part: StoredLogPart) -> NewEvent:
    data = f'{{"attempt":{task.attempt},"first":{part.first},"lines":{part.lines}}}'
    return NewEvent(task.room_id, task.id, EventKind.LOG, data)


def _progress_emission(task: HeldAttempt, progress: Progress) -> Emission:
    event = TaskProgress.model_construct(
        id=task.id, name=task.job_name, room_id=task.room_id, attempt=task.attempt, progress=progress
    )
    return Emission(event, room_of(task.room_id))


def attempt_detail(detail: Detail) -> AttemptDetail:
    """Return the details of an attempt as the history of its task contains them."""
    return AttemptDetail(
        attempt=detail.attempt,
        progress=progress_of(detail),
        progress_at=detail.progress_at,
        log_lines=detail.log_last,
        log_dropped=detail.log_last - detail.log_lines,
        failure=failure_of(detail),
    )


def progress_of(detail: Detail | None) -> Progress | None:
    """Return the progress of an attempt, None if it reported none."""
    return None if detail is None or detail.progress is None else Progress.model_validate(detail.progress)


def failure_of(detail: Detail | None) -> Failure | None:
    """Return the failure that ended an attempt, with the full traceback if that was read."""
    if detail is None or detail.failure is None:
        return None
    return Failure.model_validate({**detail.failure, "full_traceback": detail.full_traceback or ""})


async def log(tx: Transaction, task_id: UUID, attempt: int | None, after: int, limit: int) -> TaskLog:
    """Return at most `limit` lines of an attempt's log after the number `after`; at most about 1 MiB.

    Without `attempt`, of the current or last one. Raises `TaskNotFound`, also for an attempt that was not.
    """
    task = await sql_tasks.by_id(tx, task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    number = task.attempt if attempt is None else attempt
    if number > task.attempt:
        raise TaskNotFound(f"Task {task_id} has no attempt {number}; it was claimed {task.attempt} times")
    counts = (await sql_details.log_counts(tx, {task.seq: number})).get(task.seq, LogCounts())
    lines = await _lines(tx, task.seq, number, after, limit) if after < counts.last else []
    return TaskLog(
        id=task_id,
        attempt=number,
        lines=lines,
        last=counts.last,
        dropped=counts.last - counts.lines,
        next=lines[-1].n if lines and lines[-1].n < counts.last else None,
    )


async def _lines(tx: Transaction, seq: int, attempt: int, after: int, limit: int) -> list[NumberedLine]:
    lines: list[NumberedLine] = []
    size = 0
    while parts := await sql_details.parts(tx, seq, attempt, after, _PARTS_PER_READ):
        for part in parts:
            numbered = enumerate(from_json(part.lines), part.first)
            new = [NumberedLine(n=n, **line) for n, line in numbered if n > after]
            lines += new[: limit - len(lines)]
            size += part.size
            after = part.last
            if len(lines) >= limit or size >= _MAX_ANSWER_BYTES:
                return lines
    return lines


# When to call a host's function after the end of a task: leases, and pauses between attempts.

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0


class Due(NamedTuple):
    """Calls to make now, and in how many seconds the next one is due; None without one."""

    leases: list[Lease]
    seconds: float | None


async def take(tx: Transaction, names: Mapping[str, int], limit: int, lease_seconds: float) -> Due:
    """Lease due calls for `lease_seconds`; each function is first at times.

    They are at most `limit`, and of each function at most as many as `names` has.
    """
    now = await tx.now()
    shuffled = dict(random.sample(sorted(names.items()), len(names)))
    leases = await sql_details.take(tx, shuffled, limit, now, now + timedelta(seconds=lease_seconds))
    at = await sql_details.next_due(tx, names)
    return Due(leases, None if at is None else (at - now).total_seconds())


async def extend(tx: Transaction, lease: Lease, lease_seconds: float) -> None:
    """Extend a lease, unless another process took the call after it ran out."""
    await sql_details.postpone(tx, lease, await tx.now() + timedelta(seconds=lease_seconds))


async def finish(tx: Transaction, lease: Lease) -> None:
    """Record that the function was called, or that no further call is made."""
    await sql_details.finish(tx, lease)


async def retry(tx: Transaction, lease: Lease) -> float:
    """Repeat a call that failed: after a second, then twice as long each time, at most an hour."""
    pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(lease.attempt - 1, 60))
    pause *= 1 - 0.3 * random.random()  # noqa: S311 - jitter
    await sql_details.postpone(tx, lease, await tx.now() + timedelta(seconds=pause))
    return pause
