"""Requests with an `Idempotency-Key`: applied once, and answered like the first time."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from databases import on_both
from replica import ManualClock
from rest import ROTATE, V1, AsUser, claim, expect_problem, register, report, submit
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.db.tables import IdempotencyKey, Task, Worker
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.names import MAX_KEY_LENGTH

keys = IdempotencyKey.__table__


def keyed(key: str = '"an order of 7 bolts"') -> dict[str, str]:
    """Return the header with a key."""
    return {"Idempotency-Key": key}


def same(first: httpx.Response, *others: httpx.Response) -> bool:
    """Return whether these are the same answers: status, body and the headers that matter."""
    names = ("location", "retry-after", "content-type")

    def content(response: httpx.Response) -> tuple[Any, ...]:
        return response.status_code, response.content, [response.headers.get(name) for name in names]

    return all(content(other) == content(first) for other in others)


async def count(engine: AsyncEngine, table: Any) -> int:
    """Return the number of rows of a table."""
    async with engine.connect() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def test_a_repeated_submit_adds_one_task(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """The same key and request get the first answer, also after the task has changed."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    body = {"payload": {"b": 1, "a": [1.5, None, "ü"]}, "priority": 3}
    first = await client.post(url, json=body, headers=keyed())
    assert first.status_code == 202
    assert first.headers["location"] == f"{V1}/tasks/{first.json()['id']}"
    assert await claim(client, job["worker_id"]) is not None
    again = [await client.post(url, json=body, headers=keyed()) for _ in range(2)]
    assert same(first, *again)
    assert again[0].json()["status"] == "pending"
    assert await count(engine, Task) == 1


