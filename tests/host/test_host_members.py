"""A right that the host took away is gone for the workers of the user too."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Annotated, Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, Header, HTTPException
from rest import V1, claim, get_task, register, report, submit
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from host.conftest import Start
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.tables import ProviderRecord
from zndraw_joblib.server.http.access import WorkerRooms
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.wire.providers import request_hash as request_hash_of

WAIT = 60
providers = ProviderRecord.__table__
CLAIM = f"{V1}/providers/requests/claim"


class House:
    """A host: the members of each room, users without access, and superusers."""

    def __init__(self) -> None:
        self.members = {"den": {"ada", "bob"}, "lab": {"ada", "bob"}}
        self.revoked: set[str] = set()
        self.superusers = {"root"}
        self.locked: set[str] = set()
        self.asked: list[str] = []

    async def user(self, x_id: Annotated[str, Header()]) -> Identity:
        """Return the user that the header names."""
        if x_id in self.revoked:
            raise HTTPException(401, "no access")
        return Identity(x_id, x_id in self.superusers)

    async def room(self, room_id: str, x_id: Annotated[str, Header()]) -> str:
        """Hide the rooms of others."""
        self.asked.append(room_id)
        if room_id in self.members and x_id not in self.members[room_id]:
            raise HTTPException(404, f"There is no room {room_id!r}")
        return room_id

    async def unlocked_room(self, room_id: str, x_id: Annotated[str, Header()]) -> str:
        """Refuse changes of locked rooms."""
        await self.room(room_id, x_id)
        if room_id in self.locked:
            raise HTTPException(423, "locked")
        return room_id


class Hosted:
    """A running host, its queue, and clients of its users."""

    def __init__(self, house: House, joblib: JobLib, clients: list[httpx.AsyncClient]) -> None:
        self.house, self.joblib = house, joblib
        self.root, self.ada, self.bob = clients


@pytest.fixture
async def host(sessions: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> Hosted:
    """Run a host that trusts no outcome of its guards for longer than one request."""
    # A new provider counts as connected for longer than a test takes on a busy machine.
    monkeypatch.setattr(rules_providers, "GRACE", timedelta(minutes=5))
    house, app = House(), FastAPI()
    joblib = JobLib(
        session_maker=sessions,
        identity=house.user,
        readable_room=house.room,
        writable_room=house.unlocked_room,
    )
    joblib.trusted_seconds = 0.0
    joblib.worker_rooms = WorkerRooms(joblib.guards, joblib.runtime, cache_seconds=0.0)
    joblib.mount(app)
    return Hosted(house, joblib, [await start(app, **{"X-Id": name}) for name in ("root", "ada", "bob")])


def claiming(client: httpx.AsyncClient, worker_id: str, wait: float = WAIT) -> Awaitable[httpx.Response]:
    """Start a claim that waits."""
    body, headers = {"worker_id": worker_id}, {"Prefer": f"wait={wait}"}
    return asyncio.ensure_future(client.post(f"{V1}/tasks/claim", json=body, headers=headers))


async def waits(host: Hosted, count: int = 1) -> None:
    """Wait until requests wait."""
    await until(lambda: host.joblib.runtime.waiters.waiting_count == count)


async def provide(client: httpx.AsyncClient, room: str, **fields: Any) -> dict[str, Any]:
    """Register a provider and return it."""
    body = {"category": "files", "name": "Home", **fields}
    response = await client.put(f"{V1}/rooms/{room}/providers", json=body)
    assert response.status_code == 201, response.text
    return response.json()


async def ask(client: httpx.AsyncClient, room: str, provider: dict[str, Any]) -> int:
    """Open a request to a provider, unless it is open. Return the status of the response."""
    url = f"{V1}/rooms/{room}/providers/{provider['full_name']}"
    return (await client.get(url, headers={"Prefer": "wait=0"})).status_code


async def test_a_removed_member_claims_no_task_of_the_room(host: Hosted) -> None:
    """Neither at once nor with a claim that waited; the tasks of its other rooms follow."""
    den = await register(host.bob, room="den")
    worker = den["worker_id"]
    lab = await register(host.bob, room="lab", worker_id=worker)
    waiting = claiming(host.bob, worker)
    await waits(host)
    host.house.members["den"].discard("bob")
    hidden = await submit(host.ada, den, "den")
    await until(lambda: host.joblib.runtime.waiters.waiting_count == 1)
    seen = await submit(host.ada, lab, "lab")
    assert (await waiting).json()["task"]["id"] == seen["id"]
    assert (await get_task(host.ada, hidden))["status"] == "pending"
    assert await claim(host.bob, worker) is None
    host.house.members["lab"].discard("bob")
    for wait in (0, WAIT):
        assert (await claiming(host.bob, worker, wait)).status_code == 404
    host.house.members["den"].add("bob")
    claimed = await claim(host.bob, worker)
    assert claimed is not None
    assert claimed["id"] == hidden["id"]


async def test_a_removed_member_reports_and_uploads_nothing(host: Hosted) -> None:
    """With and without its worker's id, alone and in a batch. It may cancel, and others finish the task."""
    job = await register(host.bob, room="den")
    worker = {"worker_id": job["worker_id"]}
    await submit(host.ada, job, "den")
    task = await claim(host.bob, job["worker_id"])
    assert task is not None
    assert (await report(host.bob, task, "running", attempt=1)).status_code == 200
    host.house.members["den"].discard("bob")
    for token in ({}, worker):
        assert (await report(host.bob, task, "completed", result=[1], **token)).status_code == 404
        body = {"reports": [{"id": task["id"], "status": "completed", **token}]}
        response = await host.bob.post(f"{V1}/tasks/report", json=body)
        assert [each["status"] for each in response.json()["results"]] == [404]
    url = f"{V1}/tasks/{task['id']}"
    for path in (url, f"{url}/log", f"{url}/history", f"{url}/events"):
        assert (await host.bob.get(path)).status_code == 404, path
    assert (await host.bob.put(f"{url}/result?attempt=1", content=b"x")).status_code == 404
    assert (await get_task(host.ada, task))["status"] == "running"
    # A worker that gave up the job still holds the task.
    removed = await host.bob.delete(f"{V1}/workers/{job['worker_id']}/jobs/{job['full_name']}")
    assert removed.status_code == 204
    assert (await report(host.bob, task, "completed", **worker)).status_code == 404
    assert (await report(host.bob, task, "cancelled")).status_code == 200


