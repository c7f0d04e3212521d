"""What the users have in the database has a limit for all and a share for one user, which are counted."""

import asyncio
from typing import Any

import httpx
import pytest
from databases import on_both
from rest import V1, AsUser, expect_problem, register, submit

from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.process.shared_limit import StoredLimit
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import TooManyRequests

pytestmark = on_both


def count_at_once(*limits: StoredLimit) -> None:
    """Let the limits count again before each refusal, without a pause."""
    for limit in limits:
        limit.pauses = (0, 0)


async def create(user: httpx.AsyncClient) -> httpx.Response:
    """Create a worker."""
    return await user.post(f"{V1}/workers")


async def offer(user: httpx.AsyncClient, kind: str, name: str, **fields: Any) -> httpx.Response:
    """Register a job or a provider."""
    body = {"category": "modifiers" if kind == "jobs" else "files", "name": name, **fields}
    return await user.put(f"{V1}/rooms/lab/{kind}", json=body)


def expect_share(response: httpx.Response, text: str) -> None:
    """Expect that one user has too much; the detail has the text."""
    body = expect_problem(response, 429, "too-many-requests")
    assert text in body["detail"]
    assert "max_share_per_user" in body["detail"]
    assert int(response.headers["Retry-After"]) > 0


async def test_one_user_leaves_workers_to_others(
    as_user: AsUser, settings: ServerSettings, runtime: Runtime
) -> None:
    """429 beyond the share, whichever request creates the worker, 503 beyond the limit, until one is gone."""
    settings.max_workers = 5
    count_at_once(runtime.stored.workers)
    ada, bob, eve = [await as_user(name) for name in ("ada", "bob", "eve")]
    first, _ = [(await create(ada)).json() for _ in range(2)]
    expect_share(await create(ada), "max_workers")
    for kind in ("jobs", "providers"):
        expect_share(await offer(ada, kind, "New"), "max_workers")
    assert (await offer(ada, "jobs", "New", worker_id=first["id"])).status_code == 201
    assert [(await create(user)).status_code for user in (bob, bob, eve)] == [201, 201, 201]
    refused = await create(eve)
    assert "max_workers" in expect_problem(refused, 503, "service-unavailable")["detail"]
    assert (await ada.delete(f"{V1}/workers/{first['id']}")).status_code == 204
    assert (await create(eve)).status_code == 201
    assert (await bob.get(f"{V1}/workers")).json()["total"] == 5


@pytest.mark.parametrize("what", ["jobs", "providers"])
async def test_one_user_leaves_jobs_and_providers_to_others(
    as_user: AsUser, settings: ServerSettings, runtime: Runtime, what: str
) -> None:
    """429 for a further one only: what is registered may be registered again, and nothing is lost."""
    setattr(settings, f"max_{what}", 4)
    count_at_once(getattr(runtime.stored, what))
    ada, bob = await as_user("ada"), await as_user("bob")
    first, second = [(await offer(ada, what, name)).json() for name in "AB"]
    refused = await offer(ada, what, "C", worker_id=first["worker_id"])
    expect_share(refused, f"max_{what}")
    assert (await offer(ada, what, "A", worker_id=second["worker_id"])).status_code == 200
    assert (await offer(bob, what, "C")).status_code == 201
    names = [item["name"] for item in (await bob.get(f"{V1}/rooms/lab/{what}")).json()["items"]]
    assert sorted(names) == ["A", "B", "C"]
    for worker in (first, second):
        await ada.delete(f"{V1}/workers/{worker['worker_id']}")
    assert (await offer(ada, what, "D")).status_code == 201


async def test_one_user_leaves_pending_tasks_to_others(
    as_user: AsUser, settings: ServerSettings, runtime: Runtime
) -> None:
    """429 for a task, a batch or one transaction beyond the share, also of scheduled tasks."""
    settings.max_pending_tasks = 8
    count_at_once(runtime.stored.pending_tasks)
    ada, bob = await as_user("ada"), await as_user("bob")
    job = await register(bob, room="lab")
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    first = await submit(ada, job)
    assert (await ada.post(url, json={"payload": {}, "delay_seconds": 900})).status_code == 202
    item = {"room_id": "lab", "job_name": job["full_name"], "payload": {}}
    for atomic in (True, False):
        batch = {"tasks": [item] * 3, "atomic": atomic}
        expect_share(await ada.post(f"{V1}/tasks/submit", json=batch), "3 more do not fit; retry when")
    assert (await ada.post(f"{V1}/tasks/submit", json={"tasks": [item] * 2})).status_code < 300
    expect_share(await ada.post(url, json={"payload": {}}), "max_pending_tasks")
    await submit(bob, job)
    cancelled = await ada.patch(f"{V1}/tasks/{first['id']}", json={"status": "cancelled"})
    assert cancelled.status_code == 200
    last = await ada.post(url, json={"payload": {}}, headers={"Idempotency-Key": "last"})
    assert last.status_code == 202
    expect_share(await ada.post(f"{V1}/tasks/{first['id']}/retry"), "max_pending_tasks")
    repeated = await ada.post(url, json={"payload": {}}, headers={"Idempotency-Key": "last"})
    assert (repeated.status_code, repeated.json()["id"]) == (202, last.json()["id"])
    expect_share(await ada.post(url, json={"payload": {}}, headers={"Idempotency-Key": "next"}), "max_pend")


