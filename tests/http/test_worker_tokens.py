"""Tokens of workers: an operator issues them for some jobs and rooms, and they grant nothing else."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1, AsUser, expect_problem, submit

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.queue import rules_retention, rules_worker_tokens
from zndraw_joblib.server.queue.rules_retention import RETENTIONS
from zndraw_joblib.server.queue.rules_tokens import ADMIN, digest
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest

BODY: dict[str, Any] = {"jobs": ["lab:*"], "rooms": ["lab"], "expires_in_seconds": 3600}
JOB = {"category": "modifiers", "name": "Fit"}
PROVIDER = {"category": "frames", "name": "data", "schema": {}}


async def issue(operator: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """Issue a token and return the response."""
    response = await operator.post(f"{V1}/worker-tokens", json=BODY | fields)
    assert response.status_code == 201, response.text
    return response.json()


@pytest.fixture
def bearer(
    client: httpx.AsyncClient, app: FastAPI, transport: type[httpx.ASGITransport]
) -> Callable[..., Any]:
    """Return a function that returns a client with a token."""

    def make(token: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=transport(app), base_url=client.base_url, headers=headers)

    return make


@on_both
async def test_a_token_serves_its_jobs_until_it_has_claimed_its_tasks(
    client: httpx.AsyncClient, bearer: Callable[..., Any], runtime: Runtime
) -> None:
    """Two workers share `max_tasks`, also in one batch; a repeated claim counts once. Then both drain."""
    issued = await issue(client, max_tasks=3, labels={"gpu": "a100"})
    assert (issued["jobs"], issued["rooms"], issued["max_tasks"]) == (["lab:*"], ["lab"], 3)
    async with bearer(issued["token"]) as worker:
        jobs = [
            (await worker.put(f"{V1}/rooms/lab/jobs", json={**JOB, "worker": {"labels": labels}})).json()
            for labels in ({"gpu": "h100", "host": "n1"}, None)
        ]
        ids = [job["worker_id"] for job in jobs]
        for _ in range(6):
            await submit(client, jobs[0])
        first = {"worker_id": ids[0], "claim_id": "0198c5a5-1c00-7d11-9f42-6a7b8c9d0e1f"}
        answers = [(await worker.post(f"{V1}/tasks/claim", json=first)).json() for _ in range(2)]
        assert answers[0]["task"]["id"] == answers[1]["task"]["id"]
        rest = await asyncio.gather(
            *[worker.post(f"{V1}/tasks/claim", json={"worker_id": ids[i % 2], "max": 4}) for i in range(6)]
        )
        claimed = [task["id"] for response in rest for task in response.json().get("tasks", ())]
        assert len(set(claimed)) == 2
        refused = await worker.post(
            f"{V1}/tasks/claim", json={"worker_id": ids[1]}, headers={"Prefer": "wait=30"}
        )
        assert refused.json() == {"task": None, "reason": "draining"}
        first_worker = (await worker.get(f"{V1}/workers/{ids[0]}")).json()
        assert first_worker["labels"] == {"gpu": "a100", "host": "n1"}
    tokens = {token.name: token for token in await runtime.database.read(sql_operators.list_tokens)}
    assert (tokens[issued["name"]].claims, tokens[issued["name"]].issued_by) == (3, "admin")
    audit = (await client.get(f"{V1}/audit", params={"action": "worker-token.issue"})).json()["items"]
    assert [(entry["actor"], entry["target"]) for entry in audit] == [("admin", issued["name"])]


async def test_each_worker_of_a_token_has_its_labels(
    client: httpx.AsyncClient, bearer: Callable[..., Any]
) -> None:
    """Also one that the registration of a provider makes, and that then serves a job."""
    issued = await issue(client, labels={"gpu": "a100"})
    async with bearer(issued["token"]) as server:
        provider = PROVIDER | {"worker": {"labels": {"gpu": "h100", "host": "n1"}}}
        worker_id = (await server.put(f"{V1}/rooms/lab/providers", json=provider)).json()["worker_id"]
        job = await server.put(f"{V1}/rooms/lab/jobs", json={**JOB, "worker_id": worker_id})
        assert job.status_code == 201
        worker = (await server.get(f"{V1}/workers/{worker_id}")).json()
        assert worker["labels"] == {"gpu": "a100", "host": "n1"}


async def test_a_token_has_no_other_rights(
    client: httpx.AsyncClient, app: FastAPI, bearer: Callable[..., Any], runtime: Runtime
) -> None:
    """Other jobs, rooms and operations are refused; after a revocation all are."""
    issued = await issue(client, jobs=["lab:modifiers:Fit"])
    async with bearer((await issue(client, jobs=["lab:frames:*"]))["token"]) as server:
        assert (await server.put(f"{V1}/rooms/lab/providers", json=PROVIDER)).status_code == 201
    async with bearer(issued["token"]) as worker:
        for url, body, text in (
            ("rooms/lab/jobs", {**JOB, "name": "Other"}, "lab:modifiers:Fit"),
            ("rooms/vault/jobs", JOB, "--rooms vault"),
            ("rooms/@global/jobs", JOB, "@global"),
            (
                "rooms/lab/providers",
                PROVIDER,
                "provider 'lab:frames:data': it matches none of lab:modifiers:Fit",
            ),
        ):
            response = await worker.put(f"{V1}/{url}", json=body)
            assert text in expect_problem(response, 403, "forbidden")["detail"]
        await worker.put(f"{V1}/rooms/lab/jobs", json=JOB)
        assert 3500 < (await worker.get(f"{V1}/me")).json()["expires_in_seconds"] <= 3600
        assert "expires_in_seconds" not in (await client.get(f"{V1}/me")).json()
        for url in ("worker-tokens", "rooms/lab/tasks/lab:modifiers:Fit", "rooms/lab/pause"):
            response = await worker.post(f"{V1}/{url}", json=BODY)
            assert "scope" in expect_problem(response, 403, "forbidden")["detail"]
        assert (await runtime.write(sql_operators.remove_token, issued["name"])) is True
        # As the check of open sockets and streams does.
        await app.state.joblib.identity.find_revoked([digest(issued["token"])])
        expect_problem(await worker.get(f"{V1}/me"), 401, "unauthorized")


async def test_rights_do_not_exceed_those_of_the_issuer(
    client: httpx.AsyncClient, as_user: AsUser, subtests: pytest.Subtests
) -> None:
    """Users, operators of other rooms or jobs; and bodies that are wrong, with the field and the remedy."""
    ada = await as_user("ada")
    expect_problem(await ada.post(f"{V1}/worker-tokens", json=BODY), 403, "forbidden")
    caller = Identity("olga", False, ["operator"], ["lab"], ["lab:*:Fit", "@global:a?:b"]).limited()
    for fields, is_allowed in (
        ({"jobs": ["lab:modifiers:Fit", "lab:x*:Fit"]}, True),
        ({"jobs": ["lab:*"]}, False),
        ({"jobs": ["@global:a*:b"]}, False),
        ({"jobs": ["lab:*:Fit"], "rooms": ["vault"]}, False),
        ({"jobs": ["lab:*:Fit"], "rooms": ["@internal"]}, False),
    ):
        with subtests.test(fields=fields):
            request = WorkerTokenRequest.model_validate(BODY | fields)
            try:
                rules_worker_tokens.check(caller, request)
            except (PermissionError, ValueError):
                assert not is_allowed
            else:
                assert is_allowed
    for fields, part in (
        ({"jobs": []}, "jobs"),
        ({"jobs": ["lab:[ab]*"]}, "wildcard"),
        ({"rooms": ["lab"] * 21}, "rooms"),
        ({"expires_in_seconds": 31 * 86_400}, "expires_in_seconds"),
        ({"max_tasks": 0}, "max_tasks"),
        ({"labels": {"a b": 1}}, "labels"),
    ):
        with subtests.test(fields=fields):
            response = await client.post(f"{V1}/worker-tokens", json=BODY | fields)
            assert part in expect_problem(response, 422, "invalid-request")["detail"]


@on_both
async def test_expired_tokens_end_and_are_deleted(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """A day after their end; those that were created by hand stay. An issuer has a limited number."""
    assert client
    await runtime.write(
        partial(sql_operators.add_token, name="ann", digest=digest("ann"), is_superuser=False)
    )
    request = WorkerTokenRequest.model_validate(BODY | {"expires_in_seconds": 1e-6})
    response = await runtime.write(rules_worker_tokens.issue, ADMIN, "jit-1", request)
    assert await runtime.database.read(sql_operators.token_by_digest, digest(response.token)) is None
    [retention] = [one for one in RETENTIONS if one.rows == "token"]
    for keep, names in ((timedelta(hours=1), {"jit-1"}), (timedelta(0), set())):
        await runtime.write(rules_retention.prune, retention, keep, None)
        tokens = await runtime.database.read(sql_operators.list_tokens)
        assert {token.name for token in tokens} == {"ann", *names}


async def status_of(client: httpx.AsyncClient, token: str) -> int:
    """Return the status of a request with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    return (await client.get(f"{V1}/me", headers=headers)).status_code


