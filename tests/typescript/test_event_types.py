"""The types of Socket.IO events and event streams are current, complete, and fit what a server sends."""

from typing import Any

import httpx
import socketio
from fastapi import FastAPI
from generate import event_types
from generate.files import FILES
from pydantic import BaseModel, ConfigDict
from rest import V1, claim, register, report, submit
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from zndraw_joblib import Identity, JobLib, register_socketio_handlers
from zndraw_joblib.wire.events import Event, TaskProgress, TaskStatusEvent
from zndraw_joblib.wire.progress import LogPart, StoredResult

DECLARATIONS = next(path for path in FILES if path.name == "events.d.ts")


def test_the_committed_types_are_current() -> None:
    """They are made from the models."""
    assert event_types.text() == DECLARATIONS.read_text(encoding="utf-8"), "run `make generate`"


def test_each_event_has_a_type(engine: AsyncEngine) -> None:
    """Each model is sent by one side, and the events of clients are those that the server handles."""
    known = {*event_types.FROM_SERVER, *event_types.FROM_CLIENTS}
    assert known == {kind for kind in Event.__subclasses__() if kind.__module__.startswith("zndraw_joblib.")}
    sio = socketio.AsyncServer(async_mode="asgi")
    sessions = async_sessionmaker(engine)
    joblib = JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True))
    joblib.mount(FastAPI())
    register_socketio_handlers(sio, joblib)
    handled = set(sio.handlers["/"]) - {"connect", "disconnect"}
    assert {kind.event_name for kind in event_types.FROM_CLIENTS} == handled


class _LogData(LogPart):
    model_config = ConfigDict(extra="forbid")
    attempt: int


async def test_the_events_of_a_stream_have_the_declared_data(client: httpx.AsyncClient) -> None:
    """Each kind has the fields of its model; those that are null are omitted."""
    for event in await events_of_a_task(client):
        data = event["data"]
        match event["kind"]:
            case "log":
                _LogData.model_validate(data)
                continue
            case "progress":
                assert data.keys() == {"attempt", "progress"} <= TaskProgress.model_fields.keys()
                continue
            case "status":
                model: type[BaseModel] = TaskStatusEvent
            case "result":
                model = StoredResult
        required = {name for name, field in model.model_fields.items() if field.is_required()}
        assert required <= data.keys() <= model.model_fields.keys()
        assert None not in data.values()


async def events_of_a_task(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Run a task with progress, a log and a stored result; return its events, of each kind."""
    job = await register(client)
    task = await submit(client, job)
    url = f"{V1}/tasks/{task['id']}"
    position = (await client.get(f"{url}/events")).json()["next"]
    held = await claim(client, job["worker_id"])
    assert held is not None
    line = {"at": "2026-01-02T03:04:05Z", "text": "a line"}
    details = {"progress": {"current": 1}, "log": {"first": 1, "lines": [line]}}
    holder = {"attempt": held["attempt"], "worker_id": job["worker_id"]}
    (await report(client, held, "running", **holder, **details)).raise_for_status()
    (
        await client.put(f"{url}/result", params={"attempt": held["attempt"]}, content=b"bytes")
    ).raise_for_status()
    (await report(client, held, "completed", **holder)).raise_for_status()
    found = (await client.get(f"{url}/events", params={"after": position})).json()["events"]
    assert {event["kind"] for event in found} == {"status", "progress", "log", "result"}
    return found
