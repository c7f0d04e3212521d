"""Counts of workers, jobs and tasks in the database: of all users, and of each.

Each function gets `enough`, and leaves out the users while there is no more than that in all.
"""

from collections.abc import Awaitable, Callable, Mapping

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, TEXT, as_sql, statement
from zndraw_joblib.server.queue.sql_task_rows import IS_SCHEDULED, TASK_IS_QUEUED

Counts = tuple[int, Mapping[str, int] | None]
Count = Callable[[Transaction, int], Awaitable[Counts]]


def _counter(in_all: str, by_user: str) -> Count:
    total = statement(in_all, "number", number=INTEGER)
    users = statement(by_user, "user", "number", user=TEXT, number=INTEGER)

    async def count(tx: Transaction, enough: int) -> Counts:
        number: int = (await tx.execute(total)).scalar_one()
        return number, None if number <= enough else {user: own for user, own in await tx.execute(users)}

    return count


workers = _counter(
    "SELECT count(*) FROM joblib_worker", "SELECT owner_id, count(*) FROM joblib_worker GROUP BY owner_id"
)
providers = _counter(
    "SELECT count(*) FROM joblib_provider", "SELECT owner_id, count(*) FROM joblib_provider GROUP BY owner_id"
)
schedules = _counter(
    "SELECT count(*) FROM joblib_schedule", "SELECT owner_id, count(*) FROM joblib_schedule GROUP BY owner_id"
)
webhooks = _counter(
    "SELECT count(*) FROM joblib_webhook", "SELECT owner_id, count(*) FROM joblib_webhook GROUP BY owner_id"
)
_OPEN_GROUPS = "FROM joblib_group WHERE ended_at IS NULL"
groups = _counter(
    f"SELECT count(*) {_OPEN_GROUPS}", f"SELECT created_by, count(*) {_OPEN_GROUPS} GROUP BY created_by"
)
# A job is one of each user who has a worker of it. One without a worker that stays for its pending tasks is
# one of the users who submitted the first in its queue, or any that are scheduled for later. One that stays
# by its policy is one of the user who registered it last.
_UNSERVED = "NOT EXISTS (SELECT 1 FROM joblib_worker_job link WHERE link.job_id = {})"
jobs = _counter(
    "SELECT count(*) FROM joblib_job WHERE NOT deleted",
    f"""
SELECT owner, count(*) FROM (
    SELECT worker.owner_id AS owner, link.job_id AS job
    FROM joblib_worker_job link JOIN joblib_worker worker ON worker.id = link.worker_id
        JOIN joblib_job job ON job.id = link.job_id AND job.requires IS NULL
    UNION
    SELECT CASE WHEN pending + scheduled = 0 THEN registered_by ELSE (
        SELECT created_by FROM joblib_task
        WHERE joblib_task.job_id >= joblib_job.id AND joblib_task.job_id <= joblib_job.id AND {TASK_IS_QUEUED}
        ORDER BY joblib_task.job_id, lane, seq LIMIT 1
    ) END, joblib_job.id
    FROM joblib_job WHERE NOT deleted AND {_UNSERVED.format("joblib_job.id")}
    UNION
    SELECT created_by, job_id FROM joblib_task
    WHERE {as_sql(IS_SCHEDULED)} AND {_UNSERVED.format("joblib_task.job_id")}
) AS counted WHERE owner IS NOT NULL GROUP BY owner
""",
)
# The kept counts have the number of pending ones. Each half of the union reads a partial index.
pending_tasks = _counter(
    "SELECT coalesce(sum(pending), 0) FROM joblib_room_count",
    f"""
SELECT created_by, sum(number) FROM (
    SELECT created_by, count(*) AS number FROM joblib_task WHERE {TASK_IS_QUEUED} GROUP BY created_by
    UNION ALL
    SELECT created_by, count(*) FROM joblib_task WHERE {as_sql(IS_SCHEDULED)} GROUP BY created_by
) AS counted GROUP BY created_by
""",
)
