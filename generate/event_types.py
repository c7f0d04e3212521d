"""The TypeScript declarations of Socket.IO events and event streams, made from the models of the contract."""

import inspect
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from zndraw_joblib.wire import events
from zndraw_joblib.wire.events import Event
from zndraw_joblib.wire.groups import GroupResult

FROM_CLIENTS: tuple[type[Event], ...] = (
    events.JoinRoom,
    events.LeaveRoom,
    events.JoinJobRoom,
    events.LeaveJobRoom,
    events.JoinProviderRoom,
    events.LeaveProviderRoom,
)
FROM_SERVER: tuple[type[Event], ...] = (
    events.TaskStatusEvent,
    events.TaskProgress,
    events.JobsInvalidate,
    events.ProvidersInvalidate,
    events.ProviderResultReady,
    events.TaskAvailable,
    events.ProviderRequest,
)
# Models that responses of the REST API have too.
_OF_REST = {"Progress", "TaskStatus", "TaskStatusEvent"}
_SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}

_REFUSED = (
    "    /** The server refused to let the client join a room. */",
    "    problem: (problem: Problem) => void;",
)

_HEAD = """\
/**
 * Types of the Socket.IO events and of the event streams of zndraw-joblib. They belong beside rest.d.ts.
 * `make generate` writes this file; do not edit it.
 */
import type {
    EventKind,
    GroupResponse,
    LogPart,
    Problem,
    Progress,
    Resync,
    RoomSnapshot,
    StoredResult,
    StreamEvent,
    TaskResponse,
    TaskStatusEvent,
} from "./rest.js";

export type { TaskStatusEvent };
"""

_STREAMS = """\
/** An object in which the fields that would be null are omitted. */
export type WithoutNulls<Fields> = {
    [Name in keyof Fields as null extends Fields[Name] ? never : Name]: Fields[Name];
} & {
    [Name in keyof Fields as null extends Fields[Name] ? Name : never]?: NonNullable<Fields[Name]>;
};

/** The `data` of the events of a task, by their `kind`. */
export interface StreamData {
    status: WithoutNulls<TaskStatusEvent>;
    progress: Pick<TaskProgress, "attempt" | "progress">;
    log: LogPart & { attempt: number };
    result: WithoutNulls<StoredResult>;
}

/** An event of a task: `kind` determines the type of `data`. */
export type TaskStreamEvent = {
    [Kind in EventKind]: Omit<StreamEvent, "kind" | "data"> & { kind: Kind; data: StreamData[Kind] };
}[EventKind];

type EventsByKind = { [Kind in EventKind]: Extract<TaskStreamEvent, { kind: Kind }> };

/** The Server-Sent Events of `GET /rooms/{room_id}/events` by name, with their data as JSON. */
export interface RoomStream extends EventsByKind {
    snapshot: RoomSnapshot;
    resync: Resync;
}

/** The Server-Sent Events of `GET /tasks/{task_id}/events` by name, with their data as JSON. */
export interface TaskStream extends EventsByKind {
    snapshot: TaskResponse;
    resync: Resync;
    end: { next: number };
}

/** The Server-Sent Events of `GET /groups/{group_id}/events` by name, with their data as JSON. */
export interface GroupStream {
    snapshot: GroupResponse;
    counts: Pick<GroupResponse, "sealed" | "total" | "counts" | "progress">;
    end: GroupResponse;
}

/** An event as a stream sends it. To continue, send the last `id` as `Last-Event-ID`; `resync` has none. */
export type SentEvent<Stream extends RoomStream | TaskStream | GroupStream> = {
    [Name in keyof Stream]: { event: Name; data: Stream[Name]; id?: string };
}[keyof Stream];
"""


def text() -> str:
    """Return the declarations."""
    models = [_interface(event) for event in (*FROM_SERVER, *FROM_CLIENTS) if event.__name__ not in _OF_REST]
    to_client = [*_methods(FROM_SERVER, "event: {name}"), *_REFUSED]
    to_server = _methods(FROM_CLIENTS, "event: {name}, acknowledge: (answer: JoinAnswer) => void")
    return "\n".join(
        [
            _HEAD,
            *models,
            _interface(GroupResult),
            "/** The acknowledgement of a join or a leave: an empty object, or why it was refused. */",
            "export type JoinAnswer = Problem | Record<string, never>;\n",
            _interface_of("The events that the server sends.", "ServerToClientEvents", to_client),
            _interface_of("The events that a client sends.", "ClientToServerEvents", to_server),
            _STREAMS,
        ]
    )


def _interface(model: type[BaseModel]) -> str:
    """Return the interface of an event or a line; the server sends all of its fields."""
    schema = model.model_json_schema(mode="serialization")
    lines = [
        f"    {name}{'?' if _may_be_omitted(model, name) else ''}: {_type(field)};"
        for name, field in schema.get("properties", {}).items()
    ]
    if not lines:
        return f"/** {_doc(model)} */\nexport type {model.__name__} = Record<string, never>;\n"
    return _interface_of(_doc(model), model.__name__, lines)


def _may_be_omitted(model: type[BaseModel], name: str) -> bool:
    return model.model_fields[name].exclude_if is not None


def _interface_of(doc: str, name: str, lines: Iterable[str]) -> str:
    return "\n".join([f"/** {doc} */", f"export interface {name} {{", *lines, "}", ""])


def _methods(kinds: Iterable[type[Event]], arguments: str) -> list[str]:
    found = []
    for kind in kinds:
        found += [f"    /** {_doc(kind)} */"]
        found += [f"    {kind.event_name}: ({arguments.format(name=kind.__name__)}) => void;"]
    return found


def _doc(model: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(model.__doc__ or "").split())


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a field. Raises KeyError for a schema that no event has had so far."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name not in _OF_REST:
            raise KeyError(f"{name} is not in rest.d.ts")
        return name
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    return _SIMPLE[schema["type"]] if schema.keys() - {"default", "title"} else "unknown"
