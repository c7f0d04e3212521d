"""A host's guards of rooms stay in force, however its tests clean up."""

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException, Request
from replica import TIMEOUT
from rest import ROTATE, V1, expect_problem, register, submit

from host.conftest import Start
from zndraw_joblib import Identity, JobLib, RequestRefused, verify_readable_room, verify_writable_room
from zndraw_joblib.client.retry import read_error
from zndraw_joblib.server.results.stores import MemoryResults

READS = ["jobs", "tasks", "workers", "providers"]


async def current_user(x_id: Annotated[str, Header()]) -> Identity:
    """Return the user named in the header."""
    return Identity(x_id, x_id == "root")


async def readable_room(room_id: str, x_id: Annotated[str, Header()]) -> str:
    """Hide the room `den` from all users except Ada."""
    if room_id == "den" and x_id != "ada":
        raise HTTPException(404, f"There is no room {room_id!r}")
    return room_id


async def writable_room(room_id: str) -> str:
    """Refuse changes of the room `attic`."""
    if room_id == "attic":
        raise HTTPException(423, "locked")
    return room_id


def with_overrides(app: FastAPI, **options: Any) -> None:
    """Mount the queue and guard its rooms with `dependency_overrides`."""
    JobLib(identity=current_user, **options).mount(app)
    app.dependency_overrides[verify_readable_room] = readable_room
    app.dependency_overrides[verify_writable_room] = writable_room


def with_overrides_first(app: FastAPI, **options: Any) -> None:
    """Guard the rooms, then mount the queue."""
    app.dependency_overrides[verify_readable_room] = readable_room
    app.dependency_overrides[verify_writable_room] = writable_room
    JobLib(identity=current_user, **options).mount(app)


def with_arguments(app: FastAPI, **options: Any) -> None:
    """Mount the queue with guards as arguments."""
    guards = {"readable_room": readable_room, "writable_room": writable_room}
    JobLib(identity=current_user, **guards, **options).mount(app)


async def expect_guarded(ada: httpx.AsyncClient, bob: httpx.AsyncClient, task_id: str) -> None:
    """Assert that Bob cannot see the den, and that the attic accepts no changes."""
    for url in [*(f"{V1}/rooms/den/{part}" for part in READS), f"{V1}/tasks/{task_id}"]:
        assert (await ada.get(url)).status_code == 200, url
        assert (await bob.get(url)).status_code == 404, url
    assert (await ada.put(f"{V1}/rooms/attic/jobs", json=ROTATE)).status_code == 423


@pytest.mark.parametrize("mount", [with_arguments, with_overrides, with_overrides_first])
async def test_cleared_overrides_open_no_room(mount: Any, sessions: Any, start: Start) -> None:
    """`app.dependency_overrides = {}` is the clean-up that FastAPI documents for tests."""
    app = FastAPI()
    mount(app, session_maker=sessions)
    root, ada, bob = [await start(app, **{"X-Id": name}) for name in ("root", "ada", "bob")]
    task = await submit(ada, await register(root), room="den")
    await expect_guarded(ada, bob, task["id"])
    app.dependency_overrides = {}
    await expect_guarded(ada, bob, task["id"])


async def test_an_override_beside_an_argument_only_adds_rules(sessions: Any, start: Start) -> None:
    """An override runs before the guard that is an argument and cannot replace it."""
    app = FastAPI()
    with_arguments(app, session_maker=sessions)

    async def no_cellar(room_id: str) -> str:
        if room_id == "cellar":
            raise HTTPException(404, "There is no cellar")
        return "den" if room_id == "alias" else room_id

    app.dependency_overrides[verify_readable_room] = no_cellar
    ada, bob = [await start(app, **{"X-Id": name}) for name in ("ada", "bob")]
    for room, for_ada, for_bob in (("cellar", 404, 404), ("den", 200, 404), ("alias", 200, 404)):
        assert (await ada.get(f"{V1}/rooms/{room}/jobs")).status_code == for_ada, room
        assert (await bob.get(f"{V1}/rooms/{room}/jobs")).status_code == for_bob, room


async def test_a_room_that_cannot_be_read_cannot_be_written(sessions: Any, start: Start) -> None:
    """Without `writable_room`, the guard of reads guards writes too. A guard may return nothing."""

    async def only_ada(room_id: str, x_id: Annotated[str, Header()]) -> None:
        await readable_room(room_id, x_id)

    app = FastAPI()
    JobLib(session_maker=sessions, identity=current_user, readable_room=only_ada).mount(app)
    ada, bob = [await start(app, **{"X-Id": name}) for name in ("ada", "bob")]
    assert (await bob.put(f"{V1}/rooms/den/jobs", json=ROTATE)).status_code == 404
    assert (await register(ada, room="den"))["room_id"] == "den"


