"""Unique tasks and debounce: the options of submits and schedules by which several submits make one task."""

from functools import partial
from operator import eq
from typing import Annotated, Literal, Protocol, Self

from pydantic import ConfigDict, Field, model_validator

from zndraw_joblib.wire.bodies import CheckedKeywords, Printable, RequestBody, is_none
from zndraw_joblib.wire.policy import Seconds

MAX_UNIQUE_KEY = 255


class Unique(CheckedKeywords, RequestBody):
    """Submit a task only if no other task of its job holds the same key.

    - `key`: by default the SHA-256, as hexadecimal digits, of the payload's canonical JSON (RFC 8785).
    - `scope`: `room` if each room has keys of its own, `job` if all rooms of the job share them.
    - `until`: the task holds the key until it has `ended`, also while it waits for a retry, or until it has
      `started` for the first time.
    - `for_seconds`: instead of `until`, the task holds the key for this time from its submit, even if it ends
      earlier or later.
    - `on_conflict`: with `return`, the answer is the task that holds the key, with `duplicate`. With `reject`
      it is the problem `duplicate-task`. With `replace`, a task that is pending gets the new payload and
      options, and keeps its id and its place in the queue; otherwise it is like `return`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Annotated[str, Printable, Field(min_length=1, max_length=MAX_UNIQUE_KEY)] | None = Field(
        default=None, exclude_if=is_none
    )
    scope: Literal["job", "room"] = "room"
    # A response without it is a valid request, also beside `for_seconds`.
    until: Literal["started", "ended"] = Field(default="ended", exclude_if=partial(eq, "ended"))
    for_seconds: Seconds | None = Field(default=None, exclude_if=is_none)
    # Likewise beside `debounce`.
    on_conflict: Literal["return", "reject", "replace"] = Field(
        default="return", exclude_if=partial(eq, "return")
    )

    @model_validator(mode="after")
    def _one_span(self) -> Self:
        if self.for_seconds is not None and "until" in self.model_fields_set:
            raise ValueError("give until or for_seconds, not both")
        return self


class Debounce(CheckedKeywords, RequestBody):
    """Run a unique task `seconds` after the last of its submits, each of which replaces the payload.

    It enters its queue at the latest `max_seconds` after the first submit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: Seconds
    max_seconds: Seconds | None = Field(default=None, exclude_if=is_none)


class _Options(Protocol):
    unique: Unique | None
    debounce: Debounce | None


def check_debounce(options: _Options, *times: str) -> None:
    """Raise ValueError for a debounce without a key, with a rule of its own, or with one of these fields."""
    if options.debounce is None:
        return
    if options.unique is None:
        raise ValueError("debounce: it needs unique, which names the key of the submits to join")
    if any(getattr(options, name) for name in times):
        raise ValueError(f"debounce: it sets the time of the task; remove {' and '.join(times)}")
    if "on_conflict" in options.unique.model_fields_set and options.unique.on_conflict != "replace":
        raise ValueError("debounce: each submit replaces the task; remove unique.on_conflict")
