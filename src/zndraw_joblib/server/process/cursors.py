"""Cursors: where the next request of a list continues, as opaque text."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json

from zndraw_joblib.wire.problems import InvalidRequest

MAX_CURSOR = 2000
_VERSION = 1


def encode(kind: str, *values: str | int) -> str:
    """Return the cursor of a list of this kind that continues after `values`."""
    return urlsafe_b64encode(to_json([_VERSION, kind, *values])).decode().rstrip("=")


def decode(kind: str, text: str, types: Sequence[type[str] | type[int]]) -> list[Any]:
    """Return the values of a cursor. Raises `InvalidRequest` unless this kind of list has returned it."""
    try:
        if len(text) > MAX_CURSOR:
            raise ValueError(f"it has more than {MAX_CURSOR} characters")
        content = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        version, name, *values = from_json(content, allow_inf_nan=False)
        if (version, name, [type(value) for value in values]) != (_VERSION, kind, list(types)):
            raise ValueError("it is not a cursor of this list")
        if any("\x00" in value if isinstance(value, str) else abs(value) >= 2**63 for value in values):
            raise ValueError("it has a value that no row has")
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"query.cursor: {text[:40]!r} is not a cursor of this list; pass the `next` of the last response"
        ) from error
    return list(values)
