"""Webhooks over HTTP: write, list, read, test, repeat, delete; and what their receivers get."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import uuid4

import httpx
import pytest
from databases import on_both
from receiver import Receiver, receiving
from rest import V1, AsUser, claim, expect_problem, register, report, run_task, submit
from waiting import until

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue.rules_tokens import digest
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.webhooks import new_webhook_secret

URL = f"{V1}/rooms/lab/webhooks"
DELIVERIES = f"{V1}/rooms/lab/deliveries"


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    """Let the server send to receivers of this machine."""
    settings.webhook_http, settings.webhook_ports = True, ["1-65535"]
    settings.webhook_networks = ["127.0.0.0/8"]
    return settings


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Run a receiver."""
    async with receiving() as receiver:
        yield receiver


async def put(client: httpx.AsyncClient, url: str, name: str = "ci", **fields: Any) -> dict[str, Any]:
    """Create or replace a webhook and return it."""
    response = await client.put(f"{URL}/{name}", json={"url": url, **fields})
    assert response.status_code in {200, 201}, response.text
    webhook: dict[str, Any] = response.json()
    return webhook


async def deliveries(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """Return the deliveries of the room."""
    response = await client.get(DELIVERIES, params=query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def are_delivered(client: httpx.AsyncClient, count: int) -> bool:
    """Return whether so many deliveries have arrived."""
    return len(await deliveries(client, state="delivered")) == count


@on_both
async def test_a_webhook_gets_the_ends_of_tasks(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """201; signed events of tasks that were submitted before and after."""
    secret = new_webhook_secret()
    job = await register(client, room="lab")
    early = await submit(client, job)
    response = await client.put(f"{URL}/ci", json={"url": receiver.url(), "secret": secret})
    assert response.status_code == 201, response.text
    webhook = response.json()
    assert secret not in response.text
    assert (webhook["name"], webhook["is_signed"], webhook["state"]) == ("ci", True, "active")
    assert webhook["events"] == ["task.completed", "task.failed", "task.cancelled", "group.ended"]
    late = await submit(client, job)
    for status, fields in (("completed", {"result": {"x": 1}}), ("failed", {"error": "no convergence"})):
        task = await claim(client, job["worker_id"])
        await report(client, task, "running")
        await report(client, task, status, **fields)
    first, second = await receiver.wait_for(2)
    event = first.verified(secret)
    assert (event["type"], event["data"]["id"], event["data"]["result"]) == (
        *("task.completed", early["id"]),
        {"x": 1},
    )
    assert event["data"]["job_name"] == job["full_name"]
    failed = second.verified(secret)["data"]
    assert (failed["id"], failed["status"], failed["error_code"]) == (late["id"], "failed", "error")
    assert failed["error"] == "no convergence"
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    await until(partial(are_delivered, client, 2))
    shown = (await deliveries(client, task=early["id"]))[0]
    assert (shown["message_id"], shown["status_code"]) == (first.headers["webhook-id"], 204)


@on_both
async def test_changes_of_a_webhook(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """A replaced one keeps its secret and gets other events; a deleted one gets none; all is audited."""
    webhook = await put(client, receiver.url(), secret=new_webhook_secret())
    again = await put(client, receiver.url("/other"), events=["task.failed"])
    assert (again["created_at"], again["is_signed"]) == (webhook["created_at"], True)
    await run_task(client)
    assert await deliveries(client) == []
    assert (await client.get(URL)).json()["items"] == [(await client.get(f"{URL}/ci")).json()]
    actions = [entry["action"] for entry in (await client.get(f"{V1}/audit")).json()["items"]]
    assert actions == ["webhook.put"] * 2
    assert (await client.delete(f"{URL}/ci")).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/test")):
        expect_problem(await client.request(method, f"{URL}/ci{path}"), 404, "webhook-not-found")
    await run_task(client)
    assert await deliveries(client, webhook="ci") == []


@on_both
async def test_a_test_event_and_a_repeat(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """A test event arrives at once, also after failures; a repeat has the same id."""
    receiver.answers["/hook"] = 500
    await put(client, receiver.url())
    response = await client.post(f"{URL}/ci/test")
    assert (response.status_code, response.json()["event"]) == (202, "webhook.test")

    async def has_failed() -> bool:
        return (await client.get(f"{URL}/ci")).json()["failures"] == 1

    await until(has_failed)
    webhook = (await client.get(f"{URL}/ci")).json()
    assert (webhook["state"], webhook["waiting"]) == ("failing", 1)
    assert webhook["last_error"] == "the receiver answered 500"
    receiver.answers.clear()
    await client.post(f"{URL}/ci/test")
    requests = await receiver.wait_for(3)
    ids = [request.headers["webhook-id"] for request in requests]
    assert ids[0] == ids[1] != ids[2]
    await until(partial(are_delivered, client, 2))
    oldest = (await deliveries(client))[-1]
    assert (oldest["attempts"], oldest["error"]) == (2, None)
    repeated = await client.post(f"{DELIVERIES}/{oldest['id']}/repeat")
    assert (repeated.status_code, repeated.json()["message_id"]) == (202, oldest["message_id"])
    assert (await receiver.wait_for(4))[3].headers["webhook-id"] == ids[0]
    expect_problem(await client.post(f"{DELIVERIES}/987654/repeat"), 404, "delivery-not-found")


async def test_deliveries_are_listed_in_parts(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """Newest first, each once; a wrong cursor is a problem."""
    await put(client, receiver.url())
    for _ in range(3):
        await client.post(f"{URL}/ci/test")
    part = (await client.get(DELIVERIES, params={"limit": 2})).json()
    rest = (await client.get(DELIVERIES, params={"limit": 2, "cursor": part["next"]})).json()
    assert [item["id"] for item in part["items"] + rest["items"]] == [
        item["id"] for item in await deliveries(client)
    ]
    assert rest["next"] is None
    expect_problem(await client.get(DELIVERIES, params={"cursor": "x"}), 422, "invalid-request")


async def test_two_secrets_sign_during_a_rotation(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """Both verify each delivery; with a time of 0 the previous one ends at once."""
    old, new, last = new_webhook_secret(), new_webhook_secret(), new_webhook_secret()
    await put(client, receiver.url(), secret=old)
    assert (await put(client, receiver.url(), secret=new))["previous_secret_until"] is not None
    await client.post(f"{URL}/ci/test")
    [request] = await receiver.wait_for(1)
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert request.verified(old) == request.verified(new)
    webhook = await put(client, receiver.url(), secret=last, previous_secret_seconds=0)
    assert webhook["previous_secret_until"] is None
    await client.post(f"{URL}/ci/test")
    request = (await receiver.wait_for(2))[1]
    assert len(request.headers["webhook-signature"].split(" ")) == 1
    request.verified(last)


async def test_the_answer_410_disables_a_webhook(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """What waits ends; further events are not written; to write the webhook again enables it."""
    receiver.answers["/hook"] = 410
    await put(client, receiver.url())
    await run_task(client)

    async def is_disabled() -> bool:
        return (await client.get(f"{URL}/ci")).json()["state"] == "disabled"

    await until(is_disabled)
    webhook = (await client.get(f"{URL}/ci")).json()
    assert webhook["disabled_reason"] == "the receiver answered 410 (gone)"
    [entry] = (await client.get(f"{V1}/audit", params={"action": "webhook.disable"})).json()["items"]
    assert (entry["actor"], entry["room_id"], entry["target"]) == ("@server", "lab", "ci")
    [finding] = (await client.get(f"{V1}/overview")).json()["findings"]
    assert (finding["code"], finding["room"]) == ("webhook-disabled", "lab")
    assert receiver.url() not in finding["detail"]
    await run_task(client)
    [delivery] = await deliveries(client)
    assert (delivery["state"], delivery["status_code"]) == ("failed", 410)
    expect_problem(await client.post(f"{URL}/ci/test"), 409, "conflict")
    expect_problem(await client.post(f"{DELIVERIES}/{delivery['id']}/repeat"), 409, "conflict")
    receiver.answers.clear()
    assert (await put(client, receiver.url()))["state"] == "active"
    assert (await client.get(f"{V1}/overview")).json()["findings"] == []
    await run_task(client)
    await receiver.wait_for(2)


@on_both
async def test_the_end_of_a_group_is_an_event(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """It comes once, after the end of the last task, with the counts."""
    await put(client, receiver.url())
    job = await register(client, room="lab")
    group = (await client.post(f"{V1}/groups", json={"room": "lab", "name": "scan"})).json()
    path = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    assert (await client.post(path, json={"group": group["id"]})).status_code == 202
    await client.patch(f"{V1}/groups/{group['id']}", json={"sealed": True})
    task = await claim(client, job["worker_id"])
    await report(client, task, "running")
    await report(client, task, "completed")
    await receiver.wait_for(2)
    assert receiver.events() == ["task.completed", "group.ended"]
    data = receiver.received[1].event["data"]
    assert (data["id"], data["name"], data["counts"]["completed"]) == (group["id"], "scan", 1)
    assert data["ended_at"] is not None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "ftp://example.org"}, "url"),
        ({"url": "https://ada:secret@example.org/"}, "url"),
        ({"url": "https://example.org/#part"}, "url"),
        ({"url": "https://example.org\\@127.0.0.1/"}, "url"),
        ({"url": "https://exämple.org/"}, "url"),
        ({"url": "https://[::1/"}, "url"),
        ({"url": "https://example.org:99999/"}, "url"),
        ({"url": "https://10.1.2.3/"}, "url"),
        ({"url": "https://[::ffff:169.254.169.254]/"}, "url"),
        ({"url": "https://example.org/", "events": []}, "events"),
        ({"url": "https://example.org/", "events": ["task.done"]}, "events"),
        ({"url": "https://example.org/", "secret": "whsec_c2hvcnQ="}, "secret"),
        ({"url": "https://example.org/", "secret": "plain-secret-of-the-test"}, "secret"),
        ({"url": "https://example.org/", "evnets": ["task.failed"]}, "evnets"),
        ({"url": "https://example.org/", "previous_secret_seconds": -1}, "previous_secret_seconds"),
    ],
)
async def test_wrong_webhooks_name_the_field(
    client: httpx.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    """A problem has the field, and neither a password nor a secret."""
    response = await client.put(f"{URL}/ci", json=fields)
    problem = expect_problem(response, 422, "invalid-request")
    assert problem["errors"][0]["loc"][1] == field
    for secret in ("ada:secret", "c2hvcnQ", "plain-secret"):
        assert secret not in response.text
    assert (await client.get(URL)).json()["total"] == 0


async def test_who_may_write_and_read_webhooks(
    client: httpx.AsyncClient, as_user: AsUser, settings: ServerSettings
) -> None:
    """Users need the room's write access, superusers alone write those of @global; limits hold for each."""
    user = await as_user("ada")
    url = "https://example.org/hook"
    for method, path in (
        ("PUT", "/ci"),
        ("GET", ""),
        ("GET", "/ci"),
        ("POST", "/ci/test"),
        ("DELETE", "/ci"),
    ):
        body = {"url": url} if method == "PUT" else None
        response = await user.request(method, f"{V1}/rooms/@global/webhooks{path}", json=body)
        expect_problem(response, 403, "forbidden")
    expect_problem(await user.get(f"{V1}/rooms/@global/deliveries"), 403, "forbidden")
    assert (await client.put(f"{V1}/rooms/@global/webhooks/ci", json={"url": url})).status_code == 201
    settings.max_webhooks_per_room = 1
    await put(user, url, "first")
    problem = expect_problem(await user.put(f"{URL}/second", json={"url": url}), 409, "conflict")
    assert "max_webhooks_per_room" in problem["detail"]
    settings.max_webhooks = 2
    response = await user.put(f"{V1}/rooms/attic/webhooks/ci", json={"url": url})
    assert "max_webhooks" in expect_problem(response, 503, "service-unavailable")["detail"]


async def test_a_token_that_only_submits_reads_nothing_through_a_webhook(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """With the scope read too it writes webhooks; without, it may delete one."""
    rights = sql_operators.TokenRights(["submit"], ["lab"])
    add = partial(sql_operators.add_token, name="sam", digest=digest("sam"), rights=rights)
    await runtime.write(partial(add, is_superuser=False))
    own = {"Authorization": "Bearer sam"}
    for method, path in (
        ("PUT", "webhooks/ci"),
        ("GET", "webhooks"),
        ("GET", "webhooks/ci"),
        ("POST", "webhooks/ci/test"),
        ("GET", "deliveries"),
        ("POST", f"deliveries/{uuid4()}/repeat"),
    ):
        body = {"url": "https://example.org/hook"} if method == "PUT" else None
        response = await client.request(method, f"{V1}/rooms/lab/{path}", json=body, headers=own)
        detail = expect_problem(response, 403, "forbidden")["detail"]
        assert "the scope read" in detail
        assert "--role submitter" in detail
    expect_problem(await client.delete(f"{URL}/ci", headers=own), 404, "webhook-not-found")


@on_both
async def test_a_submit_names_a_webhook_of_its_task(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """Its ends arrive, also a second one after a retry, and those of other tasks do not; in batches too."""
    secret, job = new_webhook_secret(), await register(client, room="lab", retry_on=[])
    await submit(client, job)
    webhook = {"url": receiver.url("/task"), "secret": secret}
    path = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    response = await client.post(path, json={"payload": {"n": 1}, "webhook": webhook})
    assert response.status_code == 202, response.text
    assert secret not in response.text
    entry = {"room_id": "lab", "job_name": job["full_name"], "webhook": webhook}
    refused = {**entry, "webhook": {"url": "https://192.168.0.1/"}}
    batch = (await client.post(f"{V1}/tasks/submit", json={"tasks": [entry, refused]})).json()["results"]
    assert [item["status"] for item in batch] == [202, 422]
    assert batch[1]["problem"]["errors"][0]["loc"] == ["body", "webhook", "url"]
    single, listed = response.json()["id"], batch[0]["task"]["id"]
    for status in ("completed", "completed", "failed"):
        task = await claim(client, job["worker_id"])
        await report(client, task, "running")
        await report(client, task, status)
    await receiver.wait_for(2, "/task")
    assert [(item.verified(secret)["type"], item.event["data"]["id"]) for item in receiver.received] == [
        ("task.completed", single),
        ("task.failed", listed),
    ]
    await client.post(f"{V1}/tasks/{listed}/retry")
    await client.patch(f"{V1}/tasks/{listed}", json={"status": "cancelled"})
    assert (await receiver.wait_for(3, "/task"))[2].event["type"] == "task.cancelled"
    assert {item["webhook"] for item in await deliveries(client)} == {None}
    for wrong in (
        {"url": "http://x.org", "evnets": []},
        {"url": "x"},
        {},
        {"url": "https://x.org", "events": ["task.started"]},
    ):
        expect_problem(await client.post(path, json={"webhook": wrong}), 422, "invalid-request")
