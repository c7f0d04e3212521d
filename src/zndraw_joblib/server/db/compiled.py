"""Statements compiled for asyncpg and sqlite3. The only module that uses private parts of SQLAlchemy.

These are attributes of `SQLCompiler`. `is_usable` compares what they give with what is expected. If it
differs, `open_database` runs all statements through SQLAlchemy, as in a host.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import ColumnElement, Float, Integer, Result, bindparam, column, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, Any]
Convert = Callable[[Any], Any] | None
Rows = Result[*tuple[Any, ...]]

ASYNCPG: Any = asyncpg_dialect()  # type: ignore[no-untyped-call]
_SQLITE: Any = sqlite_dialect()
# Lists are padded to powers of two, so few statements have more.
MAX_FORMS = 64
# PostgreSQL's number of the type of columns with floats.
_DOUBLE = 701


class CompiledStatement:
    """A statement as SQL text, with the order of its parameters and the conversions of its values."""

    def __init__(self, statement: Any, params: Values) -> None:
        compiled: SQLCompiler = statement.compile(
            dialect=ASYNCPG, column_keys=list(params) or None, compile_kwargs={"render_postcompile": True}
        )
        if compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError("Python-side column defaults are not supported: give every column its value")
        self.sql = str(compiled)
        self._fixed = dict(compiled.construct_params(_check=False))
        self._names = [(name, _bind_processor(compiled, name)) for name in compiled.positiontup or ()]
        self.result = _ResultOf(statement, ASYNCPG)
        self.arguments = _plain_arguments(self._names, self._fixed.keys() - params.keys()) or self._arguments

    def _arguments(self, params: Values) -> Sequence[Any]:
        """Return the values of the statement's parameters in their order."""
        values = {**self._fixed, **params}
        return [convert(values[name]) if convert else values[name] for name, convert in self._names]


class SqliteStatement:
    """A statement for SQLite: one SQL text for each combination of lengths of its lists."""

    def __init__(self, statement: Any, params: Values) -> None:
        self._compiled: SQLCompiler = statement.compile(dialect=_SQLITE, column_keys=list(params) or None)
        if self._compiled.insert_prefetch or self._compiled.update_prefetch:
            raise TypeError("Python-side column defaults are not supported: give every column its value")
        binds = self._compiled.binds.values()
        self._lists = sorted({bind.key for bind in binds if bind.expanding} & params.keys())
        self._result = _ResultOf(statement, _SQLITE)
        self._forms: dict[tuple[int, ...], SqliteForm] = {}
        # The only one of a statement without lists.
        self.only_form = None if self._lists else SqliteForm(self._compiled, params, self._result)

    def form(self, params: Values) -> "SqliteForm":
        """Return the text for values with lists of these lengths."""
        lengths = tuple([len(params[name]) for name in self._lists])
        form = self._forms.get(lengths)
        if form is None:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            form = self._forms[lengths] = SqliteForm(self._compiled, params, self._result)
        return form


class SqliteForm:
    """The SQL text of a statement whose lists have certain lengths."""

    def __init__(self, compiled: SQLCompiler, params: Values, result: "_ResultOf") -> None:
        state = compiled.construct_expanded_state(dict(params), escape_names=False)
        self.sql = state.statement
        self.result = result
        self._fixed = {name: value for name, value in state.parameters.items() if name not in params}
        self._lists = [(name, names) for name, names in state.parameter_expansion.items() if name in params]
        names = state.positiontup or ()
        self._names = [(name, _processor(compiled, name, state.parameter_expansion)) for name in names]
        self.arguments = _plain_arguments(self._names, [*self._fixed, *self._lists]) or self._arguments

    def _arguments(self, params: Values) -> Sequence[Any]:
        """Return the values of the statement's parameters in their order."""
        values = {**self._fixed, **params}
        for name, names in self._lists:
            values.update(zip(names, params[name], strict=True))
        return [convert(values[name]) if convert else values[name] for name, convert in self._names]


def _plain_arguments(
    names: Sequence[tuple[str, Convert]], others: Iterable[Any]
) -> Callable[[Values], Sequence[Any]] | None:
    """Return a fast function for two or more parameters without conversions; None if there are `others`."""
    if len(names) < 2 or [*others] or any(convert for _, convert in names):
        return None
    return itemgetter(*[name for name, _ in names])


