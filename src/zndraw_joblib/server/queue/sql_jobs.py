"""Jobs: named functions with a JSON Schema."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.bulk import MAX_LISTED_SCHEMA, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, INTEGER, UUID_TYPE, statement
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import sql_pauses
from zndraw_joblib.server.queue.sql_pauses import HAS_PAUSES, is_job_paused, is_room_paused
from zndraw_joblib.wire.masks import joined_paths, masked_paths
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, RESERVED, JobName
from zndraw_joblib.wire.operators import HOUR, MINUTE
from zndraw_joblib.wire.policy import JobPolicy, Keep, WithoutWorkers
from zndraw_joblib.wire.statuses import HELD


@lru_cache(maxsize=4096)
def policy_of(stored: str | None, without_workers: str | None = None) -> JobPolicy:
    """Return a job's policy from the text in its column `policy`, and from its column `without_workers`."""
    policy = JobPolicy() if stored is None else JobPolicy.model_validate_json(stored)
    if without_workers is None:
        return policy
    return policy.model_copy(update={"without_workers": WithoutWorkers(without_workers)})


# The cost that a submit gives comes first in the text of the requirements of its queue.
OWN_COST = "@cost"


def cost_of(policy: JobPolicy, requires: str | None) -> int:
    """Return how many slots of its worker a task of a queue takes."""
    if requires is None or not requires.startswith(f'{{"{OWN_COST}":'):
        return policy.cost
    own: int = from_json(requires)[OWN_COST]
    return max(policy.cost, own)


def stored_cost(policy: JobPolicy, requires: str | None) -> int | None:
    """Return the cost of a queue as its row has it: None for one slot."""
    cost = cost_of(policy, requires)
    return cost if cost > 1 else None


class JobRecord(NamedTuple):
    """A version of a job, or one of its queues. `stored_policy` is the policy as JSON, None for the default.

    A queue for tasks with requirements of their own has these as JSON in `requires`. `masked` has the paths
    to the secret values of payloads, see `wire.masks`.
    """

    id: UUID
    room_id: str
    category: str
    short_name: str
    schema: dict[str, Any]
    created_at: datetime
    deleted: bool
    pending: int
    scheduled: int
    paused: bool
    has_lanes: bool
    stored_policy: str | None
    max_in_flight: int | None
    limits: str | None
    without_workers: str | None
    unserved_since: datetime | None
    registered_by: str | None
    paused_until: datetime | None
    job_version: int
    first_id: UUID | None
    superseded: bool
    requires: str | None
    cost: int | None
    masked: str | None

    def is_paused(self, now: datetime) -> bool:
        """Return whether the job is paused at a time."""
        return self.paused and (self.paused_until is None or self.paused_until > now)

    @property
    def stable_id(self) -> UUID:
        """The id of the job, which is that of its first version."""
        return self.first_id or self.id

    @property
    def name(self) -> JobName:
        """The job's full name."""
        return JobName(self.room_id, self.category, self.short_name)

    @property
    def policy(self) -> JobPolicy:
        """The job's policy."""
        return policy_of(self.stored_policy, self.without_workers)


# Sorts before all ids, and is none.
FIRST = UUID(int=0)


class CountChange(NamedTuple):
    """By how many tasks a job's counts grow: those in its queue, and those scheduled for later."""

    queued: int
    later: int


# The columns of a `JobRecord`.
COLUMNS = (
    *(
        "id",
        "room_id",
        "category",
        "name",
        "schema",
        "created_at",
        "deleted",
        "pending",
        "scheduled",
        "paused",
    ),
    *("has_lanes", "policy", "max_in_flight", "limits", "without_workers", "unserved_since", "registered_by"),
    *("paused_until", "job_version", "first_id", "superseded", "requires", "cost", "masked"),
)
# The name of a version's queue, by which claims wait.
QUEUE_NAME = """joblib_job.full_name || CASE WHEN joblib_job.job_version = 1 THEN ''
        ELSE '#' || CAST(joblib_job.job_version AS text) END"""
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM joblib_job"
_BY_NAME_WITH_DELETED = statement(f"{_SELECT} WHERE full_name = :full_name AND NOT superseded", *COLUMNS)
_BY_NAME = statement(f"{_SELECT} WHERE full_name = :full_name AND NOT deleted", *COLUMNS)
_BY_NAMES = statement(
    f"""
SELECT {", ".join(COLUMNS)}, {HAS_PAUSES} FROM joblib_job
WHERE full_name = ANY (:all_full_name) AND NOT deleted ORDER BY id
""",
    *(*COLUMNS, "has_pauses"),
    has_pauses=BOOLEAN,
)
_LOCK_NAMED = statement(
    f"""
SELECT {", ".join(COLUMNS)}, CURRENT_TIMESTAMP
FROM joblib_job WHERE full_name = ANY (:all_full_name) AND NOT deleted
ORDER BY id
FOR NO KEY UPDATE
""",
    *(*COLUMNS, "now"),
)
_LOCK_NAMED_WITH_DELETED = statement(
    """
SELECT id FROM joblib_job WHERE full_name = ANY (:all_full_name) AND NOT superseded
ORDER BY id
FOR NO KEY UPDATE
""",
    "id",
)
_ADD = statement(
    """
INSERT INTO joblib_job (
    id, room_id, category, name, schema, masked, created_at, policy, max_in_flight, limits, cost,
    without_workers, keep, registered_by,
    deleted, pending, scheduled, paused, has_lanes, fair_round, fair_room
) VALUES (
    :id, :room_id, :category, :name, :schema, :masked, :created_at, :policy, :max_in_flight, :limits, :cost,
    :without_workers, :keep, :registered_by,
    false, 0, 0, false, false, 0, ''
)
ON CONFLICT DO NOTHING
RETURNING id
""",
    "id",
)
_LOCK_ADDED = statement(f"{_SELECT} WHERE full_name = :full_name AND NOT superseded\nFOR UPDATE", *COLUMNS)
_COUNT_ACTIVE = statement(
    """
SELECT count(*) FROM (
    SELECT id FROM joblib_job WHERE room_id = :room_id AND NOT deleted LIMIT :limit
) AS active
""",
    "number",
)
# Conditions on all versions of a job.
# A worker that lacks labels which the job requires is a worker of it too: new labels, or another policy, let
# it serve the job without a registration.
_IS_UNSERVED = """NOT EXISTS (
        SELECT 1 FROM joblib_job AS version JOIN joblib_worker_job ON joblib_worker_job.job_id = version.id
        WHERE version.full_name = joblib_job.full_name
    ) AND NOT EXISTS (
        SELECT 1 FROM joblib_job AS version
        JOIN joblib_unfit_worker ON joblib_unfit_worker.job_id = version.id
        WHERE version.full_name = joblib_job.full_name
    )"""
