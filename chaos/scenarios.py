"""The faults that are injected one at a time, each into processes of its own under load."""

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from chaos.stage import Parts, Stage, connections, sqlite_file

BOTH, POSTGRESQL = ("sqlite", "postgresql"), ("postgresql",)
_FOREIGN_LOCK_SECONDS = 30.0
_STOPPED_SECONDS = 20.0
_SUSPENDED_SECONDS = 90.0
_PARTITION_SECONDS = 20.0
_FULL_SECONDS = 10.0
_REFUSED_WITHIN_SECONDS = 40.0
_HOUR = 3600
_BLOCK = 65_536


@dataclass(frozen=True)
class Scenario:
    """A fault: on which databases it makes sense, what it needs, and which part must not notice it.

    `healthy` names that part by database; without a name the fault concerns everything. `is_momentary`: the
    fault is over at once, so recovery is measured from its start.
    """

    name: str
    inject: Callable[[Stage], Awaitable[None]]
    databases: tuple[str, ...] = BOTH
    healthy: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    is_momentary: bool = False

    def parts_on(self, database: str) -> Parts:
        """Return what the fault needs on a database."""
        return self.parts.get(database, Parts())


async def stop_replica(stage: Stage) -> None:
    """Stop a replica at a moment when it holds locks in the database, and continue it later."""
    server, watching = stage.servers[1], await stage.postgres.connect()
    try:
        for _ in range(2000):
            server.send(signal.SIGSTOP)
            ports = [own for own, _ in connections(server.pid, stage.postgres.port)]
            if await watching.fetchval(_HOLDS_LOCKS, ports):
                break
            server.send(signal.SIGCONT)
            await asyncio.sleep(random.uniform(0.001, 0.02))
        else:
            stage.notes.append("the replica held no locks when it was stopped")
            server.send(signal.SIGSTOP)
        await asyncio.sleep(_STOPPED_SECONDS)
    finally:
        server.send(signal.SIGCONT)
        await watching.close()


_HOLDS_LOCKS = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE client_port = ANY ($1::int[]) AND state LIKE 'idle in transaction%'
    AND locktype = 'transactionid' AND mode = 'ExclusiveLock'
"""


async def silence_connections(stage: Stage) -> None:
    """Drop the packets of a replica's open connections to PostgreSQL, or of workers to the server."""
    if stage.kind == "postgresql":
        found = connections(stage.servers[1].pid, stage.postgres.port)
    else:
        port = int(stage.affected.proxy.url.rsplit(":", 1)[1])
        found = [pair for slot in stage.affected.workers.slots for pair in connections(slot.pid, port)]
    assert found, "there was no connection to silence"
    stage.blackhole.drop_connections(found)


async def hold_foreign_locks(stage: Stage) -> None:
    """Let another session hold the job's row and rows of its tasks, on SQLite the file's write lock."""
    if stage.kind == "postgresql":
        session = await stage.postgres.connect()
        async with session.transaction():
            job = stage.lanes[1].job.name
            await session.execute("SELECT 1 FROM joblib_job WHERE full_name = $1 FOR UPDATE", job)
            await session.execute(_LOCK_TASKS, job)
            await asyncio.sleep(_FOREIGN_LOCK_SECONDS)
        await session.close()
        return
    with sqlite3.connect(sqlite_file(stage), isolation_level=None, timeout=30) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(_FOREIGN_LOCK_SECONDS)
        connection.execute("ROLLBACK")
    connection.close()


_LOCK_TASKS = """
    SELECT 1 FROM joblib_task WHERE job_id = (SELECT id FROM joblib_job WHERE full_name = $1)
    AND status IN ('pending', 'claimed', 'running') FOR UPDATE
"""


async def jump_forward(stage: Stage) -> None:
    """Set the clock of the database one hour forward."""
    stage.clock.shift(_HOUR)


async def jump_backward(stage: Stage) -> None:
    """Set the clock of the database one hour back."""
    stage.clock.shift(-_HOUR)


async def suspend_server(stage: Stage) -> None:
    """Stop a server process for longer than every timeout, and continue it."""
    stage.servers[-1].send(signal.SIGSTOP)
    await asyncio.sleep(_SUSPENDED_SECONDS)
    stage.servers[-1].send(signal.SIGCONT)


async def fill_disk(stage: Stage) -> None:
    """Fill the disk of the database until a submission is refused, and empty it 10 s later."""
    filler = stage.disk / "filler"
    assert stage.load is not None
    before, deadline = stage.load.refusals, time.monotonic() + _REFUSED_WITHIN_SECONDS
    with filler.open("ab", buffering=0) as file:
        while stage.load.refusals == before and time.monotonic() < deadline:
            with suppress(OSError):
                while True:
                    file.write(bytes(_BLOCK))
            await asyncio.sleep(0.2)
        if stage.load.refusals == before:
            stage.notes.append("no submission was refused")
        await asyncio.sleep(_FULL_SECONDS)
    filler.unlink()
    if stage.kind == "postgresql":
        await asyncio.to_thread(stage.postgres.ensure_running)


