"""Pages of tasks, newest first, of bounded weight."""

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select

from zndraw_joblib.contract.messages import MAX_JSON_BYTES
from zndraw_joblib.contract.problems import ContentTooLarge
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks import FULL, TaskRecord, fetch_records, of_status

tasks = Task.__table__

MAX_PAGE_CHARACTERS = 32 * 1024**2
_SURELY_SMALL = MAX_PAGE_CHARACTERS // (2 * MAX_JSON_BYTES)


def in_room(room_id: str, status: TaskStatus | None, job_id: UUID | None = None) -> list[ColumnElement[bool]]:
    """Match a room's tasks, of one status and of one job where these are given."""
    wanted = [tasks.c.room_id == room_id]
    if job_id is not None:
        wanted.append(tasks.c.job_id == job_id)
    if status is not None:
        wanted.append(of_status([status]))
    return wanted


async def page(
    tx: Transaction, wanted: list[ColumnElement[bool]], part: Page
) -> tuple[list[TaskRecord], int]:
    """Return one page, newest first, and the count of all that match.

    Raises `ContentTooLarge` for one with more than 32 MiB of payloads and results.
    """
    order = tasks.c.created_at.desc(), tasks.c.seq.desc()
    await _check_bulk(tx, select(tasks.c.seq).where(*wanted).order_by(*order), part)
    found = await fetch_records(
        tx, FULL.where(*wanted).order_by(*order).limit(part.limit).offset(part.offset)
    )
    total = await tx.execute(select(func.count()).select_from(tasks).where(*wanted))
    return found, total.scalar_one()


async def _check_bulk(tx: Transaction, found: Select[Any], part: Page) -> None:
    if part.limit <= _SURELY_SMALL:
        return
    size = func.length(tasks.c.payload) + func.coalesce(func.length(tasks.c.result), 0)
    some = found.add_columns(size.label("size")).limit(part.limit).offset(part.offset).subquery()
    bulk = (await tx.execute(select(func.coalesce(func.sum(some.c.size), 0)))).scalar_one()
    if bulk > MAX_PAGE_CHARACTERS:
        raise ContentTooLarge(
            f"limit: {part.limit} tasks hold {bulk} characters of payloads and results here; a page takes "
            f"{MAX_PAGE_CHARACTERS}: ask for fewer at once"
        )