_IS_EMPTY = """pending = 0 AND scheduled = 0 AND NOT EXISTS (
        SELECT 1 FROM joblib_job AS version
        WHERE version.full_name = joblib_job.full_name AND version.superseded
            AND (version.pending > 0 OR version.scheduled > 0)
    )"""
_NAMES_OF_IDS = (
    "full_name IN (SELECT named.full_name FROM joblib_job AS named WHERE named.id = ANY (:all_id))"
)
_SET_POLICY = statement(
    """
UPDATE joblib_job SET
    policy = :policy, max_in_flight = :max_in_flight, limits = :limits, without_workers = :without_workers,
    cost = :cost, keep = :keep
WHERE full_name = :full_name
"""
)
_WITH_OWN_COSTS = statement(
    f"""
SELECT id, requires FROM joblib_job
WHERE full_name = :full_name AND requires IS NOT NULL AND substr(requires, 1, 9) = '{{"{OWN_COST}":'
""",
    *("id", "requires"),
)
_SET_COST = statement("UPDATE joblib_job SET cost = :cost WHERE id = :id")
_KEEPS = statement("SELECT id, keep FROM joblib_job WHERE keep IS NOT NULL", *("id", "keep"))
_SET_SCHEMA = statement("UPDATE joblib_job SET schema = :schema, masked = :masked WHERE id = :id")
_SET_MASKED = statement("UPDATE joblib_job SET masked = :masked WHERE id = :id")
_MASKS = statement(
    "SELECT full_name, masked FROM joblib_job WHERE full_name = ANY (:all_full_name)",
    *("full_name", "masked"),
)
_RECORD_SERVED = statement(
    "UPDATE joblib_job SET unserved_since = NULL, registered_by = :registered_by WHERE id = :id"
)
_RESTORE_WITH = statement(
    """
UPDATE joblib_job SET deleted = superseded, deleted_at = CASE WHEN superseded THEN deleted_at END,
    unserved_since = NULL, paused = false, paused_until = NULL
WHERE full_name = :full_name
"""
)
_RESTORE = statement(
    f"""
UPDATE joblib_job SET deleted = false, deleted_at = NULL
WHERE {_NAMES_OF_IDS} AND deleted AND NOT superseded
RETURNING room_id
""",
    "room_id",
)
_IS_FORGOTTEN = f"""(
    {_IS_EMPTY}
    AND CASE WHEN without_workers IS NULL THEN :forgets ELSE without_workers = '{WithoutWorkers.FORGET}' END
)"""
_RECORD_UNSERVED = statement(
    f"""
UPDATE joblib_job SET
    unserved_since = coalesce(unserved_since, :now),
    deleted = {_IS_FORGOTTEN},
    deleted_at = CASE WHEN {_IS_FORGOTTEN} THEN :now ELSE deleted_at END
WHERE {_NAMES_OF_IDS} AND NOT deleted AND room_id <> '{INTERNAL}' AND {_IS_UNSERVED}
    AND (unserved_since IS NULL OR {_IS_FORGOTTEN})
RETURNING room_id, category, name, deleted
""",
    *(*JobName._fields, "deleted"),
    forgets=BOOLEAN,
)
_UNSERVED_SINCE = statement(
    f"""
SELECT id FROM joblib_job
WHERE unserved_since < :at AND NOT deleted AND {_IS_EMPTY}
ORDER BY unserved_since LIMIT :limit
""",
    "id",
)
_FORGET = statement(
    f"""
UPDATE joblib_job SET deleted = true, deleted_at = :now
WHERE id = ANY (:all_id) AND unserved_since < :at AND NOT deleted AND {_IS_EMPTY}
    AND {_IS_UNSERVED}
RETURNING room_id, category, name
""",
    *JobName._fields,
)
_DELETE_UNUSED = statement(
    f"""
UPDATE joblib_job SET deleted = true, deleted_at = :now
WHERE id = :id AND NOT deleted AND {_IS_EMPTY} AND {_IS_UNSERVED}
RETURNING id
""",
    "id",
)
_SERVED = statement(
    "SELECT DISTINCT job_id FROM joblib_worker_job WHERE job_id = ANY (:all_job_id)", "job_id"
)
_PAUSE = statement(
    f"""
UPDATE joblib_job SET paused = :paused, paused_until = :paused_until
WHERE full_name = :full_name AND EXISTS (
    SELECT 1 FROM joblib_job AS current WHERE current.full_name = :full_name AND NOT current.deleted
)
RETURNING {", ".join(COLUMNS)}
""",
    *COLUMNS,
)
_LOCK_AND_FIND_PAUSED = statement(
    f"""
SELECT id, {is_job_paused(":now")}, {HAS_PAUSES} FROM joblib_job WHERE id = ANY (:all_id) ORDER BY id
FOR NO KEY UPDATE
""",
    *("id", "is_paused", "has_pauses"),
    is_paused=BOOLEAN,
    has_pauses=BOOLEAN,
)
_PAUSED = statement(
    f"SELECT id FROM joblib_job WHERE id = ANY (:all_id) AND {is_job_paused(':now')} LIMIT 1", "id"
)
_RECORD_PRIORITIES = statement("UPDATE joblib_job SET has_lanes = true WHERE id = :id")
_BY_ID = "SELECT id, fair_round, fair_room FROM joblib_job WHERE id = ANY (:all_id) ORDER BY id"
_LOCK = statement(f"{_BY_ID}\nFOR NO KEY UPDATE", *("id", "fair_round", "fair_room"))
_LOCK_VERSIONS = statement(
    f"SELECT id, full_name, superseded FROM joblib_job WHERE {_NAMES_OF_IDS} ORDER BY id\nFOR NO KEY UPDATE",
    *("id", "full_name", "superseded"),
)
_VERSIONS = statement(f"{_SELECT} WHERE full_name = :full_name ORDER BY id\nFOR NO KEY UPDATE", *COLUMNS)
_READ_VERSIONS = statement(f"{_SELECT} WHERE full_name = :full_name ORDER BY job_version DESC", *COLUMNS)
_VERSIONS_OF = statement(
    """
SELECT version.id AS version_id, joblib_job.id
FROM joblib_job JOIN joblib_job AS version ON version.full_name = joblib_job.full_name
WHERE joblib_job.id = ANY (:all_id)
ORDER BY version.id
""",
    *("version_id", "id"),
    version_id=UUID_TYPE,
)
_RECORDS_OF = statement(
    f"""
SELECT joblib_job.id AS job_id, {", ".join(f"version.{name}" for name in COLUMNS)}
FROM joblib_job JOIN joblib_job AS version ON version.full_name = joblib_job.full_name
WHERE joblib_job.id = ANY (:all_id)
ORDER BY version.job_version DESC
""",
    *("job_id", *COLUMNS),
)
_STABLE_IDS = statement(
    "SELECT id, first_id FROM joblib_job WHERE id = ANY (:all_id) AND first_id IS NOT NULL",
    *("id", "first_id"),
)
_SUPERSEDE = statement(
    "UPDATE joblib_job SET superseded = true, deleted = true, deleted_at = :now WHERE id = :id"
)
# What belongs to the whole job. A new version has it from the current one.
OF_JOB = (
    *("room_id", "category", "name", "created_at", "policy", "max_in_flight", "limits", "without_workers"),
    *("keep", "registered_by", "unserved_since", "paused", "paused_until", "cost"),
)
_ADD_VERSION = statement(
    f"""
INSERT INTO joblib_job (
    id, schema, masked, job_version, first_id, {", ".join(OF_JOB)},
    superseded, deleted, pending, scheduled, has_lanes, fair_round, fair_room
)
SELECT :id, :schema, :masked, :job_version, coalesce(first_id, id), {", ".join(OF_JOB)},
    false, false, 0, 0, false, 0, ''
FROM joblib_job WHERE id = :current
""",
    current=UUID_TYPE,
)
_MAKE_CURRENT = statement(
    """
UPDATE joblib_job SET superseded = false, deleted = false, deleted_at = NULL, schema = :schema,
    masked = :masked, job_version = :job_version, unserved_since = (
        SELECT before.unserved_since FROM joblib_job AS before WHERE before.id = :current
    )
WHERE id = :id
""",
    current=UUID_TYPE,
)
_IS_USED = statement(
    """
SELECT EXISTS (SELECT 1 FROM joblib_task WHERE joblib_task.job_id = :id) OR EXISTS (
    SELECT 1 FROM joblib_worker_job WHERE joblib_worker_job.job_id = :id
        AND joblib_worker_job.worker_id <> :worker_id
) OR EXISTS (
    SELECT 1 FROM joblib_unfit_worker WHERE joblib_unfit_worker.job_id = :id
        AND joblib_unfit_worker.worker_id <> :worker_id
)
""",
    "is_used",
)
_WITH_PENDING = statement(
    "SELECT id FROM joblib_job WHERE id = ANY (:all_id) AND (pending > 0 OR scheduled > 0) LIMIT 1", "id"
)
_HELD = ", ".join(f"'{status}'" for status in sorted(HELD))
_MAY_RUN = statement(
    f"""
SELECT EXISTS (
    SELECT 1 FROM joblib_task
    WHERE joblib_task.status IN ({_HELD}) AND unindexed(joblib_task.job_id) = :id
) OR EXISTS (
    SELECT 1 FROM joblib_room_count WHERE job_id = :id
    GROUP BY room_id HAVING sum(pending) + sum(failed) + sum(cancelled) > 0
)
""",
    "may_run",
)
_OTHER_WORKERS = statement(
    """
SELECT job_id FROM joblib_worker_job WHERE job_id = ANY (:all_job_id) AND worker_id <> :worker_id
UNION ALL
SELECT job_id FROM joblib_unfit_worker WHERE job_id = ANY (:all_job_id) AND worker_id <> :worker_id
LIMIT 1
""",
    "job_id",
)
_LOCK_FREE = statement(f"{_BY_ID}\nFOR NO KEY UPDATE SKIP LOCKED", *("id", "fair_round", "fair_room"))
_SET_ROUND = statement(
    "UPDATE joblib_job SET fair_round = :fair_round, fair_room = :fair_room WHERE id = :id"
)
ADD_TO_COUNTS = """UPDATE joblib_job SET pending = pending + :queued, scheduled = scheduled + :later
WHERE id = :job"""
COUNT_TYPES = {"job": UUID_TYPE, "later": INTEGER}
# Where tasks may wait for the slots that a version's task has freed, without its own queue.
_OTHER_QUEUES = statement(
    f"""
SELECT DISTINCT {QUEUE_NAME} FROM joblib_job JOIN joblib_job AS version
    ON version.full_name = joblib_job.full_name AND version.id <> joblib_job.id
WHERE version.id = ANY (:all_id) AND (joblib_job.pending > 0 OR NOT joblib_job.superseded)
""",
    "queue",
)
_ADD_TO_COUNTS = statement(ADD_TO_COUNTS, **COUNT_TYPES)
_ROOMS = statement("SELECT DISTINCT room_id FROM joblib_job WHERE id = ANY (:all_id)", "room_id")
_FULL_NAMES = statement(
    "SELECT id, full_name, job_version FROM joblib_job WHERE id = ANY (:all_id)",
    *("id", "full_name", "job_version"),
)
_QUEUE_NAMES = statement(
    f"SELECT id, {QUEUE_NAME} AS queue FROM joblib_job WHERE id = ANY (:all_id)", *("id", "queue")
)
_CLAIMABLE = statement(
    f"""
SELECT {QUEUE_NAME}, pending, max_in_flight FROM joblib_job
WHERE pending > 0 AND NOT {is_job_paused(":now")} AND (NOT {HAS_PAUSES} OR EXISTS (
    SELECT 1 FROM joblib_room_queue
    WHERE joblib_room_queue.job_id = joblib_job.id
        AND NOT {is_room_paused("joblib_room_queue.room_id", ":now")}
))
""",
    *("queue", "pending", "max_in_flight"),
)
_RESUME_OVER = statement(
    f"""
UPDATE joblib_job SET paused = false, paused_until = NULL
WHERE paused_until <= :now
RETURNING room_id, {QUEUE_NAME}, pending
""",
    *("room_id", "queue", "pending"),
)
_NEXT_END = statement(
    "SELECT min(paused_until) FROM joblib_job WHERE paused_until IS NOT NULL", "paused_until"
)
_IS_VISIBLE = "room_id = ANY (:all_room_id) AND NOT deleted"
_LISTED = [
    f"CASE WHEN octet_length(schema) <= {MAX_LISTED_SCHEMA} THEN schema ELSE '{{}}' END AS schema"
    if name == "schema"
    else name
    for name in COLUMNS
]
_PAGE = statement(
    f"""
SELECT {", ".join(_LISTED)} FROM joblib_job WHERE {_IS_VISIBLE}
ORDER BY created_at DESC, id DESC LIMIT :limit OFFSET :offset
""",
    *COLUMNS,
)
_COUNT_VISIBLE = statement(f"SELECT count(*) FROM joblib_job WHERE {_IS_VISIBLE}", "number")


