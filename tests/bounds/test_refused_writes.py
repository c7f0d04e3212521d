"""A database that refuses to write: requests fail with the reason, and the server is not ready."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import httpx
import pytest
from databases import on_postgresql, on_sqlite
from rest import V1
from sqlalchemy import Engine, create_engine, event
from waiting import until

from zndraw_joblib.server.process.settings import ServerSettings

FREE_PAGES = 40


@pytest.fixture
def full_disk(sqlite_url: str) -> Iterator[None]:
    """Let SQLite add no more than a few pages to the file."""
    with create_engine(sqlite_url).connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        [own] = connection.exec_driver_sql("PRAGMA database_list").all()

    def limit(connection: Any, _: object) -> None:
        # A server of another test may connect to its database meanwhile.
        if isinstance(connection, sqlite3.Connection) and own in connection.execute("PRAGMA database_list"):
            connection.execute(f"PRAGMA max_page_count={pages + FREE_PAGES}")

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


async def submit(client: httpx.AsyncClient, payload: str) -> httpx.Response:
    """Submit a task of the job of these tests."""
    return await client.post(
        f"{V1}/rooms/lab/tasks/@global:modifiers:Rotate", json={"payload": {"text": payload}}
    )


async def registered(client: httpx.AsyncClient) -> None:
    """Register the job of these tests."""
    job = {"category": "modifiers", "name": "Rotate", "schema": {}}
    (await client.put(f"{V1}/rooms/@global/jobs", json=job)).raise_for_status()


async def readiness(client: httpx.AsyncClient) -> tuple[int, str]:
    """Return the status of the readiness endpoint, and the result of its check of the write path."""
    answer = await client.get("/health/ready")
    return answer.status_code, answer.json()["checks"]["work"]


@on_sqlite
@pytest.mark.usefixtures("full_disk")
async def test_a_full_disk_is_named(client: httpx.AsyncClient) -> None:
    """Submits get 503 with the cause until there is space; the server is not ready meanwhile."""
    await registered(client)
    assert await readiness(client) == (200, "ok")
    answers = [await submit(client, "x" * 4000) for _ in range(2 * FREE_PAGES)]
    assert {answer.status_code for answer in answers} == {202, 503}
    problem = next(answer for answer in answers if answer.status_code == 503)
    assert "the disk or the database is full. Free space" in problem.json()["detail"]
    assert "was not applied" in problem.json()["detail"]
    assert "Retry-After" in problem.headers

    async def not_ready() -> bool:
        status, reason = await readiness(client)
        return status == 503 and "is full" in reason

    await until(not_ready)
    assert (await client.get(f"{V1}/rooms/lab/tasks")).status_code == 200


@pytest.fixture
async def control(kind: str, database_url: str) -> AsyncIterator[Any]:
    """Return a connection to the database besides the server's."""
    connection: Any = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@on_postgresql
async def test_a_database_without_writes_is_named(
    client: httpx.AsyncClient, control: Any, settings: ServerSettings
) -> None:
    """Requests get 503 with the cause while the database is read-only, and succeed as soon as it is not."""
    await registered(client)
    assert await readiness(client) == (200, "ok")
    name = await control.fetchval("SELECT current_database()")
    await control.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    await control.execute(f"{others} AND pid <> pg_backend_pid()")
    refused = await submit(client, "read-only")
    assert refused.status_code == 503
    assert "it is read-only. Name the primary" in refused.json()["detail"]

    async def not_ready() -> bool:
        status, reason = await readiness(client)
        return status == 503 and "read-only" in reason

    await until(not_ready)
    await control.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    async def is_ready() -> bool:
        return await readiness(client) == (200, "ok")

    await until(is_ready)
    assert (await submit(client, "writable")).status_code == 202


@on_sqlite
async def test_a_health_check_leaves_nothing_behind(client: httpx.AsyncClient, engine: Any) -> None:
    """It writes to the database, and no row stays."""
    assert await readiness(client) == (200, "ok")
    async with engine.connect() as connection:
        rows = await connection.exec_driver_sql("SELECT count(*) FROM joblib_idempotency_key")
        assert rows.scalar_one() == 0