async def test_a_removed_member_sees_a_group_as_its_tasks(host: Hosted) -> None:
    """The room's guard decides about both, also while a request waits for a change of the group."""
    job = await register(host.bob, room="den")
    task = await submit(host.ada, job, "den")
    group = (await host.bob.post(f"{V1}/groups", json={"room": "den"})).json()
    url = f"{V1}/groups/{group['id']}"
    state = (await host.bob.get(f"{url}/events")).json()["next"]
    host.joblib.trusted_seconds = 0.0
    headers = {"Prefer": f"wait={WAIT}"}
    waiting = [
        asyncio.create_task(host.bob.get(f"{url}/events?after={state}", headers=headers)),
        asyncio.create_task(host.bob.get(url, headers=headers)),
    ]
    await until(lambda: len(host.joblib.streams) == 1 and host.joblib.runtime.waiters.waiting_count == 1)
    host.house.members["den"].discard("bob")
    sealed = await host.ada.patch(url, json={"sealed": True})
    assert sealed.status_code == 200, sealed.text
    refused = await host.bob.get(f"{V1}/tasks/{task['id']}")
    for path in ("", "/events", "/results"):
        response = await host.bob.get(f"{url}{path}")
        assert (response.status_code, response.json()["type"]) == (404, refused.json()["type"]), path
    assert (await host.bob.patch(url, json={"sealed": True})).status_code == 404
    for response in await asyncio.gather(*waiting):
        assert response.status_code in {401, 404}, response.text


async def test_a_locked_room_takes_no_right_away(host: Hosted) -> None:
    """Its tasks are claimed, and their results arrive."""
    job = await register(host.bob, room="den")
    await submit(host.ada, job, "den")
    host.house.locked.add("den")
    task = await claim(host.bob, job["worker_id"])
    assert task is not None
    for status in ("running", "completed"):
        assert (await report(host.bob, task, status)).status_code == 200


