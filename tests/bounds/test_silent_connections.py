"""Connections to PostgreSQL that fall silent are noticed and replaced, also when the server stops."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import pytest
from databases import on_postgresql
from replica import TIMEOUT, Replica
from rest import V1, register
from servers import ServerProcess
from sqlalchemy import make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from waiting import until

from bounds.silent_proxy import SilentProxy
from zndraw_joblib.server.db.asyncpg_options import connect_arguments, prepare
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import open_database, open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.postgres import PostgresDatabase
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import sql_workers
from zndraw_joblib.wire.problems import ServiceUnavailable

ADMIN_TOKEN = "admin-token-of-the-tests"
pytestmark = on_postgresql
LIMITS = Limits(response=2, statement=2)


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[SilentProxy]:
    """Run a proxy in front of the test's database."""
    async with SilentProxy(database_url).running() as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: SilentProxy) -> AsyncIterator[PostgresDatabase]:
    """Return the database through the proxy."""
    database = open_database(proxy.url, limits=LIMITS)
    assert isinstance(database, PostgresDatabase)
    yield database
    await database.close()


async def open_connections(pool: Any, count: int) -> None:
    """Make a pool open several connections."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(pool())


async def open_pool(database: Database, count: int) -> None:
    """Make a database open several connections: for reads that wait for each other."""
    barrier = asyncio.Barrier(count)

    async def read(_: Transaction) -> None:
        await barrier.wait()

    await asyncio.gather(*[database.read(read) for _ in range(count)])


@pytest.mark.parametrize("what", ["read_short", "write_short"])
async def test_silent_connections_are_replaced(
    database: PostgresDatabase, proxy: SilentProxy, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request on a silent connection is repeated on a new one; later ones meet no silent connection."""
    await open_pool(database, 8)
    assert proxy.silence() == 8
    act: Any = getattr(database, what)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*[act(sql_workers.count) for _ in range(4)])
    assert "does not respond" in caplog.text
    caplog.clear()
    await asyncio.gather(*[act(sql_workers.count) for _ in range(8)])
    assert "does not respond" not in caplog.text


async def test_a_commit_without_an_answer_is_not_repeated(database: Database, proxy: SilentProxy) -> None:
    """Whether it took effect is unknown: the request gets 503, and the transaction runs once."""
    tries = 0

    async def work(tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        await sql_workers.add(tx, "once")
        asyncio.get_running_loop().call_soon(proxy.silence)

    with pytest.raises(ServiceUnavailable, match="may or may not"):
        async with asyncio.timeout(TIMEOUT):
            await database.write_short(work)
    assert tries == 1


async def test_a_submit_without_an_answer_is_applied_once(
    database: Database, proxy: SilentProxy, engine: AsyncEngine
) -> None:
    """A lone statement whose answer is lost has inserted the tasks: the repeat finds them."""
    replica = Replica(database, engine)
    job = await replica.register()
    await replica.submit(job)
    async with engine.connect() as other:
        await other.execute(select(Job).with_for_update())
        submits = [asyncio.create_task(replica.submit(job, {"n": n})) for n in range(3)]
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        async with engine.connect() as third:
            while not (await third.exec_driver_sql(waiting)).scalar_one():
                await third.rollback()
        proxy.silence()
        await other.rollback()
    async with asyncio.timeout(TIMEOUT):
        made = await asyncio.gather(*submits)
    assert sorted(task.queue_position or 0 for task in made) == [2, 3, 4]
    assert {task.id for task in made} < {row.id for row in await replica.rows(Task)}
    assert len(await replica.rows(Task)) == 4


async def test_closing_is_bounded(database: PostgresDatabase, proxy: SilentProxy) -> None:
    """A silent connection does not keep the database from closing."""
    await open_pool(database, 4)
    proxy.silence()
    async with asyncio.timeout(TIMEOUT):
        await database.close()


async def test_a_hosts_silent_connection_is_bounded(proxy: SilentProxy) -> None:
    """Requests over a host's pool get an answer in time, and succeed when the pool has replaced its own."""
    engine = create_async_engine(proxy.url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=2)
    database = SessionDatabase(open_sessions(engine), limits=LIMITS)
    await open_connections(engine.connect, 2)
    proxy.silence()
    answers: list[Any] = [None]
    async with asyncio.timeout(TIMEOUT):
        while not isinstance(answers[-1], tuple) and len(answers) < 10:
            write = database.write_short(sql_workers.add, owner_id="host")
            answers += await asyncio.gather(write, return_exceptions=True)
    problems = answers[1:-1]
    assert 0 < len(problems) <= 2
    assert ["did not respond within 2 s" in str(problem) for problem in problems] == [True] * len(problems)
    await engine.dispose()


@pytest.fixture
def settings(proxy: SilentProxy) -> ServerSettings:
    """Return settings of a server that uses the proxy."""
    return ServerSettings(
        database_url=proxy.url, admin_token=ADMIN_TOKEN, database_response_timeout_seconds=1
    )


async def test_health_and_submits_recover(client: httpx.AsyncClient, proxy: SilentProxy) -> None:
    """With every connection silent, the server serves requests again within seconds, and says so."""

    async def ready() -> bool:
        return (await client.get("/health/ready")).status_code == 200

    job = await register(client)
    assert await ready()
    proxy.silence()
    submit = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    async with asyncio.timeout(TIMEOUT):
        assert (await client.post(submit, json={"payload": {}})).status_code in {202, 503}
        await until(ready)
        (await client.post(submit, json={"payload": {}})).raise_for_status()


async def test_sigterm_ends_a_server_with_silent_connections(proxy: SilentProxy) -> None:
    """The process ends within the promised 20 s."""
    with ServerProcess(proxy.url) as server:
        async with server.client() as client:
            (await client.get("/health/ready")).raise_for_status()
        proxy.silence()
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.to_thread(server.process.wait), 20)


async def test_both_ends_of_a_connection_have_the_limits(database: Database, proxy: SilentProxy) -> None:
    """PostgreSQL has them in the session, and the kernel at the driver's socket, which is private."""

    async def work(tx: Transaction) -> list[str]:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        return [(await tx.execute(text(f"SHOW {name}"))).scalar_one() for name in names]

    assert await database.read(work) == ["2s", "1s", "10s"]
    connection: Any = await asyncpg.connect(**connect_arguments(make_url(proxy.url), LIMITS))
    await prepare(connection, LIMITS)
    client_end = connection._transport.get_extra_info("socket")
    assert client_end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if sys.platform == "linux":
        assert client_end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
    # Without the private part, the session has its limits.
    await connection.execute("RESET ALL")
    await prepare(SimpleNamespace(execute=connection.execute), LIMITS)
    assert await connection.fetchval("SHOW statement_timeout") == "2s"
    await connection.close()
