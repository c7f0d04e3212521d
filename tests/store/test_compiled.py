"""The private parts of SQLAlchemy that `db/compiled.py` uses behave as it expects."""

import gc
import weakref
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest
from rest import run_task
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, insert, select, update

from zndraw_joblib.server.db import compiled
from zndraw_joblib.server.db.bulk import among
from zndraw_joblib.server.db.compiled import MAX_FORMS, CompiledStatement, SqliteStatement
from zndraw_joblib.server.db.engine import EngineDatabase, open_database
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

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


def test_sqlite_has_one_text_for_each_length_of_a_list() -> None:
    """Lists expand in place; other parameters, and values in the statement, keep their order."""
    statement = select(tasks.c.seq).where(
        tasks.c.room_id == bindparam("room"), among(tasks.c.id, bindparam("ids")), tasks.c.lane.in_([4, 5])
    )
    ids = [uuid4(), uuid4()]
    compiled = SqliteStatement(statement, {"room": "lab", "ids": ids})
    two, one = compiled.form({"room": "lab", "ids": ids}), compiled.form({"room": "lab", "ids": ids[:1]})
    assert two is compiled.form({"room": "x", "ids": ids})
    assert two.sql.count("?") == 5
    assert two.arguments({"room": "lab", "ids": ids}) == ["lab", ids[0].hex, ids[1].hex, 4, 5]
    assert one.arguments({"room": "x", "ids": ids[1:]}) == ["x", ids[1].hex, 4, 5]


def test_texts_of_lists_do_not_accumulate() -> None:
    """A statement keeps the texts of a bounded number of lengths."""
    statement = select(tasks.c.seq).where(among(tasks.c.seq, bindparam("seqs")))
    compiled = SqliteStatement(statement, {"seqs": [1]})
    made = [weakref.ref(compiled.form({"seqs": list(range(length))})) for length in range(1, 300)]
    gc.collect()
    assert sum(form() is not None for form in made) <= MAX_FORMS
    assert compiled.form({"seqs": [7]}).arguments({"seqs": [7]}) == [7]


def test_values_of_sqlite_are_converted_both_ways() -> None:
    """JSON, times and ids are stored as text; a Python-side default is refused."""
    now, task_id = datetime(2026, 1, 2, tzinfo=UTC), uuid4()
    compiled = SqliteStatement(update(tasks).values(payload=bindparam("body")), {"body": {}})
    assert compiled.form({"body": {}}).arguments({"body": {"angle": 3}}) == ['{"angle":3}']
    form = SqliteStatement(select(tasks.c.id, tasks.c.payload, tasks.c.created_at), {}).form({})
    [row] = form.result([(task_id.hex, '{"angle":3}', "2026-01-02 00:00:00.000000")])
    assert (row.id, row.payload, row.created_at) == (task_id, {"angle": 3}, now)
    with pytest.raises(TypeError, match="give every column its value"):
        SqliteStatement(insert(tasks), {"id": task_id})


async def test_another_sqlalchemy_is_noticed(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the server uses the database through SQLAlchemy alone, with the same results."""
    assert compiled.is_usable()
    assert not isinstance(open_database(settings.database_url), EngineDatabase)
    with monkeypatch.context() as patch:
        patch.delattr("sqlalchemy.sql.compiler.SQLCompiler.construct_expanded_state")
        assert not compiled.is_usable.__wrapped__()
    monkeypatch.setattr(compiled, "is_usable", lambda: False)
    app = create_app(settings)
    assert isinstance(app.state.joblib.runtime.database, EngineDatabase)
    assert settings.admin_token is not None
    headers = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
        ) as client,
    ):
        assert (await run_task(client))["status"] == "completed"
        assert (await client.get("/health/ready")).status_code == 200
