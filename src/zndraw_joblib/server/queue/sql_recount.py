"""Compare the kept counts with the tasks and their results, and correct them, also while servers run.

Each statement sees one snapshot, in which every task is counted once. So a difference is an error, and adding
it to the counts stays right whatever other transactions add meanwhile.
"""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.errors import is_retriable
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.queue.sql_counts import ADD_TO_BLOCK, ADD_TO_ROOM, BLOCK_BITS, PRUNED
from zndraw_joblib.server.queue.sql_results import RESULT_BYTES
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_PENDING, TASK_IS_QUEUED
from zndraw_joblib.wire.statuses import TaskStatus

_MAX_LISTED = 100
_ATTEMPTS = 10
# Distinguishes the lock of a repair from those of other applications on the same database.
_REPAIR_LOCK = 7318450926617730145
# What must be added to the counts, where that is not 0.
_ROOMS = f"""
SELECT room_id, job_id,
    sum(total) AS total, sum(pending) AS pending, sum(failed) AS failed, sum(cancelled) AS cancelled
FROM (
    SELECT room_id, job_id, count(*) AS total,
        count(*) FILTER (WHERE status = '{TaskStatus.PENDING}') AS pending,
        count(*) FILTER (WHERE status = '{TaskStatus.FAILED}') AS failed,
        count(*) FILTER (WHERE status = '{TaskStatus.CANCELLED}') AS cancelled
    FROM joblib_task GROUP BY room_id, job_id
    UNION ALL
    SELECT room_id, job_id, -total, -pending, -failed, -cancelled FROM joblib_room_count
) AS numbers
GROUP BY room_id, job_id
HAVING sum(total) <> 0 OR sum(pending) <> 0 OR sum(failed) <> 0 OR sum(cancelled) <> 0
"""
_BLOCKS = f"""
SELECT job_id, lane, block, sum(queued) AS queued
FROM (
    SELECT job_id, lane, seq >> {BLOCK_BITS} AS block, count(*) AS queued
    FROM joblib_task WHERE {TASK_IS_QUEUED} GROUP BY job_id, lane, seq >> {BLOCK_BITS}
    UNION ALL
    SELECT job_id, lane, block, -queued FROM joblib_queue_block
) AS numbers
GROUP BY job_id, lane, block
HAVING sum(queued) <> 0
"""
_JOBS = f"""
SELECT job_id, sum(queued) AS queued, sum(scheduled) AS scheduled
FROM (
    SELECT job_id, count(*) FILTER (WHERE run_at IS NULL) AS queued,
        count(*) FILTER (WHERE run_at IS NOT NULL) AS scheduled
    FROM joblib_task WHERE {TASK_IS_PENDING} GROUP BY job_id
    UNION ALL
    SELECT id, -pending, -scheduled FROM joblib_job
) AS numbers
GROUP BY job_id
HAVING sum(queued) <> 0 OR sum(scheduled) <> 0
"""
_USERS = f"""
SELECT user_id, sum(size) AS size
FROM (
    SELECT user_id, sum(size + {RESULT_BYTES}) AS size
    FROM joblib_task_result WHERE user_id IS NOT NULL AND content_key IS NOT NULL GROUP BY user_id
    UNION ALL
    SELECT user_id, -size FROM joblib_task_result_share
) AS numbers
GROUP BY user_id
HAVING sum(size) <> 0
"""
_TASKS = """
SELECT joblib_task.seq, attempts.number - joblib_task.unstarted AS unstarted
FROM joblib_task JOIN (
    SELECT task_seq, count(*) AS number
    FROM joblib_attempt WHERE claimed_at IS NOT NULL AND started_at IS NULL GROUP BY task_seq
) AS attempts ON attempts.task_seq = joblib_task.seq
WHERE attempts.number > joblib_task.unstarted
"""
_DIFFERENCES = {
    "room": (_ROOMS, "room_id", "job_id", "total", "pending", "failed", "cancelled"),
    "block of a queue": (_BLOCKS, "job_id", "lane", "block", "queued"),
    "job": (_JOBS, "job_id", "queued", "scheduled"),
    "user": (_USERS, "user_id", "size"),
    "task": (_TASKS, "seq", "unstarted"),
}
_REPAIRS = (
    [
        f"""
UPDATE joblib_job SET
    pending = joblib_job.pending + off.queued,
    scheduled = joblib_job.scheduled + off.scheduled
FROM ({_JOBS}) AS off WHERE joblib_job.id = off.job_id
"""
    ],
    [
        f"""
INSERT INTO joblib_queue_block (job_id, lane, block, queued)
{_BLOCKS}
ORDER BY job_id, lane, block
{ADD_TO_BLOCK}
"""
    ],
    [
        f"""
INSERT INTO joblib_room_count (room_id, job_id, total, pending, failed, cancelled, part)
SELECT off.*, {PRUNED} FROM ({_ROOMS}) AS off
ORDER BY room_id, job_id
{ADD_TO_ROOM}
"""
    ],
    [
        # An INSERT checks that the size is not negative, also where it adds to an existing one.
        f"""
INSERT INTO joblib_task_result_share (user_id, size)
SELECT user_id, 0 FROM ({_USERS}) AS off WHERE true ORDER BY user_id
ON CONFLICT DO NOTHING
""",
        f"""
UPDATE joblib_task_result_share SET size = joblib_task_result_share.size + off.size
FROM ({_USERS}) AS off WHERE joblib_task_result_share.user_id = off.user_id
""",
        "DELETE FROM joblib_task_result_share WHERE size = 0",
    ],
    [
        f"""
UPDATE joblib_task SET unstarted = joblib_task.unstarted + off.unstarted
FROM ({_TASKS}) AS off WHERE joblib_task.seq = off.seq
"""
    ],
)


def wrong(connection: Connection) -> list[str]:
    """Return what is missing in each wrong count, at most a hundred of each kind."""
    lines = []
    for kind, (differences, *columns) in _DIFFERENCES.items():
        for row in connection.execute(statement(f"{differences} LIMIT {_MAX_LISTED}", *columns)):
            values = ", ".join(f"{name}={value}" for name, value in row._mapping.items())
            lines.append(f"{kind}: {values}")
    return lines


async def repair(database: Database) -> None:
    """Correct all counts.

    Each kind has a transaction of its own, because every writer locks jobs before the other counts. A
    transaction runs again after a deadlock with a writer that locks its rows in another order.
    """
    for repairs in _REPAIRS:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await database.run_sync(partial(_repair, repairs=repairs))
                break
            except DBAPIError as error:
                if not is_retriable(error) or attempt == _ATTEMPTS:
                    raise


def _repair(connection: Connection, repairs: Sequence[str]) -> None:
    """Correct counts after any other repair has committed: two would both add the same difference.

    On SQLite a statement that writes sees no state before the last commit.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(statement(f"SELECT pg_advisory_xact_lock({_REPAIR_LOCK})"))
    for sql in repairs:
        connection.execute(statement(sql))