async def test_the_worker_of_a_global_job_works_in_rooms_that_it_cannot_read(host: Hosted) -> None:
    """It reads its own task, also after its end, and no other; a former superuser claims and reads none."""
    job = await register(host.root)
    task, other = [await submit(host.ada, job, "den") for _ in range(2)]
    claimed = await claim(host.root, job["worker_id"])
    assert claimed is not None
    assert claimed["id"] == task["id"]
    host.house.members["den"].discard("bob")
    for client, seen, status in ((host.root, task, 200), (host.root, other, 404), (host.bob, task, 404)):
        for path in ("", "/log", "/history", "/explain", "/events"):
            response = await client.get(f"{V1}/tasks/{seen['id']}{path}")
            assert response.status_code == status, (path, response.text)
    for state in ("running", "completed"):
        response = await report(host.root, task, state, attempt=1, result=[2])
        assert response.status_code == 200, response.text
    assert (await get_task(host.root, task))["status"] == "completed"
    assert (await host.root.get(f"{V1}/tasks/{task['id']}/result")).json() == [2]
    host.house.superusers.clear()
    assert (await host.root.get(f"{V1}/tasks/{task['id']}")).status_code == 404
    assert (await claiming(host.root, job["worker_id"], 0)).status_code == 403


async def test_a_removed_member_gets_no_provider_request(host: Hosted) -> None:
    """It claims none, at once or waiting, and uploads no result."""
    url = f"{V1}/rooms/den/providers"
    provider = (await host.bob.put(url, json={"category": "files", "name": "Home"})).json()
    body, headers = {"worker_id": provider["worker_id"]}, {"Prefer": f"wait={WAIT}"}
    path = f"{V1}/providers/requests/claim"
    waiting = asyncio.ensure_future(host.bob.post(path, json=body, headers=headers))
    await waits(host)
    host.house.members["den"].discard("bob")
    read = asyncio.ensure_future(host.ada.get(f"{url}/den:files:Home", headers={"Prefer": "wait=1"}))
    assert (await waiting).status_code == 404
    assert (await host.bob.post(path, json=body)).status_code == 404
    headers = {"X-Request-Hash": "0" * 64}
    upload = await host.bob.post(f"{V1}/providers/{provider['id']}/results", content=b"x", headers=headers)
    assert upload.status_code == 404
    assert (await read).status_code in {503, 504}


async def test_the_claims_of_a_removed_member_keep_no_provider_of_the_room_connected(
    host: Hosted, engine: AsyncEngine
) -> None:
    """A worker with providers in other rooms goes on claiming: only these stay connected."""
    den = await provide(host.bob, "den")
    worker = {"worker_id": den["worker_id"]}
    await provide(host.bob, "lab", **worker)

    async def leases() -> list[str]:
        statement = select(providers.c.room_id).where(providers.c.connected_until > providers.c.created_at)
        async with engine.connect() as connection:
            return sorted((await connection.execute(statement)).scalars())

    for member, connected in ((True, ["den", "lab"]), (False, ["lab"])):
        if not member:
            host.house.members["den"].discard("bob")
        async with engine.begin() as connection:
            await connection.execute(update(providers).values(connected_until=providers.c.created_at))
        assert (await host.bob.post(CLAIM, json=worker)).json() == {"request": None}
        assert await leases() == connected
    assert await ask(host.ada, "den", den) == 503


