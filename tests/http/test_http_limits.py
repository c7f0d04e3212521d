"""Limits that jobs share: who may define them, and what refuses them."""

import httpx
from rest import V1, AsUser

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
