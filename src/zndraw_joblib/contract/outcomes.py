"""Plain JSON, and the text of a failure: an exception may define its own `__str__`, which is a job's code."""

import json
import math
from collections.abc import Iterable, Iterator
from reprlib import Repr
from typing import Any

from pydantic import ValidationError

from zndraw_joblib.contract.messages import MAX_ERROR_BYTES

_TRUNCATED = " … (truncated)"
# It shortens values, and does not raise what their `__repr__` raises.
_short = Repr()
_short.maxstring = _short.maxother = 200


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


def describe_errors(error: ValidationError) -> str:
    """Return all errors of a validation in one line, each with its place."""
    return "; ".join(map(_describe_one, error.errors()))


def _describe_one(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    text = error["msg"].removeprefix("Value error, ")
    return f"{place}: {text} (it is {_short.repr(error['input'])})" if place else text


def misfit_text(cls: type[Any], error: BaseException) -> str:
    """Return why a job's class cannot be made from a payload, as the text of a failure."""
    if isinstance(error, ValidationError):
        reason = describe_errors(error)
    else:
        reason = text_of(error) if isinstance(error, ValueError) else error_text(error)
    return error_text(f"The payload does not fit {cls.__name__}: {reason}")