class Slow:
    """A body that waits for `end` before its last byte."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.arrived, self.end = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content[:-1]
        self.arrived.set()
        await self.end.wait()
        yield self._content[-1:]


@pytest.mark.parametrize("lost", ["access", "room"])
@pytest.mark.parametrize("kind", ["submit", "result", "answer", "error"])
async def test_a_slow_body_does_not_outlive_the_right_to_send_it(host: Hosted, kind: str, lost: str) -> None:
    """After a revocation a submit adds no task, and an upload is not stored and completes nothing."""
    job = await register(host.bob, room="den")
    task = await submit(host.ada, job, "den")
    claimed = await claim(host.bob, job["worker_id"])
    assert claimed is not None
    assert (await report(host.bob, task, "running", attempt=1)).status_code == 200
    url = f"{V1}/rooms/den/providers"
    provider = (await host.bob.put(url, json={"category": "files", "name": "Home"})).json()
    reading = f"{url}/den:files:Home"
    assert (await host.ada.get(reading, headers={"Prefer": "wait=0"})).status_code == 504
    asked = await host.bob.post(f"{V1}/providers/requests/claim", json={"worker_id": provider["worker_id"]})
    headers = {"X-Request-Hash": asked.json()["request"]["request_id"]}
    results, body = f"{V1}/providers/{provider['id']}/results", Slow(b'{"payload": {}}')
    sending = {
        "submit": lambda: host.bob.post(f"{V1}/rooms/den/tasks/{job['full_name']}", content=body),
        "result": lambda: host.bob.put(f"{V1}/tasks/{task['id']}/result?attempt=1", content=body),
        "answer": lambda: host.bob.post(results, content=body, headers=headers),
        "error": lambda: host.bob.post(
            results, content=body, headers={**headers, "X-Result-Status": "error"}
        ),
    }
    response = asyncio.ensure_future(sending[kind]())
    await body.arrived.wait()
    if lost == "access":
        host.house.revoked.add("bob")
    else:
        host.house.members["den"].discard("bob")
    body.end.set()
    assert (await response).status_code == (401 if lost == "access" else 404)
    assert (await host.ada.get(f"{V1}/rooms/den/tasks")).json()["total"] == 1
    assert (await host.ada.get(f"{V1}/tasks/{task['id']}/result")).status_code == 404
    assert (await host.ada.get(reading, headers={"Prefer": "wait=0"})).status_code in {503, 504}


@on_both
async def test_the_workers_of_a_disconnected_user_are_removed(host: Hosted) -> None:
    """Its tasks go to others, its waiting requests end at once, and the workers of others stay."""
    policy = {"max_attempts": 2, "backoff": {"base_seconds": 0}}
    job, others = [await register(user, room="den", **policy) for user in (host.bob, host.ada)]
    task = await submit(host.ada, job, "den")
    assert await claim(host.bob, job["worker_id"]) is not None
    following = asyncio.ensure_future(
        host.bob.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": f"wait={WAIT}"})
    )
    waiting = claiming(host.bob, job["worker_id"])
    await waits(host, 2)
    host.house.revoked.add("bob")
    await host.joblib.disconnect_user("bob")
    for ended in (following, waiting):
        assert (await ended).status_code == 401
    host.house.revoked.clear()
    gone = await host.bob.patch(f"{V1}/workers/{job['worker_id']}")
    assert gone.status_code == 404
    claimed = await claim(host.ada, others["worker_id"])
    assert claimed is not None
    assert (claimed["id"], claimed["attempt"]) == (task["id"], 2)


async def test_a_thread_disconnects_a_user(host: Hosted) -> None:
    """A host's route that is a plain function runs in a thread without an event loop."""
    jobs = [await register(host.bob, room="den"), await register(host.bob, room="lab")]
    waiting = claiming(host.bob, jobs[0]["worker_id"])
    await waits(host)
    host.house.revoked.add("bob")
    await asyncio.to_thread(lambda: host.joblib.disconnect_user("bob").result(WAIT))
    assert (await waiting).status_code == 401
    removal = await asyncio.to_thread(host.joblib.disconnect_user, "bob")
    await removal
    assert removal.done()
    host.house.revoked.clear()
    for job in jobs:
        assert (await host.bob.patch(f"{V1}/workers/{job['worker_id']}")).status_code == 404


async def test_guards_are_asked_once_in_some_seconds(host: Hosted) -> None:
    """For claims and reports of a worker. A superuser's are never checked."""
    host.joblib.worker_rooms = WorkerRooms(host.joblib.guards, host.joblib.runtime, cache_seconds=60.0)
    job = await register(host.bob, room="den")
    shared = await register(host.root, room="attic")
    for _ in range(5):
        await submit(host.ada, job, "den")
    host.house.asked.clear()
    for _ in range(5):
        task = await claim(host.bob, job["worker_id"])
        assert task is not None
        for status in ("running", "completed"):
            assert (await report(host.bob, task, status, worker_id=job["worker_id"])).status_code == 200
    assert host.house.asked == ["den"]
    assert await claim(host.root, shared["worker_id"]) is None
    assert host.house.asked == ["den"]