class Records(list[Any]):
    """The rows of a statement, with the methods of SQLAlchemy's results that are used here."""

    def all(self) -> "Records":
        """Return the rows."""
        return self

    def scalars(self) -> "Records":
        """Return the first value of each row."""
        return Records([row[0] for row in self])

    def first(self) -> Any:
        """Return the first row, None without one."""
        return self[0] if self else None

    def one_or_none(self) -> Any:
        """Return the only row, None without one. Raises `MultipleResultsFound`."""
        if len(self) > 1:
            raise MultipleResultsFound("A statement for one row has returned several")
        return self[0] if self else None

    def one(self) -> Any:
        """Return the only row. Raises `NoResultFound` and `MultipleResultsFound`."""
        if not self:
            raise NoResultFound("A statement for one row has returned none")
        return self.one_or_none()

    def scalar(self) -> Any:
        """Return the first value of the first row, None without one."""
        return self[0][0] if self else None

    def scalar_one(self) -> Any:
        """Return the value of the only row. Raises as `one`."""
        return self.one()[0]

    def scalar_one_or_none(self) -> Any:
        """Return the value of the only row, None without one. Raises as `one_or_none`."""
        row = self.one_or_none()
        return None if row is None else row[0]


class _ResultOf:
    """Turns the records of a driver into named tuples."""

    def __init__(self, statement: Any, dialect: Any) -> None:
        columns = list(getattr(statement, "exported_columns", ()))
        kind = cast("Any", namedtuple)("Row", [str(column.key) for column in columns], rename=True)
        self._row = partial(tuple.__new__, kind)
        self._converters = [
            (place, convert)
            for place, column in enumerate(columns)
            if (convert := _result_processor(column, dialect))
        ]

    def __call__(self, records: Sequence[Any]) -> Rows:
        """Return the rows."""
        if records and self._converters:
            columns: list[Iterable[Any]] = list(zip(*records, strict=True))
            for place, convert in self._converters:
                columns[place] = map(convert, columns[place])
            records = zip(*columns, strict=True)  # type: ignore[assignment]
        return cast("Rows", Records(map(self._row, records)))


def _bind_processor(compiled: SQLCompiler, name: str) -> Convert:
    # The parameters of an IN list are numbered after the name of the list.
    bind = compiled.binds[name if name in compiled.binds else name.rpartition("_")[0]]
    kind = bind.type.dialect_impl(ASYNCPG)
    if not isinstance(kind, ARRAY):
        return kind.bind_processor(ASYNCPG)
    # SQLAlchemy's processor examines each item, also if there is nothing to convert.
    convert = kind.item_type.dialect_impl(ASYNCPG).bind_processor(ASYNCPG)
    return None if convert is None else lambda values: [convert(value) for value in values]


def _processor(compiled: SQLCompiler, name: str, lists: Mapping[str, Sequence[str]]) -> Convert:
    owner = next((owner for owner, names in lists.items() if name in names), name)
    return compiled.binds[owner].type.dialect_impl(_SQLITE).bind_processor(_SQLITE)


def _result_processor(column: ColumnElement[Any], dialect: Any) -> Convert:
    kind = column.type.dialect_impl(dialect)
    return kind.result_processor(dialect, _DOUBLE if isinstance(kind, Float) else None)


@cache
def is_usable() -> bool:
    """Return whether these parts of SQLAlchemy give what the queue expects of them."""
    number, flag = column("number", Integer), column("flag", Integer)
    statement = select(number).where(
        number.in_(bindparam("numbers", expanding=True)), flag == bindparam("flag")
    )
    plain = select(number).where(number == bindparam("wanted"), flag == 7)
    params = {"numbers": [1, 2], "flag": 3}
    try:
        compiled = CompiledStatement(plain, {"wanted": 1})
        form = SqliteStatement(statement, params).form(params)
        return (
            compiled.arguments({"wanted": 5}) == [5, 7]
            and form.arguments(params) == [1, 2, 3]
            and [row.number for row in form.result([(4,)])] == [4]
            and [tuple(row) for row in compiled.result([(4,)])] == [(4,)]
        )
    except Exception:
        return False