async def test_a_guard_need_not_check_the_syntax_of_room_ids(sessions: Any, start: Start) -> None:
    """It gets valid ids only. An override replaces the queue's check and may return another id."""
    asked: list[str] = []

    async def silent(room_id: str) -> None:
        asked.append(room_id)

    async def same(room_id: str) -> str:
        asked.append(room_id)
        return room_id

    app = FastAPI()
    JobLib(session_maker=sessions, identity=current_user, readable_room=silent, writable_room=same).mount(app)
    root = await start(app, **{"X-Id": "root"})
    for room in ("a:b", "%40lab", "a%00b"):
        for method, part, body in (("PUT", "jobs", ROTATE), ("GET", "jobs", None), ("GET", "tasks", None)):
            response = await root.request(method, f"{V1}/rooms/{room}/{part}", json=body)
            expect_problem(response, 400, "invalid-room-id")
    assert asked == []
    app.dependency_overrides[verify_readable_room] = lambda room_id: room_id.replace(":", "-")
    assert (await root.get(f"{V1}/rooms/a:b/jobs")).status_code == 200
    assert asked == ["a-b"]


async def test_a_removed_override_is_logged(
    sessions: Any, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the argument that makes overrides unnecessary. An override can still be replaced."""
    app = FastAPI()
    with_overrides(app, session_maker=sessions)
    bob = await start(app, **{"X-Id": "bob"})
    app.dependency_overrides.clear()
    for _ in range(2):
        assert (await bob.get(f"{V1}/rooms/den/jobs")).status_code == 404
    assert caplog.text.count("JobLib(readable_room=") == 1
    app.dependency_overrides[verify_readable_room] = lambda: "den"
    assert (await bob.get(f"{V1}/rooms/den/jobs")).status_code == 200


async def test_a_result_backend_may_be_an_argument(sessions: Any, start: Start) -> None:
    """It needs no override either."""
    app, backend = FastAPI(), MemoryResults(lambda: 1000)
    joblib = JobLib(session_maker=sessions, identity=current_user, provider_result_backend=backend)
    joblib.mount(app)
    root = await start(app, **{"X-Id": "root"})
    provider = (await root.put(f"{V1}/rooms/@global/providers", json={"category": "x", "name": "y"})).json()
    url = f"{V1}/rooms/lab/providers/{provider['full_name']}"
    joblib.runtime.settings.provider_long_poll_default_seconds = 0
    assert (await root.get(url)).status_code in {503, 504}
    assert joblib.results is backend


@pytest.mark.parametrize("status", [402, 406, 410, 415, 451, 501])
async def test_any_status_of_a_guard_is_an_answer_of_the_server(
    sessions: Any, start: Start, status: int
) -> None:
    """The SDK ends the request with the guard's status and text, and does not repeat it."""

    async def refuse(room_id: str) -> str:
        raise HTTPException(status, f"no room {room_id}")

    app = FastAPI()
    JobLib(identity=current_user, readable_room=refuse, session_maker=sessions).mount(app)
    ada = await start(app, **{"X-Id": "ada"})
    error = read_error(await ada.get(f"{V1}/rooms/den/jobs"))
    assert isinstance(error, RequestRefused)
    assert (error.problem.status, error.problem.detail) == (status, "no room den")


async def test_a_guard_may_read_the_body_of_a_batch(sessions: Any, start: Start) -> None:
    """The endpoint has read it before, to find the rooms; each room's guard gets it from the start."""

    async def only_announced(room_id: str, request: Request) -> None:
        if room_id not in {task["room_id"] for task in (await request.json())["tasks"][:2]}:
            raise HTTPException(423, "locked")

    app = FastAPI()
    JobLib(identity=current_user, writable_room=only_announced, session_maker=sessions).mount(app)
    root = await start(app, **{"X-Id": "root"})
    name = "@global:modifiers:Unknown"
    tasks = [{"room_id": room, "job_name": name} for room in ("den", "lab", "attic")]
    async with asyncio.timeout(TIMEOUT):
        response = await root.post(f"{V1}/tasks/submit", json={"tasks": tasks})
    assert [each["status"] for each in response.json()["results"]] == [404, 404, 423]
