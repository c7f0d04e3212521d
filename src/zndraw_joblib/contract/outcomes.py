"""The outcome of a run as it is stored: a result as plain JSON, or the text of a failure.

Both may run code of the job: a result may be a generator, and an exception may define its own `__str__`.
"""

import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.messages import MAX_ERROR_BYTES, MAX_JSON_BYTES

# Each item of a list has at least two bytes as JSON.
_MAX_ITEMS = MAX_JSON_BYTES // 2
_TRUNCATED = " … (truncated)"


class ResultRejected(ValueError):
    """The result of a task cannot be sent: it is not JSON, or it is too large."""


def encode(value: Any) -> bytes:
    """Return plain JSON as bytes. Raises ValueError with the name of a field that is not JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise ValueError(next(_faults(value, ""), str(error))) from error


def _faults(value: Any, path: str) -> Iterator[str]:
    """Yield a text for each value that JSON cannot express: infinite numbers, NaN and lone surrogates."""
    children: Iterable[tuple[Any, Any]] = ()
    shown = path or "the value"
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{shown}: {value} is not JSON: a number must be finite, and at most about 1.8e308"
    elif isinstance(value, str) and value.encode("utf-8", "ignore").decode() != value:
        yield f"{shown}: the text is not JSON: it has half of a surrogate pair"
    elif isinstance(value, dict):
        children = value.items()
        yield from (fault for key in value for fault in _faults(key, f"a field name in {shown}"))
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    for key, child in children:
        yield from _faults(child, f"{path}.{key}".lstrip("."))


def jsonable_result(value: Any) -> Any:
    """Return a task's result as plain JSON.

    Raises `ResultRejected`, and any exception of the result's own code.
    """
    return _plain_and_encoded(value)[0]


def encoded_result(value: Any) -> bytes:
    """Return a task's result as JSON. Raises as `jsonable_result`."""
    return b"null" if value is None else _plain_and_encoded(value)[1]


def _plain_and_encoded(value: Any) -> tuple[Any, bytes]:
    if isinstance(value, Iterator):
        value = list(islice(value, _MAX_ITEMS + 1))  # it may be endless
    try:
        plain = to_jsonable_python(value)
        encoded = encode(plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultRejected(f"The result cannot be sent as JSON: {text_of(error)}") from error
    if len(encoded) > MAX_JSON_BYTES:
        raise ResultRejected(
            f"The result has {len(encoded):,} bytes as JSON; the limit is {MAX_JSON_BYTES:,} bytes"
        )
    return plain, encoded


def error_text(error: object) -> str:
    """Return the text of a failure, at most 64 KiB: an exception's class and message, or the text itself."""
    text = text_of(error)
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}".rstrip(": ")
    raw = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode()
    return raw[: MAX_ERROR_BYTES - len(_TRUNCATED.encode())].decode("utf-8", "ignore") + _TRUNCATED


def text_of(value: object) -> str:
    """Return `str(value)`; if that raises, return a text that names the exception."""
    try:
        return "".join([str(value)])
    # BaseException: this is the last step before a report, which must not depend on a job's code.
    except BaseException as error:
        return f"(str() of this {type(value).__name__} raised {type(error).__name__})"
