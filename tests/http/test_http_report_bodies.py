"""The payloads and results in the answer to a report are bounded, whatever the tasks have."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from databases import on_both
from replica import ADMIN, OWNER, Replica
from rest import V1, get_task, register, submit
from sqlalchemy import delete, update

from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_idempotency, rules_tasks, sql_tasks
from zndraw_joblib.wire.messages import TaskResponse, TaskUpdateRequest
from zndraw_joblib.wire.statuses import TaskStatus

REPORT = f"{V1}/tasks/report"
LARGE = {"text": "ä" * (500 * 1024)}
MAX_BODY_BYTES = 8 * 1024**2
# Of these in all.
FIT = 8


async def running(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """Submit, claim and start large tasks."""
    job = await register(client)
    for _ in range(count):
        await submit(client, job, **LARGE)
    body = {"worker_id": job["worker_id"], "max": 100, "start": True}
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += (await client.post(f"{V1}/tasks/claim", json=body)).json()["tasks"]
    return found


def completed(found: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the body of a report of many tasks."""
    return {"reports": [{"id": task["id"], "attempt": 1, "status": "completed", **fields} for task in found]}


async def test_the_answer_to_many_reports_is_bounded(client: httpx.AsyncClient) -> None:
    """Every report is applied; results beyond the bound have only status and id, also of a repeat."""
    found = await running(client, FIT + 2)
    for _ in range(2):
        response = await client.post(REPORT, json=completed(found, result={"n": 1}))
        got = response.json()["results"]
        assert [(each["status"], each["id"]) for each in got] == [(200, task["id"]) for task in found]
        assert ["task" in each for each in got] == [True] * FIT + [False] * 2
        assert len(response.content) < 9 * 1024**2
        assert got[0]["task"] == await get_task(client, found[0])
    assert {(await get_task(client, task))["status"] for task in found} == {"completed"}


async def test_results_count_like_payloads(client: httpx.AsyncClient) -> None:
    """A result that was just reported is part of the answer."""
    found = await running(client, FIT - 1)
    for task in found[1:]:
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "completed", "result": LARGE})
    got = (await client.post(REPORT, json=completed(found))).json()["results"]
    assert ["task" in each for each in got] == [True] * 4 + [False] * 3
    assert [each["task"]["result"] for each in got[:4]] == [None, *[LARGE] * 3]


@on_both
async def test_a_task_that_is_gone_takes_no_place_in_the_answer(replica: Replica) -> None:
    """Its payload stays None, and a task whose payload just fits into the answer has it."""
    job = await replica.register()
    gone, small = [await replica.submit(job, {"text": ""}) for _ in range(2)]
    sizes = await replica.runtime.database.read(sql_tasks.body_sizes, [small.id])
    text = "x" * (MAX_BODY_BYTES - sizes[small.id])
    await replica.execute(update(Task).where(Task.__table__.c.id == small.id).values(payload={"text": text}))
    await replica.report(gone.id, TaskStatus.CANCELLED, by=ADMIN)
    await replica.execute(delete(Task).where(Task.__table__.c.id == gone.id))
    await replica.correct_counts()
    for task in (gone, small):
        task.payload = None
    await replica.runtime.database.read(rules_tasks.load_bodies, [gone, small])
    assert (gone.payload, small.payload) == (None, {"text": text})


@on_both
async def test_single_reports_at_once_each_get_their_task(client: httpx.AsyncClient) -> None:
    """Together they have more than one transaction reads."""
    found = await running(client, 2 * FIT)
    key = {"Idempotency-Key": str(uuid4())}
    for _ in range(2):
        got = await asyncio.gather(
            *[
                client.patch(
                    f"{V1}/tasks/{task['id']}", json=completed([task])["reports"][0], headers=headers
                )
                for task, headers in zip(found, [key, *[{}] * len(found)], strict=False)
            ]
        )
        assert [each.json()["payload"] for each in got] == [LARGE] * len(found)
        assert got[0].json() == await get_task(client, found[0])


@on_both
async def test_a_repeated_batch_has_bodies_again(client: httpx.AsyncClient) -> None:
    """With an `Idempotency-Key` it gets the same results."""
    found = await running(client, FIT + 1)
    key = {"Idempotency-Key": str(uuid4())}
    first, again = [
        (await client.post(REPORT, json=completed(found, result=1), headers=key)).json() for _ in range(2)
    ]
    assert first == again
    assert ["task" in each for each in first["results"]] == [True] * FIT + [False]
    minimal = {**key, "Prefer": "return=minimal"}
    body = {"results": [{"status": 200, "id": task["id"]} for task in found]}
    assert (await client.post(REPORT, json=completed(found, result=1), headers=minimal)).json() == body


@on_both
async def test_a_transaction_reads_a_bounded_number_of_bytes(
    replica: Replica, subtests: pytest.Subtests
) -> None:
    """No payload for an answer without; small ones only, if they are many."""
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED):
        for count, wants_body, has_body in [(2, True, True), (2, False, False), (2 * FIT, True, False)]:
            with subtests.test(status=status, count=count, wants_body=wants_body, has_body=has_body):
                job = await replica.register()
                for _ in range(count):
                    await replica.submit(job, LARGE)
                items = [
                    rules_tasks.Report(
                        OWNER,
                        (await replica.start(job.worker_id)).id,
                        TaskUpdateRequest(status=status, result=1),
                        wants_body=wants_body,
                    )
                    for _ in range(count)
                ]
                got = await replica.runtime.write(rules_idempotency.report, items)
                assert [rules_tasks.has_body(each) for each in got if isinstance(each, TaskResponse)] == [
                    has_body
                ] * count