async def partition_redis(stage: Stage) -> None:
    """Drop all packets between the servers and Redis."""
    assert stage.redis is not None
    for server in stage.servers:
        stage.blackhole.drop_connections(connections(server.pid, stage.redis.port))
    stage.blackhole.drop_responses(stage.redis.port)
    await asyncio.sleep(_PARTITION_SECONDS)
    stage.blackhole.stop()


async def restart_postgres(stage: Stage) -> None:
    """Restart PostgreSQL, first in an orderly way, then without a shutdown of its own."""
    for mode in ("fast", "immediate"):
        await asyncio.to_thread(stage.postgres.restart, mode)
        await asyncio.sleep(1)


async def promote_standby(stage: Stage) -> None:
    """Kill the primary of PostgreSQL, and promote its synchronous standby."""
    await asyncio.to_thread(stage.postgres.kill)
    await asyncio.sleep(1)
    await asyncio.to_thread(stage.postgres.promote)


async def kill_server(stage: Stage) -> None:
    """Kill the last server and start it again."""
    await stage.servers[-1].stop(signal.SIGKILL)
    await stage.servers[-1].start()


async def kill_workers(stage: Stage) -> None:
    """Kill all workers of a lane and start new ones."""
    for slot in stage.affected.workers.slots:
        await asyncio.to_thread(stage.affected.workers.kill, slot)
        stage.affected.workers.start(slot)


async def kill_internal_worker(stage: Stage) -> None:
    """Kill the process that runs internal tasks and start another."""
    await stage.stop_internal_worker(signal.SIGKILL)
    await stage.start_internal_worker()


async def kill_postgres_backend(stage: Stage) -> None:
    """Kill a process of PostgreSQL that serves a connection of the server; PostgreSQL then restarts all."""
    session = await stage.postgres.connect()
    ports = [own for own, _ in connections(stage.servers[0].pid, stage.postgres.port)]
    query = "SELECT pid FROM pg_stat_activity WHERE client_port = ANY ($1::int[])"
    pid = await session.fetchval(query, ports)
    os.kill(pid, signal.SIGKILL)
    session.terminate()


_REPLICA = {"postgresql": "other replica"}
_TWO = {"postgresql": Parts(replicas=2)}
_CLOCK = dict.fromkeys(BOTH, Parts(clock=True))

SCENARIOS = {
    it.name: it
    for it in (
        Scenario(
            "replica-stopped",
            stop_replica,
            POSTGRESQL,
            _REPLICA,
            {"postgresql": Parts(replicas=2, shared_job=True)},
        ),
        Scenario(
            "silent-connection",
            silence_connections,
            healthy={"sqlite": "other workers", **_REPLICA},
            parts={"sqlite": Parts(network=True), "postgresql": Parts(replicas=2, network=True)},
            is_momentary=True,
        ),
        Scenario("foreign-lock", hold_foreign_locks, healthy={"postgresql": "other jobs"}),
        Scenario("clock-forward", jump_forward, parts=_CLOCK, is_momentary=True),
        Scenario("clock-backward", jump_backward, parts=_CLOCK, is_momentary=True),
        Scenario("server-suspended", suspend_server, healthy=_REPLICA, parts=_TWO),
        Scenario("disk-full", fill_disk, parts=dict.fromkeys(BOTH, Parts(disk=True, padding=60_000))),
        Scenario(
            "redis-partition",
            partition_redis,
            healthy=dict.fromkeys(BOTH, "all tasks"),
            parts={
                "sqlite": Parts(redis=True, network=True),
                "postgresql": Parts(replicas=2, redis=True, network=True),
            },
        ),
        Scenario("postgres-restart", restart_postgres, POSTGRESQL),
        Scenario(
            "standby-promoted",
            promote_standby,
            POSTGRESQL,
            parts={"postgresql": Parts(replicas=2, standby=True)},
        ),
        Scenario("kill-server", kill_server, is_momentary=True),
        Scenario("kill-replica", kill_server, POSTGRESQL, _REPLICA, _TWO, is_momentary=True),
        Scenario(
            "kill-worker", kill_workers, healthy=dict.fromkeys(BOTH, "other workers"), is_momentary=True
        ),
        Scenario(
            "kill-internal-worker",
            kill_internal_worker,
            POSTGRESQL,
            {"postgresql": "workers' jobs"},
            {"postgresql": Parts(internal=True)},
            is_momentary=True,
        ),
        Scenario("kill-postgres-backend", kill_postgres_backend, POSTGRESQL, is_momentary=True),
    )
}
