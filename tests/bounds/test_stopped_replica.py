"""A replica that is stopped while it holds locks delays only requests for the same rows, and not for long."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from databases import on_postgresql
from replica import TIMEOUT, Replica
from sqlalchemy import select

from zndraw_joblib.server.db.tables import Job
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.messages import JobResponse

_STOP_WITH_LOCK = """
import asyncio, os, signal, sys
from uuid import UUID
from sqlalchemy import select
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.limits import Limits
from zndraw_joblib.server.db.tables import Job

async def work(tx):
    jobs = Job.__table__
    await tx.execute(select(jobs.c.id).where(jobs.c.id == UUID(sys.argv[2])).with_for_update())
    os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(open_database(sys.argv[1], limits=Limits(idle_transaction=float(sys.argv[3]))).write(work))
"""


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with which requests wait longer for a lock than the stopped process holds it."""
    return ServerSettings(database_url=database_url, database_lock_timeout_seconds=20)


@contextmanager
def stopped_with_lock(url: str, job: JobResponse, idle_seconds: float) -> Iterator[None]:
    """Start a process that locks a job in a transaction and is stopped there."""
    arguments = [url, str(job.id), str(idle_seconds)]
    process = subprocess.Popen([sys.executable, "-c", _STOP_WITH_LOCK, *arguments])
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(TIMEOUT)


@on_postgresql
async def test_a_stopped_replica_delays_only_its_own_rows(replica: Replica, settings: ServerSettings) -> None:
    """Another replica serves other jobs at once; the job itself is served when the lock has timed out."""
    held, other = await replica.register("Held"), await replica.register("Other")
    with stopped_with_lock(settings.database_url, held, idle_seconds=5):
        waiting = [asyncio.create_task(replica.submit(held)) for _ in range(2)]
        async with asyncio.timeout(TIMEOUT):
            for _ in range(3):
                await replica.submit(other)
            assert not any(submit.done() for submit in waiting)
            await asyncio.gather(*waiting)


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_lock_that_is_released_in_time_refuses_nothing(replica: Replica, kind: str) -> None:
    """Requests that met a lock for a moment are written in order, once each."""
    job = await replica.register()
    async with replica.engine.connect() as other:
        await other.execute(select(Job.__table__).where(Job.__table__.c.id == job.id).with_for_update())
        waiting = [asyncio.create_task(replica.submit(job, {"n": n})) for n in range(20)]
        done, _ = await asyncio.wait(waiting, timeout=0.6)
        assert not done
        await other.rollback()
    async with asyncio.timeout(TIMEOUT):
        submitted = await asyncio.gather(*waiting)
        claimed = [await replica.claim_task(job.worker_id) for _ in range(20)]
    assert [task.payload["n"] for task in claimed] == list(range(20))
    assert {task.id for task in claimed} == {task.id for task in submitted}
    assert await replica.claim(job.worker_id) is None
