"""The table of a run: how many tasks each kind of fault affected, and when the server recovered."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from chaos.records import Fault, RunRecord
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

_HEADER = (
    "fault",
    "count",
    "tasks affected",
    "unfinished",
    "ended twice",
    "retried",
    "failed",
    "detection s",
    "recovery s",
)
_WIDTHS = (19, 7, 16, 12, 13, 9, 8, 16, 15)


def format_table(record: RunRecord) -> str:
    """Return one line per kind of fault. Times are `median (maximum)` in seconds."""
    kinds: dict[str, list[Fault]] = defaultdict(list)
    for fault in record.faults:
        kinds[fault.kind].append(fault)
    rows = [_HEADER, *(_format_row(record, kind, faults) for kind, faults in sorted(kinds.items()))]
    return "\n".join(
        "".join(
            f"{cell:>{width}}" if column else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, _WIDTHS, strict=True))
        )
        for row in rows
    )


def _format_row(record: RunRecord, kind: str, faults: Sequence[Fault]) -> tuple[str, ...]:
    affected = [_affected_attempts(record, fault) for fault in faults]
    ids = {task_id for attempts in affected for task_id, _ in attempts}
    tasks = [record.tasks_by_id[task_id] for task_id in ids if task_id in record.tasks_by_id]
    started: dict[str, set[int]] = defaultdict(set)
    for execution in record.executions:
        started[execution.task_id].add(execution.attempt)
    ended: dict[str | None, set[int | None]] = defaultdict(set)
    for report in record.final_reports:
        ended[report.task_id].add(report.attempt)
    detections = [
        seconds
        for fault, attempts in zip(faults, affected, strict=True)
        for seconds in _detection_seconds(record, fault, attempts)
    ]
    return (
        kind,
        str(len(faults)),
        str(len(ids)),
        str(len(ids) - sum(task.status in TERMINAL for task in tasks)),
        str(sum(len(ended[task_id]) > 1 for task_id in ids)),
        str(sum(len(started[task_id]) > 1 for task_id in ids)),
        str(sum(task.status == TaskStatus.FAILED for task in tasks)),
        _format_times(detections),
        _format_times(_recovery_seconds(record, faults)),
    )


def _affected_attempts(record: RunRecord, fault: Fault) -> set[tuple[str, int]]:
    """Return the attempts that the affected workers were executing when the fault started."""
    # Tasks of groups and steps are not in this table.
    ids = {it.task_id for it in record.submissions} | record.tasks_by_id.keys()
    reported = {
        (it.task_id, it.attempt)
        for it in record.requests
        if it.ends_task and it.status_code is not None and (it.response_at or 0) <= fault.started_at
    }
    return {
        (it.task_id, it.attempt)
        for it in record.executions
        if it.event == "started"
        and it.task_id in ids
        and it.at <= fault.started_at
        and (not fault.pids or it.pid in fault.pids)
        and (it.task_id, it.attempt) not in reported
    }


def _detection_seconds(record: RunRecord, fault: Fault, attempts: set[tuple[str, int]]) -> list[float]:
    """Return the times until the server removed the affected workers."""
    if not fault.pids:
        return []
    seconds = [
        lost.at - fault.started_at
        for lost in record.lost_attempts
        if (lost.task_id, lost.attempt) in attempts
    ]
    return [each for each in seconds if each > 0]


def _recovery_seconds(record: RunRecord, faults: Sequence[Fault]) -> list[float]:
    """Return the times until the next task completed."""
    completed = sorted(
        task.completed_at.timestamp()
        for task in record.tasks
        if task.status == TaskStatus.COMPLETED and task.completed_at
    )
    next_at = [(fault, bisect_right(completed, fault.started_at)) for fault in faults]
    return [completed[index] - fault.started_at for fault, index in next_at if index < len(completed)]


def _format_times(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.2f} ({max(seconds):.2f})" if seconds else "-"
