"""Server processes as they report themselves with each cycle of their sweepers."""

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import SweeperCycle, SweeperMode
from zndraw_joblib.contract.operations import ServerCycle, ServerEntry
from zndraw_joblib.server.store import servers as store
from zndraw_joblib.server.store.database import Transaction

# A server is silent when its sweeper has not reported for this many intervals.
_SILENT_SWEEPS = 3
_KEEP_SERVERS = timedelta(hours=1)
_KEEP_CYCLES = timedelta(days=7)
_MOST_CYCLES = 10_000
_LISTED_CYCLES = 100


class Process(NamedTuple):
    """A server process."""

    id: UUID
    host: str
    pid: int
    version: str


class Report(NamedTuple):
    """What a server reports of itself after a cycle of its sweeper. Times are ago, in seconds."""

    started_ago: float
    last_good_ago: float
    grace_remaining_seconds: float
    sweep_interval_seconds: float


async def report(
    tx: Transaction, process: Process, state: Report, cycle: SweeperCycle, *, prune: bool
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
    }
    await store.put(tx, row)
    await store.add_cycle(tx, cycle.model_dump() | {"at": now, "server_id": process.id})
    if prune:
        since = now - _KEEP_SERVERS
        await store.prune(tx, seen_since=since, cycles_since=now - _KEEP_CYCLES, most=_MOST_CYCLES)


async def leave(tx: Transaction, process: Process) -> None:
    """Delete a server that stops."""
    await store.remove(tx, process.id)


async def entries(tx: Transaction) -> list[ServerEntry]:
    """Return the servers that have reported in the last hour, the oldest first."""
    now = await tx.now()
    found = []
    for row in await store.seen_since(tx, now - _KEEP_SERVERS):
        patience = timedelta(seconds=_SILENT_SWEEPS * row.sweep_interval_seconds + 1)
        mode = None if row.sweeper_mode is None else SweeperMode(row.sweeper_mode)
        entry = row._asdict() | {"is_silent": row.seen_at < now - patience, "sweeper_mode": mode}
        found.append(ServerEntry.model_validate(entry))
    return found


async def history(tx: Transaction, limit: int = _LISTED_CYCLES) -> list[ServerCycle]:
    """Return the last cycles of the sweepers of all servers, newest first."""
    return [ServerCycle.model_validate(row._asdict()) for row in await store.last_cycles(tx, limit)]
