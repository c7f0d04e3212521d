"""Server processes, as each reports itself after a cycle of its sweeper, and the release of this one."""

import json
import platform
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue.sql_executors import SILENT_SWEEPS
from zndraw_joblib.wire.messages import SweeperCycle, SweeperMode
from zndraw_joblib.wire.operators import ServerCycle, ServerEntry, Version

_KEEP_SERVERS = timedelta(hours=1)
_KEEP_CYCLES = timedelta(days=7)
_MAX_CYCLES = 10_000
_LISTED_CYCLES = 100


class Process(NamedTuple):
    """A server process."""

    id: UUID
    host: str
    pid: int
    version: str


class SweepReport(NamedTuple):
    """What a server reports of itself after a cycle of its sweeper. Times are ago, in seconds.

    `internal_jobs` are those for which it has executors, None while it does not know.
    """

    started_ago: float
    last_good_ago: float
    grace_remaining_seconds: float
    sweep_interval_seconds: float
    internal_jobs: Sequence[str] | None = None


async def report(
    tx: Transaction, process: Process, state: SweepReport, cycle: SweeperCycle, *, prune: bool
) -> None:
    """Store the state of a server and the summary of a cycle; with `prune`, delete old ones."""
    now = await tx.now()
    row: dict[str, Any] = process._asdict() | {
        "started_at": now - timedelta(seconds=state.started_ago),
        "seen_at": now,
        "sweeper_mode": cycle.mode,
        "sweep_interval_seconds": state.sweep_interval_seconds,
        "grace_remaining_seconds": state.grace_remaining_seconds,
        "last_good_at": now - timedelta(seconds=state.last_good_ago),
        "internal_jobs": None if state.internal_jobs is None else to_json(state.internal_jobs).decode(),
    }
    await sql_operators.put_server(tx, row)
    await sql_operators.add_cycle(tx, cycle.model_dump() | {"at": now, "server_id": process.id})
    if prune:
        since = now - _KEEP_SERVERS
        await sql_operators.prune_servers(
            tx, seen_since=since, cycles_since=now - _KEEP_CYCLES, limit=_MAX_CYCLES
        )


async def leave(tx: Transaction, process: Process) -> None:
    """Delete a server that stops."""
    await sql_operators.remove_server(tx, process.id)


async def entries(tx: Transaction) -> list[ServerEntry]:
    """Return the servers that have reported in the last hour, the oldest first."""
    now = await tx.now()
    servers = []
    for row in await sql_operators.seen_since(tx, now - _KEEP_SERVERS):
        patience = timedelta(seconds=SILENT_SWEEPS * row.sweep_interval_seconds + 1)
        mode = None if row.sweeper_mode is None else SweeperMode(row.sweeper_mode)
        columns = {name: value for name, value in row._asdict().items() if name != "internal_jobs"}
        entry = columns | {"is_silent": row.seen_at < now - patience, "sweeper_mode": mode}
        servers.append(ServerEntry.model_validate(entry))
    return servers


async def history(tx: Transaction, limit: int = _LISTED_CYCLES) -> list[ServerCycle]:
    """Return the last cycles of the sweepers of all servers, newest first."""
    return [ServerCycle.model_validate(row._asdict()) for row in await sql_operators.last_cycles(tx, limit)]


# The release of the server: of the package, of Python, of the database and of its schema.

_NAME = "zndraw-joblib"


async def version(tx: Transaction, build: str | None, *, socketio: bool, page: str | None) -> Version:
    """Return the versions of this process and of its database; `build` is what the operator calls it."""
    of_database = await schema.get(tx)
    return Version(
        version=distribution(_NAME).version,
        build=build or installed_commit(),
        python=platform.python_version(),
        database=of_database.database,
        schema_version=of_database.schema,
        socketio=socketio,
        page=page,
    )


@cache
def installed_commit() -> str | None:
    """Return the commit from which pip has installed the package, None if it was no repository."""
    try:
        origin = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit = origin.get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None
