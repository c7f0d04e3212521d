"""A cache for what is made of schemas, bounded by its memory."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")


class SchemaCache(Generic[Value]):
    """Keeps the values that `make(schema)` returned last, up to `max_bytes` of them.

    `size_of` estimates the bytes of a schema and its value. A larger value than all of them is not kept.
    """

    def __init__(
        self, max_bytes: int, make: Callable[[str], Value], size_of: Callable[[str], int] = len
    ) -> None:
        self._make, self._size_of = make, size_of
        self._values: LRUCache[str, tuple[Value, int]] = LRUCache(max_bytes, getsizeof=lambda entry: entry[1])
        self._lock = Lock()

    def get(self, schema: str) -> Value:
        """Return the value for a schema. Raises what `make` raises."""
        with self._lock:
            entry = self._values.get(schema)
        if entry is None:
            entry = self._make(schema), self._size_of(schema)
            with self._lock:
                if entry[1] <= self._values.maxsize:
                    self._values[schema] = entry
        return entry[0]
