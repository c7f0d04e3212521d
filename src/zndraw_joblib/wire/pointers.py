"""JSON pointers of the parts of a payload, which are made for few parts only.

The names of a payload may have 1 MiB together, and so may what is below them: the pointers of all its parts
would have terabytes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

# The way to a part: that to the value which it is in, and its name or index there; None for the whole.
Way = tuple["Way", str | int] | None
# Of a pointer that a client reads, or that names a value which the server replaces.
MAX_POINTER = 1000


def escaped(part: str | int) -> str:
    """Return a name or an index as a part of a pointer (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")


def pointer_of(way: Way) -> str:
    """Return the pointer to a part. Raises ValueError for one of more than 1,000 characters."""
    pointer = beginning_of(way)
    if len(pointer) > MAX_POINTER:
        raise ValueError(
            f"the JSON pointer to it has more than {MAX_POINTER} characters; use shorter names, or nest less"
        )
    return pointer


def beginning_of(way: Way) -> str:
    """Return the pointer to a part; of a long one about the first 1,000 characters, and at least one more."""
    parts: list[str | int] = []
    while way is not None:
        way, part = way
        parts.append(part)
    pointer = ""
    for part in reversed(parts):
        if len(pointer) > MAX_POINTER:
            break
        # An escape only makes it longer.
        pointer += f"/{escaped(part[: MAX_POINTER + 1] if isinstance(part, str) else part)}"
    return pointer


def find(payload: Any, is_wanted: Callable[[dict[str, Any]], bool]) -> Iterator[tuple[Way, dict[str, Any]]]:
    """Yield the wanted objects of a payload, but not those inside others, each with the way to it."""
    stack: list[tuple[Way, Any]] = [(None, payload)] if isinstance(payload, dict | list) else []
    while stack:
        way, node = stack.pop()
        parts: Iterable[tuple[Any, Any]] = enumerate(node)
        if isinstance(node, dict):
            if is_wanted(node):
                yield way, node
                continue
            parts = node.items()
        stack += [((way, step), part) for step, part in parts if isinstance(part, dict | list)]
