"""What rows offer to the code of a host, besides their columns."""

from datetime import UTC, datetime, timedelta
from typing import Any


class Named:
    """A row with a full name that is no column."""

    @property
    def full_name(self) -> str:
        """Return ``room:category:name``."""
        return _full_name(self)


class Beating:
    """A row of what sends heartbeats."""

    def is_alive(self: Any, timeout: timedelta) -> bool:
        """Return whether the last heartbeat is at most `timeout` ago."""
        return bool(datetime.now(UTC) - self.last_heartbeat <= timeout)


class ComputedFullName:
    """A full name that the database computes; a row that is not saved has it too."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __get__(self, row: Any, table: type[Any]) -> Any:
        if row is None:
            return self._column
        name = self._column.__get__(row, table)
        return _full_name(row) if name is None else name

    def __set__(self, row: Any, name: str) -> None:
        self._column.__set__(row, name)


def _full_name(row: Any) -> str:
    return f"{row.room_id}:{row.category}:{row.name}"
