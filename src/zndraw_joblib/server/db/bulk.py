"""Statements over lists of values, in the form that is fast on each database."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic_core import to_json
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Dialect,
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

from zndraw_joblib.wire.problems import ContentTooLarge

Value = TypeVar("Value")
# A list has schemas, or payloads of schedules, of so many bytes together; each may have 1 MiB. A list of jobs
# leaves out longer ones. As objects of Python they take ten times as much.
MAX_LISTED_BYTES, MAX_LISTED_SCHEMA = 8 * 1024**2, 16 * 1024


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


def check_listed(size: int, limit: int) -> None:
    """Raise `ContentTooLarge` for a page of `limit` items with too many bytes of schemas or payloads."""
    if size > MAX_LISTED_BYTES:
        raise ContentTooLarge(
            f"limit: these {limit} items hold {size} bytes of schemas or payloads; a page holds at most "
            f"{MAX_LISTED_BYTES}. Request fewer at once"
        )


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
    tested, parameter = element.clauses
    return compiler.process(tested.in_(bindparam(parameter.key, expanding=True)), **options)


@compiles(among, "postgresql")
def _as_any(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    # One statement for lists of every length.
    tested, parameter = element.clauses
    values: ColumnElement[Any] = bindparam(parameter.key, type_=_list_of(tested.type))
    return compiler.process(tested == any_(values), **options)


class by_template(FunctionElement[Any]):
    """A function of SQL with a template of its text for each database: `{0}` is the first argument."""

    postgresql: ClassVar[str]
    sqlite: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.inherit_cache = True  # SQLAlchemy looks for it in each class
        super().__init_subclass__()


@compiles(by_template)
def _fill(element: Any, compiler: SQLCompiler, **options: Any) -> str:
    template: str = element.sqlite if compiler.dialect.name == "sqlite" else element.postgresql
    clauses = list(element.clauses)
    return re.sub(r"\{(\d)\}", lambda match: compiler.process(clauses[int(match[1])], **options), template)


class by_database(by_template):
    """``by_database(postgresql, sqlite)``: two forms of one condition; each database reads its own index.

    It has no type, as `among` has none.
    """

    postgresql, sqlite = "({0})", "({1})"


class contains(by_template):
    """``contains(column, part)``: a text has a part. The letters a to z have no case.

    `LIKE` compares the whole part at each character: a second for a MiB of equal letters.
    """

    type = Boolean()
    # In the collation C only the letters a to z have two cases, as for SQLite.
    postgresql = """(strpos(lower({0} COLLATE "C"), lower({1} COLLATE "C")) <> 0)"""
    sqlite = "(instr(lower({0}), lower({1})) <> 0)"


class before_colon(by_template):
    """``before_colon(column)``: what a text has before its first colon, of its first 200 characters."""

    type = Text()
    postgresql = "split_part(substr({0}, 1, 200), ':', 1)"
    sqlite = "substr({0}, 1, min(instr({0} || ':', ':') - 1, 200))"


def padded(values: Sequence[Value]) -> list[Value]:
    """Repeat the last value up to a power of two, so that `IN` lists need few prepared statements."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    return [*values, *[values[-1]] * (size - len(values))] if values else []
