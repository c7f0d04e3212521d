"""Submit plain tasks: those of one remote job, without options, as nearly all are.

They are written with the fewest statements, by what the server knows about the job from an earlier submit. If
that is outdated, or a task is not plain, `tasks.submit` takes the whole batch.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from cachetools import LRUCache
from pydantic_core import to_json

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import INTERNAL, RESERVED, JobName
from zndraw_joblib.server.ports import job_key
from zndraw_joblib.server.service import payloads, serializers
from zndraw_joblib.server.service.task_ids import new_ids
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.errors import RepeatTransaction
from zndraw_joblib.server.store.jobs import JobRecord
from zndraw_joblib.server.store.tasks.append import KnownJob, NewKey, NewTask, append
from zndraw_joblib.server.store.tasks.positions import positions

if TYPE_CHECKING:
    from zndraw_joblib.server.service.tasks import Submission

_MAX_JOBS = 1000
# The statement contains the schema.
_MAX_SCHEMA_CHARACTERS = 16_384
_OPTIONS = frozenset({"priority", "run_at", "delay_seconds", "expires_in_seconds", "max_attempts"})


class KnownJobs:
    """The jobs of which this server knows schema and policy, as they were in a recent transaction."""

    def __init__(self) -> None:
        self._jobs: LRUCache[JobName, KnownJob] = LRUCache(_MAX_JOBS)

    def get(self, name: JobName) -> KnownJob | None:
        """Return what is known of a job."""
        return self._jobs.get(name)

    def learn(self, jobs: Iterable[JobRecord]) -> None:
        """Remember jobs whose tasks may be plain."""
        for job in jobs:
            schema = to_json(job.schema).decode()
            may_be_plain = job.room_id != INTERNAL and not job.has_lanes and job.policy.priority == 0
            if may_be_plain and len(schema) <= _MAX_SCHEMA_CHARACTERS:
                self._jobs[job.name] = KnownJob(job.id, str(job.name), schema, job.stored_policy)

    def forget(self, name: JobName) -> KnownJob | None:
        """Forget a job, until the next transaction that reads it. Return what was known of it."""
        return self._jobs.pop(name, None)


async def submit(
    tx: Transaction, items: Sequence["Submission"], known: KnownJobs
) -> list[TaskResponse] | None:
    """Insert plain tasks. Return None, after which nothing was written, unless all are plain."""
    name = items[0].job
    job = known.get(name)
    if job is None or not all(_is_plain(item, name, job.schema) for item in items):
        return None
    keys = [item.key for item in items if item.key is not None]
    if len({key.id for key in keys}) < len(keys):
        return None
    ids = [item.task_id or new for item, new in zip(items, new_ids(len(items)), strict=True)]
    for item, task_id in zip(items, ids, strict=True):
        item.task_id = task_id
    tasks = [
        NewTask(task_id.hex, item.room_id, item.caller.id, to_json(item.payload).decode())
        for task_id, item in zip(ids, items, strict=True)
    ]
    traceparents = [item.traceparent for item in items] if any(item.traceparent for item in items) else ()
    try:
        appended = await append(tx, job, tasks, _new_keys(job, ids, items) if keys else [], traceparents)
    except RepeatTransaction:
        known.forget(name)
        raise
    if appended is None:
        known.forget(name)
        return None
    made = serializers.new_task_responses(
        job.full_name, ids, tasks, [item.payload for item in items], appended
    )
    serializers.publish_new(tx, made)
    tx.wake(job_key(name), len(made))
    return made


async def find_written(tx: Transaction, items: Sequence["Submission"]) -> dict[int, TaskResponse]:
    """Return the tasks of an earlier attempt whose response was lost, by the indexes of their items."""
    indexes = {item.task_id: index for index, item in enumerate(items) if item.task_id is not None}
    found = await store.lock(tx, list(indexes)) if indexes else {}
    found_at = await positions(tx, list(found.values())) if found else {}
    written = {}
    for task_id, record in found.items():
        written[indexes[task_id]] = serializers.task_response(record, found_at.get(task_id))
        serializers.publish_status(tx, record, found_at.get(task_id), is_new=False)
    return written


def _is_plain(item: "Submission", name: JobName, schema: str) -> bool:
    if item.job != name or item.on_end is not None or item.requires_worker:
        return False
    if not item.options.model_fields_set.isdisjoint(_OPTIONS):
        return False
    if not (name.room_id in RESERVED or item.cross_room or item.room_id == name.room_id):
        return False
    return not item.validate_payload or schema in {payloads.ANY_PAYLOAD, item.validated_schema}


def _new_keys(job: KnownJob, ids: Sequence[UUID], items: Sequence["Submission"]) -> list[NewKey]:
    """Return the keys with the beginnings of their answers, which have no default values."""
    known: dict[tuple[str, str], str] = {}
    keys = []
    for place, (task_id, item) in enumerate(zip(ids, items, strict=True), 1):
        if item.key is None:
            continue
        shared = known.get((item.room_id, item.caller.id))
        if shared is None:
            fields = {"job_name": job.full_name, "room_id": item.room_id, "created_by": item.caller.id}
            fields["status"] = "pending"
            shared = known[item.room_id, item.caller.id] = to_json(fields).decode()[1:-1]
        answer = f'{{"id":"{task_id}",{shared},"created_at":"'
        keys.append(NewKey(item.key.id, item.key.fingerprint, place, answer))
    return keys
