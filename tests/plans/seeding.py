"""SQL statements that insert a long history, a long backlog, some held tasks and many rooms.

Of 100,000 tasks 60,000 have ended, 38,000 are pending and 2,000 are held. One job has most of the backlog,
one has three tasks at its end, one is internal, one has only a history; there are 20,000 workers.
A third of the tasks is one tree, in which each parent has 333 children; a half has one tag, and all have one
of 500. A quarter is in one group, and another in 2,000 groups. There are 100,000 deliveries to 20,000
webhooks, a half of which is due.
Further 40,000 tasks wait: a half for one task, the others for the one before them, for one that has ended,
and some for a group; 40,000 tasks of the history have waited for one each. These are 102,000 edges.
There are 20,000 schedules and 20,000 tokens.
"""

# ruff: noqa: S608 - all of the SQL is written here

from uuid import UUID

from zndraw_joblib.server.db.tables import metadata

TASKS = 100_000
KEYS = 20_000
WORKERS = 20_000
DELIVERIES, TARGETS = 100_000, 20_000
JOBS = 21
GROUPS = 2_000
SCHEDULES = 20_000
# Those that wait, after all others: the first half for one running task.
WAITING, FAN = 40_000, 61_001
# For each of these ended tasks some wait; the oldest tasks are not among them.
ENDED_FROM, ENDED_TO = 5_001, 6_000
BIG, RARE, IDLE = 0, 19, 20
LAB, QUIET = "lab", "quiet"


def job_id(number: int) -> UUID:
    """Return the id of one of the jobs."""
    return UUID(int=number)


def worker_id(number: int) -> UUID:
    """Return the id of one of the workers."""
    return UUID(int=1_000_000 + number)


def group_id(number: int) -> UUID:
    """Return the id of one of the groups; the first one has a quarter of the tasks."""
    return UUID(int=3_000_000 + number)


def task_id(seq: int) -> UUID:
    """Return the id of one of the tasks."""
    return UUID(int=2_000_000 + seq)


_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})",
    "postgresql": "WITH n(i) AS (SELECT generate_series({first}, {last}))",
}
_UUID = {"sqlite": "printf('%032x', {})", "postgresql": "lpad(to_hex({}), 32, '0')::uuid"}
_TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%S.000000', '2026-01-01', '+' || ({}) || ' seconds')",
    "postgresql": "timestamptz '2026-01-01Z' + ({}) * interval '1 second'",
}
_FALSE, _TRUE = {"sqlite": "0", "postgresql": "false"}, {"sqlite": "1", "postgresql": "true"}
# Those that tasks wait for or have waited for, and those of groups.
_IS_LINKED = f"i >= {ENDED_FROM} AND i <= {ENDED_TO} OR i > 10000 AND i <= 50000 OR i = {FAN} OR i % 4 < 2"

# The first 60 % are history, then held tasks, then pending tasks, as in a real queue.
_STATUS = """
    CASE WHEN i <= 60000 THEN CASE i % 10 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'completed' END
         WHEN i <= 61000 THEN 'claimed' WHEN i <= 62000 THEN 'running' ELSE 'pending' END"""
_JOB = """
    CASE WHEN i > 99997 THEN 19 WHEN i <= 62000 THEN CASE WHEN i % 50 = 0 THEN 20 ELSE i % 19 END
         WHEN i % 20 = 0 THEN 1 + (i / 20) % 18 ELSE 0 END"""
_ROOM = "CASE WHEN i % 5000 = 0 THEN 'quiet' WHEN i % 2 = 0 THEN 'lab' ELSE 'room-' || (i % 300) END"


_WAITS_AT = {"sqlite": "'9999-12-31 23:59:59.500000'", "postgresql": "timestamptz '9999-12-31 23:59:59.5Z'"}


_BY_STATUS = ", ".join(
    f"count(*) FILTER (WHERE status = '{status}')" for status in ("pending", "failed", "cancelled")
)
_JOB_ROOM = "CASE WHEN i = 18 THEN '@internal' ELSE '@global' END"


