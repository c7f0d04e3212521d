"""The invariants of the database, in plain SQL that is independent of the code under test."""

import asyncio
import sqlite3

import asyncpg

INVARIANTS = {
    "a held task has no worker": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE t.status IN ('claimed', 'running') AND j.room_id <> '@internal'
          AND NOT EXISTS (SELECT 1 FROM joblib_worker w WHERE w.id = t.worker_id)""",
    "completed_at is set for a task that has not ended, or missing for one that has": """
        SELECT count(*) FROM joblib_task
        WHERE (completed_at IS NOT NULL) <> (status IN ('completed', 'failed', 'cancelled'))""",
    "a count of queued tasks is wrong": """
        SELECT count(*) FROM joblib_job j WHERE j.pending <>
          (SELECT count(*) FROM joblib_task t
           WHERE t.job_id = j.id AND t.status = 'pending' AND t.run_at IS NULL)""",
    "a queued task has no room queue, or is before the first place of it": """
        SELECT count(*) FROM joblib_task t
        WHERE t.status = 'pending' AND t.run_at IS NULL AND NOT EXISTS (
          SELECT 1 FROM joblib_room_queue q WHERE q.job_id = t.job_id AND q.room_id = t.room_id
            AND (q.lane, q.seq) <= (t.lane, t.seq))""",
    "a count of the tasks of a room is wrong": """
        SELECT count(*) FROM (
          SELECT 1 FROM (
            SELECT room_id, job_id, 1 AS n, CASE WHEN status = 'pending' THEN 1 ELSE 0 END AS p,
              CASE WHEN status = 'failed' THEN 1 ELSE 0 END AS f,
              CASE WHEN status = 'cancelled' THEN 1 ELSE 0 END AS c FROM joblib_task
            UNION ALL
            SELECT room_id, job_id, -total, -pending, -failed, -cancelled FROM joblib_room_count) x
          GROUP BY room_id, job_id HAVING sum(n) <> 0 OR sum(p) <> 0 OR sum(f) <> 0 OR sum(c) <> 0) y""",
    "a count of the queued tasks of a block is wrong": """
        SELECT count(*) FROM (
          SELECT 1 FROM (
            SELECT job_id, lane, seq >> 12 AS block, 1 AS n FROM joblib_task
            WHERE status = 'pending' AND run_at IS NULL
            UNION ALL SELECT job_id, lane, block, -queued FROM joblib_queue_block) x
          GROUP BY job_id, lane, block HAVING sum(n) <> 0) y""",
    "a count of scheduled tasks is wrong": """
        SELECT count(*) FROM joblib_job j WHERE j.scheduled <>
          (SELECT count(*) FROM joblib_task t
           WHERE t.job_id = j.id AND t.status = 'pending' AND t.run_at IS NOT NULL)""",
    "a delivery waits for a webhook that no server looks at": """
        SELECT count(*) FROM joblib_webhook w WHERE w.due_at IS NULL AND EXISTS (
          SELECT 1 FROM joblib_outbox o WHERE o.webhook_n = w.n AND o.ended_at IS NULL)""",
    "a room with webhooks is not watched, or one without is": """
        SELECT count(*) FROM (
          SELECT 1 FROM (
            SELECT DISTINCT room_id, 1 AS n FROM joblib_webhook WHERE name IS NOT NULL AND disabled_at IS NULL
            UNION ALL SELECT room_id, -1 FROM joblib_room_stream WHERE webhook_events IS NOT NULL) x
          GROUP BY room_id HAVING sum(n) <> 0) y""",
    "a worker is linked to a soft-deleted job": """
        SELECT count(*) FROM (
          SELECT job_id FROM joblib_worker_job UNION ALL SELECT job_id FROM joblib_unfit_worker
        ) l JOIN joblib_job j ON j.id = l.job_id
        WHERE j.deleted AND NOT EXISTS (
          SELECT 1 FROM joblib_job c WHERE c.full_name = j.full_name AND NOT c.deleted)""",
    "a soft-deleted job has a pending task": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE j.deleted AND t.status = 'pending' AND NOT EXISTS (
          SELECT 1 FROM joblib_job c WHERE c.full_name = j.full_name AND NOT c.deleted)""",
    "a job has not exactly one current version": """
        SELECT count(*) FROM (
          SELECT 1 FROM joblib_job GROUP BY full_name
          HAVING sum(CASE WHEN superseded THEN 0 ELSE 1 END) <> 1) y""",
    "a superseded version does not count as deleted": """
        SELECT count(*) FROM joblib_job WHERE superseded AND NOT deleted""",
    "a remote job without workers and pending tasks is not soft-deleted": """
        SELECT count(*) FROM joblib_job j
        WHERE NOT j.deleted AND j.room_id <> '@internal' AND NOT EXISTS (
            SELECT 1 FROM joblib_job v WHERE v.full_name = j.full_name AND v.pending + v.scheduled > 0)
          AND coalesce(without_workers, 'forget') = 'forget'
          AND NOT EXISTS (
            SELECT 1 FROM (
              SELECT job_id FROM joblib_worker_job UNION ALL SELECT job_id FROM joblib_unfit_worker
            ) l JOIN joblib_job v ON v.id = l.job_id
            WHERE v.full_name = j.full_name)""",
    "a time without workers is recorded of a job with one, or missing of a remote job without": """
        SELECT count(*) FROM joblib_job j
        WHERE NOT deleted AND room_id <> '@internal' AND (unserved_since IS NULL) <> EXISTS (
            SELECT 1 FROM (
              SELECT job_id FROM joblib_worker_job UNION ALL SELECT job_id FROM joblib_unfit_worker
            ) l JOIN joblib_job v ON v.id = l.job_id
            WHERE v.full_name = j.full_name
        )""",
    "the active worker of a provider is not its newest one": """
        SELECT count(*) FROM joblib_provider p WHERE NOT EXISTS (
          SELECT 1 FROM joblib_provider_worker l WHERE l.provider_id = p.id AND l.worker_id = p.worker_id
            AND l.n = (SELECT max(n) FROM joblib_provider_worker m WHERE m.provider_id = p.id))""",
    "a claimed task has no attempt number": """
        SELECT count(*) FROM joblib_task WHERE claimed_at IS NOT NULL AND attempt < 1""",
    "a pending task has a holder": """
        SELECT count(*) FROM joblib_task
        WHERE status = 'pending'
          AND (worker_id IS NOT NULL OR started_at IS NOT NULL OR claimed_at IS NOT NULL
               OR claim_id IS NOT NULL)""",
    "a tag has no task, or another room than its task": """
        SELECT count(*) FROM joblib_task_tag g WHERE NOT EXISTS (
          SELECT 1 FROM joblib_task t
          WHERE t.seq = g.task_seq AND t.room_id = g.room_id AND t.tags IS NOT NULL)""",
    "a task has tags without rows": """
        SELECT count(*) FROM joblib_task t WHERE t.tags IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM joblib_task_tag g WHERE g.task_seq = t.seq)""",
    "a task is older than its parent, or of another tree or room": """
        SELECT count(*) FROM joblib_task t JOIN joblib_task p ON p.id = t.parent
        WHERE t.seq < p.seq OR t.root <> coalesce(p.root, p.id) OR t.room_id <> p.room_id""",
    "a task that is not held has a deadline": """
        SELECT count(*) FROM joblib_task
        WHERE deadline IS NOT NULL AND status NOT IN ('claimed', 'running')""",
    "a task that is not pending is scheduled": """
        SELECT count(*) FROM joblib_task WHERE run_at IS NOT NULL AND status <> 'pending'""",
    "a pending task has a priority, but its job is not marked as having priorities": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE t.lane <> 0 AND t.status = 'pending' AND NOT j.has_lanes""",
    "a task that is not held holds a slot of a limit": """
        SELECT count(*) FROM joblib_limit_slot s WHERE NOT freed AND NOT EXISTS (
          SELECT 1 FROM joblib_task t WHERE t.seq = s.task_seq AND t.status IN ('claimed', 'running'))""",
    "a queued task of a job with limits has no queue, or is before the first place of it": """
        SELECT count(*) FROM joblib_task t JOIN joblib_job j ON j.id = t.job_id
        WHERE j.limits IS NOT NULL AND t.status = 'pending' AND t.run_at IS NULL AND NOT EXISTS (
          SELECT 1 FROM joblib_limit_queue q WHERE q.job_id = t.job_id AND q.room_id = t.room_id
            AND q.limit_key = coalesce(t.limit_key, '-') AND (q.lane, q.seq) <= (t.lane, t.seq))""",
    "a limit blocks tasks of a job that does not wait for it": """
        SELECT count(*) FROM joblib_limit_queue q WHERE blocked_by IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM joblib_limit_wait w WHERE w.job_id = q.job_id AND w.bucket_id = q.blocked_by)""",
    "a job has more held tasks than max_in_flight": """
        SELECT count(*) FROM joblib_job j WHERE j.max_in_flight <
          (SELECT count(*) FROM joblib_task t
           WHERE t.job_id = j.id AND t.status IN ('claimed', 'running'))""",
    "two held tasks of the same claim id were claimed one after the other": """
        SELECT count(*) FROM joblib_task a JOIN joblib_task b
          ON a.worker_id = b.worker_id AND a.claim_id = b.claim_id AND a.claimed_at <> b.claimed_at
        WHERE a.status IN ('claimed', 'running') AND b.status IN ('claimed', 'running')""",
    "a count of the open tasks of a group is wrong": """
        SELECT count(*) FROM joblib_group g WHERE
          (SELECT coalesce(sum(open), 0) FROM joblib_group_count c WHERE c.group_id = g.id) <>
          (SELECT count(*) FROM joblib_task t WHERE t.group_id = g.id AND t.completed_at IS NULL)""",
    "a share of the open tasks of a group is negative": """
        SELECT count(*) FROM joblib_group_count WHERE open < 0""",
    "a sealed group without open tasks has not ended, or an open one has": """
        SELECT count(*) FROM joblib_group g WHERE sealed AND ended_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM joblib_task t WHERE t.group_id = g.id AND t.completed_at IS NULL)
          OR ended_at IS NOT NULL AND NOT sealed""",
    "a group has no tasks, although its end was not delivered": """
        SELECT count(*) FROM joblib_group g WHERE ended_at IS NULL AND
          (SELECT coalesce(sum(open + completed + failed + cancelled), 0)
           FROM joblib_group_count c WHERE c.group_id = g.id) <>
          (SELECT count(*) FROM joblib_task t WHERE t.group_id = g.id)""",
    "a task waits for no predecessor": """
        SELECT count(*) FROM joblib_task t
        WHERE t.status = 'pending' AND t.run_at > '9999-12-31 23:59:59.4+00'
          AND NOT EXISTS (SELECT 1 FROM joblib_edge e WHERE e.task_seq = t.seq AND e.is_open)""",
    "a task runs before its predecessors have ended": """
        SELECT count(*) FROM joblib_successor s JOIN joblib_task t ON t.seq = s.task_seq
        WHERE s.released_at IS NULL AND (t.started_at IS NOT NULL
          OR t.status = 'pending' AND (t.run_at IS NULL OR t.run_at < '9999-12-31 23:59:59.4+00'))""",
    "a predecessor is not linked, or was deleted while a task waited for it": """
        SELECT count(*) FROM joblib_edge e JOIN joblib_task s ON s.seq = e.task_seq AND s.completed_at IS NULL
        LEFT JOIN joblib_task t ON t.seq = e.source WHERE e.source > 0 AND t.linked IS NULL""",
    "a predecessor has ended, and nothing will release the task that waits for it": """
        SELECT count(*) FROM joblib_edge e JOIN joblib_task t ON t.seq = e.source
        WHERE e.is_open AND t.completed_at IS NOT NULL AND (e.status IS NULL OR t.status = 'completed')
          AND NOT EXISTS (SELECT 1 FROM joblib_wave w WHERE w.source = e.source)""",
    "a stored attempt has a higher number than its task": """
        SELECT count(*) FROM joblib_attempt a
        WHERE NOT EXISTS (SELECT 1 FROM joblib_task t WHERE t.seq = a.task_seq AND t.attempt >= a.attempt)""",
}
_ALL = "SELECT " + ", ".join(f"({sql})" for sql in INVARIANTS.values())


def broken_invariants(url: str) -> list[str]:
    """Return the violated invariants of a database, each with its number of rows."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        counts = connection.execute(_ALL).fetchone()
        connection.close()
    else:
        counts = asyncio.run(_counts(url))
    return [f"{fault} ({count})" for fault, count in zip(INVARIANTS, counts, strict=True) if count]


async def _counts(url: str) -> list[int]:
    connection = await asyncpg.connect(url)
    counts: list[int] = list(await connection.fetchrow(_ALL))
    await connection.close()
    return counts
