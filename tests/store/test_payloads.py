"""Long payloads are in a table of their own on SQLite, and whole wherever they are read."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from replica import ADMIN, SUBMITTER, Replica
from rest import V1, claim, get_task, register, report, submit
from seeds import add_tasks, task
from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from zndraw_joblib import Task
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import CursorPage, Page
from zndraw_joblib.server.queue import rules_tasks, sql_claims, sql_tasks, sql_transitions
from zndraw_joblib.wire.messages import TaskSubmitRequest
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import TaskFilter

LONG = {"text": "ä" * 3_000, "end": "needle"}
LONGER = {"text": "x" * 100_000}
SHORT = {"text": "ä" * 2_000}
OPTIONS = {"priority": 1}


async def stored(engine: AsyncEngine) -> tuple[list[int], list[int]]:
    """Return which tasks have an empty column, and which a row in the table, by their order."""
    async with engine.connect() as connection:
        found = [
            list((await connection.execute(text(query))).scalars())
            for query in (
                "SELECT seq FROM joblib_task WHERE payload = '' ORDER BY seq",
                "SELECT task_seq FROM joblib_payload ORDER BY task_seq",
            )
        ]
    return found[0], found[1]


async def assert_apart(engine: AsyncEngine, kind: str, *indexes: int) -> None:
    """Check which tasks have a row in the table, by their order: none on PostgreSQL."""
    async with engine.connect() as connection:
        seqs = list((await connection.execute(text("SELECT seq FROM joblib_task ORDER BY seq"))).scalars())
    apart = [seqs[index] for index in indexes] if kind == "sqlite" else []
    assert await stored(engine) == (apart, apart)


async def batch(client: httpx.AsyncClient, job: dict[str, Any], *tasks: dict[str, Any]) -> list[Any]:
    """Submit tasks in one request; return their payloads in the answer."""
    items = [{"room_id": "lab", "job_name": job["full_name"], **fields} for fields in tasks]
    results = (await client.post(f"{V1}/tasks/submit", json={"tasks": items})).json()["results"]
    return [result["task"]["payload"] for result in results]


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "with options"])
async def test_every_answer_has_the_whole_payload(
    client: httpx.AsyncClient, engine: AsyncEngine, kind: str, options: dict[str, Any]
) -> None:
    """Submits alone and in batches, claims, reports, lists and searches."""
    job = await register(client)
    payloads = [LONG, SHORT, LONGER, {}, LONG]
    headers = {"Idempotency-Key": "first"}
    for _ in range(2):
        url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
        response = await client.post(url, json={"payload": LONG, **options}, headers=headers)
        assert response.json()["payload"] == LONG
    fields = [{"payload": payload, **options} for payload in payloads[1:]]
    assert await batch(client, job, *fields) == payloads[1:]
    await assert_apart(engine, kind, 0, 2, 4)
    worker = {"worker_id": job["worker_id"]}
    first = (await client.post(f"{V1}/tasks/claim", json={**worker, "start": True})).json()["task"]
    body = {**worker, "max": 10, "start": True}
    rest = (await client.post(f"{V1}/tasks/claim", json=body)).json()["tasks"]
    assert [each["payload"] for each in [first, *rest]] == payloads
    answer = (await report(client, first, "completed")).json()
    reports = [{"id": each["id"], "status": "completed"} for each in rest]
    results = (await client.post(f"{V1}/tasks/report", json={"reports": reports})).json()["results"]
    assert [each["payload"] for each in [answer, *(result["task"] for result in results)]] == payloads
    listed = (await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 40})).json()["items"]
    assert [each["payload"] for each in listed] == payloads[::-1]
    found = (await client.get(f"{V1}/tasks", params={"text": "needle"})).json()["items"]
    assert [each["id"] for each in found] == [rest[-1]["id"], first["id"]]
    assert {each["payload_preview"] for each in found} == {('{"text":"' + "ä" * 200)[:200]}


async def test_a_retry_has_the_whole_payload(client: httpx.AsyncClient) -> None:
    """So has the answer to the request, and the task that is claimed again."""
    job = await register(client)
    submitted = await submit(client, job, **LONG)
    assert await claim(client, job["worker_id"]) is not None
    assert (await report(client, submitted, "failed", error="no")).json()["payload"] == LONG
    retried = (await client.post(f"{V1}/tasks/{submitted['id']}/retry")).json()
    assert (retried["status"], retried["payload"]) == ("pending", LONG)
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    assert (claimed["id"], claimed["payload"]) == (submitted["id"], LONG)
    assert (await get_task(client, submitted))["payload"] == LONG


async def test_a_replaced_payload_moves(client: httpx.AsyncClient, engine: AsyncEngine, kind: str) -> None:
    """From the row into the table, to a longer one, and back."""
    job = await register(client)
    unique = {"key": "report", "on_conflict": "replace"}
    for payload, indexes in ((SHORT, ()), (LONG, (0,)), (LONGER, (0,)), ({}, ()), (LONG, (0,))):
        assert await batch(client, job, {"payload": payload, "unique": unique}) == [payload]
        await assert_apart(engine, kind, *indexes)
    claimed = (await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]})).json()["task"]
    assert claimed["payload"] == LONG


async def test_a_payload_counts_wherever_it_is(replica: Replica) -> None:
    """The bounds of claims, of answers and of pages count its bytes, not its characters."""
    job = await replica.register()
    ids = [(await replica.submit(job, payload)).id for payload in (LONG, SHORT)]
    read = replica.runtime.database.read
    page = await read(lambda tx: sql_tasks.page(tx, "lab", None, part=Page(10, 0)))
    sizes = [len('{"text":"","end":"needle"}') + 6_000, len('{"text":""}') + 4_000]
    assert await read(sql_tasks.body_sizes, ids) == dict(zip(ids, sizes, strict=True))
    seqs = [record.seq for record in page[0]][::-1]
    assert await read(sql_claims.payload_sizes, seqs) == dict(zip(seqs, sizes, strict=True))
    small = await replica.runtime.write(lambda tx: sql_tasks.lock(tx, ids, 6_000))
    assert [small[task_id].payload for task_id in ids] == [None, SHORT]


async def test_a_task_of_an_earlier_release_keeps_its_long_payload(
    replica: Replica, engine: AsyncEngine
) -> None:
    """It is in the row of the task, and is read there."""
    job = await replica.register()
    [task_id] = await add_tasks(replica, [task(job.id, payload=LONG)])
    assert await stored(engine) == ([], [])
    assert (await replica.claim_task(job.worker_id)).payload == LONG
    assert (await replica.get(task_id)).payload == LONG
    find = await replica.runtime.database.read(
        rules_searches.find, TaskFilter(text="needle"), CursorPage(5, None)
    )
    assert [item.id for item in find.items] == [task_id]


async def test_a_host_selects_whole_payloads(replica: Replica, engine: AsyncEngine) -> None:
    """Rows of the table of tasks have them, and so has each column."""
    job = await replica.register()
    for payload in (LONG, SHORT):
        await replica.submit(job, payload)
    async with AsyncSession(engine) as session:
        rows = (await session.execute(select(Task).order_by(Task.__table__.c.seq))).scalars().all()
        assert [row.payload for row in rows] == [LONG, SHORT]
        chosen = select(Task.__table__.c.payload).where(Task.__table__.c.status == "pending")
        assert list((await session.execute(chosen.order_by(Task.__table__.c.seq))).scalars()) == [LONG, SHORT]


async def test_a_host_selects_payloads_in_any_statement(
    replica: Replica, engine: AsyncEngine, kind: str
) -> None:
    """With a label, from functions, subqueries and text; on SQLite a long one without `seq` is an error."""
    job = await replica.register()
    ids = [(await replica.submit(job, payload)).id for payload in (SHORT, LONG)]
    tasks: Any = Task.__table__

    def statements(index: int) -> dict[str, Any]:
        part = select(tasks.c.id, tasks.c.payload).where(tasks.c.id == ids[index])
        sql = text("SELECT * FROM joblib_task ORDER BY seq LIMIT 1 OFFSET :index").bindparams(index=index)
        return {
            "label": select(tasks.c.payload.label("text")).where(tasks.c.id == ids[index]),
            "whole": select(select(Task).where(tasks.c.id == ids[index]).subquery().c.payload),
            "function": select(func.coalesce(tasks.c.payload, None)).where(tasks.c.id == ids[index]),
            "subquery": select(part.subquery().c.payload),
            "cte": select(part.cte("part").c.payload),
            "text": select(Task).from_statement(sql),
        }

    async with AsyncSession(engine) as session:
        for index, payload in enumerate((SHORT, LONG)):
            for name, statement in statements(index).items():
                if kind == "sqlite" and payload is LONG and name not in {"label", "whole"}:
                    with pytest.raises(ValueError, match="select seq beside payload"):
                        (await session.execute(statement)).all()
                    continue
                [value] = (await session.execute(statement)).scalars().all()
                assert (value.payload if isinstance(value, Task) else value) == payload, name


async def test_a_transaction_that_fails_leaves_no_payload(replica: Replica, engine: AsyncEngine) -> None:
    """The task and its payload are committed together; the next task, with the same number, has its own."""
    job = await replica.register()
    request = TaskSubmitRequest(payload=LONG)
    item = replica.runtime.submission(SUBMITTER, "lab", parse_job_name(job.full_name), request)

    async def fail(tx: Transaction) -> None:
        [submitted] = await rules_tasks.submit_all(tx, [item])
        assert submitted.payload == LONG
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        await replica.runtime.write(fail)
    assert await stored(engine) == ([], [])
    submitted = await replica.submit(job, LONGER)
    assert (await replica.get(submitted.id)).payload == LONGER


async def test_a_deleted_task_leaves_no_payload(replica: Replica, engine: AsyncEngine) -> None:
    """Also one that was replaced, retried and cancelled."""
    job = await replica.register()
    tasks = [await replica.submit(job, payload) for payload in (LONG, SHORT, LONGER)]
    for submitted in tasks[:2]:
        await replica.report(submitted.id, "cancelled", by=ADMIN)
    records = await replica.runtime.database.read(
        lambda tx: sql_tasks.page(tx, "lab", None, part=Page(10, 0))
    )
    seqs = [record.seq for record in records[0]]

    async def delete(tx: Transaction) -> int:
        return await sql_transitions.delete_ended(tx, seqs, await tx.now())

    assert await replica.runtime.write(delete) == 2
    assert (await stored(engine))[1] == (seqs[:1] if engine.dialect.name == "sqlite" else [])
    assert (await replica.get(tasks[2].id)).payload == LONGER


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_change_of_status_does_not_write_the_payload(replica: Replica, database_url: str) -> None:
    """A claim, a start and an end together write less than a tenth of 1 MiB."""
    log = Path(f"{make_url(database_url).database}-wal")

    def size() -> int:
        return log.stat().st_size

    job = await replica.register()
    for _ in range(4):
        await replica.submit(job, {"text": "x" * 1_000_000})
    before = await asyncio.to_thread(size)
    for _ in range(4):
        running = await replica.start(job.worker_id)
        await replica.report(running.id, "completed")
    assert await asyncio.to_thread(size) - before < 400_000
