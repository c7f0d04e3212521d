"""Statements over lists of values, in the form that is fast on each database."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Dialect,
    Integer,
    TableValuedAlias,
    Text,
    any_,
    bindparam,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

Value = TypeVar("Value")
# A limit that the plan knows: for an unknown one PostgreSQL expects to return a tenth of all rows.
ONE: ColumnElement[int] = literal_column("1")


def by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the parameters of `arrays` for these rows, at least one."""
    return {f"all_{name}": [row[name] for row in rows] for name in rows[0]}


def arrays(columns: Mapping[str, TypeEngine[Any]]) -> TableValuedAlias:
    """Return a list of rows as a table for PostgreSQL, with their `place` in the list, counted from 1.

    There one statement for a list costs far less than one statement for each row.
    """
    # As subqueries: PostgreSQL then makes one plan for lists of any length. A plan for a long list may scan
    # a whole table once, where the rows have keys.
    bound = [
        select(bindparam(f"all_{name}", type_=postgresql.ARRAY(kind, dimensions=1))).scalar_subquery()
        for name, kind in columns.items()
    ]
    named = [column(name, kind) for name, kind in columns.items()]
    return func.unnest(*bound).table_valued(*named, with_ordinality="place", name="given").render_derived()


class _Rows(TypeDecorator[Any]):
    """Rows of values of these types, as JSON in which SQLite finds each value as it stores it."""

    impl = Text
    cache_ok = True

    def __init__(self, kinds: Sequence[TypeEngine[Any]]) -> None:
        super().__init__()
        self.kinds = tuple(kinds)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """Return the JSON of columns, each a list of values."""
        columns = []
        for kind, values in zip(self.kinds, value, strict=True):
            convert = kind.dialect_impl(dialect).bind_processor(dialect)
            columns.append(values if convert is None else map(convert, values))
        return to_json(list(zip(*columns, strict=True))).decode()


def json_rows(columns: Mapping[str, TypeEngine[Any]]) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a list of rows on SQLite; the parameter `rows` has a list for each column."""
    rows = bindparam("rows", type_=_Rows(list(columns.values())))
    value = func.json_each(rows).table_valued("value", name="given").c.value
    return {
        name: value.op("->>", return_type=kind)(literal_column(str(place)))
        for place, (name, kind) in enumerate(columns.items())
    }


def _list_of(kind: TypeEngine[Any]) -> postgresql.ARRAY[Any]:
    return postgresql.ARRAY(kind, dimensions=1)  # otherwise a JSON list counts as one more dimension


class among(FunctionElement[bool]):
    """``among(column, bindparam("name"))``: the column is one of the values in the list given as `name`."""

    inherit_cache = True  # untyped: SQLAlchemy compares a Boolean with 1 on SQLite


@compiles(among)
def _as_in(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    tested, given = element.clauses
    return compiler.process(tested.in_(bindparam(given.key, expanding=True)), **options)


@compiles(among, "postgresql")
def _as_any(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    # One statement for lists of every length.
    tested, given = element.clauses
    values: ColumnElement[Any] = bindparam(given.key, type_=_list_of(tested.type))
    return compiler.process(tested == any_(values), **options)


class unindexed(FunctionElement[Any]):
    """A column that SQLite finds by no index. PostgreSQL decides by its statistics."""

    inherit_cache = True


@compiles(unindexed)
def _as_column(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(unindexed, "sqlite")
def _as_expression(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{compiler.process(element.clauses, **options)}"


class by_database(FunctionElement[bool]):
    """``by_database(postgresql, sqlite)``: two forms of one condition; each database reads its own index."""

    inherit_cache = True  # untyped, as `among` is


@compiles(by_database)
def _for_postgresql(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses.clauses[0], **options)})"


@compiles(by_database, "sqlite")
def _for_sqlite(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return f"({compiler.process(element.clauses.clauses[1], **options)})"


class places(FunctionElement[bool]):
    """``places(index columns…, values…)``: each column has its value; order by all columns of the index.

    PostgreSQL gets a range, so that only this index has the order: with equalities it may read the history
    along the primary key. SQLite finds a place by equalities only.
    """

    inherit_cache = True  # untyped: SQLAlchemy compares a Boolean with 1 on SQLite


@compiles(places)
def _as_range(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    clauses = [compiler.process(clause, **options) for clause in element.clauses]
    middle = len(clauses) // 2
    columns, values = ", ".join(clauses[:middle]), ", ".join(clauses[middle:])
    return f"(({columns}) >= ({values}) AND ({columns}) <= ({values}))"


@compiles(places, "sqlite")
def _as_equalities(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    clauses = [compiler.process(clause, **options) for clause in element.clauses]
    middle = len(clauses) // 2
    pairs = zip(clauses[:middle], clauses[middle:], strict=True)
    return f"({' AND '.join(f'{column} = {value}' for column, value in pairs)})"


class byte_size(FunctionElement[int]):
    """The bytes of a text. On PostgreSQL it does not read a large one."""

    inherit_cache = True
    type = Integer()


@compiles(byte_size)
def _octet_length(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(byte_size, "sqlite")
def _blob_length(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


class contains(FunctionElement[bool]):
    """``contains(column, pattern)``: a text matches a `like_pattern`. The letters a to z have no case."""

    inherit_cache = True
    type = Boolean()


@compiles(contains)
def _like_in_lower_case(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    # In the collation C only the letters a to z have two cases, as for SQLite.
    tested, pattern = [compiler.process(clause, **options) for clause in element.clauses]
    return f'(lower({tested} COLLATE "C") LIKE lower({pattern} COLLATE "C") ESCAPE \'~\')'


@compiles(contains, "sqlite")
def _like(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    tested, pattern = [compiler.process(clause, **options) for clause in element.clauses]
    return f"({tested} LIKE {pattern} ESCAPE '~')"


def like_pattern(text: str) -> str:
    """Return the pattern of texts that contain a text."""
    escaped = re.sub(r"[~%_]", r"~\g<0>", text)
    return f"%{escaped}%"


def padded(values: Sequence[Value]) -> list[Value]:
    """Repeat the last value up to a power of two, so that `IN` lists need few prepared statements."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    return [*values, *[values[-1]] * (size - len(values))] if values else []