def _seed(kind: str) -> list[str]:
    uuid, time, false = _UUID[kind], _TIME[kind], _FALSE[kind]

    def numbers(last: int, first: int = 0) -> str:
        return _NUMBERS[kind].format(first=first, last=last)

    seeds = [
        f"""INSERT INTO joblib_job (id, room_id, category, name, schema, created_at, deleted, pending)
            {numbers(JOBS - 1)}
            SELECT {uuid.format("i")}, {_JOB_ROOM}, 'modifiers', 'J' || i, '{{}}', {time.format("i")},
                {false}, 0
            FROM n""",
        f"""INSERT INTO joblib_worker (id, owner_id, created_at, last_heartbeat) {numbers(WORKERS - 1)}
            SELECT {uuid.format("i + 1000000")}, 'owner', {time.format("i")}, {time.format("100000 + i")}
            FROM n""",
        f"""INSERT INTO joblib_worker_job (worker_id, job_id) {numbers(WORKERS - 1)}
            SELECT {uuid.format("i + 1000000")}, {uuid.format(f"i % {JOBS}")} FROM n""",
        f"""INSERT INTO joblib_worker_job (worker_id, job_id) {numbers(JOBS - 1, 1)}
            SELECT {uuid.format("1000000")}, {uuid.format("i")} FROM n""",
        f"""INSERT INTO joblib_task (id, job_id, room_id, status, created_by, payload, created_at, claimed_at,
                started_at, completed_at, worker_id, worker_owner_id, attempt, parent, root, tags, group_id,
                linked)
            {numbers(TASKS, 1)}, t(i, status, job, room) AS (SELECT i, {_STATUS}, {_JOB}, {_ROOM} FROM n)
            SELECT {uuid.format("2000000 + i")}, {uuid.format("job")}, room, status, 'submitter',
                '{{"angle": 3}}', {time.format("i")},
                CASE WHEN status <> 'pending' THEN {time.format("i")} END,
                CASE WHEN status IN ('running', 'completed') THEN {time.format("i")} END,
                CASE WHEN i <= 60000 THEN {time.format("i")} END,
                CASE WHEN status <> 'pending' THEN {uuid.format(f"1000000 + i % {WORKERS}")} END,
                CASE WHEN status <> 'pending' THEN 'owner' END,
                CASE WHEN status <> 'pending' THEN 1 ELSE 0 END,
                CASE WHEN i % 3 = 0 THEN {uuid.format("2000001 + (i / 1000) * 1000")} END,
                CASE WHEN i % 3 = 0 THEN {uuid.format("2000001")} END, '["tag"]',
                CASE i % 4 WHEN 0 THEN {uuid.format("3000000")}
                    WHEN 1 THEN {uuid.format("3000001 + (i / 4) % 2000")} END,
                CASE WHEN {_IS_LINKED} THEN {_TRUE[kind]} END
            FROM t ORDER BY i""",
        f"""INSERT INTO joblib_group (id, room_id, created_by, created_at, sealed, due_at, ended_at)
            {numbers(GROUPS)}
            SELECT {uuid.format("i + 3000000")}, 'room-' || (i % 100), 'submitter', {time.format("i")},
                {false}, CASE WHEN i % 10 = 0 THEN {time.format("i")} END,
                CASE WHEN i % 10 > 0 THEN {time.format("i")} END FROM n""",
        f"""INSERT INTO joblib_group_count {numbers(8 * GROUPS)}
            SELECT {uuid.format("i / 8 + 3000000")}, i % 8, 9, 9, 9, 9 FROM n""",
        """INSERT INTO joblib_task_tag (task_seq, tag, room_id)
            SELECT seq, 'tag-' || (seq % 500), room_id FROM joblib_task
            UNION ALL SELECT seq, 'night', room_id FROM joblib_task WHERE seq % 2 = 0""",
        """UPDATE joblib_job SET pending =
            (SELECT count(*) FROM joblib_task t WHERE t.job_id = joblib_job.id AND t.status = 'pending')""",
        f"""INSERT INTO joblib_idempotency_key (id, fingerprint, created_at, answer) {numbers(KEYS, 1)}
            SELECT {uuid.format("i")}, {uuid.format("i")}, {time.format("i")}, '{{}}' FROM n""",
        """INSERT INTO joblib_room_queue SELECT job_id, room_id, min(lane), min(seq) FROM joblib_task
            WHERE status = 'pending' GROUP BY job_id, room_id""",
        f"""INSERT INTO joblib_room_count SELECT room_id, job_id, 0, count(*), {_BY_STATUS} FROM joblib_task
            GROUP BY room_id, job_id""",
        """INSERT INTO joblib_queue_block SELECT job_id, lane, seq >> 12, count(*) FROM joblib_task
            WHERE status = 'pending' GROUP BY job_id, lane, seq >> 12""",
        """INSERT INTO joblib_attempt_detail (task_seq, attempt, progress, log_last, log_lines, log_bytes)
            SELECT seq, 1, '{}', 3, 3, 2 FROM joblib_task WHERE status <> 'pending'""",
        """INSERT INTO joblib_task_log (task_seq, attempt, first, last, size, lines)
            SELECT seq, 1, 1, 3, 2, '[]' FROM joblib_task WHERE status <> 'pending'""",
        f"""INSERT INTO joblib_webhook (n, webhook_id, room_id, name, owner_id, url, events, created_at,
                updated_at, used_at, failures, due_at, disabled_at) {numbers(TARGETS, 1)}
            SELECT i, {uuid.format("i")}, 'lab', CASE WHEN i <= 100 THEN 'hook-' || i END,
                'owner-' || (i % 50), 'https://example.org', 'task.failed', {time.format("i")},
                {time.format("i")}, {time.format("i")}, CASE WHEN i % 4 = 0 THEN 3 ELSE 0 END,
                CASE WHEN i % 2 = 0 THEN {time.format("i")} END, CASE WHEN i = 99 THEN {time.format("i")} END
            FROM n""",
        f"""INSERT INTO joblib_outbox (webhook_n, room_id, webhook, message, event, task_id, body, created_at,
                ended_at, delivered) {numbers(DELIVERIES, 1)}
            SELECT 1 + i % {TARGETS}, CASE WHEN i % 2 = 0 THEN 'lab' ELSE 'room-' || (i % 300) END,
                CASE WHEN i % {TARGETS} < 100 THEN 'hook-' || (1 + i % {TARGETS}) END, {uuid.format("i")},
                'task.failed', {uuid.format("2000000 + i")}, '{{}}', {time.format("i")},
                CASE WHEN i % 50 <> 0 THEN {time.format("i")} END, i % 10 <> 0
            FROM n""",
        f"""INSERT INTO joblib_task_webhook (task_seq, webhook_n) {numbers(DELIVERIES, 1)}
            SELECT i, 1 + i % {TARGETS} FROM n WHERE i % 20 = 0""",
    ]
    seeds += [*_seed_edges(kind), *_seed_schedules(kind)]
    if kind == "postgresql":
        # The test decides when statistics are made.
        return [f"ALTER TABLE {name} SET (autovacuum_enabled = off)" for name in metadata.tables] + seeds
    return seeds


