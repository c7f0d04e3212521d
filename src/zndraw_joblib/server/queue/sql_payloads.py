"""Long payloads, in a table of their own on SQLite, where a change of a task's row writes all of it again.

The column of the task is empty then, which no JSON is; `payload_of` in statements reads either. PostgreSQL
keeps long values apart by itself: there the table is empty.
"""

from collections.abc import Iterable, Sequence

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, one_row, statement

# A page has 4,096 bytes, and the other columns of a row up to about 1,000. Up to there both places cost the
# same. Beyond, each change of the row writes further pages.
LONGEST_IN_ROW = 3_000
_WRITE = statement(
    f"""
INSERT INTO joblib_payload {one_row(("task_seq", "size", "content"))}
ON CONFLICT (task_seq) DO UPDATE SET size = excluded.size, content = excluded.content
""",
    size=INTEGER,
)
_REMOVE = statement("DELETE FROM joblib_payload WHERE task_seq = ANY (:all_task_seq)")


def is_long(payload: str) -> bool:
    """Return whether the table has a payload, which is JSON."""
    return len(payload) > LONGEST_IN_ROW


def column(payload: str) -> str:
    """Return the column of a task with this payload."""
    return "" if is_long(payload) else payload


async def write(tx: Transaction, payloads: Iterable[tuple[int, str]]) -> None:
    """Write the payloads of tasks, by `seq`, that are long."""
    rows = [
        {"task_seq": seq, "size": len(payload.encode()), "content": payload}
        for seq, payload in payloads
        if is_long(payload)
    ]
    if rows:
        await tx.execute(_WRITE, rows)


async def remove(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete the rows of these tasks."""
    if tx.is_sqlite:
        await tx.execute(_REMOVE, {"all_task_seq": padded(seqs)})
