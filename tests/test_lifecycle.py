"""The shortest path through the API: register, submit, claim, report, on either database."""

import httpx
from rest import V1, register, run_task, submit


async def test_a_task_runs_to_its_result(client: httpx.AsyncClient) -> None:
    """A submitted task is claimed, runs, and ends with its result and its payload."""
    ended = await run_task(client)
    assert (ended["payload"], ended["attempt"], ended["error"]) == ({"x": 1}, 1, None)


async def test_a_submitted_task_has_a_position_in_its_queue(client: httpx.AsyncClient) -> None:
    """The response to a submission has the task, its status and its position."""
    job = await register(client)
    positions = [(await submit(client, job, angle=angle))["queue_position"] for angle in (3, 4)]
    assert positions == [1, 2]
    listed = (await client.get(f"{V1}/rooms/lab/tasks", params={"status": "pending"})).json()
    assert listed["total"] == 2
