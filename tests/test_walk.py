"""The thin line: register, submit, claim, report, on either database."""

import httpx

JOBS = "/v1/joblib/rooms/@global/jobs"
TASKS = "/v1/joblib/rooms/lab/tasks"


async def test_a_task_goes_its_way(client: httpx.AsyncClient) -> None:
    """A submitted task is claimed, runs, and ends with its result."""
    job = (await client.put(JOBS, json={"category": "modifiers", "name": "Rotate"})).json()
    submitted = await client.post(f"{TASKS}/{job['full_name']}", json={"payload": {"angle": 3}})
    assert submitted.status_code == 202
    assert submitted.json()["queue_position"] == 1
    claim = {"worker_id": job["worker_id"]}
    task = (await client.post("/v1/joblib/tasks/claim", json=claim)).json()["task"]
    assert task["id"] == submitted.json()["id"]
    for status in ("running", "completed"):
        report = {"status": status, "attempt": task["attempt"], "result": [1]}
        answer = await client.patch(f"/v1/joblib/tasks/{task['id']}", json=report)
        assert answer.json()["status"] == status
    final = (await client.get(f"/v1/joblib/tasks/{task['id']}")).json()
    assert (final["status"], final["result"], final["payload"]) == ("completed", [1], {"angle": 3})
