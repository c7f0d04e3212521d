"""Commands for tasks: tasks, task, explain, cancel."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from zndraw_joblib.cli import bulk, following
from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import print_json, print_rows
from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.options import AsJson, Limit, TaskId, Url
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.cli.task_filter import (
    AllRooms,
    CreatedBy,
    ErrorCodes,
    Jobs,
    Rooms,
    Selection,
    Since,
    Statuses,
    Text,
    Until,
    WorkerOf,
    select,
)
from zndraw_joblib.cli.task_list import print_tasks
from zndraw_joblib.cli.task_output import check_completed, print_history, print_log, print_task, write_result
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.logs import LogConfig
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.searches import FoundTask

History = Annotated[
    bool, typer.Option("--history", help="List the task's status changes and the details of each attempt.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Show the progress and print the log until the task ends.")
]
Logs = Annotated[bool, typer.Option("--logs", help="Print the log of the current or last attempt.")]
AttemptOfLog = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="With --logs: the log of this attempt.")
]
Result = Annotated[
    bool, typer.Option("--result", help="Write the result: JSON, or the bytes that the job stored.")
]

app = typer.Typer(invoke_without_command=True)
app.command()(bulk.bulk)


@app.callback()
def tasks(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    *,
    all_rooms: AllRooms = False,
    room: Rooms = None,
    status: Statuses = None,
    job: Jobs = None,
    worker: WorkerOf = None,
    created_by: CreatedBy = None,
    error_code: ErrorCodes = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List tasks, newest first, or change several.

    Options narrow the list: a task has to match all of them, and one value of an option that is repeated.
    """
    if context.invoked_subcommand is not None:
        return
    others: dict[str, Any] = {"created_by": created_by, "error_code": error_code, "text": text}
    selection = select(room, status, job, worker, since, until, all_rooms=all_rooms, **others)
    with open_client(url) as client:
        found, caption = _find(client, selection, limit)
    if as_json:
        print_json(found)
    else:
        print_tasks(found, with_rooms=len(selection.rooms) != 1, caption=caption)


def _find(
    client: AdminClient, selection: Selection, limit: int
) -> tuple[Sequence[TaskResponse | FoundTask], str]:
    """Return tasks, and how many there are."""
    if selection.needs_search:
        found, has_more = client.search(selection.resolve(client), limit)
        return found, f"{len(found)} tasks" + ("; there may be more, see --limit" if has_more else "")
    room, status = selection.rooms[0], next(iter(selection.statuses), None)
    page = client.tasks(room, status=status, limit=limit)
    return page.items, f"{len(page.items)} of {page.total:,} tasks in room {room}"


def task(  # noqa: PLR0913 - each is an option
    task_id: TaskId,
    *,
    history: History = False,
    follow: Follow = False,
    logs: Logs = False,
    attempt: AttemptOfLog = None,
    result: Result = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show or follow a task, or print its history, log or result.

    With --follow, the exit code is 1 if the task fails or is cancelled, and 130 after Ctrl-C, which does not
    end the task.
    """
    LogConfig().apply()
    _check_views(
        {"--history": history, "--follow": follow, "--logs": logs, "--result": result}, as_json=as_json
    )
    if attempt is not None and not logs:
        raise UsageError("--attempt selects a log. Add --logs, or remove --attempt")
    with open_client(url) as client:
        found = client.find_task(task_id)
        if history:
            print_history(client.history(found), as_json=as_json)
        elif follow:
            check_completed(following.follow(client, found, prints_lines=True))
        elif logs:
            claim = None if attempt is None else client.claim_of_attempt(found, attempt)
            print_log(client.log_parts(found, claim, 0), as_json=as_json)
        elif result:
            write_result(client, client.get_task(found))
        else:
            print_task(client.get_task(found), as_json=as_json)


def _check_views(views: dict[str, bool], *, as_json: bool) -> None:
    """Raise `UsageError` for options that exclude each other."""
    given = [name for name, is_given in views.items() if is_given]
    given += ["--json"] if as_json and {"--follow", "--result"} & set(given) else []
    if len(given) > 1:
        raise UsageError(f"{given[0]} cannot be combined with {given[1]}. Remove one of them")


def explain(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Explain a task's status, most important reason first."""
    with open_client(url) as client:
        explanation = client.explain(client.find_task(task_id))
    if as_json:
        print_json(explanation)
        return
    position = f", number {explanation.queue_position} in its queue" if explanation.queue_position else ""
    caption = f"Task {explanation.id} is {explanation.status}{position}."
    rows = [reason.model_dump() for reason in explanation.reasons]
    print_rows(rows, ["code", "detail"], Layout(wide=["detail"]), caption=caption)


def cancel(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Cancel a task that has not ended."""
    with open_client(url) as client:
        print_task(client.cancel(client.find_task(task_id)), as_json=as_json)