def visible_rooms(room_id: str) -> list[str]:
    """Return the rooms whose jobs a room lists: itself and, unless it is reserved, the reserved rooms."""
    return [room_id] if room_id in RESERVED else [room_id, GLOBAL, INTERNAL]


async def by_name(tx: Transaction, name: JobName) -> JobRecord | None:
    """Return the active job of this name."""
    return await _first(tx, _BY_NAME, full_name=str(name))


async def by_name_with_deleted(tx: Transaction, name: JobName) -> JobRecord | None:
    """Return the job of this name, also if it is soft-deleted."""
    return await _first(tx, _BY_NAME_WITH_DELETED, full_name=str(name))


async def _first(tx: Transaction, sql: Any, **params: Any) -> JobRecord | None:
    row = (await tx.execute(sql, params)).first()
    return None if row is None else JobRecord(*row)


async def lock_by_names(tx: Transaction, names: Sequence[JobName]) -> dict[JobName, JobRecord]:
    """Lock the active jobs of these names until the commit, and return them. No name is there twice."""
    params = {"all_full_name": padded([str(name) for name in names])}
    rows = (await tx.execute(_LOCK_NAMED, params)).all()
    before = None
    while len(rows) < len(names) and not tx.is_sqlite and (ids := {row.id for row in rows}) != before:
        # The statement may have waited for the commit of a new version, which only the next one sees.
        before, rows = ids, (await tx.execute(_LOCK_NAMED, params)).all()
    tx.record_now(rows)
    records = [JobRecord(*row[:-1]) for row in rows]
    return {job.name: job for job in records}