async def test_a_token_ends_with_that_of_its_issuer(
    client: httpx.AsyncClient, app: FastAPI, bearer: Callable[..., Any], runtime: Runtime
) -> None:
    """Also if another token gets the name of the issuer; what is issued in the meantime is refused."""
    expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    rights = sql_operators.TokenRights(["operator"], ["lab"], None, expires_at)
    add = partial(sql_operators.add_token, name="olga", is_superuser=False, rights=rights)
    await runtime.write(partial(add, digest=digest("old")))
    async with bearer("old") as olga, bearer("new") as renewed:
        issued = [await issue(olga, expires_in_seconds=seconds) for seconds in (60, 7200)]
        own = await issue(client)
        ends = [datetime.fromisoformat(one["expires_at"]) for one in issued]
        assert ends[0] < ends[1] == rights.expires_at
        assert [await status_of(client, one["token"]) for one in (*issued, own)] == [200, 200, 200]
        await runtime.write(sql_operators.remove_token, "olga")
        # The identity of the issuer is cached for 3 s.
        expect_problem(await olga.post(f"{V1}/worker-tokens", json=BODY), 401, "unauthorized")
        await runtime.write(partial(add, digest=digest("new")))
        await app.state.joblib.identity.find_revoked([digest(one["token"]) for one in issued])
        assert [await status_of(client, one["token"]) for one in (*issued, own)] == [401, 401, 200]
        assert (await renewed.get(f"{V1}/me")).status_code == 200


