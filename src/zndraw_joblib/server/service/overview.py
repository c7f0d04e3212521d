"""The state of the whole queue, or of a room, with what is wrong first. Reading it scans no tasks."""

from datetime import datetime, timedelta

from zndraw_joblib.contract.names import INTERNAL
from zndraw_joblib.contract.operations import Finding, JobEntry, Overview, RoomOverview, WorkerState
from zndraw_joblib.contract.searches import StatusCounts
from zndraw_joblib.contract.statistics import HOUR, MINUTE
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.service import findings, job_list, servers
from zndraw_joblib.server.store import job_list as job_list_store
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import statistic_position, statistics, worker_list
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.job_list import QueuedJob
from zndraw_joblib.server.store.statistics import ALL_JOBS
from zndraw_joblib.server.store.tasks import heads, kept
from zndraw_joblib.server.store.tasks.heads import WaitingTask

_SILENT_HEARTBEATS = 2
_RECENT = timedelta(minutes=15)
_LISTED_JOBS = 50
_ROOM_JOBS = 200


async def read(tx: Transaction, heartbeat_seconds: float) -> Overview:
    """Return the state of the queue. Call it in a snapshot: it has sums of several tables."""
    now = await tx.now()
    totals, waiting = await job_list_store.totals(tx), await heads.of_queues(tx)
    silent_since = now - timedelta(seconds=_SILENT_HEARTBEATS * heartbeat_seconds)
    groups = await worker_list.by_state(tx, silent_since)
    listed = await servers.entries(tx)
    last = await servers.history(tx, 1)
    found = [
        *await _of_jobs(tx, waiting, now),
        *findings.silent_workers(groups[WorkerState.SILENT]),
        *findings.sweepers(listed, held_back=bool(last) and last[0].held_back),
    ]
    since = now - timedelta(seconds=HOUR)
    return Overview(
        at=now,
        findings=findings.ordered(found),
        counts=await kept.of_all(tx),
        queued=totals.queued,
        scheduled=totals.scheduled,
        oldest_waiting_at=min((task.since for task in waiting), default=None),
        jobs=totals.jobs,
        paused_jobs=totals.paused,
        workers={state: group.workers for state, group in groups.items()},
        slots=sum(group.slots for group in groups.values()),
        slots_used=sum(group.running for group in groups.values()),
        servers=listed,
        recent=await statistics.read(tx, MINUTE, ALL_JOBS, since, now),
        statistics_until=await statistic_position.read_until(tx),
    )


async def _of_jobs(tx: Transaction, waiting: list[WaitingTask], now: datetime) -> list[Finding]:
    unserved = await job_list_store.unserved(tx, _LISTED_JOBS)
    paused = await job_list_store.paused(tx, _LISTED_JOBS)
    found = [findings.unserved(job) for job in unserved]
    found += [findings.paused(job) for job in paused]
    # The longest wait of each job, unless it is known why it waits.
    explained = {job.id for job in (*unserved, *paused)}
    longest: dict[str, WaitingTask] = {}
    for task in sorted(waiting, key=lambda task: task.since):
        if task.job_id not in explained:
            longest.setdefault(task.job, task)
    for task in longest.values():
        if (late := findings.waiting(task, now)) is not None:
            found.append(late)
    since = (now - _RECENT).replace(second=0, microsecond=0)
    for ends in await statistics.ends(tx, since):
        found += findings.failing(ends, since)
    return found


async def read_room(tx: Transaction, room_id: str) -> RoomOverview:
    """Return the state of a room, with nothing about tasks of other rooms. Call it in a snapshot."""
    now = await tx.now()
    jobs, _ = await job_store.page(tx, room_id, Page(_ROOM_JOBS, 0))
    counts = await kept.of_jobs_in_room(tx, room_id)
    services = await worker_list.services(tx, [job.id for job in jobs]) if jobs else {}
    oldest = (await heads.oldest_of_rooms(tx, [room_id])).get(room_id)
    entries = []
    for job in jobs:
        of_job = counts.get(job.id, kept.NO_COUNTS)  # its pending tasks count as queued
        entries.append(job_list.entry(job, services.get(job.id), of_job, queued=of_job.pending))
    total = StatusCounts()
    for each in counts.values():
        for name, number in each:
            setattr(total, name, getattr(total, name) + number)
    return RoomOverview(
        at=now,
        room=room_id,
        findings=findings.ordered(_of_room(entries)),
        counts=total,
        jobs=entries,
        oldest_waiting_at=oldest,
    )


def _of_room(entries: list[JobEntry]) -> list[Finding]:
    found = []
    for entry in entries:
        job = QueuedJob(entry.id, entry.full_name, entry.queued)
        if entry.queued and not entry.workers and entry.room_id != INTERNAL:
            found.append(findings.unserved(job))
        if entry.queued and entry.paused:
            found.append(findings.paused(job))
    return found
