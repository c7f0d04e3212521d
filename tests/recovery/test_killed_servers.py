"""A server is killed after each write of a request, which leaves unique keys and pauses whole."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from rest import V1, claim, register, submit
from servers import ServerProcess

pytestmark = [pytest.mark.processes, pytest.mark.slow]
MAX_WRITES = 30
JOB = "@global:modifiers:Rotate"
Request = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


class DyingServer(ServerProcess):
    """A server that is killed after so many statements that write as a file says, since it is there."""

    prelude = """
import os, signal, threading
from pathlib import Path
from zndraw_joblib.server.db.database import Database

counter, lock, rest = Path(os.environ["COUNTER_OF_STATEMENTS"]), threading.Lock(), None

async def count(connection, statement, parameters):
    global rest
    if counter.exists() and str(statement).lstrip().startswith(("INSERT", "UPDATE", "DELETE", "WITH")):
        with lock:
            rest = int(counter.read_text()) if rest is None else rest
            rest -= 1
            if rest == 0:
                os.kill(os.getpid(), signal.SIGKILL)

Database.on_statement = staticmethod(count)
"""


class Killed:
    """Sends a request to servers that are killed after its first write, its second one, and so on."""

    def __init__(self, database_url: str, counter: Path) -> None:
        self._database_url, self._counter = database_url, counter

    async def attempts(self, request: Request) -> AsyncIterator[int]:
        """Yield the number of each attempt after its kill; the last one gets its response."""
        for number in range(1, MAX_WRITES):
            with DyingServer(self._database_url) as server:
                async with server.client() as client:
                    assert (await client.get(f"{V1}/version")).is_success
                    # The server must not see an empty file.
                    self._counter.with_suffix(".new").write_text(str(number))
                    self._counter.with_suffix(".new").rename(self._counter)
                    try:
                        response = await request(client)
                        assert response.is_success, response.text
                        is_killed = False
                    except httpx.TransportError:
                        assert server.process.wait(30) == -signal.SIGKILL
                        is_killed = True
                    self._counter.unlink()
            yield number
            if not is_killed:
                assert number > 1, "no write of the request was counted"
                return
        raise AssertionError(f"The request has more than {MAX_WRITES} writes")


@pytest.fixture
async def stays(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a server that is not killed."""
    with ServerProcess(database_url) as server:
        async with server.client() as client:
            yield client


@pytest.fixture
def killed(
    database_url: str, stays: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Killed:
    """Return what kills servers on the same database. The server that `stays` has started before."""
    counter = tmp_path / "counter"
    monkeypatch.setitem(os.environ, "COUNTER_OF_STATEMENTS", str(counter))
    return Killed(database_url, counter)


async def tasks(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """Return the tasks of the room, oldest first."""
    page = (await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 500, **query})).json()
    assert len(page["items"]) == page["total"]
    return page["items"][::-1]


def item(key: str, x: int, **options: Any) -> dict[str, Any]:
    """Return an item of a batch with a unique key."""
    unique = {"key": key, **options.pop("unique", {})}
    return {"room_id": "lab", "job_name": JOB, "payload": {"x": x}, "unique": unique, **options}


async def test_submits_replaces_and_debounces_are_whole(stays: httpx.AsyncClient, killed: Killed) -> None:
    """All of a request or nothing; its repeat makes no second task with a key."""
    await register(stays)
    number = 0

    def body(x: int) -> dict[str, Any]:
        replaced = item(f"old-{number}", x, unique={"on_conflict": "replace"})
        postponed = item(f"slider-{number}", x, debounce={"seconds": 3600})
        return {"tasks": [item(f"new-{number}", x), replaced, postponed], "atomic": True}

    async def prepare() -> None:
        before = {"tasks": body(1)["tasks"][1:]}
        results = (await stays.post(f"{V1}/tasks/submit", json=before)).json()["results"]
        assert [result["status"] for result in results] == [202, 202]

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        nonlocal number
        number += 1
        await prepare()
        return await send(client)

    async def send(client: httpx.AsyncClient) -> httpx.Response:
        headers = {"Idempotency-Key": f"batch-{number}"}
        return await client.post(f"{V1}/tasks/submit", json=body(2), headers=headers)

    async for _ in killed.attempts(request):
        stored = (await tasks(stays))[3 * (number - 1) :]
        payloads = [task["payload"]["x"] for task in stored]
        assert payloads in ([1, 1], [2, 2, 2]), "a part of the request was applied"
        results = (await send(stays)).json()["results"]
        assert [result["status"] for result in results] == [202, 200, 200]
        assert [task["payload"]["x"] for task in (await tasks(stays))[3 * (number - 1) :]] == [2, 2, 2]