async def test_a_batch_that_never_fits_is_not_to_be_repeated(
    as_user: AsUser, settings: ServerSettings
) -> None:
    """413, which no client repeats, names the limit, also of one transaction and of a group."""
    settings.max_pending_tasks = 8
    ada = await as_user("ada")
    item = {"room_id": "lab", "job_name": (await register(ada, room="lab"))["full_name"], "payload": {}}
    for count, share, name in (
        (5, 0.5, "max_share_per_user of max_pending_tasks"),
        (9, 1, "max_pending_tasks"),
    ):
        settings.max_share_per_user = share
        for options in ({}, {"atomic": True}, {"atomic": True, "group": {"room": "lab"}}):
            refused = await ada.post(f"{V1}/tasks/submit", json={"tasks": [item] * count, **options})
            detail = expect_problem(refused, 413, "content-too-large")["detail"]
            assert f"which is {count - 1} ({name}): send at most {count - 1} in one request" in detail
            assert "Retry-After" not in refused.headers


async def test_jobs_without_workers_count_for_who_keeps_them(
    as_user: AsUser, settings: ServerSettings, runtime: Runtime
) -> None:
    """A pending or scheduled task keeps a job whose worker left; it is not one of everybody."""
    settings.max_jobs = 8
    count_at_once(runtime.stored.jobs)
    ada, bob = await as_user("ada"), await as_user("bob")
    for name, options in {"A": {}, "B": {}, "C": {"delay_seconds": 900}, "D": {"delay_seconds": 900}}.items():
        job = (await offer(ada, "jobs", name)).json()
        url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
        assert (await ada.post(url, json={"payload": {}, **options})).status_code == 202
        await ada.delete(f"{V1}/workers/{job['worker_id']}")
    expect_share(await offer(ada, "jobs", "E"), "max_jobs")
    assert (await offer(bob, "jobs", "E")).status_code == 201


async def test_jobs_that_stay_without_workers_count_for_who_registered_them(
    as_user: AsUser, settings: ServerSettings, runtime: Runtime
) -> None:
    """A user cannot fill the queue with jobs of workers that leave; nobody has more from it."""
    settings.max_jobs = 8
    count_at_once(runtime.stored.jobs)
    ada, bob = await as_user("ada"), await as_user("bob")
    for name in "ABCD":
        job = (await offer(ada, "jobs", name, without_workers="queue")).json()
        await ada.delete(f"{V1}/workers/{job['worker_id']}")
    expect_share(await offer(ada, "jobs", "E"), "max_jobs")
    assert (await offer(bob, "jobs", "E")).status_code == 201


async def test_what_other_servers_add_is_counted(runtime: Runtime, settings: ServerSettings) -> None:
    """A count in the background finds it; until then, and after an error, only what was added here counts."""
    settings.max_workers = 4
    answers: list[tuple[int, dict[str, int] | None] | Exception] = [OSError("gone"), (3, {"ada": 2})]
    was_read = asyncio.Event()

    async def count(enough: int) -> tuple[int, dict[str, int] | None]:
        answer = answers.pop(0)
        was_read.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    limit = StoredLimit("workers", "max_workers", lambda: 4, lambda: 2, count, runtime.start, pauses=(0, 0))
    assert limit.take_now("ada")
    await was_read.wait()
    await limit.prepare("ada", 2)
    assert not answers
    assert not limit.take_now("ada")
    assert limit.take_now("bob")
    assert not limit.take_now("bob")


async def test_a_user_is_not_refused_for_what_others_may_have(runtime: Runtime) -> None:
    """Users are read if a share could be exceeded, also for more than the count under way was asked for."""
    pauses = (0.0, 0.0)
    is_first, may_end = asyncio.Event(), asyncio.Event()

    async def count(enough: int) -> tuple[int, dict[str, int] | None]:
        if not is_first.is_set():
            is_first.set()
            await may_end.wait()
        return 9, None if enough >= 9 else {"ada": 9}

    limit = StoredLimit("tasks", "max_tasks", lambda: 20, lambda: 10, count, runtime.start, pauses=pauses)
    assert limit.take_now("ada")
    await is_first.wait()
    assert limit.take_now("bob", 9)
    large = asyncio.create_task(limit.take("bob", 5))
    await asyncio.sleep(0)
    may_end.set()
    await large


async def test_what_is_added_during_a_count_is_not_counted_twice(runtime: Runtime) -> None:
    """A request near the share waits for the count under way; a refusal by such a count is counted again."""
    is_first, may_end = asyncio.Event(), asyncio.Event()
    stored = 0

    async def count(enough: int) -> tuple[int, dict[str, int] | None]:
        if not is_first.is_set():
            is_first.set()
            await may_end.wait()
        return stored, None if enough >= stored else {"ada": stored}

    limit = StoredLimit("tasks", "max_tasks", lambda: 20, lambda: 3, count, runtime.start)
    for _ in range(2):
        await limit.take("ada")
        stored += 1
    await is_first.wait()
    third = asyncio.create_task(limit.take("ada"))
    await asyncio.sleep(0)
    assert not third.done()
    may_end.set()
    await third
    stored += 1
    with pytest.raises(TooManyRequests):
        await limit.take("ada")
