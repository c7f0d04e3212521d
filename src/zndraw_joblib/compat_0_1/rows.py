"""The columns of version 0.1.x that have another name now, on the classes of the tables.

They are there once this module is loaded: by the import of a class from `zndraw_joblib` or its old path.
"""

import warnings
from typing import Any

from zndraw_joblib.server.db.tables import Base, ProviderRecord, Task, Worker, refuse_unknown

__all__ = ["ProviderRecord", "Task", "Worker", "with_current_names"]

_RENAMED: dict[Any, dict[str, str]] = {
    Worker: {"user_id": "owner_id"},
    ProviderRecord: {"user_id": "owner_id"},
    Task: {"created_by_id": "created_by"},
}


class _Renamed:
    """A column under its old name, for reading; in a query it is the column itself."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __get__(self, row: Any, table: type[Any]) -> Any:
        return getattr(table if row is None else row, self._column)


for _table, _columns in _RENAMED.items():
    for _old, _new in _columns.items():
        setattr(_table, _old, _Renamed(_new))


def with_current_names(table: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row with the current names of its columns. The ids of users become texts."""
    renamed = _RENAMED.get(table, {})
    for old in renamed.keys() & values.keys():
        warnings.warn(
            f"{table.__name__}({old}=…) is a name of version 0.1; use {renamed[old]}=str(…) "
            "(docs/how-to/migrate-from-0.1.md)",
            DeprecationWarning,
            stacklevel=5,
        )
    current = {
        renamed.get(name, name): str(value) if name in renamed and value is not None else value
        for name, value in values.items()
    }
    return refuse_unknown(table, current)


Base.on_unknown = with_current_names
