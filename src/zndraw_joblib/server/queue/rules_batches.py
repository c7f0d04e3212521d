"""Claims of workers that run some jobs in batches: which queues have a batch, or tasks of other jobs."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import sql_claims, sql_tasks, sql_workers
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult, JobSets, QueueChoice
from zndraw_joblib.server.queue.sql_claims import QueueHead
from zndraw_joblib.server.queue.sql_workers import BatchQueue
from zndraw_joblib.wire.messages import ClaimBatch, EmptyReason

# The queues of a worker, those with the first tasks, that are read; all, if none of them has a task for it.
_FIRST_QUEUES = 64
_ALL_QUEUES = 2**31 - 1


class Candidate(NamedTuple):
    """Queues that a claim may take from: those of a job in batches, or those of all other jobs.

    `pending` has how many tasks are in each, by the names of the queues; of a batch that these may not fill,
    `age` is how long the oldest has been there. Some may be of paused rooms, or of keys at their limits.
    """

    choice: QueueChoice
    batch: ClaimBatch | None
    pending: Mapping[str, int]
    age: timedelta = timedelta()

    @property
    def may_be_full(self) -> bool:
        """Whether there are enough tasks for a batch of the largest size."""
        return self.batch is None or sum(self.pending.values()) >= self.batch.max


class Candidates(NamedTuple):
    """What a claim may take, in the order of the first tasks. `empty` is its result if it takes nothing.

    Without candidates it takes from `others`, the queues of jobs that have no batches: it may be the repeat
    of a claim that got tasks, or tasks may have come since.
    """

    candidates: Sequence[Candidate]
    empty: ClaimResult
    others: QueueChoice


async def read(tx: Transaction, item: Claim, batches: Sequence[ClaimBatch], sets: JobSets) -> Candidates:
    """Return what a claim may take, without a lock. Raises the problem of a claim that is refused."""
    worker = await sql_workers.get(tx, item.worker_id)
    problem = item.problem(worker)
    if problem is not None:
        raise problem
    jobs = (await sets.read(tx, [item.worker_id]))[item.worker_id]
    empty = ClaimResult(jobs=item.waits_for(jobs), reason=EmptyReason.EMPTY)
    queues = await sql_workers.batch_queues(tx, item.worker_id, [batch.job for batch in batches])
    others = QueueChoice(frozenset(queue.id for queue in queues), is_excluded=True)
    is_repeated = item.claim_id is not None and await sql_tasks.by_claims(
        tx, [(item.worker_id, item.claim_id)]
    )
    if is_repeated or worker is None or worker.draining:
        return Candidates([], empty, others)
    candidates = await _candidates(tx, await _open_heads(tx, item), queues, batches, others)
    return Candidates(candidates, empty, others)


async def _open_heads(tx: Transaction, item: Claim) -> list[QueueHead]:
    for limit in (_FIRST_QUEUES, _ALL_QUEUES):
        queues = (await sql_claims.queues(tx, [item.worker_id], limit))[item.worker_id]
        heads = [head for head in queues.heads if item.is_open(head)]
        if heads or queues.is_all:
            break
    return heads


async def _candidates(
    tx: Transaction,
    heads: Sequence[QueueHead],
    queues: Sequence[BatchQueue],
    batches: Sequence[ClaimBatch],
    others: QueueChoice,
) -> list[Candidate]:
    queue_of = {queue.id: queue for queue in queues}
    heads_of: dict[str | None, list[QueueHead]] = {}
    for head in heads:
        queue = queue_of.get(head.job_id)
        heads_of.setdefault(None if queue is None else queue.job, []).append(head)
    batch_of = {batch.job: batch for batch in batches}
    candidates, ids_of = [], dict[str, list[UUID]]()
    for job, of_job in heads_of.items():
        if job is None:
            candidates.append(Candidate(others, None, {}))
            continue
        choice = QueueChoice(frozenset(queue.id for queue in queues if queue.job == job))
        pending = {queue_of[head.job_id].name: head.pending for head in of_job}
        candidates.append(Candidate(choice, batch_of[job], pending))
        if not candidates[-1].may_be_full:
            ids_of[job] = [head.job_id for head in of_job]
    if not ids_of:
        return candidates
    now, ids = await tx.now(), [id_ for ids in ids_of.values() for id_ in ids]
    since = await sql_claims.oldest_since(tx, ids, max(batch_of[job].max for job in ids_of))
    age_of = {job: now - min(since.get(id_, now) for id_ in ids) for job, ids in ids_of.items()}
    return [
        candidate._replace(age=max(age_of[candidate.batch.job], timedelta()))
        if candidate.batch is not None and candidate.batch.job in age_of
        else candidate
        for candidate in candidates
    ]
