"""A claimed task, and its outcome in the form that is sent to the server."""

import json
import threading
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.messages import MAX_ERROR_BYTES, MAX_JSON_BYTES

_TRUNCATED = " … (truncated)"


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that this worker holds: `extension` is the job's class, made from `payload`.

    `worker_id` and `attempt` are the token of the claim; every report carries them. `cancelled` is set once
    the task was cancelled, or is lost to this worker: a job that checks it can stop early. A copy in another
    process has an event of its own, which is never set.
    """

    task_id: str
    job_name: str
    room_id: str
    extension: Any
    attempt: int
    payload: dict[str, Any]
    worker_id: UUID
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the event out of pickles and deep copies: it belongs to this process."""
        return type(self), tuple(getattr(self, item.name) for item in fields(self) if item.compare)


class ResultRejected(ValueError):
    """The result of a task cannot be sent: it is not JSON, or it is too large."""


def encode(value: Any) -> bytes:
    """Return plain JSON as bytes. Raises ValueError if `value` is not JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def jsonable_result(value: Any) -> Any:
    """Return a task's result as plain JSON. Raises `ResultRejected`."""
    try:
        plain = to_jsonable_python(value)
        size = len(encode(plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultRejected(f"The result cannot be sent as JSON: {error}") from error
    if size > MAX_JSON_BYTES:
        raise ResultRejected(f"The result has {size:,} bytes as JSON; the limit is {MAX_JSON_BYTES:,} bytes")
    return plain


def error_text(error: object) -> str:
    """Return the text of a failure, 64 KiB at most: an exception's class and message, or the text itself."""
    text = f"{type(error).__name__}: {error}".rstrip(": ") if isinstance(error, BaseException) else str(error)
    raw = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode()
    return raw[: MAX_ERROR_BYTES - len(_TRUNCATED.encode())].decode("utf-8", "ignore") + _TRUNCATED