async def test_a_removed_member_retries_no_task_and_records_no_details(host: Hosted) -> None:
    """Its heartbeats count the task of the room as lost, and it cannot retry its own tasks there."""
    job = await register(host.bob, room="den")
    await submit(host.ada, job, "den")
    own = await submit(host.bob, job, "den")
    assert (await report(host.bob, own, "cancelled")).status_code == 200
    task = await claim(host.bob, job["worker_id"])
    assert task is not None
    named = {
        "id": task["id"],
        "attempt": 1,
        "log": {"first": 1, "lines": [{"at": "2026-01-01T00:00:00Z", "text": "x"}]},
    }
    url, retry = f"{V1}/workers/{job['worker_id']}", f"{V1}/tasks/{own['id']}/retry"
    host.house.members["den"].discard("bob")
    response = await host.bob.patch(url, json={"tasks": [named]})
    assert response.status_code == 200, response.text
    assert [each["verdict"] for each in response.json()["tasks"]] == ["lost"]
    assert (await host.ada.get(f"{V1}/tasks/{task['id']}/log")).json()["lines"] == []
    assert (await host.bob.post(retry)).status_code == 404
    host.house.members["den"].add("bob")
    assert (await host.bob.post(retry)).status_code == 200


async def test_a_former_superuser_serves_no_global_job_without_guards(sessions: Any, start: Start) -> None:
    """The claim is refused; one of a worker with other jobs leaves the job out."""
    house, app = House(), FastAPI()
    JobLib(session_maker=sessions, identity=house.user).mount(app)
    root, ada = [await start(app, **{"X-Id": name}) for name in ("root", "ada")]
    job = await register(root)
    await submit(ada, job, "den")
    house.superusers.clear()
    assert (await claiming(root, job["worker_id"], 0)).status_code == 403
    lab = await register(root, room="lab", worker_id=job["worker_id"])
    task = await submit(ada, lab, "lab")
    claimed = await claim(root, job["worker_id"])
    assert claimed is not None
    assert claimed["id"] == task["id"]
    assert await claim(root, job["worker_id"]) is None


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_former_superuser_serves_no_global_provider(
    host: Hosted, sessions: Any, start: Start, is_guarded: bool
) -> None:
    """It gets no request and uploads no result, also without guards; its provider of a room is served."""
    root, ada = host.root, host.ada
    if not is_guarded:
        app = FastAPI()
        JobLib(session_maker=sessions, identity=host.house.user).mount(app)
        root, ada = [await start(app, **{"X-Id": name}) for name in ("root", "ada")]
    shared = await provide(root, "@global")
    assert await ask(ada, "den", shared) == 504
    worker, request_hash = {"worker_id": shared["worker_id"]}, request_hash_of({})
    host.house.superusers.clear()
    claimed = await root.post(CLAIM, json=worker)
    assert (claimed.status_code, claimed.json().get("request")) == (
        (403, None) if is_guarded else (200, None)
    )
    own = await provide(root, "attic", **worker)
    assert await ask(ada, "attic", own) == 504
    claimed = await root.post(CLAIM, json=worker)
    assert claimed.json()["request"]["provider_id"] == own["id"]
    assert (await root.post(CLAIM, json=worker)).json() == {"request": None}
    for status in ("ok", "error"):
        headers = {"X-Request-Hash": request_hash, "X-Result-Status": status}
        upload = await root.post(f"{V1}/providers/{shared['id']}/results", content=b"x", headers=headers)
        assert upload.status_code == 403, upload.text
    assert await ask(ada, "den", shared) == 504
    host.house.superusers.add("root")
    claimed = await root.post(CLAIM, json=worker)
    assert claimed.json()["request"]["request_id"] == request_hash