async def add_or_lock(
    tx: Transaction,
    name: JobName,
    schema: dict[str, Any],
    policy: JobPolicy,
    registered_by: str | None = None,
) -> tuple[JobRecord, bool]:
    """Insert the job of this name unless it exists. Return it, locked, and whether it is new."""
    values = {
        **name._asdict(),
        "id": uuid4(),
        "schema": schema,
        "masked": masked_paths(schema),
        "created_at": await tx.now(),
        "registered_by": registered_by,
        **_stored(name, policy),
    }
    while True:
        is_new = (await tx.execute(_ADD, values)).first() is not None
        job = await _first(tx, _LOCK_ADDED, full_name=str(name))
        # A soft-deleted job may be pruned between the two statements.
        if job is not None:
            return job, is_new


async def count_active(tx: Transaction, room_id: str, limit: int) -> int:
    """Count the active jobs of a room, up to `limit`."""
    return int((await tx.execute(_COUNT_ACTIVE, {"room_id": room_id, "limit": limit})).scalar_one())


async def restore_with(tx: Transaction, name: JobName, policy: JobPolicy) -> None:
    """Restore a soft-deleted job with a new policy, not paused."""
    await tx.execute(_RESTORE_WITH, {"full_name": str(name)})
    await set_policy(tx, name, policy)


