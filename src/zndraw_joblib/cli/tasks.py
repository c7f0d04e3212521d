"""The commands for tasks, for one or for all that options select, and for the sweeper."""

import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.cli import following
from zndraw_joblib.cli.client import AdminClient, open_client, parse_id
from zndraw_joblib.cli.display import (
    CommandError,
    ItemTable,
    UsageError,
    counted,
    print_fields,
    print_json,
    print_note,
    print_wrapped,
)
from zndraw_joblib.cli.options import AsJson, Limit, TaskId, TaskIds, Url, refuse_options_before, with_options
from zndraw_joblib.cli.task_filter import Selection, TaskOptions, where
from zndraw_joblib.cli.task_output import check_completed, print_history, print_log, print_task, write_result
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.jobs.logs import LogConfig, one_line
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import (
    SweeperMode,
    SweeperPreview,
    SweeperState,
    TaskActionRequest,
    TaskResponse,
)
from zndraw_joblib.wire.names import near_text
from zndraw_joblib.wire.operators import (
    BulkAction,
    BulkPreview,
    BulkResult,
    FailureGroup,
    FoundTask,
    TaskFilter,
    WaitsFor,
)
from zndraw_joblib.wire.problems import ProblemException, Unauthorized
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

OldestFirst = Annotated[
    bool, typer.Option("--oldest-first", help="List the tasks that were submitted first, instead of last.")
]
_MAX_FOUND, _MAX_ROOMS = 100, 5


def _rooms_with(client: AdminClient, selection: Selection) -> str:
    """Return a note about the rooms that have tasks of a selection whose default room has none."""
    if not selection.is_default_room:
        return ""
    if selection.fields:  # such a search may take a minute
        return "; --all-rooms looks in all rooms"
    try:
        everywhere = replace(selection, rooms=[], is_default_room=False)
        found, has_more = client.search(everywhere.resolve(client), _MAX_FOUND)
    except (CommandError, ProblemException):
        # The caller may not look in all rooms, or only the default room has this job or worker.
        return "; --room names another room"
    rooms = Counter(str(task.room_id) for task in found)
    if not rooms:
        return "; no other room has any"
    named = ", ".join(f"--room {room} ({number})" for room, number in rooms.most_common(_MAX_ROOMS))
    more = ", …" if has_more or len(rooms) > _MAX_ROOMS else ""
    return f"; others have some: {named}{more}"


def _hint_of_rooms(selection: Selection) -> str:
    return " --all-rooms looks in all rooms." if selection.is_default_room else ""


def _note_unknown_exceptions(client: AdminClient, filters: TaskFilter) -> None:
    """Print which exceptions of a filter no failed task has, and what the nearest ones are."""
    if not filters.exception:
        return
    groups = client.failures(filters.model_copy(update={"exception": [], "status": []})).groups
    names = {group.exception for group in groups if group.exception}
    for name in set(filters.exception) - names:
        print_note(
            f"No failed task {where(filters.room)} has the exception {name!r}{near_text(name, names)}."
        )


# Lists of tasks, as rows of a table.


def _due(task: TaskResponse | FoundTask) -> datetime | None:
    """Return when a task that waits for its time enters its queue."""
    is_later = task.run_at is not None and task.run_at > datetime.now(UTC)
    return task.run_at if is_later and task.status == TaskStatus.PENDING else None


def _waits(task: TaskResponse | FoundTask) -> str:
    """Return whether a task waits for others, in words."""
    if isinstance(task, TaskResponse):
        return "for tasks" if task.waits else ""
    return "for tasks" if task.waits_for == WaitsFor.PREDECESSOR else ""


def _took(task: TaskResponse | FoundTask) -> timedelta | None:
    until = datetime.now(UTC) if task.status == TaskStatus.RUNNING else task.completed_at
    return until - task.started_at if task.started_at and until else None


