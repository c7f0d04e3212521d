"""The operators' commands about the whole queue: audit, config."""

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import Layout, UsageError, print_fields, print_json, print_note, print_rows
from zndraw_joblib.cli.options import AsJson, DatabaseUrl, Limit, Url, check_room
from zndraw_joblib.cli.server.commands import needs_server
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.jobs.logs import PREFIX
from zndraw_joblib.wire.operators import AuditEntry, SettingEntry, Settings

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
        entries = client.audit(limit, room=room, actor=actor, action=action)
    if as_json:
        print_json(entries)
        return
    layout = Layout(wide=["target", "detail"], optional=["room", "detail"], wrapped=["target"])
    columns = ["at", "actor", "action", "target", "room", "detail"]
    print_rows(list(map(_audit_row, entries)), columns, layout, caption=f"{len(entries)} actions")


def _audit_row(entry: AuditEntry) -> dict[str, Any]:
    detail = ", ".join(f"{name}={value}" for name, value in (entry.detail or {}).items())
    row = entry.model_dump(include={"at", "actor", "action", "target"})
    return {**row, "room": entry.room_id, "detail": detail}


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
            from zndraw_joblib.cli.server import settings  # noqa: PLC0415 - a worker's install has no server
        settings_in_force = settings.report_local(database_url)
    else:
        with open_client(url) as client:
            settings_in_force = client.settings()
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
    if as_json:
        print_json(entry)
        return
    print_fields(
        {**_setting_row(entry), "variable": f"{PREFIX}{lowered.upper()}", "about": entry.description}
    )


def _print_settings(settings: Settings, *, all_settings: bool) -> None:
    shown = [entry for entry in settings.settings if all_settings or entry.source != "default"]
    layout = Layout(wide=["value", "default", "setting"], optional=["default"], paths=())
    caption = f"{len(shown)} of {len(settings.settings)} settings" + (
        "" if all_settings else "; --all lists all"
    )
    columns = ["setting", "value", "default", "source"]
    print_rows(list(map(_setting_row, shown)), columns, layout, caption=caption)
    for problem in settings.unknown:
        print_note(problem)


def _setting_row(entry: SettingEntry) -> dict[str, Any]:
    value = "(secret)" if entry.is_secret else entry.value
    return {"setting": entry.name, "value": value, "default": entry.default, "source": entry.source}
