"""The commands about the whole queue: audit, config, retention."""

from difflib import get_close_matches
from operator import itemgetter
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import (
    ItemTable,
    UsageError,
    counted,
    kept_text,
    print_fields,
    print_json,
    print_note,
)
from zndraw_joblib.cli.options import AsJson, DatabaseUrl, Limit, Url, check_room
from zndraw_joblib.cli.server.commands import needs_server
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.jobs.logs import PREFIX
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operators import KeptTasks, Settings

AuditRoom = Annotated[
    str | None, typer.Option("--room", callback=check_room, metavar="ROOM", help="Only actions in this room.")
]
Actor = Annotated[str | None, typer.Option("--actor", metavar="USER", help="Only actions of this user.")]
ActionName = Annotated[
    str | None, typer.Option("--action", metavar="ACTION", help="Only this action, like job.pause.")
]
SettingName = Annotated[
    str | None, typer.Argument(metavar="SETTING", help="The setting to explain: its name or its variable.")
]
Local = Annotated[
    bool, typer.Option("--local", help="The settings that 'serve' would have here, without a server.")
]
All = Annotated[bool, typer.Option("--all", help="List all settings, not only those that differ.")]
_ACTIONS = ItemTable(
    {
        "at": "at",
        "actor": "actor",
        "action": "action",
        "target": "target",
        "room": "room_id",
        "detail": lambda entry: ", ".join(f"{name}={value}" for name, value in (entry.detail or {}).items()),
    },
    wide=["target", "detail"],
    optional=["room", "detail"],
    wrapped=["target"],
)
_SETTINGS = ItemTable(
    {
        "setting": "name",
        "value": lambda entry: "(secret)" if entry.is_secret else entry.value,
        "default": "default",
        "source": "source",
    },
    wide=["value", "default", "setting"],
    optional=["default"],
    paths=(),
)


_SOURCES = {"job": "the job", "settings": "the server's settings", "proposed": "this command"}
_KEPT = ItemTable(
    {
        "status": itemgetter("status"),
        "kept": lambda row: kept_text(row["time"].keep_seconds),
        "set by": lambda row: _SOURCES[row["time"].source],
        "older now": lambda row: row["time"].older,
    },
    paths=(),
)


def _keep_option(status: str) -> Any:
    text = f"Try this time for {status} tasks: 12h, 30d, forever."
    return typer.Option(f"--{status}", metavar="TIME", help=text)


RetentionJob = Annotated[
    str | None, typer.Argument(metavar="JOB", help="A job; without it, all that have no times of their own.")
]


def retention(
    job: RetentionJob = None,
    *,
    completed: Annotated[str | None, _keep_option("completed")] = None,
    failed: Annotated[str | None, _keep_option("failed")] = None,
    cancelled: Annotated[str | None, _keep_option("cancelled")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show how long ended tasks are kept, or try other times.

    It counts the tasks that are older; with times, those that these would delete. It changes nothing.

    A job's times are in its policy: `register JOB --policy '{"keep": {"failed": "90d"}}'`. Those of all other
    jobs are settings: keep_completed_days, keep_failed_days, keep_cancelled_days.
    """
    with open_client(url) as client:
        name = None if job is None else str(client.find_job(job, None))
        query = {"job": name, "completed": completed, "failed": failed, "cancelled": cancelled}
        query = {field: value for field, value in query.items() if value is not None}
        times: KeptTasks = client.read(ops.GET_RETENTION, "retention", query=query)
    if as_json:
        print_json(times)
        return
    rows = [
        {"status": status, "time": getattr(times, status)} for status in ("completed", "failed", "cancelled")
    ]
    older = sum(row["time"].older for row in rows)
    caption = (
        f"{'' if times.is_complete else 'more than '}{counted(older, 'task')} older; the server deletes them"
    )
    # The time of a job, or one to try, applies at once.
    is_default = all(row["time"].source == "settings" for row in rows if row["time"].older)
    if times.applies_at is not None and is_default:
        caption += f" from {times.applies_at.astimezone():%Y-%m-%d %H:%M} on, as these times are defaults"
    _KEPT.print(rows, caption=caption)


def audit(
    *,
    room: AuditRoom = None,
    actor: Actor = None,
    action: ActionName = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List what operators did, newest first."""
    with open_client(url) as client:
        query = {"room": room, "actor": actor, "action": action}
        entries, _ = client.items(ops.LIST_AUDIT_ENTRIES, "the audit trail", limit, query)
    _ACTIONS.print(entries, caption=counted(len(entries), "action"), as_json=as_json)


def config(
    name: SettingName = None,
    *,
    all_settings: All = False,
    local: Local = False,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the settings in force, or explain one.

    They are those of the server at --url, or with --local those that 'serve' would have here.
    """
    if local:
        with needs_server():
            from zndraw_joblib.cli.server import database  # noqa: PLC0415 - a worker's install has no server
        settings_in_force = database.report_settings(database_url)
    else:
        with open_client(url) as client:
            settings_in_force = client.read(ops.GET_SETTINGS, "settings")
    if name is not None:
        _print_setting(settings_in_force, name, as_json=as_json)
    elif as_json:
        print_json(settings_in_force)
    else:
        _print_settings(settings_in_force, all_settings=all_settings)


def _print_setting(settings: Settings, name: str, *, as_json: bool) -> None:
    by_name = {entry.name: entry for entry in settings.settings}
    lowered = name.removeprefix(PREFIX).lower()
    if lowered not in by_name:
        near = get_close_matches(lowered, by_name, n=1)
        meant = f"Did you mean {near[0]}?" if near else "'zndraw-joblib config --all' lists them"
        raise UsageError(f"There is no setting {name!r}. {meant}")
    entry = by_name[lowered]
    about = {"variable": f"{PREFIX}{lowered.upper()}", "about": entry.description}
    print_json(entry) if as_json else print_fields({**_SETTINGS.row(entry), **about})


def _print_settings(settings: Settings, *, all_settings: bool) -> None:
    shown = [entry for entry in settings.settings if all_settings or entry.source != "default"]
    caption = f"{len(shown)} of {len(settings.settings)} settings" + (
        "" if all_settings else "; --all lists all"
    )
    _SETTINGS.print(shown, caption=caption)
    for problem in settings.unknown:
        print_note(problem)
