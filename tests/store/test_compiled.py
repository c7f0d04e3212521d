"""The private parts of SQLAlchemy that `store/compiled.py` uses behave as it expects."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, insert, select, update

from zndraw_joblib.server.store.bulk import among
from zndraw_joblib.server.store.compiled import CompiledStatement
from zndraw_joblib.server.store.tables import Job, Task

jobs = Job.__table__
tasks = Task.__table__


def test_parameters_become_positional() -> None:
    """Named parameters and literal values get asyncpg's placeholders, in the order of the arguments."""
    statement = select(jobs.c.id).where(jobs.c.name == bindparam("wanted"), jobs.c.pending > 7)
    compiled = CompiledStatement(statement, {"wanted": "Rotate"})
    assert "$1" in compiled.sql
    assert "$2" in compiled.sql
    assert compiled.arguments({"wanted": "Rotate"}) == ["Rotate", 7]


def test_a_list_of_any_length_has_one_statement() -> None:
    """`among` compiles to ANY with one array; a plain IN list to one placeholder per value."""
    ids = [uuid4(), uuid4()]
    compiled = CompiledStatement(select(tasks.c.seq).where(among(tasks.c.id, bindparam("ids"))), {"ids": ids})
    assert "ANY ($1" in compiled.sql
    assert compiled.arguments({"ids": ids}) == [ids]
    compiled = CompiledStatement(select(tasks.c.seq).where(tasks.c.seq.in_([4, 5])), {})
    assert compiled.arguments({}) == [4, 5]


def test_values_are_converted_both_ways() -> None:
    """JSON is stored as text and read as Python values; rows have named columns."""
    compiled = CompiledStatement(update(tasks).values(payload=bindparam("body")), {"body": {}})
    assert compiled.arguments({"body": {"angle": 3}}) == ['{"angle":3}']
    now = datetime(2026, 1, 2, tzinfo=UTC)
    compiled = CompiledStatement(select(tasks.c.seq, tasks.c.payload, tasks.c.created_at), {})
    [row] = compiled.result([(1, '{"angle":3}', now)])
    assert (row.seq, row.payload, row.created_at) == (1, {"angle": 3}, now)
    assert tuple(row) == (1, {"angle": 3}, now)


def test_a_python_side_default_is_refused() -> None:
    """Column defaults that SQLAlchemy would compute per row raise an error instead of being skipped."""
    table = Table(
        "counted", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer, default=3)
    )
    with pytest.raises(TypeError, match="give every column its value"):
        CompiledStatement(insert(table), {"id": 1})
