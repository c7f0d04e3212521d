"""Texts of failures, of exceptions whose `__str__` is a job's code, and of missing extras; plain JSON."""

import json
import math
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from reprlib import Repr
from typing import Any

from pydantic import ValidationError

from zndraw_joblib.jobs.task_channel import clean_text
from zndraw_joblib.wire.masks import masked_paths
from zndraw_joblib.wire.messages import MAX_ERROR_BYTES, MAX_ERROR_TYPES
from zndraw_joblib.wire.policy import MAX_ERROR_TYPE, error_type
from zndraw_joblib.wire.progress import MAX_TRACEBACK_CHARACTERS, Failure

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


def describe_errors(error: ValidationError, *, has_secrets: bool = False) -> str:
    """Return all errors of a validation in one line, each with its place, but no secret.

    If it `has_secrets`, the values are left out.
    """
    return "; ".join(_describe_one(one, has_secrets=has_secrets) for one in error.errors())


def _describe_one(error: Any, *, has_secrets: bool) -> str:
    place = ".".join(map(str, error["loc"]))
    text = error["msg"].removeprefix("Value error, ")
    if has_secrets or (place and error["loc"][-1] == "secret"):
        return f"{place}: {text}" if place else text
    return f"{place}: {text} (it is {_short.repr(error['input'])})" if place else text


def _has_secrets(cls: type[Any]) -> bool:
    """Return whether the schema of a job's class marks values as secret; True if that is unknown."""
    try:
        return masked_paths(cls.model_json_schema()) is not None
    except Exception:
        return True


def misfit_text(cls: type[Any], error: BaseException) -> str:
    """Return why a job's class cannot be made from a payload, as the text of a failure."""
    if isinstance(error, ValidationError):
        reason = describe_errors(error, has_secrets=_has_secrets(cls))
    else:
        reason = text_of(error) if isinstance(error, ValueError) else error_text(error)
    return error_text(f"The payload does not fit {cls.__name__}: {reason}")


# Describe the exception that ended an attempt: its type, its traceback, and its notes.

_MAX_NOTE, _MAX_NOTES = 1000, 20
_MAX_LINE = 500
_FRAME = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)
_CUT = "\n… (truncated)\n"
_SDK = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple(
    folder + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (folder := sysconfig.get_path(name))
)


def failure_of(error: BaseException, job: object = None) -> Failure:
    """Describe an exception of a job; `job` is an instance of its class, None if unknown.

    The job's own frames are those outside the standard library, installed packages and this SDK, and those of
    the package that defines the job. Never raises, whatever the exception's own code does.
    """
    try:
        return Failure(
            type=_type_name(type(error)),
            traceback=_own_traceback(error, _folder_of(job)),
            full_traceback=_text(_described(error)),
            notes=_notes(error),
        )
    except BaseException as fault:
        note = f"The traceback cannot be shown: {text_of(fault)}"
        return Failure(
            type=clean_text(type(error).__name__)[:MAX_ERROR_TYPE], notes=[clean_text(note)[:_MAX_NOTE]]
        )


def one_line(text: str, failure: Failure | None) -> str:
    """Return the first line of the text of a failure, with the last line of the job's own code it passed."""
    first = text.partition("\n")[0][:_MAX_LINE]
    frames = _FRAME.findall((failure and failure.traceback) or "")
    return f"{first} ({frames[-1][0]}:{frames[-1][1]})" if frames else first


def _described(error: BaseException) -> traceback.TracebackException:
    return traceback.TracebackException.from_exception(error, compact=True)


def _own_traceback(error: BaseException, folder: str | None) -> str:
    described = _described(error)
    _keep(described, lambda name: _is_own(name, folder))
    if not described.stack:
        described = _described(error)
        _keep(described, lambda name: not name.startswith(_SDK))
    return _text(described)


def _keep(described: traceback.TracebackException, is_kept: Callable[[str], bool]) -> None:
    """Remove frames of other files, also from the causes."""
    rest = [described]
    while rest:
        current = rest.pop()
        current.stack[:] = [frame for frame in current.stack if is_kept(frame.filename)]
        others = (current.__cause__, current.__context__, *(current.exceptions or ()))
        rest.extend(other for other in others if other is not None)


def _is_own(name: str, folder: str | None) -> bool:
    if folder is not None and name.startswith(folder):
        return True
    return not name.startswith((_SDK, "<frozen ", *_LIBRARIES))


def _folder_of(job: object) -> str | None:
    """Return the folder of the outermost package that defines a job, or its module's file."""
    module = sys.modules.get(type(job).__module__.partition(".")[0])
    file = getattr(module, "__file__", None)
    if job is None or not file:
        return None
    return str(Path(file).parent) + os.sep if hasattr(module, "__path__") else str(file)


def _text(described: traceback.TracebackException) -> str:
    text = clean_text("".join(described.format()))
    if len(text) <= MAX_TRACEBACK_CHARACTERS:
        return text
    # The start names the job's frames, the end has the message.
    begin = MAX_TRACEBACK_CHARACTERS // 4
    return text[:begin] + _CUT + text[begin + len(_CUT) - MAX_TRACEBACK_CHARACTERS :]


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list):
        return []
    return [clean_text(text_of(note))[:_MAX_NOTE] for note in notes[:_MAX_NOTES]]


def error_types(error: BaseException) -> tuple[str, ...]:
    """Return the names of an exception's class and base classes, at most 32. Never raises."""
    classes = [cls for cls in type(error).__mro__ if issubclass(cls, BaseException)]
    try:
        return tuple(map(_type_name, classes[:MAX_ERROR_TYPES]))
    # A class may have a module that is no text.
    except BaseException:
        return ()


def _type_name(cls: type[BaseException]) -> str:
    return clean_text(error_type(cls))[:MAX_ERROR_TYPE]


def missing_extra(what: str, extra: str, error: ImportError) -> str:
    """Return why `what` does not work after a failed import, and how to install the extra."""
    return (
        f"{what} needs the extra {extra!r}: the module {error.name!r} is not installed. "
        f"Run: pip install 'zndraw-joblib[{extra}]', or pip install '.[{extra}]' in a clone"
    )
