"""What must hold in every database at any time, asked in plain SQL and apart from the code under test."""

from sqlalchemy import text

from zndraw_joblib.server.store.engine import open_engine

FAULTS = {
    "a task is held without a living worker": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE t.status IN ('claimed', 'running') AND j.room_id <> '@internal'
          AND NOT EXISTS (SELECT 1 FROM joblib_worker w WHERE w.id = t.worker_id)""",
    "completed_at is set where the task has not ended, or missing where it has": """
        SELECT count(*) FROM joblib_task
        WHERE (completed_at IS NOT NULL) <> (status IN ('completed', 'failed', 'cancelled'))""",
    "a job's count of pending tasks is wrong": """
        SELECT count(*) FROM joblib_job j WHERE j.pending <>
          (SELECT count(*) FROM joblib_task t WHERE t.job_id = j.id AND t.status = 'pending')""",
    "a worker is linked to a hidden job": """
        SELECT count(*) FROM joblib_worker_job l JOIN joblib_job j ON j.id = l.job_id WHERE j.deleted""",
    "a task is pending on a hidden job": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE j.deleted AND t.status = 'pending'""",
    "a remote job is shown that has no worker and no pending task": """
        SELECT count(*) FROM joblib_job j
        WHERE NOT j.deleted AND j.room_id <> '@internal' AND j.pending = 0
          AND NOT EXISTS (SELECT 1 FROM joblib_worker_job l WHERE l.job_id = j.id)""",
    "a claim handed out no attempt token": """
        SELECT count(*) FROM joblib_task WHERE claimed_at IS NOT NULL AND attempt < 1""",
    "a pending task has a holder": """
        SELECT count(*) FROM joblib_task
        WHERE status = 'pending' AND (worker_id IS NOT NULL OR started_at IS NOT NULL)""",
}


async def faults(url: str) -> list[str]:
    """Return the sentences that are true of a database and must not be."""
    engine = open_engine(url)
    try:
        async with engine.connect() as connection:
            counts = {
                fault: (await connection.execute(text(sql))).scalar_one() for fault, sql in FAULTS.items()
            }
    finally:
        await engine.dispose()
    return [f"{fault} ({count})" for fault, count in counts.items() if count]