async def test_without_a_key_a_repeated_submit_adds_another_task(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Only the key makes two requests the same one; without keys nothing is stored."""
    job = await register(client)
    ids = {(await submit(client, job))["id"] for _ in range(2)}
    assert (len(ids), await count(engine, keys)) == (2, 0)


async def test_a_key_belongs_to_one_request(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """The same key with another body or path is a 422 that names the header."""
    for other in ("body", "path"):
        with subtests.test(other=other):
            job, scale = await register(client), await register(client, "Scale")
            url = f"{V1}/rooms/lab/tasks/"
            assert (
                await client.post(url + job["full_name"], json={"payload": {}}, headers=keyed())
            ).is_success
            body = {"payload": {"x": 1}} if other == "body" else {"payload": {}}
            path = url + (scale if other == "path" else job)["full_name"]
            refused = await client.post(path, json=body, headers=keyed())
            problem = expect_problem(refused, 422, "idempotency-key-reused")
            assert "Idempotency-Key" in problem["detail"]


async def test_a_key_belongs_to_its_caller(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Two callers may use the same key: each gets a task of its own."""
    job = await register(client)
    url, body = f"{V1}/rooms/lab/tasks/{job['full_name']}", {"payload": {}}
    other = await as_user("grace")
    answers = [await user.post(url, json=body, headers=keyed()) for user in (client, other, client, other)]
    ids = [answer.json()["id"] for answer in answers]
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


async def test_keys_are_strings_or_bare_tokens(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """A key is a string of RFC 8941, or a token without quotes; both spellings are the same key."""
    for text, other in [
        ('"8e03978e-40d5-43e8-bc93-6894a57f9324"', "8e03978e-40d5-43e8-bc93-6894a57f9324"),
        (r'"a \"b\" \\ c"', r'  "a \"b\" \\ c" '),
        ("*a/b:c=", '"*a/b:c="'),
        ("k" * MAX_KEY_LENGTH, f'"{"k" * MAX_KEY_LENGTH}"'),
    ]:
        with subtests.test(text=text, other=other):
            answers = [await client.post(f"{V1}/workers", headers=keyed(key)) for key in (text, other)]
            assert same(*answers)
            assert answers[0].status_code == 201


async def test_malformed_keys_are_refused(
    client: httpx.AsyncClient, engine: AsyncEngine, subtests: pytest.Subtests
) -> None:
    """A malformed or too long key is a 400 that names the header; nothing is done."""
    for text in [
        "",
        '""',
        '"a',
        'a"',
        r'"a\b"',
        "a b",
        "a,b",
        '"a", "b"',
        '"a";x=1',
        "ü".encode(),
        "k" * 256,
    ]:
        with subtests.test(text=text):
            refused = await client.post(f"{V1}/workers", headers={b"Idempotency-Key": text})  # type: ignore[dict-item]
            problem = expect_problem(refused, 400, "invalid-idempotency-key")
            assert "Idempotency-Key" in problem["detail"]
            assert await count(engine, Worker) == 0


async def test_two_keys_in_one_request_are_refused(client: httpx.AsyncClient) -> None:
    """A request has one key."""
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    expect_problem(await client.post(f"{V1}/workers", headers=twice), 400, "invalid-idempotency-key")


@on_both
async def test_errors_are_not_stored(client: httpx.AsyncClient) -> None:
    """After an error the same key may be used again, also with a corrected body."""
    schema = {"type": "object", "required": ["x"]}
    job = await register(client, schema=schema)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    refused = await client.post(url, json={"payload": {}}, headers=keyed())
    expect_problem(refused, 422, "invalid-payload")
    corrected = await client.post(url, json={"payload": {"x": 1}}, headers=keyed())
    assert corrected.status_code == 202
    expect_problem(
        await client.post(url, json={"payload": {}}, headers=keyed()), 422, "idempotency-key-reused"
    )


@on_both
async def test_concurrent_duplicates_add_one_task(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Of many duplicates at once one is applied; each other one gets its answer or a 409 to send it again."""
    job = await register(client)
    url, body = f"{V1}/rooms/lab/tasks/{job['full_name']}", {"payload": {"x": 1}}

    async def send() -> httpx.Response:
        while (response := await client.post(url, json=body, headers=keyed())).status_code == 409:
            expect_problem(response, 409, "request-in-progress")
            assert response.headers["retry-after"] == "1"
        return response

    answers = await asyncio.gather(*[send() for _ in range(40)])
    assert same(*answers)
    assert await count(engine, Task) == 1


@on_both
async def test_one_batch_may_have_a_key_twice(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Other submits that are written together with duplicates are not affected."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"

    async def send(x: int, key: str | None) -> httpx.Response:
        return await client.post(url, json={"payload": {"x": x}}, headers=keyed(key) if key else {})

    sent = [send(x, key) for x in range(10) for key in (None, f"key-{x}", "common")]
    answers = await asyncio.gather(*sent)
    alone = [answer for place, answer in enumerate(answers) if place % 3 != 2]
    common = [answer.status_code for place, answer in enumerate(answers) if place % 3 == 2]
    assert {answer.status_code for answer in alone} == {202}
    assert common.count(202) == 1
    assert set(common) <= {202, 409, 422}
    assert await count(engine, Task) == 21


@on_both
async def test_every_unsafe_action_takes_a_key(client: httpx.AsyncClient) -> None:
    """Each action with a key has its first answer again, although the state has changed meanwhile."""
    job = await register(client, "Scale")
    worker, held = job["worker_id"], job["full_name"]
    task = await submit(client, job)
    path = f"/rooms/@global/jobs/{held}"
    provider = {"category": "files", "name": "home", "worker_id": worker}
    steps: list[tuple[str, str, Any]] = [
        ("POST", "/workers", None),
        ("PUT", "/rooms/@global/jobs", ROTATE),
        ("POST", f"{path}/pause", None),
        ("POST", f"{path}/resume", None),
        ("PATCH", f"/tasks/{task['id']}", {"status": "cancelled"}),
        ("POST", f"/tasks/{task['id']}/retry", None),
        ("POST", f"/tasks/{task['id']}/fail", {"error": "no"}),
        ("PUT", "/rooms/lab/providers", provider),
        ("POST", f"/workers/{worker}/drain", None),
        ("DELETE", f"/workers/{worker}/jobs/{held}", None),
        ("DELETE", f"/workers/{worker}", None),
    ]

    async def send(number: int) -> httpx.Response:
        method, path, body = steps[number]
        return await client.request(method, V1 + path, json=body, headers=keyed(f"step-{number}"))

    first = [await send(number) for number in range(len(steps))]
    assert [answer.status_code for answer in first] == [201, 201, 200, 200, 200, 200, 200, 201, 200, 204, 204]
    again = [await send(number) for number in range(len(steps))]
    assert [same(*pair) for pair in zip(first, again, strict=True)] == [True] * len(steps)
    now = await client.get(f"{V1}/tasks/{task['id']}")
    assert now.json()["status"] == "failed"


async def test_a_repeated_registration_creates_one_worker(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """A registration without a worker creates one; its repeat returns the same worker and a 201."""
    answers = [
        await client.put(f"{V1}/rooms/lab/jobs", json={**ROTATE, "schema": {"a": 1}}, headers=keyed())
        for _ in range(2)
    ]
    assert same(*answers)
    assert answers[0].status_code == 201
    assert await count(engine, Worker) == 1


async def test_removing_a_provider_takes_a_key(client: httpx.AsyncClient) -> None:
    """A repeated removal does not remove a provider that was registered again meanwhile."""
    worker = (await client.post(f"{V1}/workers")).json()["id"]
    body = {"category": "files", "name": "home", "worker_id": worker}
    provider = (await client.put(f"{V1}/rooms/lab/providers", json=body)).json()
    url = f"{V1}/providers/{provider['id']}"
    assert [(await client.delete(url, headers=keyed())).status_code for _ in range(2)] == [204, 204]
    expect_problem(await client.delete(url), 404, "provider-not-found")


async def test_a_repeated_report_returns_the_result(client: httpx.AsyncClient) -> None:
    """The first answer to a report has the task's payload and result."""
    job = await register(client)
    await submit(client, job, x=[1, 2])
    task = await claim(client, job["worker_id"])
    assert task is not None
    assert (await report(client, task, "running")).is_success
    body = {"status": "completed", "result": {"y": "ü"}}
    answers = [await client.patch(f"{V1}/tasks/{task['id']}", json=body, headers=keyed()) for _ in range(2)]
    assert same(*answers)
    assert (answers[1].json()["payload"], answers[1].json()["result"]) == ({"x": [1, 2]}, {"y": "ü"})


async def test_release_takes_a_key(client: httpx.AsyncClient) -> None:
    """A repeated release does not take the task from the worker that has claimed it meanwhile."""
    job = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    assert task is not None
    url = f"{V1}/tasks/{task['id']}/release"
    first = await client.post(url, headers=keyed())
    assert await claim(client, job["worker_id"]) is not None
    assert same(first, await client.post(url, headers=keyed()))
    assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["status"] == "claimed"


@on_both
async def test_a_claim_uses_its_key_as_claim_id(client: httpx.AsyncClient) -> None:
    """A claim that is repeated with its key gets the same task while the worker holds it."""
    job = await register(client)
    for _ in range(2):
        await submit(client, job)
    body = {"worker_id": job["worker_id"]}
    answers = [await client.post(f"{V1}/tasks/claim", json=body, headers=keyed()) for _ in range(2)]
    assert same(*answers)
    other = await client.post(f"{V1}/tasks/claim", json=body, headers=keyed("another"))
    assert other.json()["task"]["id"] != answers[0].json()["task"]["id"]


async def test_a_repeat_changes_no_mode(client: httpx.AsyncClient) -> None:
    """A late repeat of a change of the sweeper's mode does not undo a newer one."""
    url = f"{V1}/admin/sweeper"
    await client.patch(url, json={"mode": "observe"}, headers=keyed())
    await client.patch(url, json={"mode": "off"})
    assert (await client.patch(url, json={"mode": "observe"}, headers=keyed())).json()["mode"] == "off"


@on_both
async def test_a_key_is_kept_for_its_time(
    client: httpx.AsyncClient, settings: ServerSettings, engine: AsyncEngine
) -> None:
    """After `idempotency_key_hours` a key is free again, whether or not it was pruned."""
    settings.idempotency_key_hours = 1
    first = await client.post(f"{V1}/workers", headers=keyed())
    async with engine.begin() as connection:
        made = (await connection.execute(select(keys.c.created_at))).scalar_one()
        await connection.execute(
            update(keys).values(created_at=ManualClock().now.replace(year=made.year - 1))
        )
    second = await client.post(f"{V1}/workers", headers=keyed())
    third = await client.post(f"{V1}/workers", headers=keyed())
    assert same(second, third)
    assert not same(first, second)
    assert await count(engine, keys) == 1


async def test_only_digests_are_stored(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Neither the key nor the payload is in the table of keys."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    await client.post(url, json={"payload": {"x": "y" * 10_000}}, headers=keyed("secret-key"))
    async with engine.connect() as connection:
        [row] = (await connection.execute(select(keys))).all()
    assert "secret-key" not in str(row)
    assert len(row.answer) < 1000


async def test_a_restarted_server_knows_the_keys(settings: ServerSettings) -> None:
    """A server that starts on the same database gives the first answer."""
    key, answers = keyed(str(uuid4())), []
    headers = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}", **key}  # type: ignore[union-attr]
    for _ in range(2):
        app = create_app(settings)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
        ):
            answers.append(await client.post(f"{V1}/workers"))
    assert same(*answers)