@on_both
async def test_the_token_of_a_task_ends_with_that_of_its_worker(
    client: httpx.AsyncClient, bearer: Callable[..., Any], runtime: Runtime
) -> None:
    """It has the present patterns, and goes on with another token of the same name. The admin has no row."""
    past = datetime.now(UTC) - timedelta(seconds=1)

    async def store(name: str, *fields: Any) -> None:
        await runtime.write(sql_operators.remove_token, name)
        rights = sql_operators.TokenRights(*fields)
        add = partial(sql_operators.add_token, name=name, is_superuser=False, rights=rights)
        await runtime.write(partial(add, digest=digest(f"{name}-token")))

    async def start(owner: httpx.AsyncClient) -> httpx.AsyncClient:
        job = (await owner.put(f"{V1}/rooms/lab/jobs", json=JOB)).json()
        await submit(client, job)
        body = {"worker_id": job["worker_id"], "start": True, "tokens": True}
        return bearer((await owner.post(f"{V1}/tasks/claim", json=body)).json()["task"]["token"])

    await store("wes", ["worker"], ["lab"])
    issued = await issue(client)
    async with bearer("wes-token") as wes, bearer(issued["token"]) as jit:
        tasks = [await start(owner) for owner in (wes, jit, client)]
        url = f"{V1}/rooms/lab/tasks/lab:modifiers:Fit"
        for fields, status in (
            ((["worker"], ["lab"], ["lab:mod*", "vault:*"]), 202),
            ((["worker"], ["lab"], ["lab:modifiers:Other"]), 403),
            ((["viewer"], ["lab"]), 401),
            ((["worker"], ["vault"]), 401),
            ((["worker"], ["lab"], None, past), 401),
            ((None, None, ["lab:*"]), 202),
        ):
            await store("wes", *fields)
            response = await tasks[0].post(url, json={"payload": {}})
            assert response.status_code == status, (fields, response.text)
        for name in ("wes", issued["name"]):
            await runtime.write(sql_operators.remove_token, name)
        detail = expect_problem(await tasks[0].get(f"{V1}/me"), 401, "unauthorized")["detail"]
        assert "the token 'wes' of its worker" in detail
        assert [(await task.get(f"{V1}/me")).status_code for task in tasks] == [401, 401, 200]
        for task in tasks:
            await task.aclose()