async def set_policy(tx: Transaction, name: JobName, policy: JobPolicy) -> None:
    """Replace the policy of a job, in all its versions."""
    await tx.execute(_SET_POLICY, {"full_name": str(name), **_stored(name, policy)})
    for queue_id, requires in (await tx.execute(_WITH_OWN_COSTS, {"full_name": str(name)})).all():
        await tx.execute(_SET_COST, {"id": queue_id, "cost": stored_cost(policy, requires)})


async def set_schema(
    tx: Transaction, job_id: UUID, schema: dict[str, Any], masked: str | None = None
) -> None:
    """Replace the schema of a version of a job. What was `masked` stays so in its tasks."""
    params = {"id": job_id, "schema": schema, "masked": joined_paths([masked, masked_paths(schema)])}
    await tx.execute(_SET_SCHEMA, params)


async def set_masked(tx: Transaction, job_id: UUID, masked: str | None) -> None:
    """Replace the paths to the secret values of a version of a job, or of a queue."""
    await tx.execute(_SET_MASKED, {"id": job_id, "masked": masked})


async def masks(tx: Transaction, full_names: Iterable[str]) -> dict[str, str | None]:
    """Return the paths to the secret values of payloads of those of these jobs that exist.

    They are those of all versions of a job together.
    """
    paths: dict[str, str | None] = {}
    for full_name, masked in await tx.execute(_MASKS, {"all_full_name": padded(sorted(set(full_names)))}):
        paths[full_name] = joined_paths([paths.get(full_name), masked])
    return paths


# The versions of a job. Each but the current one is superseded.


async def lock_versions(tx: Transaction, name: JobName) -> list[JobRecord]:
    """Lock all versions of a job until the commit, in the order of their ids, and return them."""
    return [JobRecord(*row) for row in await tx.execute(_VERSIONS, {"full_name": str(name)})]


async def versions(tx: Transaction, name: JobName | str) -> list[JobRecord]:
    """Return all versions of a job, the newest first; also of a soft-deleted one."""
    rows = await tx.execute(_READ_VERSIONS, {"full_name": str(name)})
    return [JobRecord(*row) for row in rows]


async def versions_of(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, list[UUID]]:
    """Return for each of these jobs the ids of all its versions."""
    ids: dict[UUID, list[UUID]] = {}
    for version_id, job_id in await tx.execute(_VERSIONS_OF, {"all_id": padded(sorted(set(job_ids)))}):
        ids.setdefault(job_id, []).append(version_id)
    return ids


async def versions_of_jobs(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, list[JobRecord]]:
    """Return for each of these jobs all its versions, the newest first."""
    records: dict[UUID, list[JobRecord]] = {}
    for job_id, *row in await tx.execute(_RECORDS_OF, {"all_id": padded(job_ids)}):
        records.setdefault(job_id, []).append(JobRecord(*row))
    return records


