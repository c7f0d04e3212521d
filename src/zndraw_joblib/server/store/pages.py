"""Pagination of every list: newest first, by offset and limit."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, func, select

from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.database import Transaction


async def fetch_page(
    tx: Transaction, table: Table, statement: Select[Any], wanted: ColumnElement[bool], part: Page
) -> tuple[Sequence[Row[*tuple[Any, ...]]], int]:
    """Return one page of the rows of `statement` that match `wanted`, and the count of all matches.

    `table` is the table that the list is about: its rows are counted and give the order.
    """
    statement = newest_first(table, statement.where(wanted)).limit(part.limit).offset(part.offset)
    rows = (await tx.execute(statement)).all()
    total: int = (await tx.execute(select(func.count()).select_from(table).where(wanted))).scalar_one()
    return rows, total


def newest_first(table: Table, statement: Select[Any]) -> Select[Any]:
    """Order a statement by creation time; the key decides between rows of the same time."""
    [key] = table.primary_key
    return statement.order_by(table.c.created_at.desc(), key.desc())
