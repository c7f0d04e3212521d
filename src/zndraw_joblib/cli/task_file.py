"""Submit the tasks of a JSON Lines file: one object per line, with the task's payload and options."""

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import IO, Any, NamedTuple

import typer
from pydantic import ConfigDict, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.display import console, print_note
from zndraw_joblib.cli.errors import CommandError, UsageError
from zndraw_joblib.client.batches import task_body
from zndraw_joblib.contract.batches import MAX_BATCH_BYTES
from zndraw_joblib.contract.messages import TaskSubmitRequest
from zndraw_joblib.contract.names import JobName, task_room
from zndraw_joblib.contract.outcomes import describe_errors
from zndraw_joblib.contract.problems import JobNotFound, ProblemException
from zndraw_joblib.contract.terminal import one_line

STDIN = "-"
_SHOWN_FAULTS = 10
_TIMES = {"run_at", "delay_seconds"}
EncodeLine = Callable[[bytes], bytes]


class TaskLine(TaskSubmitRequest):
    """A line of the file. Without `job` or `room`, those of the command line are used."""

    model_config = ConfigDict(extra="forbid")

    job: str | None = None
    room: str | None = None


class CheckedFile(NamedTuple):
    """The valid tasks of a file, with the numbers of their lines, in a temporary file."""

    name: str
    tasks: int
    bodies: IO[bytes]

    def read(self, numbers: deque[int]) -> Iterator[bytes]:
        """Yield the tasks; append the number of each line to `numbers`."""
        self.bodies.seek(0)
        for line in self.bodies:
            number, _, body = line.partition(b" ")
            numbers.append(int(number))
            yield body.rstrip(b"\n")


@contextmanager
def checked_file(path: str, encode_line: EncodeLine) -> Iterator[CheckedFile]:
    """Yield the tasks of a file, or of standard input for "-"; the memory does not grow with it.

    Raises `UsageError` that names the invalid lines.
    """
    name = "standard input" if path == STDIN else path
    count = invalid = 0
    faults: list[str] = []
    with tempfile.TemporaryFile() as bodies:
        with nullcontext(sys.stdin.buffer) if path == STDIN else _open(path) as source:
            for number, line in _lines(source):
                count += 1
                try:
                    bodies.write(b"%d %s\n" % (number, encode_line(line)))
                except (ValueError, CommandError, JobNotFound) as error:
                    invalid += 1
                    faults += [f"line {number}: {error}"] if invalid <= _SHOWN_FAULTS else []
        if invalid:
            more = f"; and {invalid - _SHOWN_FAULTS:,} more" if invalid > _SHOWN_FAULTS else ""
            raise UsageError(
                f"{invalid:,} of the {count:,} lines of {name} are invalid, so nothing was submitted: "
                f"{'; '.join(faults)}{more}"
            )
        if not count:
            raise UsageError(f'{name} has no tasks. Write one per line, like {{"payload": {{"key": 1}}}}')
        yield CheckedFile(name, count, bodies)


def _open(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"--from {path!r} cannot be read: {error.strerror}. Pass a file, or -") from error


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers. Raises `UsageError` for an endless line."""
    number = 0
    while line := source.readline(MAX_BATCH_BYTES + 1):
        number += 1
        if len(line) > MAX_BATCH_BYTES:
            raise UsageError(
                f"line {number} has more than {MAX_BATCH_BYTES:,} bytes, so nothing was submitted. "
                "Write one task per line"
            )
        if line.strip():
            yield number, line


def encoder(client: AdminClient, job: str | None, room: str | None, defaults: dict[str, Any]) -> EncodeLine:
    """Return a function that turns a line into the body of its task; `defaults` are options."""

    @cache
    def find(name: str, searched: str | None) -> JobName | CommandError:
        # An unknown name is remembered too: it may stand in every line.
        try:
            return client.find_job(name, searched)
        except CommandError as error:
            return error

    def resolve(name: str, searched: str | None) -> JobName:
        found = find(name, searched)
        if isinstance(found, CommandError):
            raise found
        return found

    def encode_line(line: bytes) -> bytes:
        try:
            given = TaskLine.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(_explain(error)) from None
        fields = given.model_dump(exclude_unset=True, exclude={"job", "room", "payload"})
        if (wanted := given.job or job) is None:
            raise ValueError("job is missing: add it to the line, or pass JOB for all lines")
        name = resolve(wanted, given.room or room)
        options = {
            key: value for key, value in defaults.items() if not (key in _TIMES and _TIMES & set(fields))
        }
        return task_body(task_room(given.room or room, name), str(name), given.payload, {**options, **fields})

    return encode_line


def _explain(error: ValidationError) -> str:
    unknown = [str(each["loc"][0]) for each in error.errors() if each["type"] == "extra_forbidden"]
    if unknown:
        known = ", ".join(TaskLine.model_fields)
        return f"{', '.join(unknown)}: unknown field; a line has the fields {known}"
    return describe_errors(error)


def submit_file(client: AdminClient, file: CheckedFile, key: str) -> None:
    """Submit the tasks; print one line for each: its id, or an empty line if it was refused.

    The reasons of refusals go to standard error, with the numbers of the lines. Raises `CommandError` if a
    task was refused.
    """
    numbers: deque[int] = deque()
    done = refused = 0
    with _progress() as progress:
        bar = progress.add_task("Submitting", total=file.tasks)
        try:
            for results in client.submit_bodies(file.read(numbers), key):
                refused += _print_results(results, numbers)
                done += len(results)
                progress.update(bar, completed=done)
        except KeyboardInterrupt:
            print_note(
                f"Stopped after {done:,} of {file.tasks:,} tasks. To submit the others, repeat the command "
                f"with --idempotency-key {key}"
            )
            raise
    print_note(f"Submitted {done - refused:,} of {file.tasks:,} tasks of {file.name}.")
    if refused:
        raise CommandError(f"{refused:,} tasks were refused; their lines are named above")


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    terminal = console(stderr=True)
    # Otherwise ids for a file or a pipe would go to the terminal.
    is_shown = sys.stdout.isatty()
    return Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=is_shown
    )


def _print_results(results: Sequence[str | ProblemException], numbers: deque[int]) -> int:
    """Print a line for each result. Return how many are problems."""
    refused = 0
    for result in results:
        number = numbers.popleft()
        if isinstance(result, str):
            typer.echo(result)
        else:
            refused += 1
            typer.echo("")
            print_note(f"line {number}: {one_line(str(result))}")
    sys.stdout.flush()
    return refused
