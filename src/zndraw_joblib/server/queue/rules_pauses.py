"""Pause jobs, rooms and the whole queue: none of their tasks are claimed until the pause ends.

Claimed and running tasks continue. A pause with an `until` ends then by itself: what reads a pause compares
it with the time. `end_due` deletes it, and wakes the claims that wait.
"""

from datetime import datetime

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import PAUSES_KEY, SCHEDULES_KEY, Identity, job_key
from zndraw_joblib.server.queue import rules_audit, rules_jobs, sql_jobs, sql_pauses, sql_room_queues
from zndraw_joblib.server.queue.sql_pauses import ALL_ROOMS, PauseRecord
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.operators import PauseEntry, PauseState
from zndraw_joblib.wire.problems import Conflict, InvalidRequest

_MAX_ROOMS = 1000


async def pause_job(
    tx: Transaction, caller: Identity, name: JobName, *, paused: bool, until: datetime | None = None
) -> JobResponse:
    """Pause or resume the claims of a job. Raises `JobNotFound`, and `InvalidRequest` for a past time."""
    await _check(tx, until)
    job = await rules_jobs.pause(tx, name, paused=paused, until=until)
    action = "job.pause" if paused else "job.resume"
    await rules_audit.record(tx, caller, action, str(name), name.room_id, _detail(until))
    if until is not None:
        tx.wake(PAUSES_KEY)
    return job


async def pause(
    tx: Transaction, caller: Identity, room_id: str | None, *, until: datetime | None = None
) -> PauseState:
    """Pause a room, or all rooms without one. A pause that exists is replaced.

    Raises `InvalidRequest` for a past time, and `Conflict` if too many rooms are paused.
    """
    await _check(tx, until)
    record = PauseRecord(room_id or ALL_ROOMS, until, await tx.now(), caller.id)
    await sql_pauses.put(tx, record)
    if room_id is not None and await sql_pauses.count(tx) > _MAX_ROOMS:
        raise Conflict(f"{_MAX_ROOMS} rooms are paused, which is the limit: resume some, or pause all rooms")
    action = "rooms.pause" if room_id is None else "room.pause"
    await rules_audit.record(tx, caller, action, room_id or "all rooms", room_id, _detail(until))
    if until is not None:
        tx.wake(PAUSES_KEY)
    return await get(tx, room_id)


async def resume(tx: Transaction, caller: Identity, room_id: str | None) -> PauseState:
    """End the pause of a room, or that of all rooms without one. The pauses of single rooms stay."""
    if await sql_pauses.delete(tx, room_id or ALL_ROOMS):
        await _wake(tx, [room_id or ALL_ROOMS])
    action = "rooms.resume" if room_id is None else "room.resume"
    await rules_audit.record(tx, caller, action, room_id or "all rooms", room_id)
    return await get(tx, room_id)


async def get(tx: Transaction, room_id: str | None) -> PauseState:
    """Return whether a room, or the whole queue, is paused now."""
    pauses = await sql_pauses.of_room(tx, room_id or ALL_ROOMS)
    return PauseState(room=room_id, paused=bool(pauses), pauses=list(map(entry, pauses)))


def entry(pause: PauseRecord) -> PauseEntry:
    """Return a pause as responses contain it."""
    room = None if pause.room_id == ALL_ROOMS else pause.room_id
    return PauseEntry(room=room, until=pause.until, paused_at=pause.paused_at, paused_by=pause.paused_by)


async def end_due(tx: Transaction) -> datetime | None:
    """End the pauses that are over, and wake the claims that wait. Return when the next one ends."""
    now = await tx.now()
    ends = [await sql_jobs.next_end(tx), await sql_pauses.next_end(tx)]
    if any(end is not None and end <= now for end in ends):
        for room_id, queue, pending in await sql_jobs.resume_over(tx):
            rules_jobs.wake_resumed(tx, room_id, queue, pending)
        if rooms := await sql_pauses.delete_over(tx):
            await _wake(tx, rooms)
        ends = [await sql_jobs.next_end(tx), await sql_pauses.next_end(tx)]
    return min((end for end in ends if end is not None), default=None)


async def _wake(tx: Transaction, rooms: list[str]) -> None:
    """Wake the claims of jobs with tasks of these rooms, and the schedules."""
    waiting = await sql_jobs.claimable_counts(tx)
    if ALL_ROOMS not in rooms:
        queued = set(await sql_room_queues.jobs_queued_in(tx, rooms))
        waiting = {name: count for name, count in waiting.items() if name in queued}
    for name, count in waiting.items():
        tx.wake(job_key(name), count)
    tx.wake(SCHEDULES_KEY)


async def _check(tx: Transaction, until: datetime | None) -> None:
    if until is not None and until <= await tx.now():
        text = f"{until.isoformat()} is over; pass a later time, or none to pause until a resume"
        error = {"loc": ["body", "until"], "message": text, "type": "value_error"}
        raise InvalidRequest(f"until: {text}", errors=[error])


def _detail(until: datetime | None) -> dict[str, str] | None:
    return None if until is None else {"until": until.isoformat()}