TASKS = ItemTable(
    {
        "task": "id",
        "job": "job_name",
        "room": "room_id",
        "status": "status",
        "due": _due,
        "created": "created_at",
        "took": _took,
        "error": "error",
        "tags": lambda task: ", ".join(task.tags or ()),
        "waits": _waits,
    },
    wide=["job", "error", "tags"],
    ids=["task"],
    optional=["took", "created", "room"],
    sparse=["due", "waits", "tags"],
)
FAILURES = ItemTable(
    {
        "failures": "count",
        "job": "job_name",
        "exception": lambda group: group.exception or group.error_code,
        "error": lambda group: (group.error or "").removeprefix(f"{group.exception}: "),
        "first": "first_at",
        "last": "last_at",
        "example": "example",
    },
    wide=["error", "job"],
    ids=["example"],
    optional=["first", "example"],
    wrapped=["error", "exception"],
)
_REASONS = ItemTable({name: name for name in ("code", "detail", "remedy")})
_CYCLE_CHANGES = ItemTable(
    {name: name for name in ("what", "id", "before", "after", "reason", "run_at")},
    wide=["reason"],
    ids=["id"],
    optional=["run_at"],
)


# The command tasks bulk: retry, cancel, release or delete all tasks that options select.

Action = Annotated[
    BulkAction,
    typer.Argument(
        metavar="ACTION",
        help="retry (failed and cancelled tasks), cancel (tasks that have not ended), release (held tasks), "
        "purge (delete tasks that have ended), or retarget (move pending tasks of earlier versions of --job "
        "to the current one, if they match its schema).",
        show_default=False,
    ),
]
Tree = Annotated[bool, typer.Option("--tree", help="Cancel the tasks below these too.")]
Preview = Annotated[bool, typer.Option("--preview", help="Only show how many tasks would change, and some.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# Up to this many tasks, `yes` is enough to cancel or release them.
_MAX_UNTYPED = 100
_DONE = {
    BulkAction.RETRY: "queued again",
    BulkAction.CANCEL: "cancelled",
    BulkAction.RELEASE: "released",
    BulkAction.PURGE: "deleted",
    BulkAction.RETARGET: "of the current version",
}


@with_options(TaskOptions)
def bulk(  # noqa: PLR0913 - each is an option
    action: Action,
    *,
    options: TaskOptions,
    tree: Tree = False,
    preview: Preview = False,
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Change all tasks that the options select.

    It shows how many tasks would change, and asks; a purge, or a cancel or release of more than 100 tasks,
    needs their number. Tasks that are submitted meanwhile are not changed.
    """
    selection = options.selection()
    _check_bulk(action, tree=tree, asks=not (preview or yes))
    with open_client(url) as client:
        selection = selection.located(client)
        filters = selection.resolve(client)
        bulk_preview = client.preview_bulk(action, filters, tree=tree)
        if not bulk_preview.count:
            _note_unknown_exceptions(client, filters)
        if preview:
            print_json(bulk_preview) if as_json else _print_bulk_preview(bulk_preview, selection)
        else:
            _apply(client, bulk_preview, filters, selection, tree=tree, yes=yes, as_json=as_json)


def _check_bulk(action: BulkAction, *, tree: bool, asks: bool) -> None:
    """Raise `UsageError` for a tree that is not cancelled, and where the command cannot ask."""
    if tree and action is not BulkAction.CANCEL:
        raise UsageError(f"--tree is for cancel; {action} changes no tasks below others. Remove --tree")
    if asks and not sys.stdin.isatty():
        raise UsageError(
            "Without a terminal the command cannot ask. Pass --yes, or --preview to change nothing"
        )


def _apply(  # noqa: PLR0913 - one for each option
    client: AdminClient,
    preview: BulkPreview,
    filters: TaskFilter,
    selection: Selection,
    *,
    tree: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Ask unless `yes`, and apply an action. Raises `CommandError` if the operator declines."""
    if not yes and preview.count:
        _print_bulk_preview(preview, selection)
        try:
            refusal = _refusal(preview, where(selection.rooms))
        except typer.Abort:  # Ctrl-C, or the end of the input
            raise CommandError("Nothing was changed", exit_code=130) from None
        if refusal is not None:
            raise CommandError(refusal)
    result = client.apply_bulk(preview, filters, tree=tree)
    if as_json:
        print_json(result)
        return
    room = where(selection.rooms)
    hint = "" if preview.count else _hint_of_rooms(selection)
    print_note(f"{counted(result.affected, 'task')} {room} {_DONE[result.action]}{_skipped(result)}.{hint}")
    for refused in result.refused:
        print_note(f"{refused.id}: {refused.detail}")
    if not preview.is_complete:
        print_note("More tasks match: repeat the command for the next ones.")


def _refusal(preview: BulkPreview, room: str) -> str | None:
    """Ask the operator; return why nothing is changed, None for a yes.

    A purge, or a cancel or release of many tasks, needs their number, typed.
    """
    count = preview.count + preview.below
    is_large = preview.action in {BulkAction.CANCEL, BulkAction.RELEASE} and count > _MAX_UNTYPED
    if not is_large and preview.action is not BulkAction.PURGE:
        is_wanted = typer.confirm(f"{preview.action.capitalize()} {_count(preview)} {room}?", err=True)
        return None if is_wanted else "Nothing was changed"
    what = (
        f"To {preview.action} {_count(preview)} {room}, type their number"
        if count > 1
        else f"To purge the task {room}, type 1"
    )
    typed: str = typer.prompt(what, default="", show_default=False, err=True)
    if re.sub(r"[\s,]", "", typed) == str(count):
        return None
    return f"Nothing was changed: {typed!r} is not the number of tasks, {count}"


def _print_bulk_preview(preview: BulkPreview, selection: Selection) -> None:
    first = "oldest" if preview.action is BulkAction.RETRY else "newest"
    limit = f", the {first} of more: one command changes at most {preview.limit:,}"
    more = "" if preview.is_complete else limit
    hint = "" if preview.count else _hint_of_rooms(selection)
    what = f"{_count(preview)} {where(selection.rooms)}"
    print_note(f"{preview.action}: {what} would be {_DONE[preview.action]}{more}.{hint}")
    if preview.examples:
        caption = f"{len(preview.examples)} of {_count(preview)}"
        TASKS.print(preview.examples, caption=caption)


def _count(preview: BulkPreview) -> str:
    below = f" and {preview.below:,} below" if preview.below else ""
    return f"{counted(preview.count, 'task')}{below}"


def _skipped(result: BulkResult) -> str:
    if not result.skipped:
        return ""
    if result.action is BulkAction.PURGE:
        why = "they ended in the last two minutes, or a group or step that has not ended needs them"
        return f"; {result.skipped:,} stay, because {why}: repeat the command later"
    if result.action is BulkAction.RETARGET:
        return f"; {result.skipped:,} stay, because they do not match its schema or have changed meanwhile"
    return f"; {result.skipped:,} had changed meanwhile or were locked"


# Commands for administrators: retry, release, fail, sweeper.

Reason = Annotated[
    str | None, typer.Argument(metavar="REASON", help="The error message that the submitter sees.")
]
Mode = Annotated[
    SweeperMode | None,
    typer.Option(
        "--mode", metavar="MODE", help="enforce, observe (report only) or off (do not look for workers)."
    ),
]
CyclePreview = Annotated[bool, typer.Option("--preview", help="Show what a cycle would change now.")]


def _change_each(
    task_ids: list[str], change: Callable[[AdminClient, UUID], TaskResponse], url: str, *, as_json: bool
) -> None:
    """Change tasks one after the other; a refusal stops none of the others. Raises `CommandError` for one."""
    changed: list[TaskResponse] = []
    with open_client(url) as client:
        if len(task_ids) == 1:
            print_task(change(client, client.find_task(parse_id(task_ids[0]))), as_json=as_json)
            return
        for task_id in task_ids:
            try:
                changed.append(change(client, client.find_task(parse_id(task_id))))
            except Unauthorized:
                raise
            except (CommandError, ProblemException, typer.BadParameter) as error:
                print_note(f"{task_id}: {one_line(str(error))}")
    if changed or as_json:
        TASKS.print(changed, as_json=as_json)
    if len(changed) < len(task_ids):
        raise CommandError(
            f"{len(task_ids) - len(changed)} of {len(task_ids)} tasks were not changed; see the reasons above"
        )


def retry(task_ids: TaskIds, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Queue failed or cancelled tasks again."""
    _change_each(task_ids, AdminClient.retry, url, as_json=as_json)


def run_now(task_ids: TaskIds, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Queue tasks before their time, or the next attempt's.

    For a task with a delay or a time (--delay, --run-at), for one that waits for its next attempt, and for a
    step that waits for others.
    """

    def change(client: AdminClient, task_id: UUID) -> TaskResponse:
        before = client.get_task(task_id)
        task = client.act(ops.RUN_TASK_NOW, task_id)
        if before.status == TaskStatus.PENDING and _due(before) is None and not before.waits:
            print_note(f"Task {task_id} was in its queue already: nothing was changed.")
        return task

    _change_each(task_ids, change, url, as_json=as_json)


def release(task_ids: TaskIds, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Take tasks from their workers and queue them again."""
    _change_each(
        task_ids, lambda client, task_id: client.act(ops.RELEASE_TASK, task_id), url, as_json=as_json
    )


def fail(task_id: TaskId, reason: Reason = None, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """End a task as failed, without a retry."""
    with open_client(url) as client:
        request = TaskActionRequest(error=reason) if reason else None
        print_task(client.act(ops.FAIL_TASK, client.find_task(task_id), request), as_json=as_json)


def sweeper(
    *, mode: Mode = None, preview: CyclePreview = False, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Show the sweeper's state, or change it with --mode."""
    if mode and preview:
        raise UsageError("--mode and --preview cannot be combined: a preview changes nothing. Pass one")
    with open_client(url) as client:
        answer = client.preview() if preview else client.sweeper(mode)
    if as_json:
        print_json(answer)
    elif isinstance(answer, SweeperPreview):
        _print_cycle_preview(answer)
    else:
        _print_state(answer)


def _print_state(state: SweeperState) -> None:
    print_fields(state.model_dump(exclude={"cycles"}))
    for cycle in state.cycles[:1]:
        print_fields({"last cycle": cycle.at, **cycle.model_dump(exclude={"at", "mode"})})


def _print_cycle_preview(preview: SweeperPreview) -> None:
    print_note(f"{preview.stale:,} of {counted(preview.scanned, 'worker')} sent no heartbeat for too long.")
    removed = [{"what": "worker", "id": id, "after": "removed"} for id in preview.workers]
    _CYCLE_CHANGES.print([*removed, *[{"what": "task", **change.model_dump()} for change in preview.tasks]])


# Commands for tasks: tasks, task, explain, cancel.

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

PreviewOfCancel = Annotated[
    bool, typer.Option("--preview", help="Only show how many tasks would be cancelled.")
]
TreeOfTask = Annotated[bool, typer.Option("--tree", help="Cancel all tasks below them too.")]

app = typer.Typer(invoke_without_command=True)
app.command()(bulk)


@app.callback()
@with_options(TaskOptions)
def tasks(
    context: typer.Context,
    *,
    options: TaskOptions,
    oldest_first: OldestFirst = False,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List tasks, newest first, or change several.

    Options narrow the list: a task has to match all of them, and one value of an option that is repeated.
    """
    if refuse_options_before(context):
        return
    selection = options.selection()
    with open_client(url) as client:
        selection = selection.located(client)
        items, caption = _find(client, selection, limit, oldest_first=oldest_first)
        if not items:
            caption += _rooms_with(client, selection)
    table = TASKS.without("room") if len(selection.rooms) == 1 else TASKS
    table.print(items, caption=caption, as_json=as_json)


@app.command()
@with_options(TaskOptions, without=("status", "worker", "created_by", "version", "parent", "root"))
def failures(*, options: TaskOptions, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Count failed tasks by job and exception, the most frequent first.

    'tasks bulk retry' with --job and --exception queues a group again.
    """
    selection = options.selection()
    with open_client(url) as client:
        selection = selection.located(client)
        filters = selection.resolve(client)
        answer = client.failures(filters)
        if not answer.groups:
            _note_unknown_exceptions(client, filters)
    if as_json:
        print_json(answer)
        return
    if answer.groups or not sys.stdout.isatty():
        FAILURES.print(answer.groups)
    place = where(selection.rooms)
    if not answer.is_complete:
        print_note(
            f"The newest {counted(answer.count, 'failed task')} {place}; there are more, so each group has "
            "at least this many. --since or --job reads fewer."
        )
    elif answer.groups:
        print_note(f"{counted(answer.count, 'failed task')} {place}.")
    else:
        print_note(f"No failed task {place}.{_hint_of_rooms(selection)}")
    if sys.stdout.isatty() and answer.groups:
        print_note(f"'{_retry_of(answer.groups[0], selection.rooms)}' queues the first group again.")


def _retry_of(group: FailureGroup, rooms: Sequence[str]) -> str:
    """Return the command that retries a group."""
    kind = ["--exception", group.exception] if group.exception else ["--error-code", group.error_code or ""]
    places = [option for room in rooms for option in ("--room", room)] or ["--all-rooms"]
    return shlex.join(["zndraw-joblib", "tasks", "bulk", "retry", "--job", group.job_name, *kind, *places])


def _find(
    client: AdminClient, selection: Selection, limit: int, *, oldest_first: bool
) -> tuple[Sequence[TaskResponse | FoundTask], str]:
    """Return tasks, and how many there are."""
    if selection.needs_search or oldest_first:
        filters = selection.resolve(client)
        items, has_more = client.search(filters, limit, oldest_first=oldest_first)
        if not items:
            _note_unknown_exceptions(client, filters)
        number = f"{counted(len(items), 'task')} {where(selection.rooms)}"
        return items, number + ("; there may be more, see --limit" if has_more else "")
    room, status = selection.rooms[0], next(iter(selection.statuses), None)
    page = client.tasks(room, status=status, limit=limit)
    return page.items, f"{len(page.items):,} of {counted(page.total, 'task')} in room {room}"


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
        uuid = client.find_task(task_id)
        if history:
            print_history(client.history(uuid), as_json=as_json)
        elif follow:
            check_completed(following.follow(client, uuid, prints_lines=True))
        elif logs:
            claim = None if attempt is None else client.claim_of_attempt(uuid, attempt)
            if not print_log(client.log_parts(uuid, claim, 0), as_json=as_json):
                print_note(_without_log(client.get_task(uuid), attempt))
        elif result:
            write_result(client, client.get_task(uuid))
        else:
            print_task(client.get_task(uuid), as_json=as_json)
            if sys.stdout.isatty() and not as_json and (link := client.task_link(uuid)):
                print_note(f"See {link}")


def _without_log(task: TaskResponse, attempt: int | None) -> str:
    """Return why a task has no log."""
    if not task.attempts:
        return f"Task {task.id} is {task.status} and has had no attempt, so it has no log."
    which = f"Attempt {attempt or task.attempts} of task {task.id}"
    return f"{which} has no line in its log{'' if task.status in TERMINAL else ' so far'}."


def _check_views(views: dict[str, bool], *, as_json: bool) -> None:
    """Raise `UsageError` for options that exclude each other."""
    names = [name for name, is_given in views.items() if is_given]
    names += ["--json"] if as_json and {"--follow", "--result"} & set(names) else []
    if len(names) > 1:
        raise UsageError(f"{names[0]} cannot be combined with {names[1]}. Remove one of them")


def explain(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Explain a task's status, most important reason first."""
    with open_client(url) as client:
        explanation = client.explain(client.find_task(task_id))
        task = None if as_json else client.get_task(explanation.id)
    if task is None:
        print_json(explanation)
        return
    rows = [(reason, following.remedy_of(reason, task)) for reason in explanation.reasons]
    if not sys.stdout.isatty():
        _REASONS.print([{**dict(reason), "remedy": remedy} for reason, remedy in rows])
        return
    position = f", number {explanation.queue_position:,} in its queue" if explanation.queue_position else ""
    print_note(f"Task {explanation.id} of {task.job_name} is {explanation.status}{position}.")
    width = max(len(reason.code) for reason, _ in rows)
    for reason, remedy in rows:
        print_wrapped([(f"{reason.code:<{width}}  ", "bold")], reason.detail, remedy)


def cancel(
    task_ids: TaskIds,
    *,
    tree: TreeOfTask = False,
    preview: PreviewOfCancel = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Cancel tasks that have not ended.

    With --tree, cancel all tasks below them too, also if they have ended.
    """

    def change(client: AdminClient, task_id: UUID) -> TaskResponse:
        if preview:
            task = client.get_task(task_id)
            print_note(f"Task {task_id}: {_to_cancel(client, task, tree=tree)} would be cancelled.")
            return task
        what = None
        # An older server, or one that refuses to count, cancels all the same.
        with suppress(CommandError, ProblemException):
            what = _to_cancel(client, client.get_task(task_id), tree=True) if tree else None
        cancelled = client.cancel(task_id, tree=tree)
        if what is not None:
            print_note(f"Task {task_id}: {what} cancelled.")
        return cancelled

    _change_each(task_ids, change, url, as_json=as_json)


def _to_cancel(client: AdminClient, task: TaskResponse, *, tree: bool) -> str:
    """Return what a cancel of a task would cancel, like "1 task and 12 below, with what waits for them,"."""
    own = counted(int(task.status not in TERMINAL), "task")
    if not tree:
        return own
    below, is_all = client.unended_below(task)
    return f"{own} and {'' if is_all else 'at least '}{below:,} below, with what waits for them,"