def _seed_schedules(kind: str) -> list[str]:
    """Return the statements for schedules that have run, and for tokens, of which 200 end next."""
    uuid, time, false = _UUID[kind], _TIME[kind], _FALSE[kind]
    return [
        f"""INSERT INTO joblib_schedule (id, room_id, name, owner_id, job_name, spec, paused, created_at,
                updated_at, anchor_at, next_due_at, last_due_at, last_task_id)
            {_NUMBERS[kind].format(first=1, last=SCHEDULES)}
            SELECT {uuid.format("i")}, 'room-' || (i % 300), 'nightly-' || i, 'submitter',
                '@global:modifiers:J' || (i % {JOBS}), '{{}}', {false}, {time.format("i")},
                {time.format("i")}, {time.format("i")}, {time.format("i + 86400")}, {time.format("i")},
                {uuid.format("2000000 + i")} FROM n""",
        f"""INSERT INTO joblib_token (name, digest, is_superuser, created_at, expires_at)
            {_NUMBERS[kind].format(first=1, last=SCHEDULES)}
            SELECT 'token-' || i, 'digest-' || i, {false}, {time.format("i")},
                CASE WHEN i % 100 = 0 THEN {time.format("i * 1000")} END FROM n""",
    ]


def _seed_edges(kind: str) -> list[str]:
    uuid, time = _UUID[kind], _TIME[kind]

    def numbers(first: int, last: int) -> str:
        return _NUMBERS[kind].format(first=first, last=last)

    begin, middle, end = TASKS + 1, TASKS + WAITING // 2, TASKS + WAITING
    edge = "INSERT INTO joblib_edge (task_seq, source, position, predecessor, status, is_open)"
    is_true, is_false = _TRUE[kind], _FALSE[kind]
    return [
        f"""INSERT INTO joblib_task (id, job_id, room_id, status, created_by, payload, created_at, attempt,
                run_at, linked) {numbers(begin, end)}
            SELECT {uuid.format("2000000 + i")}, {uuid.format("2 + i % 16")}, 'room-' || (i % 300), 'pending',
                'submitter', '{{"angle": 3}}', {time.format("i")}, 0, {_WAITS_AT[kind]},
                CASE WHEN i > {middle} THEN {is_true} END FROM n ORDER BY i""",
        """UPDATE joblib_job SET scheduled = (
            SELECT count(*) FROM joblib_task t WHERE t.job_id = joblib_job.id AND t.run_at IS NOT NULL)""",
        f"""{edge} {numbers(begin, middle)}
            SELECT i, {FAN}, 0, {uuid.format(2_000_000 + FAN)}, NULL, {is_true} FROM n""",
        f"""{edge} {numbers(middle + 1, end)}
            SELECT i, i - 1, 0, {uuid.format("1999999 + i")}, NULL, {is_true} FROM n""",
        f"""{edge} {numbers(middle + 1, end)}
            SELECT i, {ENDED_FROM} + i % 1000, 1, {uuid.format(f"{2_000_000 + ENDED_FROM} + i % 1000")}, NULL,
                {is_true} FROM n""",
        f"""{edge} {numbers(middle + 1, end)}
            SELECT i, -(1 + i % 2000), 2, {uuid.format("3000000 + i % 2000")}, NULL, {is_true} FROM n
            WHERE i % 10 = 0""",
        f"""{edge} {numbers(20_001, 60_000)}
            SELECT i, i - 10000, 0, {uuid.format("1990000 + i")}, 'completed', {is_false} FROM n""",
        f"""INSERT INTO joblib_successor (task_seq, on_failure, fills, released_at)
            SELECT seq, CASE seq % 3 WHEN 0 THEN 'fail' WHEN 1 THEN 'run' ELSE 'hold' END,
                CASE WHEN seq % 2 = 0 THEN {is_true} ELSE {is_false} END,
                CASE WHEN completed_at IS NOT NULL THEN completed_at END
            FROM joblib_task WHERE seq > {TASKS} OR seq > 20000 AND seq <= 60000""",
        f"""INSERT INTO joblib_wave (source, cancels) {numbers(ENDED_FROM, ENDED_TO)}
            SELECT i, CASE WHEN i % 50 = 0 THEN {is_true} ELSE {is_false} END FROM n""",
        f"""INSERT INTO joblib_task_result (task_seq, attempt, content_key, size, content_type, etag,
                expires_at) {numbers(1, 20_000)}
            SELECT i, 1, 'key-' || i, 9, 'text/plain', 'etag', {time.format("i")} FROM n""",
    ]


# ANALYZE of PostgreSQL takes a random sample unless some column wants so many values that it is all rows.
ANALYZE = [
    *(
        f"ALTER TABLE {name} ALTER COLUMN {column} SET STATISTICS 10000"
        for name, column in (
            ("joblib_task", "error"),
            ("joblib_attempt_detail", "failure"),
            ("joblib_task_log", "lines"),
            ("joblib_edge", "status"),
            ("joblib_successor", "on_failure"),
        )
    ),
    "ANALYZE",
]
SEEDS = {kind: _seed(kind) for kind in _NUMBERS}
