"""Static statements, written as SQL.

In the text `:name` is a parameter, and `:all_name` a list. Parameters and result columns have the type of
the column of a table with the same name, unless the caller passes another.

The text is PostgreSQL's. For SQLite some things are rewritten, so that a statement of both is written once:

- `x = ANY (:all_name)` becomes `x IN (…)` with one placeholder for each value,
- `IS NOT DISTINCT FROM` becomes `IS`,
- `octet_length(x)`, which SQLite has only since 3.43, becomes `length(CAST(x AS BLOB))`,
- a line with `FOR UPDATE`, `FOR NO KEY UPDATE`, `FOR SHARE` or `FOR KEY SHARE` is removed, because SQLite has
  one writer,
- `unindexed(x)`, a column for which SQLite uses no index, becomes `+x`, and on PostgreSQL `x`,
- `payload_of(tasks)` and `payload_size(tasks)`, a task's payload and its bytes, are those of its row in the
  table of long payloads, if it has one, and on PostgreSQL always of its column.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ClauseElement,
    Float,
    Integer,
    String,
    Text,
    TextClause,
    bindparam,
    column,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine
from sqlmodel import AutoString

from zndraw_joblib.server.db.column_types import UtcDateTime, Uuid
from zndraw_joblib.server.db.compiled import ASYNCPG
from zndraw_joblib.server.db.tables import PAYLOAD_COLUMN, metadata

Type = TypeEngine[Any]
# Types of names that are no columns.
TEXT: Type = Text()
INTEGER: Type = Integer()
BIG_INTEGER: Type = BigInteger()
FLOAT: Type = Float()
BOOLEAN: Type = Boolean()
UUID_TYPE: Type = Uuid()

_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?![:\w])")
_LIST = re.compile(r"= ANY \(:all_(\w+)\)")
_LOCK = re.compile(r"\n *FOR (UPDATE|NO KEY UPDATE|SHARE|KEY SHARE)\b.*")
_BYTES = re.compile(r"\boctet_length\(([\w.]+)\)")
_UNINDEXED = re.compile(r"\bunindexed\(([\w.]+)\)")
_PAYLOAD = re.compile(r"\bpayload_of\((\w+)\)")
_PAYLOAD_SIZE = re.compile(r"\bpayload_size\((\w+)\)")
_PAYLOAD_COLUMN = partial(PAYLOAD_COLUMN.format, r"\1.payload", r"\1.seq")
_ON_SQLITE = [
    (_LIST, r"IN :all_\1"),
    (re.compile("IS NOT DISTINCT FROM"), "IS"),
    (_PAYLOAD, _PAYLOAD_COLUMN("content", r"\1.payload")),
    (_PAYLOAD_SIZE, _PAYLOAD_COLUMN("size", r"octet_length(\1.payload)")),
    (_BYTES, r"length(CAST(\1 AS BLOB))"),
    (_UNINDEXED, r"+\1"),
    (_LOCK, ""),
]
_ON_POSTGRESQL = [
    (_PAYLOAD, r"\1.payload"),
    (_PAYLOAD_SIZE, r"octet_length(\1.payload)"),
    (_UNINDEXED, r"\1"),
]


def _types_of_columns() -> dict[str, Type | None]:
    """Return the types of columns by name; None where tables differ, and the wider of two integers."""
    types: dict[str, Type | None] = {}
    for col in (col for table in metadata.tables.values() for col in table.columns):
        kind = TEXT if isinstance(col.type, String | AutoString) else col.type
        first = types.setdefault(col.name, kind)
        if isinstance(first, Integer) and isinstance(kind, Integer):
            types[col.name] = first if isinstance(first, BigInteger) else kind
        elif type(first) is not type(kind):
            types[col.name] = None
    return types


_TYPES: dict[str, Type | None] = _types_of_columns() | {
    "id": Uuid(),
    "at": UtcDateTime(),
    "now": UtcDateTime(),
    "since": UtcDateTime(),
    "count": Integer(),
    "limit": Integer(),
    "offset": BigInteger(),
    "most_bytes": Integer(),
}


class _Sql(TextClause):
    """SQL text, and what makes its form for SQLite: the text as it was written, and the types."""

    inherit_cache = True
    source: str
    types: dict[str, Type]


@compiles(_Sql, "sqlite")
def _compile_for_sqlite(element: _Sql, compiler: SQLCompiler, **options: Any) -> str:
    lists = {f"all_{name}" for name in _LIST.findall(element.source)}
    form = _bound(text(_rewritten(element.source, _ON_SQLITE)), element.types, lists)
    return str(compiler.process(form, **options))


def statement(sql: str, *columns: str, **types: Type) -> Any:
    """Return a statement with these result columns, in their order. `types` are those of other names."""
    element: Any = _bound(_Sql(_rewritten(sql, _ON_POSTGRESQL)), types)
    element.source, element.types = sql, types
    return element.columns(*[column(name, _column_type(name, types)) for name in columns])


def _rewritten(sql: str, rules: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        sql = pattern.sub(replacement, sql)
    return sql


def _bound(clause: TextClause, types: dict[str, Type], lists: Collection[str] = ()) -> TextClause:
    names = dict.fromkeys(_PARAMETER.findall(clause.text))
    return clause.bindparams(
        *[
            bindparam(name, type_=_item_type(name, types), expanding=True)
            if name in lists
            else bindparam(name, type_=_type_of(name, types))
            for name in names
        ]
    )


def one_row(names: Sequence[str]) -> str:
    """Return the columns and the values of an INSERT of one row, each a parameter with the column's name."""
    return f"({', '.join(names)})\nVALUES ({', '.join(f':{name}' for name in names)})"


def listed_rows(names: Sequence[str]) -> str:
    """Return the columns and the rows of an INSERT on PostgreSQL; `bulk.by_column` makes the parameters."""
    columns = ", ".join(names)
    lists = ", ".join(f"(SELECT :all_{name})" for name in names)
    return f"({columns})\nSELECT {columns} FROM unnest({lists}) AS new ({columns})"


def as_sql(clause: ClauseElement) -> str:
    """Return the SQL of a condition or a statement without parameters."""
    return str(clause.compile(dialect=ASYNCPG))


def _type_of(name: str, types: dict[str, Type]) -> Type:
    kind = _item_type(name, types)
    return ARRAY(kind, dimensions=1) if name.startswith("all_") else kind


def _column_type(name: str, types: dict[str, Type]) -> Type | None:
    kind = types.get(name, _TYPES.get(name))
    if kind is None and name in _TYPES:
        raise TypeError(f"Tables have columns {name} of several types: pass the one that is meant, {name}=…")
    return kind


def _item_type(name: str, types: dict[str, Type]) -> Type:
    name = name.removeprefix("all_")
    kind = _column_type(name, types)
    if kind is None:
        raise TypeError(f"The parameter :{name} of a statement has no type: pass it, {name}=…")
    return kind
