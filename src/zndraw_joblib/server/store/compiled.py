"""Statements compiled for asyncpg. The only module that uses private parts of SQLAlchemy.

These are `SimpleResultMetaData` and attributes of `SQLCompiler`. `tests/store/test_compiled.py` fails when
they change, and `pyproject.toml` sets an upper bound for SQLAlchemy.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.engine import IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.sql.compiler import SQLCompiler

from zndraw_joblib.server.store.database import Rows

Values = Mapping[str, Any]
Convert = Callable[[Any], Any] | None

ASYNCPG: Any = asyncpg_dialect()  # type: ignore[no-untyped-call]


class CompiledStatement:
    """A statement as SQL text, with the order of its parameters and the conversions of its values."""

    def __init__(self, statement: Any, given: Values) -> None:
        compiled: SQLCompiler = statement.compile(
            dialect=ASYNCPG, column_keys=list(given) or None, compile_kwargs={"render_postcompile": True}
        )
        if compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError("Python-side column defaults are not supported: give every column its value")
        self.sql = str(compiled)
        self._fixed = dict(compiled.construct_params(_check=False))
        self._names = [(name, _bind_processor(compiled, name)) for name in compiled.positiontup or ()]
        columns = list(getattr(statement, "exported_columns", ()))
        self._keys = SimpleResultMetaData([column.key for column in columns])
        self._converters = [
            (place, convert) for place, column in enumerate(columns) if (convert := _result_processor(column))
        ]

    def arguments(self, given: Values) -> list[Any]:
        """Return the values of the statement's parameters in their order."""
        values = {**self._fixed, **given}
        return [convert(values[name]) if convert else values[name] for name, convert in self._names]

    def result(self, records: Sequence[Any]) -> Rows:
        """Return asyncpg's records as SQLAlchemy's rows."""
        rows = map(list, records)
        return IteratorResult(self._keys, map(self._converted, rows))

    def _converted(self, row: list[Any]) -> tuple[Any, ...]:
        for place, convert in self._converters:
            row[place] = convert(row[place])
        return tuple(row)


def _bind_processor(compiled: SQLCompiler, name: str) -> Convert:
    # The parameters of an IN list are numbered after the name of the list.
    bind = compiled.binds[name if name in compiled.binds else name.rpartition("_")[0]]
    return bind.type.dialect_impl(ASYNCPG).bind_processor(ASYNCPG)


def _result_processor(column: ColumnElement[Any]) -> Convert:
    return column.type.dialect_impl(ASYNCPG).result_processor(ASYNCPG, None)
