"""The commands for groups of tasks, and the group that a file of tasks fills."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import CommandError, ItemTable, counted, print_fields, print_json, print_note
from zndraw_joblib.cli.options import AsJson, Room, Url
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.task_id import Bar
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupRequest, GroupResponse, GroupUpdate
from zndraw_joblib.wire.names import DEFAULT_ROOM

_TIMED_OUT = 124
GroupId = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id, or its beginning.", show_default=False)
]
AllRooms = Annotated[bool, typer.Option("--all-rooms", help="Groups of all rooms, for a superuser.")]
Number = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many.")]


def _state(group: GroupResponse) -> str:
    return "ended" if group.ended_at else "sealed" if group.sealed else "open"


_GROUPS = ItemTable(
    {
        "id": "id",
        "name": "name",
        "room": "room",
        "state": _state,
        "ended": lambda group: f"{group.counts.completed + group.counts.failed + group.counts.cancelled:,}",
        "tasks": lambda group: f"{group.total:,}",
        "failed": lambda group: group.counts.failed or None,
        "cancelled": lambda group: group.counts.cancelled or None,
        "created": "created_at",
    },
    optional=["name", "failed", "cancelled"],
)


def groups(
    *,
    all_rooms: AllRooms = False,
    room: Room = DEFAULT_ROOM,
    limit: Number = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List groups of tasks, newest first."""
    where = "all rooms" if all_rooms else f"room {room}"
    with open_client(url) as client:
        query = {} if all_rooms else {"room": room}
        items, more = client.items(ops.LIST_GROUPS, "groups", limit, query)
    number = counted(len(items), "group")
    caption = f"The newest {number} of {where}" if more else f"{number} in {where}"
    table = _GROUPS if all_rooms else _GROUPS.without("room")
    table.print(items, caption=caption, as_json=as_json)


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show a bar until the group has ended.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        parser=parse_duration,
        help="With --follow: stop after this time, like 90s or 5m, exit code 124.",
    ),
]


def group(
    group_id: GroupId,
    *,
    follow: Follow = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show or follow a group of tasks.

    With --follow, the exit code is 1 if a task has failed or was cancelled, and 124 after --timeout.
    """
    with open_client(url) as client:
        found = client.find_group(group_id)
        current = _followed(client, found, timeout) if follow else client.get_group(found)
    print_json(current) if as_json else _print(current)
    lost = current.counts.failed + current.counts.cancelled
    if follow and lost:
        raise CommandError(f"{counted(lost, 'task')} of group {found} failed or were cancelled")


def _followed(client: AdminClient, group_id: UUID, timeout: float | None) -> GroupResponse:
    try:
        with Bar(shown=True) as bar:
            return client.wait_for_group(group_id, timeout, bar)
    except TimeoutError as error:
        print_note(str(error))
        raise typer.Exit(_TIMED_OUT) from error


def _print(group: GroupResponse) -> None:
    progress = None if group.progress is None else f"{int(100 * group.progress)} %"
    print_fields(
        {
            "id": group.id,
            "name": group.name,
            "room": group.room,
            "parent": group.parent,
            "state": _state(group),
            "progress": progress,
            "total": group.total,
            **{name: number for name, number in group.counts if number},
            "ended_at": group.ended_at,
            "on_end": group.on_end_state,
            "on_end_task": group.on_end_task,
            "error": group.error,
        }
    )
    for failure in group.failures:
        print_note(f"{failure.id} {failure.job_name}: {failure.error or failure.error_code}")


@contextmanager
def sealed_group(client: AdminClient, name: str | None, room: str | None, key: str) -> Iterator[UUID | None]:
    """Make a group of this name, and seal it after the block; without a name there is none.

    A repeat with the same key has the same group. It stays open after an exception, and without tasks: an
    empty group would end at once.
    """
    if name is None:
        yield None
        return
    body = GroupRequest(room=room or DEFAULT_ROOM, name=name)
    group_id = client.read(ops.CREATE_GROUP, "groups", body, key=f"{key} group").id
    try:
        yield group_id
    except CommandError:
        # Some tasks were refused, perhaps all of them; the others are there.
        if client.get_group(group_id).total:
            _seal(client, group_id)
        else:
            print_note(f"Group {group_id} has no tasks and stays open. Correct the file and submit it anew.")
        raise
    _seal(client, group_id)


def _seal(client: AdminClient, group_id: UUID) -> None:
    client.read(ops.UPDATE_GROUP, "groups", GroupUpdate(sealed=True), group_id=group_id)
    print_note(f"Follow the tasks together: zndraw-joblib group {group_id} --follow")
