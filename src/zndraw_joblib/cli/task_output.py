"""The output about one task: its fields, history, log, result, and why it failed."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import (
    CommandError,
    ItemTable,
    amount_text,
    counted,
    format_duration,
    print_fields,
    print_json,
    print_note,
)
from zndraw_joblib.jobs.logs import clean_line, clean_text, escape_json
from zndraw_joblib.wire.history import AttemptDetail, NumberedLine, TaskHistory
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.progress import Failure, Progress
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import TaskAfter

_TEXT = re.compile(r"text/|application/json\b", re.IGNORECASE)
_BOUNDS = "the server's settings task_log_max_bytes and task_log_max_lines bound it"
_JSON = re.compile(r"application/json\b", re.IGNORECASE)
_CHANGES = ItemTable(
    {
        "at": "at",
        "status": "status",
        "attempt": "attempt_number",
        "worker": "worker_id",
        "until": "run_at",
        "reason": "reason",
        "error": "error",
        "progress": "progress",
        "lines": "lines",
    },
    wide=["error", "progress"],
    ids=["worker"],
    optional=["until", "lines", "reason", "worker"],
)


def print_task(task: TaskResponse, *, as_json: bool) -> None:
    """Print the fields of a task, and the traceback if it failed."""
    if as_json:
        print_json(task)
        return
    shown = {
        "payload": _inline(task.payload),
        "result": _inline(task.result),
        "progress": progress_text(task.progress) or None,
        "failure": task.failure and task.failure.type,
        "tags": None if task.tags is None else ", ".join(task.tags),
        "after": None if task.after is None else _after_text(task.after),
        "successors": None if task.successors is None else " ".join(map(str, task.successors)),
        "stored_result": None if task.stored_result is None else describe_result(task),
    }
    # Fields that the response leaves out are not shown.
    fields = task.model_dump(exclude={"attempt", "waits"})  # the first counts claims
    if task.after is not None and task.after.waits_for:
        fields["waits for"] = " ".join(map(str, task.after.waits_for))
    print_fields({name: shown.get(name, value) for name, value in fields.items()})
    if task.failure is not None and task.failure.traceback:
        sys.stdout.write(f"\n{failure_text(task.failure)}\n")


def _after_text(after: TaskAfter) -> str:
    """Return what a task has to wait for, like "1f0c… 2a4e… group 77b1…, on failure: hold"."""
    names = [*map(str, after.tasks), *(f"group {group_id}" for group_id in after.groups)]
    return f"{' '.join(names)}, on failure: {after.on_failure}"


def print_history(history: TaskHistory, *, as_json: bool) -> None:
    """Print the changes of a task's status; the last one of an attempt has its progress and log lines."""
    if as_json:
        print_json(history)
        return
    last = {change.attempt: number for number, change in enumerate(history.transitions)}
    details = {last[detail.attempt]: detail for detail in history.attempts if detail.attempt in last}
    _CHANGES.print(
        [{**dict(change), **_shown(details.get(number))} for number, change in enumerate(history.transitions)]
    )


def _shown(detail: AttemptDetail | None) -> dict[str, Any]:
    return {} if detail is None else {"progress": progress_text(detail.progress), "lines": detail.log_lines}


def print_log(parts: Iterable[Sequence[NumberedLine]], *, as_json: bool) -> bool:
    """Print a log, see `print_lines`; as JSON, a list of its lines. Return whether it has any."""
    if as_json:
        every = [line for lines in parts for line in lines]
        print_json(every)
        return bool(every)
    after = 0
    for lines in parts:
        print_lines(lines, after)
        after = lines[-1].n
    return after > 0


def print_lines(lines: Sequence[NumberedLine], after: int) -> None:
    """Print log lines on standard output, and a note if some of the lines after number `after` are missing.

    On a terminal a line is its time and text, else time, level, source and text with tabs in between.
    """
    if sys.stdout.isatty():
        from zndraw_joblib.cli import terminal  # noqa: PLC0415 - see `terminal`

        write = terminal.print_line
    else:
        write = _write_line
    for line in lines:
        if line.n > after + 1:
            reason = "the job wrote them faster than its worker reports" if after else _BOUNDS
            print_note(f"{counted(line.n - after - 1, 'line')} of the log are not kept: {reason}.")
        after = line.n
        write(line)
    sys.stdout.flush()


def _write_line(line: NumberedLine) -> None:
    text = clean_line(line.text).replace("\t", " ")
    sys.stdout.write("\t".join((line.at.isoformat(), line.level, line.source, text)) + "\n")


def progress_text(progress: Progress | None) -> str:
    """Return a progress like "40/100 frames (40 %), relaxing"."""
    if progress is None:
        return ""
    parts = [amount_text(progress)]
    if progress.current is not None and progress.total:
        parts[0] += f" ({progress.current / progress.total:.0%})"
    return ", ".join(part for part in (*parts, clean_line(progress.message or "")) if part)


def failure_text(failure: Failure) -> str:
    """Return the traceback of a failure."""
    return "\n".join(map(clean_line, failure.traceback.splitlines()))


def describe_result(task: TaskResponse) -> str:
    """Return what the result of a task is, like "1,024 bytes of image/png"."""
    stored = task.stored_result
    return "JSON" if stored is None else f"{stored.size:,} bytes of {clean_line(stored.content_type)}"


def check_completed(task: TaskResponse) -> None:
    """Print a note that a task has completed, or the traceback of its failure.

    Raises `CommandError` unless it completed.
    """
    if task.status != TaskStatus.COMPLETED:
        if task.failure is not None and task.failure.traceback:
            print_note(failure_text(task.failure))
        raise CommandError(f"Task {task.id} {task.status}" + (f": {task.error}" if task.error else ""))
    took = task.completed_at - task.started_at if task.completed_at and task.started_at else None
    lasted = "" if took is None else f" in {format_duration(took)}"
    if task.attempts > 1 and task.completed_at:
        since = format_duration(task.completed_at - task.created_at)
        lasted += f", at attempt {task.attempts}, {since} after its submit"
    print_note(f"Task {task.id} completed{lasted}.")


def write_result(client: AdminClient, task: TaskResponse, *, may_be_unseen: bool = False) -> None:
    """Write the result of a task to standard output: JSON, or stored bytes as they are.

    On a terminal, long values in JSON are shortened. Binary content is not written to a terminal: a note says
    how to read it with `may_be_unseen`, else an error. Raises `CommandError`, also without a result.
    """
    _check_has_result(task)
    if task.stored_result is None:
        _write_value(task.result, task)
        return
    content_type, is_terminal = task.stored_result.content_type, sys.stdout.isatty()
    if is_terminal and not _TEXT.match(content_type):
        text = (
            f"The result is {describe_result(task)}, which a terminal cannot show. "
            f"'zndraw-joblib task {task.id} --result > FILE' writes it to a file"
        )
        if not may_be_unseen:
            raise CommandError(text)
        print_note(f"{text}.")
        return
    with TemporaryFile() as file:
        client.load_result(task.id, file)
        file.seek(0)
        if is_terminal and _JSON.match(content_type):
            _write_value(json.load(file), task)
        elif is_terminal:
            for line in TextIOWrapper(file, "utf-8", "replace"):
                sys.stdout.write(clean_text(line))
        else:
            copyfileobj(file, sys.stdout.buffer)


def _check_has_result(task: TaskResponse) -> None:
    if task.status not in TERMINAL:
        raise CommandError(
            f"Task {task.id} is {task.status}, so it has no result yet. "
            f"'zndraw-joblib task {task.id} --follow' waits for its end"
        )
    if task.status != TaskStatus.COMPLETED:
        raise CommandError(
            f"Task {task.id} {task.status}, so it has no result. "
            f"'zndraw-joblib task {task.id} --history' shows why"
        )


def _write_value(value: Any, task: TaskResponse) -> None:
    shown = _for_output(value)
    if isinstance(shown, str) and not isinstance(value, str):
        sys.stdout.write(f"{clean_line(shown)}\n")
    else:
        print_json(shown)
    if shown != value:
        how = f"'zndraw-joblib task {task.id} --result > FILE' writes the whole result"
        print_note(f"Long values are shortened. {how}.")


def _inline(value: Any) -> str | None:
    return None if value is None else escape_json(json.dumps(_for_output(value), ensure_ascii=False))


def _for_output(value: Any) -> Any:
    """Return JSON as it is, and shortened for a terminal."""
    if not sys.stdout.isatty():
        return value
    from zndraw_joblib.cli.values import shortened  # noqa: PLC0415 - see `terminal`

    return shortened(value)