async def stable_ids(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Return the ids of the jobs of those of these versions that are not the first one of theirs."""
    return {
        version_id: job_id
        for version_id, job_id in await tx.execute(_STABLE_IDS, {"all_id": padded(job_ids)})
    }


async def add_version(tx: Transaction, current: JobRecord, schema: dict[str, Any], number: int) -> JobRecord:
    """Insert a version of a job, which the caller has locked, as the current one. Return it."""
    await tx.execute(_SUPERSEDE, {"id": current.id, "now": await tx.now()})
    new_id, masked = uuid4(), masked_paths(schema)
    params = {"id": new_id, "schema": schema, "job_version": number, "current": current.id}
    await tx.execute(_ADD_VERSION, {**params, "masked": masked})
    return current._replace(
        id=new_id,
        schema=schema,
        masked=masked,
        job_version=number,
        first_id=current.stable_id,
        deleted=False,
        pending=0,
        scheduled=0,
        has_lanes=False,
    )


async def make_current(
    tx: Transaction, current: JobRecord, version: JobRecord, schema: dict[str, Any], number: int
) -> JobRecord:
    """Make a superseded version the current one, with a schema and a number. Return it."""
    await tx.execute(_SUPERSEDE, {"id": current.id, "now": await tx.now()})
    # Its tasks may have payloads of another schema.
    kept = None if number == version.job_version else version.masked
    masked = joined_paths([kept, masked_paths(schema)])
    params = {"id": version.id, "schema": schema, "job_version": number, "current": current.id}
    await tx.execute(_MAKE_CURRENT, {**params, "masked": masked})
    return version._replace(
        schema=schema,
        masked=masked,
        job_version=number,
        superseded=False,
        deleted=False,
        unserved_since=current.unserved_since,
    )


async def is_used(tx: Transaction, job_id: UUID, but_by: UUID | None) -> bool:
    """Return whether a version of a job has tasks, also ended ones, or workers other than one."""
    params = {"id": job_id, "worker_id": but_by or FIRST}
    return bool((await tx.execute(_IS_USED, params)).scalar_one())


async def may_run(tx: Transaction, job_id: UUID) -> bool:
    """Return whether a version of a job has tasks that have not ended, or that may be retried."""
    return bool((await tx.execute(_MAY_RUN, {"id": job_id})).scalar_one())


async def have_pending(tx: Transaction, job_ids: Sequence[UUID]) -> bool:
    """Return whether one of these versions of jobs has pending tasks."""
    return (await tx.execute(_WITH_PENDING, {"all_id": padded(job_ids)})).first() is not None


async def has_workers(tx: Transaction, job_ids: Sequence[UUID], but: UUID | None = None) -> bool:
    """Return whether other workers than one are registered for any of these versions of jobs."""
    params = {"all_job_id": padded(job_ids), "worker_id": but or FIRST}
    return (await tx.execute(_OTHER_WORKERS, params)).first() is not None


async def record_served(tx: Transaction, job: JobRecord, registered_by: str) -> None:
    """Record that a user's worker serves a job, which the caller has locked."""
    if job.unserved_since is not None or job.registered_by != registered_by:
        await tx.execute(_RECORD_SERVED, {"id": job.id, "registered_by": registered_by})


async def restore(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Restore those of these jobs that are soft-deleted, unchanged. Return their rooms."""
    return list((await tx.execute(_RESTORE, {"all_id": padded(job_ids)})).scalars())


async def record_unserved(tx: Transaction, job_ids: Sequence[UUID]) -> list[JobName]:
    """Record since when those of these jobs have no worker that have none.

    Soft-delete those without pending tasks that are to be forgotten, and return the names of these. The
    caller has locked all their versions before it has changed one of them, so that two such transactions do
    not wait for each other, and a link committed meanwhile is seen.
    """
    if not job_ids:
        return []
    params = {"all_id": padded(job_ids), "now": await tx.now(), "forgets": not tx.keeps_unserved_jobs}
    rows = (await tx.execute(_RECORD_UNSERVED, params)).all()
    return [JobName(*name) for *name, is_deleted in rows if is_deleted]


async def forget_unserved(tx: Transaction, before: datetime, limit: int) -> tuple[list[JobName], bool]:
    """Soft-delete up to `limit` jobs that had no worker since a time and have no pending task.

    Return their names, and whether there may be more.
    """
    ids = list((await tx.execute(_UNSERVED_SINCE, {"at": before, "limit": limit})).scalars())
    if not ids:
        return [], False
    locked = await lock(tx, ids, skip_locked=True)
    params = {"all_id": padded(sorted(locked)), "at": before, "now": await tx.now()}
    names = [JobName(*row) for row in await tx.execute(_FORGET, params)]
    return names, len(ids) == limit and bool(names)


async def delete_unused(tx: Transaction, job_id: UUID) -> bool:
    """Soft-delete a job, which the caller has locked, if it has no worker and no pending task.

    Return whether it has none.
    """
    params = {"id": job_id, "now": await tx.now()}
    return (await tx.execute(_DELETE_UNUSED, params)).first() is not None


async def served(tx: Transaction, job_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of these jobs that have a worker."""
    return set((await tx.execute(_SERVED, {"all_job_id": padded(job_ids)})).scalars())


async def by_names(tx: Transaction, names: Sequence[str]) -> tuple[list[JobRecord], sql_pauses.Pauses]:
    """Return the active jobs of these full names, in the order of their ids, and the paused rooms."""
    rows = (await tx.execute(_BY_NAMES, {"all_full_name": padded(names)})).all()
    return [JobRecord(*row[:-1]) for row in rows], await _pauses(tx, rows)


async def pause(
    tx: Transaction, name: JobName, *, paused: bool, until: datetime | None = None
) -> list[JobRecord]:
    """Pause an active job until a time, or resume it. Return its versions."""
    # A version that is registered meanwhile is seen after the lock.
    await lock_versions(tx, name)
    params = {"full_name": str(name), "paused": paused, "paused_until": until}
    return [JobRecord(*row) for row in await tx.execute(_PAUSE, params)]


async def resume_over(tx: Transaction) -> list[tuple[str, str, int]]:
    """Resume the jobs whose pauses are over. Return their queues: room, name, and how many tasks it has."""
    rows = await tx.execute(_RESUME_OVER, {"now": await tx.now()})
    return [(room_id, queue, pending) for room_id, queue, pending in rows]


async def next_end(tx: Transaction) -> datetime | None:
    """Return when the first pause of a job ends; None if none does by itself."""
    until: datetime | None = (await tx.execute(_NEXT_END)).scalar_one()
    return until


async def lock_and_find_paused(
    tx: Transaction, job_ids: Collection[UUID]
) -> tuple[set[UUID], sql_pauses.Pauses]:
    """Lock jobs until the commit, in the order of their ids. Return the paused ones, and the paused rooms."""
    if not job_ids:
        return set(), sql_pauses.NO_PAUSES
    params = {"all_id": padded(sorted(job_ids)), "now": await tx.now()}
    rows = (await tx.execute(_LOCK_AND_FIND_PAUSED, params)).all()
    return {row.id for row in rows if row.is_paused}, await _pauses(tx, rows)


async def _pauses(tx: Transaction, rows: Sequence[Any]) -> sql_pauses.Pauses:
    """Return the paused rooms, which are read only if a row has `has_pauses`."""
    return await sql_pauses.active(tx) if rows and rows[0].has_pauses else sql_pauses.NO_PAUSES


async def are_paused(tx: Transaction, job_ids: Iterable[UUID]) -> bool:
    """Return whether any of these jobs is paused."""
    params = {"all_id": padded(sorted(set(job_ids))), "now": await tx.now()}
    return (await tx.execute(_PAUSED, params)).first() is not None


async def record_priorities(tx: Transaction, job_id: UUID) -> None:
    """Record that the queue of a job contains tasks of several priorities."""
    await tx.execute(_RECORD_PRIORITIES, {"id": job_id})


async def lock(tx: Transaction, job_ids: Iterable[UUID], *, skip_locked: bool = False) -> set[UUID]:
    """Lock jobs until the commit, in the order of their ids: no other transaction changes their queues.

    Return the ids of the locked jobs. With `skip_locked`, skip jobs that another transaction has locked.
    """
    ids = sorted(set(job_ids))
    if tx.is_sqlite or not ids:
        return set(ids)
    return set((await tx.execute(_LOCK_FREE if skip_locked else _LOCK, {"all_id": ids})).scalars())


async def lock_with_versions(tx: Transaction, job_ids: Iterable[UUID]) -> set[UUID]:
    """Lock all versions of jobs until the commit, in the order of their ids. Return their ids."""
    ids = sorted(set(job_ids))
    if tx.is_sqlite or not ids:
        return set(ids)
    locked: set[UUID] = set()
    while True:
        rows = (await tx.execute(_LOCK_VERSIONS, {"all_id": padded(ids)})).all()
        before, locked = locked, {row.id for row in rows}
        names = {row.full_name for row in rows if not row.superseded}
        if locked == before or all(row.full_name in names for row in rows):
            return locked
        # The statement may have waited for the commit of a new version, which only the next one sees.


async def lock_named(tx: Transaction, names: Sequence[JobName]) -> None:
    """Lock the jobs of these names, also soft-deleted ones, in the order of their ids."""
    params = {"all_full_name": padded([str(name) for name in names])}
    await tx.execute(_LOCK_NAMED_WITH_DELETED, params)


async def lock_turns(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, tuple[int, str]]:
    """Lock jobs as `lock` does. Return the turn of the last fair claim of each: its round and its room."""
    rows = await tx.execute(_LOCK, {"all_id": padded(sorted(set(job_ids)))})
    return {job_id: (number, room) for job_id, number, room in rows}


async def set_turn(tx: Transaction, job_id: UUID, turn: tuple[int, str]) -> None:
    """Record the turn of the last fair claim of a job, which the caller has locked."""
    await tx.execute(_SET_ROUND, {"id": job_id, "fair_round": turn[0], "fair_room": turn[1]})


async def add_to_counts(tx: Transaction, changes: Mapping[UUID, CountChange]) -> None:
    """Add to the counts of pending tasks, in the order of the job ids.

    Only the functions that write a task's status call this.
    """
    rows = [{"job": job_id, **changes[job_id]._asdict()} for job_id in sorted(changes)]
    if rows:
        await tx.execute(_ADD_TO_COUNTS, rows)


async def rooms(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Return the rooms of these jobs, each once."""
    return sorted((await tx.execute(_ROOMS, {"all_id": padded(job_ids)})).scalars())


async def full_names(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, tuple[str, int]]:
    """Return the names of jobs, also of soft-deleted ones, and the numbers of their versions, by id."""
    rows = await tx.execute(_FULL_NAMES, {"all_id": padded(sorted(set(job_ids)))})
    return {job_id: (name, number) for job_id, name, number in rows}


async def queue_names(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the names of queues, by which claims wait, by id."""
    rows = await tx.execute(_QUEUE_NAMES, {"all_id": padded(sorted(set(job_ids)))})
    return {job_id: name for job_id, name in rows}


async def other_queues(tx: Transaction, job_ids: Iterable[UUID]) -> list[str]:
    """Return the queues of the other versions of these jobs, but not of old ones without pending tasks."""
    return list((await tx.execute(_OTHER_QUEUES, {"all_id": padded(sorted(set(job_ids)))})).scalars())


async def claimable_counts(tx: Transaction) -> dict[str, int]:
    """Return the names of the queues with pending tasks, and how many of these may be claimed at most."""
    rows = await tx.execute(_CLAIMABLE, {"now": await tx.now()})
    return {queue: min(pending, limit or pending) for queue, pending, limit in rows}


async def page(tx: Transaction, room_id: str, part: Page) -> tuple[list[JobRecord], int]:
    """Return one page of the jobs that a room lists, newest first, and the count of all.

    A schema of more than 16 KiB is empty.
    """
    params = {"all_room_id": visible_rooms(room_id), "limit": part.limit, "offset": part.offset}
    rows = (await tx.execute(_PAGE, params)).all()
    return [JobRecord(*row) for row in rows], (await tx.execute(_COUNT_VISIBLE, params)).scalar_one()


def _stored(name: JobName, policy: JobPolicy) -> dict[str, Any]:
    """Return the columns of a policy. `policy` is null for the default one, whatever `without_workers` is."""
    stored = policy.model_copy(update={"without_workers": None})
    return {
        "policy": None if stored == JobPolicy() else stored.model_dump_json(exclude={"without_workers"}),
        "max_in_flight": policy.max_in_flight,
        "limits": to_json({"of": str(name), "limits": policy.limits}).decode() if policy.limits else None,
        "cost": stored_cost(policy, None),
        "without_workers": policy.without_workers,
        "keep": None if policy.keep is None else policy.keep.model_dump_json(exclude_none=True),
    }


async def keeps(tx: Transaction) -> dict[UUID, Keep]:
    """Return how long ended tasks are kept of the jobs that say so, in all their versions."""
    return {job_id: Keep.model_validate_json(keep) for job_id, keep in await tx.execute(_KEEPS)}


# Delete soft-deleted jobs, with their schemas, to which nothing refers.

# The counts of this many rooms are deleted at once.
_MAX_ROOMS = 500

# SQLite finds them by the index only if the condition is that of the index.
_FOLLOWING = {
    is_sqlite: statement(
        f"""
SELECT id FROM joblib_job
WHERE deleted{" = 1" if is_sqlite else ""} AND (deleted_at IS NULL OR deleted_at < :at) AND id > :id
ORDER BY id LIMIT :limit
""",
        "id",
    )
    for is_sqlite in (True, False)
}
# Rows of these refer to a job. Empty blocks are deleted in batches of their own.
_REFERENCES = (
    *(f"{table} WHERE job_id" for table in ("joblib_task", "joblib_unfit_worker", "joblib_room_queue")),
    # The links of a queue for tasks with requirements are deleted with it.
    "joblib_worker_job WHERE joblib_job.requires IS NULL AND job_id",
    f"joblib_statistic WHERE resolution IN ({MINUTE}, {HOUR}) AND job_id",
    "joblib_queue_block WHERE queued = 0 AND job_id",
)
# The first version stays while there are others, which have its id; the current one while others have tasks.
# PostgreSQL reads all tasks for an EXISTS there, but an order that an index has by the index.
_IS_NOT_FIRST = """NOT EXISTS (
        SELECT 1 FROM joblib_job AS version
        WHERE version.full_name = joblib_job.full_name AND version.first_id = joblib_job.id
    )"""
_HAS_NO_VERSIONS = """NOT EXISTS (
        SELECT 1 FROM joblib_job AS version
        WHERE version.full_name = joblib_job.full_name AND version.id <> joblib_job.id
            AND (version.first_id IS NOT NULL
                OR (SELECT id FROM joblib_task WHERE joblib_task.job_id = version.id ORDER BY room_id LIMIT 1)
                    IS NOT NULL)
    )"""
_LOCK_UNUSED = statement(
    f"""
SELECT id, deleted_at FROM joblib_job
WHERE id = ANY (:all_id) AND deleted
    AND CASE WHEN superseded THEN {_IS_NOT_FIRST} ELSE {_HAS_NO_VERSIONS} END
    {" ".join(f"AND NOT EXISTS (SELECT 1 FROM {rows} = joblib_job.id)" for rows in _REFERENCES)}
ORDER BY id
FOR UPDATE SKIP LOCKED
""",
    *("id", "deleted_at"),
)
# The end of a group submits a task of a job, which it restores. The groups that have not ended are read only
# if there are such jobs. JSON is read differently on SQLite.
_NEEDED_BY_GROUPS = {
    is_sqlite: statement(
        f"""
SELECT DISTINCT joblib_job.id
FROM joblib_group JOIN joblib_job
    ON joblib_job.full_name = {"on_end" if is_sqlite else "CAST(on_end AS json)"} ->> 'job'
WHERE joblib_group.ended_at IS NULL AND on_end IS NOT NULL AND joblib_job.id = ANY (:all_id)
""",
        "id",
    )
    for is_sqlite in (True, False)
}
_SET_DELETED_AT = statement("UPDATE joblib_job SET deleted_at = :now WHERE id = ANY (:all_id)")
_ROOMS_WITH_COUNTS = statement(
    """
SELECT DISTINCT job_id, room_id FROM joblib_room_count WHERE job_id = ANY (:all_job_id)
ORDER BY job_id, room_id LIMIT :limit
""",
    *("job_id", "room_id"),
)
_DELETE_ROOM_COUNTS = statement(
    """
DELETE FROM joblib_room_count WHERE room_id = ANY (:all_room_id) AND job_id = ANY (:all_job_id) RETURNING part
""",
    "part",
)
# What belongs to jobs alone.
_DELETE_OWN = (
    statement(
        f"""
DELETE FROM joblib_statistic WHERE resolution IN (0, {MINUTE}, {HOUR}) AND job_id = ANY (:all_job_id)
RETURNING job_id
""",
        "job_id",
    ),
    *(
        statement(f"DELETE FROM {table} WHERE job_id = ANY (:all_job_id) RETURNING job_id", "job_id")
        for table in ("joblib_worker_job", "joblib_queue_block", "joblib_limit_queue", "joblib_limit_wait")
    ),
    statement("DELETE FROM joblib_job WHERE id = ANY (:all_job_id) RETURNING id", "id"),
)


async def prune(tx: Transaction, deleted_before: datetime, after: UUID, limit: int) -> tuple[int, UUID]:
    """Delete those of the `limit` soft-deleted jobs behind `after` that have no tasks and no statistics.

    Return how many rows were deleted, and the id to continue behind; `FIRST` at the end. A job that another
    transaction has locked stays: it may be registered again. So do one whose counts are too many, and one of
    which the end of a group submits a task.
    """
    params = {"at": deleted_before, "id": after, "limit": limit}
    ids = list((await tx.execute(_FOLLOWING[tx.is_sqlite], params)).scalars())
    if not ids:
        return 0, FIRST
    rows = (await tx.execute(_LOCK_UNUSED, {"all_id": padded(ids)})).all()
    # A server of an earlier release deleted these.
    if undated := [row.id for row in rows if row.deleted_at is None]:
        await tx.execute(_SET_DELETED_AT, {"all_id": padded(undated), "now": await tx.now()})
    at_end = ids[-1] if len(ids) == limit else FIRST
    unused = [row.id for row in rows if row.deleted_at is not None]
    if unused:
        needed = (await tx.execute(_NEEDED_BY_GROUPS[tx.is_sqlite], {"all_id": padded(unused)})).scalars()
        unused = sorted({*unused} - {*needed})
    if not unused:
        return 0, at_end
    deleted, rest = await _delete_room_counts(tx, unused)
    if uncounted := [job_id for job_id in unused if rest is None or job_id < rest]:
        deleted += await _delete(tx, uncounted)
    return deleted, at_end if rest is None else UUID(int=rest.int - 1)


async def _delete_room_counts(tx: Transaction, job_ids: Sequence[UUID]) -> tuple[int, UUID | None]:
    """Delete counts of a limited number of rooms. Return how many, and the first job that may have more.

    All counts of a job in a room go at once: only their sum is right, and the job may be restored.
    """
    params = {"all_job_id": padded(job_ids), "limit": _MAX_ROOMS}
    rows = (await tx.execute(_ROOMS_WITH_COUNTS, params)).all()
    if not rows:
        return 0, None
    counted = sorted({row.job_id for row in rows})
    room_ids = sorted({row.room_id for row in rows})
    params = {"all_room_id": padded(room_ids), "all_job_id": padded(counted)}
    deleted = (await tx.execute(_DELETE_ROOM_COUNTS, params)).all()
    return len(deleted), counted[-1] if len(rows) == _MAX_ROOMS else None


async def _delete(tx: Transaction, job_ids: Sequence[UUID]) -> int:
    """Delete jobs without tasks, and what has no meaning of its own then. Return the number of rows."""
    params = {"all_job_id": padded(job_ids)}
    return sum([len((await tx.execute(sql, params)).all()) for sql in _DELETE_OWN])
