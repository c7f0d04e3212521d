"""Pages of tasks, with a bound on their total size."""

from uuid import UUID

from sqlalchemy import and_, func, select

from zndraw_joblib.contract.messages import MAX_JSON_BYTES
from zndraw_joblib.contract.problems import ContentTooLarge
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.pages import fetch_page, newest_first
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks.records import FULL, Condition, TaskRecord, of_status, record_of

tasks = Task.__table__

MAX_PAGE_CHARACTERS = 32 * 1024**2
# A page of so few tasks cannot exceed the bound.
_SMALL_PAGE = MAX_PAGE_CHARACTERS // (2 * MAX_JSON_BYTES)


def in_room(room_id: str, status: TaskStatus | None, job_id: UUID | None = None) -> Condition:
    """Match a room's tasks, optionally of one status and of one job."""
    wanted = [tasks.c.room_id == room_id]
    if job_id is not None:
        wanted.append(tasks.c.job_id == job_id)
    if status is not None:
        wanted.append(of_status([status]))
    return and_(*wanted)


async def page(tx: Transaction, wanted: Condition, part: Page) -> tuple[list[TaskRecord], int]:
    """Return one page, newest first, and the count of all tasks that match.

    Raises `ContentTooLarge` for a page with more than 32 MiB of payloads and results.
    """
    await _check_size(tx, wanted, part)
    rows, total = await fetch_page(tx, tasks, FULL, wanted, part)
    return [record_of(row) for row in rows], total


async def _check_size(tx: Transaction, wanted: Condition, part: Page) -> None:
    if part.limit <= _SMALL_PAGE:
        return
    size = func.length(tasks.c.payload) + func.coalesce(func.length(tasks.c.result), 0)
    rows = newest_first(tasks, select(size.label("size")).where(wanted))
    sizes = rows.limit(part.limit).offset(part.offset).subquery()
    total = (await tx.execute(select(func.coalesce(func.sum(sizes.c.size), 0)))).scalar_one()
    if total > MAX_PAGE_CHARACTERS:
        raise ContentTooLarge(
            f"limit: these {part.limit} tasks hold {total} characters of payloads and results; a page holds "
            f"at most {MAX_PAGE_CHARACTERS}. Request fewer tasks at once"
        )
