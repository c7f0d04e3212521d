"""The reference of all events: over Socket.IO, and in event streams."""

import inspect

from pydantic import BaseModel
from sitegen.schemas import fields_table

from zndraw_joblib.wire.events import Event
from zndraw_joblib.wire.groups import GroupCounts, GroupResponse
from zndraw_joblib.wire.history import EventKind, Resync, RoomSnapshot, StreamEvent
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.operators import Overview
from zndraw_joblib.wire.progress import LogPart, StoredResult

_HEAD = """\
# Events

Generated from the code by `make generate`. [Live events](../how-to/live-events.md) shows how a front-end
uses them.

## Socket.IO

An event is a hint that may be lost; the REST API has the facts. The server sends an event to Socket.IO
rooms. A client sends the `join_…` and `leave_…` events, which the server acknowledges with `{}` or with a
[problem](problems.md).
"""
_STREAMS = """
## Event streams

`GET /tasks/{task_id}/events`, `GET /rooms/{room_id}/events` and `GET /groups/{group_id}/events` with
`Accept: text/event-stream` send these Server-Sent Events; the `data` of each is JSON.
[Event streams](rest.md#event-streams) describes how a client continues after a lost connection.

| event | data | has an `id` |
|---|---|---|
"""


def page() -> str:
    """Return a section for each event, with its fields."""
    parts = [_HEAD, *(_section(f"### {kind.event_name}", kind) for kind in Event.__subclasses__())]
    models = (StreamEvent, Resync, RoomSnapshot, LogPart, StoredResult, GroupCounts)
    parts += [_STREAMS + "\n".join(_rows()) + "\n", *(_section(f"### {one.__name__}", one) for one in models)]
    return "\n".join(parts)


def _rows() -> list[str]:
    task, group, overview = (f"`{one.__name__}`" for one in (TaskResponse, GroupResponse, Overview))
    rows = [
        f"| `snapshot` | of a task: {task}, as `GET /tasks/{{task_id}}`; of a room: `RoomSnapshot`; "
        f"of a group: {group}, as `GET /groups/{{group_id}}` | yes |"
    ]
    rows += [f"| `{kind}` | `StreamEvent` with the `kind` `{kind}` | yes |" for kind in EventKind]
    rows += [
        "| `resync` | `Resync`; a `snapshot` follows | no |",
        f"| `counts` | of a group: `{GroupCounts.__name__}` | yes |",
        "| `end` | of a task: `next`, the number of the last event; "
        f"of a group: {group}. It has ended, and the stream closes | yes |",
        f"| `overview` | only `GET /overview/events`: {overview} | no |",
    ]
    return rows


def _section(title: str, model: type[BaseModel]) -> str:
    table = fields_table(model.model_json_schema(mode="serialization"))
    return f"{title}\n\n{inspect.getdoc(model)}\n\n{table or 'It has no fields.'}\n"