@on_both
async def test_who_may_register_a_job_with_a_schedule(
    bearer: Callable[..., Any], client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """Users who may submit, and these replace only their own. One that is written already may be named."""
    for name, roles in (("wes", ["worker"]), ("kim", ["worker"]), ("only", ["work"])):
        rights = sql_operators.TokenRights(roles, ["lab", "@global"])
        add = partial(sql_operators.add_token, name=name, is_superuser=False, rights=rights)
        await runtime.write(partial(add, digest=digest(name)))
    tokens = {name: name for name in ("wes", "kim", "only")} | {"jit": (await issue(client))["token"]}
    clients = {name: bearer(token) for name, token in tokens.items()} | {"admin": client}
    hourly, daily = {"every_seconds": 3600}, {"cron": "0 3 * * *"}
    for name, room, schedule, status, author in (
        ("jit", "lab", hourly, 403, None),
        ("only", "lab", hourly, 403, None),
        ("wes", "lab", daily, 201, "wes"),
        ("wes", "lab", hourly, 200, "wes"),
        ("kim", "lab", daily, 403, "wes"),
        *((name, "lab", hourly, 200, "wes") for name in ("kim", "only", "jit")),
        ("admin", "lab", daily, 200, "admin"),
        ("wes", "lab", hourly, 403, "admin"),
        ("only", "@global", daily, 403, None),
        ("wes", "@global", daily, 201, "wes"),
        ("kim", "@global", hourly, 403, "wes"),
        ("wes", "@global", hourly, 200, "wes"),
        ("admin", "@global", daily, 200, "admin"),
        ("wes", "@global", hourly, 403, "admin"),
        ("wes", "@global", daily, 200, "admin"),
    ):
        body = {**JOB, "schedule": schedule}
        response = await clients[name].put(f"{V1}/rooms/{room}/jobs", json=body)
        assert response.status_code == status, (name, schedule, response.text)
        if status == 403:
            assert "schedules put Fit" in response.json()["detail"]
        shown = (await client.get(f"{V1}/rooms/{room}/schedules/Fit")).json()
        assert shown.get("created_by") == author
    for name in tokens:
        await clients[name].aclose()


def test_patterns_of_two_lists_name_what_both_name() -> None:
    """Without one that has all jobs of the other, patterns that overlap name none."""
    for first, second, common in (
        (None, None, None),
        (["lab:*"], None, {"lab:*"}),
        (["lab:*", "a:b:c"], ["lab:jobs:*", "vault:*", "a:b:c"], {"lab:jobs:*", "a:b:c"}),
        (["lab:*"], [], set()),
        (["lab:*:Fit"], ["lab:jobs:*"], set()),
    ):
        assert rules_worker_tokens.common_jobs(first, second) == common
        assert rules_worker_tokens.common_jobs(second, first) == common


async def test_patterns_of_jobs_hold_at_claims_and_runs_of_schedules(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime, bearer: Callable[..., Any]
) -> None:
    """A worker that registered a job with another token of its user claims nothing with a narrower one."""
    ada = await as_user("ada")
    job = (await ada.put(f"{V1}/rooms/lab/jobs", json=JOB)).json()
    schedule = {"job": job["full_name"], "every_seconds": 3600}
    await ada.put(f"{V1}/rooms/lab/schedules/daily", json=schedule)
    await submit(client, job)
    await runtime.write(sql_operators.remove_token, "ada")
    rights = sql_operators.TokenRights(["worker"], None, ["lab:modifiers:Other"])
    add = partial(sql_operators.add_token, is_superuser=False, rights=rights)
    await runtime.write(add, "ada", digest("narrow"))
    async with bearer("narrow") as narrow:
        body = {"worker_id": job["worker_id"]}
        for response in (
            await narrow.post(f"{V1}/tasks/claim", json=body),
            await narrow.post(f"{V1}/rooms/lab/schedules/daily/run"),
        ):
            assert job["full_name"] in expect_problem(response, 403, "forbidden")["detail"]


async def test_a_mounted_queue_has_no_tokens(database_url: str) -> None:
    """The problem says what the host does instead."""
    database, host = open_database(database_url), FastAPI()
    JobLib(session_maker=database, identity=lambda: Identity("root", is_superuser=True)).mount(host)
    async with (
        host.router.lifespan_context(host),
        httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://host") as client,
    ):
        response = await client.post(f"{V1}/worker-tokens", json=BODY)
        assert "roles=['worker']" in expect_problem(response, 501, "no-tokens")["detail"]
    await database.close()
