"""Find the tasks that hold unique keys, and write what a submit with such a key changes in them."""

from collections.abc import Sequence
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import TEXT, statement
from zndraw_joblib.server.db.tables import KEY_IS_HELD
from zndraw_joblib.server.queue import sql_payloads
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    RECORD_COLUMNS,
    RECORD_NAMES,
    TASKS_AND_JOBS,
    TaskRecord,
    fetch_records,
)

# What a submit replaces in a pending task, besides the times that `sql_transitions.move` writes.
_REPLACED = ("payload", "created_by", "max_attempts", "traceparent", "tags")
_HOLDERS = statement(
    f"""
SELECT {RECORD_COLUMNS["small"]} FROM {TASKS_AND_JOBS}
WHERE unique_id = ANY (:all_unique_id) AND {KEY_IS_HELD}
""",
    *RECORD_NAMES,
)
_FREE = statement("UPDATE joblib_task SET unique_id = NULL WHERE seq = ANY (:all_seq)")
_REPLACE = statement(
    f"UPDATE joblib_task SET {', '.join(f'{name} = :{name}' for name in _REPLACED)} WHERE seq = :seq",
    payload=TEXT,
)


async def holders(tx: Transaction, ids: Sequence[UUID], most_bytes: int = 0) -> dict[UUID, TaskRecord]:
    """Return the tasks that hold these keys, by key, without locking them.

    A key whose time is over has a holder too, until `free`. Payload and result are None if they have more
    than `most_bytes` together. The caller holds the locks of the keys' jobs, so no key gets another holder.
    """
    records: list[TaskRecord] = []
    for start in range(0, len(ids), CHUNK):
        chunk = padded(ids[start : start + CHUNK])
        records += await fetch_records(tx, _HOLDERS, all_unique_id=chunk, most_bytes=most_bytes)
    return {record.unique_id: record for record in records if record.unique_id is not None}


async def free(tx: Transaction, seqs: Sequence[int]) -> None:
    """Let tasks hold their keys no more."""
    for start in range(0, len(seqs), CHUNK):
        await tx.execute(_FREE, {"all_seq": padded(seqs[start : start + CHUNK])})


async def replace(tx: Transaction, tasks: Sequence[TaskRecord]) -> None:
    """Write the payloads and options of tasks that later submits have replaced."""
    rows = []
    for task in tasks:
        row = {"seq": task.seq, **{name: getattr(task, name) for name in _REPLACED}}
        rows.append(row | {"payload": to_json(task.payload).decode()})
    if tx.is_sqlite and rows:
        await sql_payloads.remove(tx, [row["seq"] for row in rows])
        await sql_payloads.write(tx, [(row["seq"], row["payload"]) for row in rows])
        rows = [row | {"payload": sql_payloads.column(row["payload"])} for row in rows]
    if rows:
        await tx.execute(_REPLACE, rows)
