"""A claimed task, and what of its outcome can be told."""

import json
import threading
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.messages import MAX_ERROR_BYTES, MAX_JSON_BYTES

_CUT = " … (cut)"


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that this worker holds: `extension` is the job's class, made from `payload`.

    `worker_id` and `attempt` are the token of the claim; every report carries them. `cancelled` is set
    once the server says that the task was cancelled, or lost to this worker: then nobody waits for its end
    any more, and a job that looks may stop. A copy in another process hears nothing of it.
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
        """Leave the event out of pickles and deep copies: it is one of this process."""
        return type(self), tuple(getattr(self, item.name) for item in fields(self) if item.compare)


class GiveUp(Exception):
    """Raise it in a job to say that the task has failed for good, whatever the job's policy is."""

    is_final = True


class ResultRefused(ValueError):
    """The result of a task cannot be sent: it is not JSON, or too large."""


def encode(plain: Any) -> bytes:
    """Return plain JSON as bytes. Raises ValueError if it is none."""
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def result_of(value: Any) -> Any:
    """Return a task's result as plain JSON. Raises `ResultRefused` with a text for the task's owner."""
    try:
        plain = to_jsonable_python(value)
        size = len(encode(plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise ResultRefused(f"The result cannot be sent as JSON: {error}") from error
    if size > MAX_JSON_BYTES:
        raise ResultRefused(f"The result has {size:,} bytes as JSON; {MAX_JSON_BYTES:,} are allowed")
    return plain


def error_text(error: object) -> str:
    """Return the text of a failure, fit to be sent: an exception's class and message, 64 KiB at most."""
    text = f"{type(error).__name__}: {error}".rstrip(": ") if isinstance(error, BaseException) else str(error)
    raw = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(raw) <= MAX_ERROR_BYTES:
        return raw.decode()
    return raw[: MAX_ERROR_BYTES - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT
