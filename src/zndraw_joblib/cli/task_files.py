"""The commands `tasks export` and `tasks import`: tasks as JSON Lines, from one queue to another."""

import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, NamedTuple
from uuid import UUID

import typer
from pydantic import ValidationError

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import CommandError, UsageError, counted, print_note
from zndraw_joblib.cli.options import Url, with_options
from zndraw_joblib.cli.submit import STDIN, open_file
from zndraw_joblib.cli.task_filter import Selection, TaskOptions, where
from zndraw_joblib.cli.tasks import app
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.retry import is_repeatable
from zndraw_joblib.client.submits import task_body
from zndraw_joblib.jobs.failures import describe_errors
from zndraw_joblib.jobs.logs import LogConfig, escape_json, one_line
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.masks import MASK
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES, TaskResponse
from zndraw_joblib.wire.operators import FoundTask
from zndraw_joblib.wire.problems import ProblemException, TaskNotFound, Unauthorized
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.successors import ResultOf, result_of, with_values

_PART = 200
# Of one request; the client splits what is larger.
_BATCH, _BATCH_BYTES = 200, 900_000
_READS_AT_ONCE = 8
_SHOWN_FAULTS = 10
# What a line leaves out: it is of this queue and this moment.
_LEFT_OUT = {"attempt", "queue_position", "successors", "traceparent", "waits", "worker_id"}
_RESULT = {"result", "stored_result"}

WithResults = Annotated[bool, typer.Option("--results", help="Write the results too, if they are JSON.")]
Most = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="At most this many tasks. Default: all.")
]
TasksFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The lines of an export; - reads standard input.")
]


@app.command("export")
@with_options(TaskOptions)
def export_tasks(
    *, results: WithResults = False, options: TaskOptions, limit: Most = None, url: Url = DEFAULT_URL
) -> None:
    """Write tasks as JSON Lines, newest first.

    A line is a task as the API returns it to this user: secret values stay hidden. The options select tasks
    as those of 'tasks' do. 'tasks import' submits the lines to another queue.
    """
    LogConfig().apply()
    _export(url, options.selection(), limit, has_results=results)


def _export(url: str, selection: Selection, limit: int | None, *, has_results: bool) -> None:
    with open_client(url) as client:
        selection = selection.located(client)
        filters = selection.resolve(client).model_dump(mode="json", exclude_defaults=True)
        number = stored = 0
        for task in _exported(client, filters, limit):
            number += 1
            stored += has_results and task.stored_result is not None
            left_out = _LEFT_OUT if has_results else _LEFT_OUT | _RESULT
            line = task.model_dump_json(exclude=left_out, exclude_none=True)
            sys.stdout.write(escape_json(line) + "\n")
    sys.stdout.flush()
    print_note(f"Exported {counted(number, 'task')} {where(selection.rooms)}.")
    if stored:
        print_note(
            f"Not in the lines: {counted(stored, 'result')} stored as bytes. 'task ID --result' writes one."
        )


def _exported(client: AdminClient, filters: dict[str, Any], limit: int | None) -> Iterator[TaskResponse]:
    """Yield the tasks that match, part by part. Those that are deleted meanwhile are left out.

    No list of tasks has all that a line keeps, so each is read, several at a time.
    """

    def read(listed: FoundTask) -> TaskResponse | None:
        try:
            return client.get_task(listed.id)
        except TaskNotFound:
            return None

    cursor, rest = None, limit
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        while rest is None or rest > 0:
            query = {**filters, "limit": _PART if rest is None else min(_PART, rest), "cursor": cursor}
            part = client.read(ops.SEARCH_TASKS, "searches for tasks", query=query)
            yield from filter(None, threads.map(read, part.items))
            rest = None if rest is None else rest - len(part.items)
            cursor = part.next
            if cursor is None:
                return


@app.command("import")
def import_tasks(file: TasksFile, *, url: Url = DEFAULT_URL) -> None:
    """Submit the tasks of an export anew.

    It begins with the oldest, and prints the ids. It keeps job, room, payload, priority, tags, requirements,
    start time, parents and predecessors. A line that was imported before, also from another file, submits no
    second task, while the server remembers it (idempotency_key_hours). The exit code is 1 if a line was not
    imported.
    """
    LogConfig().apply()
    with open_client(url) as client, _opened(file) as lines:
        importer = _Import(client, lines.referenced)
        for number, task in lines.oldest_first():
            importer.add(number, task)
        importer.flush()
    importer.conclude(file)


class _Lines:
    """The lines of a seekable file. Only their offsets are in memory, and the ids that others refer to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._offsets = array("Q")
        self.referenced: set[UUID] = set()
        number = offset = 0
        faults: list[str] = []
        while line := file.readline(MAX_BATCH_BYTES + 1):
            number += 1
            try:
                if line.strip():
                    self.referenced.update(_references(_parsed(line)))
            except ValueError as error:
                faults.append(f"line {number}: {error}")
                if len(faults) == _SHOWN_FAULTS or len(line) > MAX_BATCH_BYTES:
                    break
            self._offsets.append(offset)
            offset += len(line)
        if faults:
            raise UsageError(f"Nothing was imported: {'; '.join(faults)}. Pass lines of 'tasks export'")

    def oldest_first(self) -> Iterator[tuple[int, TaskResponse]]:
        """Yield the tasks from the last line to the first, each with its number."""
        for index in reversed(range(len(self._offsets))):
            self._file.seek(self._offsets[index])
            line = self._file.readline()
            if line.strip():
                yield index + 1, _parsed(line)


@contextmanager
def _opened(path: str) -> Iterator[_Lines]:
    if path == STDIN:
        with TemporaryFile() as copy:
            while part := sys.stdin.buffer.read(1024 * 1024):
                copy.write(part)
            copy.seek(0, os.SEEK_SET)
            yield _Lines(copy)
        return
    with open_file(path) as file:
        yield _Lines(file)


def _parsed(line: bytes) -> TaskResponse:
    if len(line) > MAX_BATCH_BYTES:
        raise ValueError(f"it has more than {MAX_BATCH_BYTES:,} bytes")
    try:
        return TaskResponse.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(describe_errors(error)) from None


def _references(task: TaskResponse) -> Sequence[UUID]:
    parent = [] if task.parent is None else [task.parent]
    return parent if task.after is None else [*parent, *task.after.tasks]


class _NotImported(ValueError):
    """A task cannot be submitted anew; the text says why."""


class _Line(NamedTuple):
    """A task on its way: the number of its line, what a submit has of it, and its body."""

    number: int
    task: TaskResponse
    options: dict[str, Any]
    body: bytes


class _Import:
    """Submits tasks in batches, and counts what it could not keep.

    A batch ends before a task that refers to one of it, whose new id is not known yet.
    """

    def __init__(self, client: AdminClient, referenced: set[UUID]) -> None:
        self._client, self._referenced = client, referenced
        self._ids: dict[UUID, UUID] = {}
        self._lines: list[_Line] = []
        self._size = 0
        self._imported = self._refused = 0
        self._lost: Counter[str] = Counter()

    def add(self, number: int, task: TaskResponse) -> None:
        """Submit a task with the next batch, or print why it is refused."""
        if not {line.task.id for line in self._lines}.isdisjoint(_references(task)):
            self.flush()
        try:
            options, payload = self._options(task)
            key = f"import-{task.id}"
            body = task_body(task.room_id, task.job_name, payload, {**options, "idempotency_key": key})
        except ValueError as error:
            self._refuse(number, error)
            return
        if self._lines and (len(self._lines) == _BATCH or self._size + len(body) > _BATCH_BYTES):
            self.flush()
        self._lines.append(_Line(number, task, options, body))
        self._size += len(body)

    def flush(self) -> None:
        """Submit the tasks that were added."""
        lines, self._lines, self._size = self._lines, [], 0
        if lines:
            self._submit(lines)

    def _submit(self, lines: Sequence[_Line]) -> None:
        """Submit tasks in their order. A batch that is refused as a whole is submitted in halves."""
        # A server of an earlier release knows no keys of tasks: it applies an equal batch once.
        names = ",".join(line.task.id.hex for line in lines)
        key = f"import-{sha256(names.encode()).hexdigest()[:32]}"
        try:
            parts = self._client.submit_bodies([line.body for line in lines], key)
            results = [result for part in parts for result in part]
        except ProblemException as problem:
            if isinstance(problem, Unauthorized) or is_repeatable(problem):
                raise
            if len(lines) == 1:
                self._refuse(lines[0].number, problem)
                return
            for half in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):
                self._submit(half)
            return
        for line, result in zip(lines, results, strict=True):
            if isinstance(result, ProblemException):
                self._refuse(line.number, result)
            else:
                self._conclude_line(line, UUID(str(result)))

    def _conclude_line(self, line: _Line, new: UUID) -> None:
        self._imported += 1
        self._lost.update(_not_kept(line.task, line.options))
        if line.task.id in self._referenced:
            self._ids[line.task.id] = new
        typer.echo(new)

    def _refuse(self, number: int, error: Exception) -> None:
        self._refused += 1
        if self._refused <= _SHOWN_FAULTS:
            print_note(f"line {number}: {one_line(str(error))}")

    def conclude(self, file: str) -> None:
        """Print what was imported, and what not. Raises `CommandError` if a line was refused."""
        print_note(
            f"Imported {self._imported:,} of {counted(self._imported + self._refused, 'task')} of {file}."
        )
        if self._lost:
            lost = ", ".join(f"{what} of {counted(count, 'task')}" for what, count in self._lost.items())
            print_note(f"Not kept: {lost}.")
        if self._refused:
            more = " The first ten reasons are above." if self._refused > _SHOWN_FAULTS else ""
            raise CommandError(f"{counted(self._refused, 'task')} were not imported.{more}")

    def _options(self, task: TaskResponse) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options and the payload of a submit. Raises `_NotImported`."""
        payload = task.payload
        options: dict[str, Any] = {"priority": task.priority, "tags": task.tags}
        options |= {"requires": task.requires, "cost": task.cost}
        if task.status == TaskStatus.PENDING and task.attempts == 0 and not task.waits:
            options["run_at"] = task.run_at
        if task.parent in self._ids:
            options["parent"] = self._ids[task.parent]
        if task.after is not None:
            options["after"] = self._after(task)
            payload = with_values(payload, self._new_reference)
        with_values(payload, _refuse_mask)
        return {name: value for name, value in options.items() if value is not None}, payload

    def _after(self, task: TaskResponse) -> dict[str, Any]:
        after = task.after
        if after is None or after.groups:
            raise _NotImported("it waits for a group, and groups are not imported. Submit it by hand")
        missing = [str(it) for it in after.tasks if it not in self._ids]
        if missing:
            raise _NotImported(
                f"it waits for {missing[0]}, which this file did not import. Export its predecessors too"
            )
        return {"tasks": [self._ids[it] for it in after.tasks], "on_failure": after.on_failure}

    def _new_reference(self, value: Any) -> Any:
        result = result_of(value)
        if not isinstance(result, ResultOf) or not isinstance(result.task, UUID):
            return value
        return {"$result": {"task": str(self._ids.get(result.task, result.task)), "pointer": result.pointer}}


def _refuse_mask(value: Any) -> Any:
    if value == MASK:
        raise _NotImported("its payload has secret values, which no export shows. Submit it by hand")
    return value


def _not_kept(task: TaskResponse, options: dict[str, Any]) -> Iterator[str]:
    """Yield what the new task lacks."""
    lost = {
        "the group": task.group,
        "the parent": None if "parent" in options else task.parent,
        "the unique key": task.unique_key,
        "the time of expiry": task.expires_at,
        "the schedule": task.schedule,
        "the result": task.result if task.stored_result is None else task.stored_result,
    }
    return (what for what, value in lost.items() if value is not None)