async def test_the_end_of_a_task_frees_its_key(stays: httpx.AsyncClient, killed: Killed) -> None:
    """The key is held while the task has not ended, and free afterwards."""
    job = await register(stays)
    held: dict[str, Any] = {}
    url = f"{V1}/rooms/lab/tasks/{JOB}"

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        assert (await stays.post(url, json={"unique": {"key": "k"}})).status_code == 202
        task = await claim(stays, job["worker_id"])
        assert task is not None
        held.update(task)
        assert (await stays.patch(f"{V1}/tasks/{task['id']}", json={"status": "running"})).is_success
        return await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "completed"})

    async for _ in killed.attempts(request):
        state = (await stays.get(f"{V1}/tasks/{held['id']}")).json()
        again = await stays.post(url, json={"unique": {"key": "k"}})
        assert (again.status_code == 200) == (state["status"] == "running")
        done = await stays.patch(f"{V1}/tasks/{held['id']}", json={"status": "completed"})
        assert done.is_success or state["status"] == "completed"
        for task in await tasks(stays, status="pending"):
            assert (await stays.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})).is_success


@pytest.mark.parametrize("what", ["pause", "resume"])
async def test_pauses_and_resumes_are_whole(stays: httpx.AsyncClient, killed: Killed, what: str) -> None:
    """After a kill another server hands out tasks if, and only if, it lists no pause. A repeat applies."""
    job = await register(stays)
    room = f"{V1}/rooms/lab"

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        await stays.post(f"{room}/{'resume' if what == 'pause' else 'pause'}")
        await submit(stays, job)
        return await client.post(f"{room}/{what}")

    async for _ in killed.attempts(request):
        pauses = (await stays.get(f"{V1}/pauses")).json()["items"]
        audited = (await stays.get(f"{V1}/audit")).json()["items"][0]["action"]
        assert (audited == "room.pause") == bool(pauses)
        assert (await claim(stays, job["worker_id"]) is None) == bool(pauses)
        assert (await stays.post(f"{room}/{what}")).json()["paused"] == (what == "pause")
        await stays.post(f"{room}/resume")
        for task in await tasks(stays, status="pending"):
            assert (await stays.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})).is_success


async def test_a_costly_task_takes_its_slots_once(stays: httpx.AsyncClient, killed: Killed) -> None:
    """After a kill in a claim, its repeat gets the task, and others none until the slots are free."""
    job = await register(stays, cost=3, worker={"slots": 4})
    claim_id = ""

    async def take(client: httpx.AsyncClient, used: str) -> httpx.Response:
        body = {"worker_id": job["worker_id"], "claim_id": used, "start": True}
        return await client.post(f"{V1}/tasks/claim", json=body)

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        nonlocal claim_id
        claim_id = str(uuid4())
        for _ in range(2):
            await submit(stays, job)
        return await take(client, claim_id)

    async for _ in killed.attempts(request):
        got = []
        for used, reason in ((claim_id, "no_slots"), (str(uuid4()), "empty")):
            task = (await take(stays, used)).json()["task"]
            none = (await take(stays, str(uuid4()))).json()
            assert (none["task"], none["reason"]) == (None, reason)
            assert (await stays.patch(f"{V1}/tasks/{task['id']}", json={"status": "completed"})).is_success
            got.append((task["id"], task["cost"], task["attempt"]))
        assert sorted(got) == [
            (task["id"], 3, 1) for task in sorted(await tasks(stays), key=itemgetter("id"))[-2:]
        ]


async def test_tags_are_written_with_their_tasks(stays: httpx.AsyncClient, killed: Killed) -> None:
    """All tasks of a request with all tags, or none; its repeat submits them once."""
    await register(stays)
    top = await submit(stays, {"full_name": JOB})
    number = 0

    async def send(client: httpx.AsyncClient) -> httpx.Response:
        task = {"room_id": "lab", "job_name": JOB, "tags": [f"round-{number}", "b"], "parent": top["id"]}
        headers = {"Idempotency-Key": f"tags-{number}"}
        body = {"tasks": [task, task], "atomic": True}
        return await client.post(f"{V1}/tasks/submit", json=body, headers=headers)

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        nonlocal number
        number += 1
        return await send(client)

    async for _ in killed.attempts(request):
        found = await tasks(stays, tag=f"round-{number}")
        assert len(found) in {0, 2}
        assert [task["tags"] for task in found] == [[f"round-{number}", "b"]] * len(found)
        assert (await send(stays)).is_success
        assert len(await tasks(stays, tag=f"round-{number}")) == 2
        assert len(await tasks(stays, parent=top["id"])) == 2 * number


async def test_a_repeat_cancels_the_rest_of_a_tree(stays: httpx.AsyncClient, killed: Killed) -> None:
    """After a kill the task is cancelled, or nothing is; the same request to another server does the rest."""
    await register(stays, without_workers="queue")  # also if this takes more than a minute
    top: dict[str, Any] = {}
    url = f"{V1}/rooms/lab/tasks/{JOB}"

    async def send(client: httpx.AsyncClient) -> httpx.Response:
        headers = {"Idempotency-Key": f"cancel-{top['id']}"}
        body = {"status": "cancelled", "tree": True}
        return await client.patch(f"{V1}/tasks/{top['id']}", json=body, headers=headers)

    async def request(client: httpx.AsyncClient) -> httpx.Response:
        top.update(await submit(stays, {"full_name": JOB}))
        for _ in range(3):
            assert (await stays.post(url, json={"parent": top["id"]})).status_code == 202
        return await send(client)

    async for _ in killed.attempts(request):
        assert (await send(stays)).json()["status"] == "cancelled"
        assert {task["status"] for task in await tasks(stays, root=top["id"])} == {"cancelled"}
