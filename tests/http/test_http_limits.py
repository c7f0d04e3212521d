"""Limits that jobs share: who may define them, and what refuses them."""

from typing import Any

import httpx
import pytest
from databases import on_both
from rest import V1, AsUser, expect_problem

LIMITS = f"{V1}/limits"
RATE = {"rate": {"count": 1, "per_seconds": 3600}}


async def test_a_limit_that_jobs_share(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """It is defined, used by two jobs, changed, and deleted when no job names it."""
    job = {"category": "modifiers", "name": "One", "limits": [{"name": "api"}]}
    missing = await client.put(f"{V1}/rooms/lab/jobs", json=job)
    assert (missing.status_code, missing.json()["type"]) == (404, "/v1/problems/limit-not-found")
    user = await as_user("user")
    assert (await user.put(f"{LIMITS}/api", json=RATE)).status_code == 403
    assert (await client.put(f"{LIMITS}/api", json={})).status_code == 422
    puts = [await client.put(f"{LIMITS}/api", json=body) for body in ({"max_in_flight": 1}, RATE)]
    assert [response.status_code for response in puts] == [201, 200]
    first = (await client.put(f"{V1}/rooms/lab/jobs", json=job)).json()
    other = {**job, "name": "Two", "worker_id": first["worker_id"]}
    second = (await client.put(f"{V1}/rooms/lab/jobs", json=other)).json()
    for name in (first["full_name"], second["full_name"]):
        await client.post(f"{V1}/rooms/lab/tasks/{name}", json={"payload": {}})
    claim = {"worker_id": first["worker_id"], "max": 5}
    claimed = (await client.post(f"{V1}/tasks/claim", json=claim)).json()["tasks"]
    assert [task["job_name"] for task in claimed] == [first["full_name"]]
    [listed] = (await client.get(LIMITS)).json()["items"]
    assert (listed["name"], listed["rate"]["count"], listed["updated_by"]) == ("api", 1, "admin")
    assert (await client.delete(f"{LIMITS}/api")).status_code == 409
    await client.put(f"{LIMITS}/api", json={"max_in_flight": 5})
    claimed = (await client.post(f"{V1}/tasks/claim", json=claim)).json()["tasks"]
    assert [task["job_name"] for task in claimed] == [second["full_name"]]
    for body in ({**other, "limits": []}, {**other, "name": "One", "limits": []}):
        await client.put(f"{V1}/rooms/lab/jobs", json=body)
    assert (await client.delete(f"{LIMITS}/api")).status_code == 204
    assert (await client.get(f"{LIMITS}/api")).status_code == 404


async def test_wrong_names_of_limits(client: httpx.AsyncClient) -> None:
    """The errors say what a name may have, and which limit is nearest."""
    await client.put(f"{LIMITS}/api", json=RATE)
    job = {"category": "modifiers", "name": "One", "limits": [{"name": "apis"}]}
    typo = await client.put(f"{V1}/rooms/lab/jobs", json=job)
    assert "there is no limit 'apis' (did you mean 'api'?)" in typo.json()["detail"]
    for name in ("a b", "x" * 65):
        named = expect_problem(await client.put(f"{LIMITS}/{name}", json=RATE), 422, "invalid-request")
        assert "is no name of a limit: write 1 to 64 letters, digits" in named["detail"]


@on_both
async def test_tasks_that_wait_for_a_rate_are_measured(client: httpx.AsyncClient) -> None:
    """Of a job, a key and a limit with a name, once a claim has found the rate used up."""
    await client.put(f"{LIMITS}/api", json=RATE)
    limits = [RATE, {"key": "/user", **RATE}, {"name": "api"}, {"key": "room", "max_in_flight": 1}]
    for name, limit, count in zip(("Job", "Key", "Api", "Slot"), limits, (3, 4, 5, 6), strict=True):
        body = {"category": "modifiers", "name": name, "limits": [limit]}
        job = (await client.put(f"{V1}/rooms/lab/jobs", json=body)).json()
        for number in range(count):
            payload = {"user": min(number, 2)}
            await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": payload})
        await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"], "max": 5})
    # Two of the job, one of the third user, and four of the name.
    assert "zndraw_joblib_rate_limited_tasks 7" in (await client.get(f"{V1}/metrics")).text


RATES = [
    # The rates of the job and of a name, and then a key's rate before that of the job.
    ([RATE, {"name": "api"}], [0, 1, 2, 3]),
    ([{"key": "/user", **RATE}, {"rate": {"count": 2, "per_seconds": 3600, "burst": 2}}], [0, 0, 0, 1, 1]),
]


@on_both
@pytest.mark.parametrize(("limits", "users"), RATES)
async def test_a_task_that_waits_for_two_rates_is_one(
    client: httpx.AsyncClient, limits: list[dict[str, Any]], users: list[int]
) -> None:
    """Three tasks wait, whichever rates they wait for."""
    await client.put(f"{LIMITS}/api", json=RATE)
    body = {"category": "modifiers", "name": "Two", "limits": limits}
    job = (await client.put(f"{V1}/rooms/lab/jobs", json=body)).json()
    for user in users:
        await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": {"user": user}})
    for _ in users:
        await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"], "max": 1})
    lines = (await client.get(f"{V1}/metrics")).text.splitlines()
    assert "zndraw_joblib_rate_limited_tasks 3.0" in lines
