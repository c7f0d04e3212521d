"""The command tasks bulk: retry, cancel, release or delete all tasks that options select."""

import re
import sys
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import print_json, print_note
from zndraw_joblib.cli.errors import CommandError, UsageError
from zndraw_joblib.cli.options import AsJson, Url
from zndraw_joblib.cli.task_filter import (
    AllRooms,
    CreatedBy,
    ErrorCodes,
    Jobs,
    Rooms,
    Since,
    Statuses,
    Text,
    Until,
    WorkerOf,
    select,
)
from zndraw_joblib.cli.task_list import print_tasks
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.searches import BulkAction, BulkPreview, BulkResult, TaskFilter

Action = Annotated[
    BulkAction,
    typer.Argument(
        metavar="ACTION",
        help="retry (failed and cancelled tasks), cancel (tasks that have not ended), release (held tasks), "
        "or purge (delete tasks that have ended).",
        show_default=False,
    ),
]
Preview = Annotated[bool, typer.Option("--preview", help="Only show how many tasks would change, and some.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# Up to this many tasks, yes is enough to cancel or release them.
_MAX_UNTYPED = 100
_DONE = {
    BulkAction.RETRY: "queued again",
    BulkAction.CANCEL: "cancelled",
    BulkAction.RELEASE: "released",
    BulkAction.PURGE: "deleted",
}


def bulk(  # noqa: PLR0913 - each is an option
    action: Action,
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
    preview: Preview = False,
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Change all tasks that the options select.

    It shows how many tasks would change, and asks; a purge, or a cancel or release of more than 100 tasks,
    needs their number. Tasks that are submitted meanwhile are not changed.
    """
    others: dict[str, Any] = {"created_by": created_by, "error_code": error_code, "text": text}
    selection = select(room, status, job, worker, since, until, all_rooms=all_rooms, **others)
    if not (preview or yes or sys.stdin.isatty()):
        raise UsageError(
            "Without a terminal the command cannot ask. Pass --yes, or --preview to change nothing"
        )
    with open_client(url) as client:
        wanted = selection.resolve(client)
        found = client.preview_bulk(action, wanted)
        if preview:
            print_json(found) if as_json else _print_preview(found)
        else:
            _apply(client, found, wanted, yes=yes, as_json=as_json)


def _apply(client: AdminClient, found: BulkPreview, wanted: TaskFilter, *, yes: bool, as_json: bool) -> None:
    """Ask unless `yes`, and apply an action. Raises `CommandError` if the operator declines."""
    if not yes and found.count:
        _print_preview(found)
        try:
            refusal = _refusal(found)
        except typer.Abort:  # Ctrl-C, or the end of the input
            raise CommandError("Nothing was changed", exit_code=130) from None
        if refusal is not None:
            raise CommandError(refusal)
    result = client.apply_bulk(found, wanted)
    if as_json:
        print_json(result)
        return
    print_note(f"{_tasks(result.affected)} {_DONE[result.action]}{_skipped(result)}.")
    if not found.is_complete:
        print_note("More tasks match: repeat the command for the next ones.")


def _refusal(found: BulkPreview) -> str | None:
    """Ask the operator; return why nothing is changed, None for a yes.

    A purge, or a cancel or release of many tasks, needs their number, typed.
    """
    is_large = found.action is not BulkAction.RETRY and found.count > _MAX_UNTYPED
    if not is_large and found.action is not BulkAction.PURGE:
        is_wanted = typer.confirm(f"{found.action.capitalize()} {_count(found)}?", err=True)
        return None if is_wanted else "Nothing was changed"
    what = (
        f"To {found.action} {_count(found)}, type their number" if found.count > 1 else "To purge it, type 1"
    )
    typed: str = typer.prompt(what, default="", show_default=False, err=True)
    if re.sub(r"[\s,]", "", typed) == str(found.count):
        return None
    return f"Nothing was changed: {typed!r} is not the number of tasks, {found.count}"


def _print_preview(found: BulkPreview) -> None:
    more = "" if found.is_complete else f", the newest of more: one command changes at most {found.limit:,}"
    print_note(f"{found.action}: {_count(found)} would be {_DONE[found.action]}{more}.")
    if found.examples:
        caption = f"{len(found.examples)} of {_count(found)}"
        print_tasks(found.examples, with_rooms=True, caption=caption)


def _count(found: BulkPreview) -> str:
    return _tasks(found.count)


def _skipped(result: BulkResult) -> str:
    if not result.skipped:
        return ""
    if result.action is BulkAction.PURGE:
        return f"; {result.skipped:,} ended in the last two minutes: repeat the command later"
    return f"; {result.skipped:,} had changed meanwhile or were locked"


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"
