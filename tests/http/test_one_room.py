"""A user who may only read one room, and one who may also write to it, try every endpoint.

They see nothing of another room and change nothing in it. The list of endpoints is that of the API's
document: a new one fails the test until it is in the table.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, Header, HTTPException
from rest import V1, claim, register, report, submit

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire import problems
from zndraw_joblib.wire.operations import FAIL_TASK, FOLLOW_OVERVIEW, Access, Operation
from zndraw_joblib.wire.operations import OPERATIONS as ROWS

OWN, OTHER = "lab", "vault"
USERS = ("reader", "writer")
# What a worker, a payload and a result of the other room contain.
SCHEDULE = "nightly"
SECRETS = ("vault-payload", "vault-worker", "vault-host", "vault-result")


class Room(NamedTuple):
    """What a room has: the ids and names of one thing of each kind."""

    room_id: str
    job: str
    worker_id: str
    provider: str
    provider_id: str
    running: str
    completed: str
    group_id: str


Make = Callable[[Room], Any]


class Try(NamedTuple):
    """A request that both users try, in their room and in the other one, and the statuses of the responses.

    `task` is the kind of task in the path. With `is_batch`, the status is that of the first result.
    """

    reader: int
    writer: int
    elsewhere: int = 403
    json: Make | None = None
    params: Make | None = None
    headers: Make | None = None
    task: str = "running"
    is_batch: bool = False


def _room(room: Room) -> dict[str, str]:
    return {"room": room.room_id}


def _bulk(room: Room) -> dict[str, Any]:
    return {"action": "cancel", "filter": {"room": [room.room_id]}, "token": "none"}


def _report(room: Room) -> dict[str, Any]:
    return {"reports": [{"id": room.running, "status": "failed", "attempt": 1}]}


def _submit(room: Room) -> dict[str, Any]:
    return {"tasks": [{"room_id": room.room_id, "job_name": room.job, "payload": {}}]}


def _worker_token(room: Room) -> dict[str, Any]:
    return {"jobs": [f"{room.room_id}:*"], "rooms": [room.room_id], "expires_in_seconds": 60}


def _schedule(room: Room) -> dict[str, Any]:
    return {"job": room.job, "every_seconds": 3600, "payload": {"word": f"{room.room_id}-payload"}}


READ, WRITE, ACT, OPERATE = Try(200, 200), Try(403, 200), Try(403, 403), Try(403, 403)
ANYBODY = Try(200, 200, 200)
NEW_JOB = {"category": "modifiers", "name": "New"}
OPERATIONS = {
    "get /me": Try(200, 200, 200, params=_room),
    "get /version": ANYBODY,
    "get /jobs": OPERATE,
    "get /rooms": OPERATE,
    "get /pauses": OPERATE,
    "get /limits": OPERATE,
    "get /limits/{limit}": OPERATE,
    "put /limits/{limit}": Try(403, 403, json=lambda _: {"max_in_flight": 1}),
    "delete /limits/{limit}": OPERATE,
    "post /pause": OPERATE,
    "post /resume": OPERATE,
    "post /rooms/{room_id}/pause": ACT,
    "post /rooms/{room_id}/resume": ACT,
    "get /providers": OPERATE,
    "get /metrics": OPERATE,
    "get /overview": OPERATE,
    "get /overview/events": OPERATE,
    "get /rooms/{room_id}/overview": READ,
    "get /statistics": Try(200, 200, params=lambda room: {"job": room.job}),
    "get /demand": Try(200, 200, params=_room),
    "get /jobs/{name}/demand": READ,
    "get /schedules": Try(200, 200, params=_room),
    "get /groups": Try(200, 200, params=_room),
    "post /groups": Try(403, 201, json=_room),
    "get /groups/{group_id}": READ,
    "get /groups/{group_id}/events": READ,
    "post /groups/{group_id}/events/token": Try(201, 201),
    "get /groups/{group_id}/results": READ,
    "patch /groups/{group_id}": Try(403, 200, json=lambda _: {"sealed": True}),
    "get /audit": Try(200, 200, params=_room),
    "get /ids": Try(200, 200, params=lambda room: {"prefix": room.running[:8], **_room(room)}),
    "get /tasks": Try(200, 200, params=_room),
    "get /tasks/counts": Try(200, 200, params=_room),
    "get /tasks/tags": Try(200, 200, params=_room),
    "get /tasks/failures": Try(200, 200, params=_room),
    "post /tasks/bulk/preview": Try(403, 200, json=_bulk),
    "post /tasks/bulk": Try(403, 422, json=_bulk),
    "get /admin/settings": OPERATE,
    "get /admin/sweeper": OPERATE,
    "patch /admin/sweeper": OPERATE._replace(json=lambda _: {"mode": "off"}),
    "get /admin/sweeper/preview": OPERATE,
    "get /admin/retention": OPERATE,
    "get /workers": ANYBODY,
    "post /workers": Try(201, 201, 201),
    "post /worker-tokens": OPERATE._replace(json=_worker_token),
    "get /workers/{worker_id}": ACT,
    "patch /workers/{worker_id}": ACT._replace(json=lambda _: {"worker": {"name": "mine"}}),
    "delete /workers/{worker_id}": ACT,
    "post /workers/{worker_id}/drain": ACT,
    "delete /workers/{worker_id}/jobs/{name}": ACT,
    "get /rooms/{room_id}/workers": READ,
    "get /rooms/{room_id}/jobs": READ,
    "put /rooms/{room_id}/jobs": Try(403, 201, json=lambda _: NEW_JOB),
    "get /rooms/{room_id}/jobs/{name}": READ,
    "put /rooms/{room_id}/jobs/{name}": OPERATE,
    "delete /rooms/{room_id}/jobs/{name}": OPERATE,
    "post /rooms/{room_id}/jobs/{name}/pause": ACT,
    "post /rooms/{room_id}/jobs/{name}/resume": ACT,
    "get /rooms/{room_id}/jobs/{name}/tasks": READ,
    "get /rooms/{room_id}/schedules": READ,
    "get /rooms/{room_id}/schedules/{schedule}": READ,
    "put /rooms/{room_id}/schedules/{schedule}": Try(403, 200, json=_schedule),
    "patch /rooms/{room_id}/schedules/{schedule}": Try(403, 200, json=lambda _: {"paused": True}),
    "post /rooms/{room_id}/schedules/{schedule}/run": Try(403, 202),
    "delete /rooms/{room_id}/schedules/{schedule}": Try(403, 404),
    "get /rooms/{room_id}/webhooks": WRITE,
    "get /rooms/{room_id}/webhooks/{webhook}": Try(403, 404),
    "put /rooms/{room_id}/webhooks/{webhook}": Try(
        403, 201, json=lambda _: {"url": "https://hooks.example/"}
    ),
    "post /rooms/{room_id}/webhooks/{webhook}/test": Try(403, 404),
    "delete /rooms/{room_id}/webhooks/{webhook}": Try(403, 404),
    "get /rooms/{room_id}/deliveries": WRITE,
    "post /rooms/{room_id}/deliveries/{delivery}/repeat": Try(403, 404),
    "get /rooms/{room_id}/tasks": READ,
    "post /rooms/{room_id}/tasks/{name}": Try(403, 202, json=lambda _: {"payload": {}}),
    "get /rooms/{room_id}/events": READ,
    "post /rooms/{room_id}/events/token": Try(201, 201),
    "get /tasks/{task_id}": READ,
    "patch /tasks/{task_id}": ACT._replace(json=lambda _: {"status": "cancelled"}),
    "get /tasks/{task_id}/events": READ,
    "post /tasks/{task_id}/events/token": Try(201, 201),
    "get /tasks/{task_id}/explain": READ,
    "get /tasks/{task_id}/history": READ,
    "get /tasks/{task_id}/log": READ,
    "get /tasks/{task_id}/result": READ._replace(task="completed"),
    "head /tasks/{task_id}/result": READ._replace(task="completed"),
    "put /tasks/{task_id}/result": ACT._replace(params=lambda _: {"attempt": 1}),
    "post /tasks/{task_id}/fail": ACT,
    "post /tasks/{task_id}/release": ACT,
    "post /tasks/{task_id}/retry": ACT._replace(task="completed"),
    "post /tasks/{task_id}/run-now": ACT,
    "post /tasks/claim": ACT._replace(json=lambda room: {"worker_id": room.worker_id}),
    "post /tasks/report": Try(403, 403, json=_report, is_batch=True),
    "post /tasks/submit": Try(403, 202, json=_submit, is_batch=True),
    "get /rooms/{room_id}/providers": READ,
    "put /rooms/{room_id}/providers": Try(403, 201, json=lambda _: {"category": "files", "name": "New"}),
    "get /rooms/{room_id}/providers/{name}": Try(503, 503, headers=lambda _: {"Prefer": "wait=0"}),
    "get /rooms/{room_id}/providers/{name}/info": READ,
    "delete /providers/{provider_id}": ACT,
    "post /providers/{provider_id}/results": ACT._replace(headers=lambda _: {"X-Request-Hash": "0" * 64}),
    "post /providers/requests/claim": ACT._replace(json=lambda room: {"worker_id": room.worker_id}),
}
BOTH = {"room": [OWN, OTHER]}
STREAM = {"Accept": "text/event-stream"}
# More that neither user may do, or that returns nothing of the other room.
TRICKS: list[tuple[str, str, int, dict[str, Any]]] = [
    ("get", "/tasks", 403, {}),
    ("get", "/tasks", 403, {"params": BOTH}),
    ("get", "/tasks", 200, {"params": {"room": OWN, "text": "vault-payload"}}),
    ("get", "/tasks", 200, {"params": {"room": OWN, "job": "vault:modifiers:Secret"}}),
    ("get", "/tasks/counts", 403, {}),
    ("get", "/tasks/counts", 403, {"params": BOTH}),
    ("get", "/audit", 403, {}),
    ("get", "/ids", 403, {"params": {"prefix": "0000"}}),
    ("get", "/statistics", 403, {}),
    ("get", "/statistics", 403, {"params": {"job": "@global:modifiers:Any"}}),
    ("get", "/statistics", 403, {"params": {"job": "@internal:modifiers:Any"}}),
    ("get", "/demand", 403, {}),
    ("get", "/demand", 403, {"params": BOTH}),
    ("get", "/demand", 403, {"params": {"room": "@global"}}),
    ("get", "/demand", 403, {"params": {"job": "vault:modifiers:Secret"}}),
    ("get", "/jobs/@global:modifiers:Any/demand", 403, {}),
    ("get", "/rooms/@global/overview", 403, {}),
    ("get", "/audit", 403, {"params": {"room": "@global"}}),
    ("get", "/tasks", 403, {"params": {"room": "@internal"}}),
    ("get", "/rooms/@internal/overview", 403, {}),
    ("get", "/rooms/vault/events", 403, {"headers": STREAM}),
    ("get", "/overview/events", 403, {"headers": STREAM}),
    ("get", "/rooms/lab/jobs/vault:modifiers:Secret", 404, {}),
    ("get", "/rooms/lab/providers/vault:files:Secret/info", 404, {}),
    ("post", "/tasks/bulk/preview", 403, {"json": {"action": "cancel", "filter": {}}}),
    ("post", "/tasks/bulk/preview", 403, {"json": {"action": "cancel", "filter": BOTH}}),
    ("post", "/tasks/bulk/preview", 403, {"json": {"action": "purge", "filter": {"room": [OWN]}}}),
    ("post", "/tasks/bulk/preview", 403, {"json": {"action": "release", "filter": {"room": [OWN]}}}),
]


async def current_user(x_id: Annotated[str, Header()] = "") -> Identity:
    """Return the user named in the header."""
    if not x_id:
        raise HTTPException(401, "Who are you?")
    return Identity(x_id, x_id == "root")


def guard(*users: str) -> Callable[..., Any]:
    """Return a guard of a host, which lets these users into their room, and the owner into all rooms."""

    async def room(room_id: str, x_id: Annotated[str, Header()]) -> str:
        if x_id not in {"root", "olga"} and (room_id != OWN or x_id not in users):
            raise HTTPException(403, "Not your room")
        return room_id

    return room


class World(NamedTuple):
    """The app, its users, and two rooms."""

    operations: set[str]
    users: dict[str, httpx.AsyncClient]
    own: Room
    other: Room


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    """Return a host with two rooms of the same contents."""
    database, app = open_database(database_url), FastAPI()
    guards = {"readable_room": guard(*USERS), "writable_room": guard("writer")}
    # The state of a worker does not change during the test, however slow the machine is.
    settings = JobLibSettings(worker_timeout_seconds=3600)
    JobLib(session_maker=database, identity=current_user, settings=settings, **guards).mount(app)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await stack.enter_async_context(app.router.lifespan_context(app))
        users = {}
        for name in ("root", "olga", "stranger", "", *USERS):
            user = httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://host",
                headers={"X-Id": name} if name else {},
            )
            users[name] = await stack.enter_async_context(user)
        own, other = [await fill(users["olga"], room) for room in (OWN, OTHER)]
        paths = app.openapi()["paths"]
        found = {
            f"{method} {path.removeprefix(V1)}"
            for path, methods in paths.items()
            if path.startswith(f"{V1}/")
            for method in methods
        }
        yield World(found, users, own, other)


async def fill(olga: httpx.AsyncClient, room_id: str) -> Room:
    """Give a room a job, a worker with a running task, two more tasks, a provider and a schedule."""
    about = {"name": f"{room_id}-worker", "host": f"{room_id}-host"}
    job = await register(olga, "Secret", room=room_id, worker=about)
    for _ in range(3):
        await submit(olga, job, room_id, word=f"{room_id}-payload")
    done, running = [await claim(olga, job["worker_id"]) for _ in range(2)]
    for task, status in ((done, "running"), (done, "completed"), (running, "running")):
        fields = {"result": f"{room_id}-result"} if status == "completed" else {}
        assert (await report(olga, task, status, **fields)).status_code == 200
    body = {"category": "files", "name": "Secret", "worker_id": job["worker_id"]}
    provider = (await olga.put(f"{V1}/rooms/{room_id}/providers", json=body)).json()
    group = (await olga.post(f"{V1}/groups", json={"room": room_id, "name": f"{room_id}-payload"})).json()
    ids = (job["worker_id"], provider["full_name"], provider["id"], running["id"], done["id"], group["id"])
    room = Room(room_id, job["full_name"], *ids)
    schedule = await olga.put(f"{V1}/rooms/{room_id}/schedules/{SCHEDULE}", json=_schedule(room))
    assert schedule.status_code == 201
    return room


async def state(world: World, *rooms: Room) -> list[Any]:
    """Return what an operator sees of these rooms, and of the sweeper."""
    root, found = world.users["root"], []
    for room in rooms:
        for part in ("tasks", "jobs", "providers", "schedules"):
            found.append((await root.get(f"{V1}/rooms/{room.room_id}/{part}")).json())
        found.append((await root.get(f"{V1}/rooms/{room.room_id}/jobs/{room.job}")).json())
        found.append((await root.get(f"{V1}/groups/{room.group_id}")).json())
        worker = (await root.get(f"{V1}/workers/{room.worker_id}")).json()
        found.append({name: value for name, value in worker.items() if name != "last_heartbeat"})
    found.append((await root.get(f"{V1}/admin/sweeper")).json()["mode"])
    return found


async def send(user: httpx.AsyncClient, operation: str, wanted: Try, room: Room) -> httpx.Response:
    """Send the request of an operation for the things of a room."""
    method, path = operation.split(" ")
    names = {**room._asdict(), "task_id": room.running if wanted.task == "running" else room.completed}
    # The requests after a deletion need the schedule: one of another name is not there to be deleted.
    names["schedule"] = SCHEDULE if method != "delete" else "weekly"
    names |= {"limit": "api", "webhook": "ci", "delivery": "1"}
    names["name"] = room.provider if "/providers/" in path else room.job
    made = {"json": wanted.json, "params": wanted.params, "headers": wanted.headers}
    given = {name: make(room) for name, make in made.items() if make is not None}
    return await user.request(method.upper(), V1 + path.format(**names), **given)


def check_contents(response: httpx.Response, world: World) -> None:
    """Check that a response has nothing of the other room, except what a refused request named."""
    secrets = [*SECRETS, world.other.running, world.other.completed, "vault"]
    request = response.request
    asked = f"{request.url} {request.content.decode()}" if response.status_code >= 400 else ""
    found = [secret for secret in secrets if secret in response.text and secret not in asked]
    assert found == [], (request.method, request.url, response.text)


def status_of(response: httpx.Response, wanted: Try) -> int:
    """Return the status of a response, or of the first result of many."""
    # A provider without a worker is a timeout first, and after a few seconds unavailable.
    if response.status_code == 504:
        return 503
    if wanted.is_batch and response.status_code == 200:
        return int(response.json()["results"][0]["status"])
    return response.status_code


@on_both
async def test_users_of_one_room_see_and_do_nothing_else(world: World) -> None:
    """Each operation, for things of both rooms. A reader changes nothing, a writer nothing elsewhere."""
    assert world.operations - set(OPERATIONS) == set(), "add them to the table"
    everything = await state(world, world.own, world.other)
    other = await state(world, world.other)
    for name in USERS:
        user = world.users[name]
        for operation in sorted(set(OPERATIONS) & world.operations):
            wanted = OPERATIONS[operation]
            for room, expected in ((world.own, getattr(wanted, name)), (world.other, wanted.elsewhere)):
                response = await send(user, operation, wanted, room)
                assert status_of(response, wanted) == expected, (name, operation, room.room_id, response.text)
                # The answer about the caller names the room of the question.
                if operation != "get /me":
                    check_contents(response, world)
        for method, path, status, given in TRICKS:
            if f"{method} {path}" in set(OPERATIONS) - world.operations:
                continue
            response = await user.request(method.upper(), V1 + path, **given)
            assert response.status_code == status, (name, path, given, response.text)
            check_contents(response, world)
        if name == "reader":
            assert await state(world, world.own, world.other) == everything
        assert await state(world, world.other) == other


def is_let_in(row: Operation[Any], caller: str) -> bool:
    """Return whether the rule of a row lets a caller in, for the things of its room."""
    if caller in {"", "root"} or row.access is Access.CALLER:
        return caller != ""
    if row.access & (Access.SUPERUSER | Access.METRICS_TOKEN) or caller == "stranger":
        return False
    # Of the owner's roles none may fail a task.
    if row.access & Access.OWNER or caller == "olga":
        return caller == "olga" and row is not FAIL_TASK
    # A room that is written to may be locked.
    return caller == "writer" or problems.Locked not in row.all_problems


async def test_the_rule_of_each_row_is_what_callers_meet(world: World) -> None:
    """No identity is a 401. Without the rights of the row there is a 403, with them there is neither."""
    # What later requests need is removed last.
    rows = sorted(ROWS, key=lambda row: (row.method == "DELETE", row.name == "drain_worker"))
    for caller in ("", "stranger", *USERS, "olga", "root"):
        room = world.other if caller in {"olga", "root"} else world.own
        for row in rows:
            if caller == "root" and row is FOLLOW_OVERVIEW:
                continue  # its stream does not end
            request = OPERATIONS[f"{row.method.lower()} {row.template}"]
            response = await send(world.users[caller], f"{row.method} {row.template}", request, room)
            status = status_of(response, request)
            refused = {401} if caller == "" else {403}
            assert (status in refused) == (not is_let_in(row, caller)), (caller, row.name, response.text)
            assert status != 401 or caller == "", row.name


async def test_the_caller_learns_what_it_may_do(world: World) -> None:
    """The permissions of `GET /me` are those that the guards of the host give."""
    expected = {
        "reader": {OWN: ["room:read"], OTHER: []},
        "writer": {OWN: ["room:read", "room:write"], OTHER: []},
        "root": {OWN: ["all:read", "all:operate", "room:read", "room:write", "room:operate"]},
    }
    for name, rooms in expected.items():
        for room, permissions in rooms.items():
            me = (await world.users[name].get(f"{V1}/me", params={"room": room})).json()
            assert (me["id"], me["room"], me["permissions"]) == (name, room, permissions)
