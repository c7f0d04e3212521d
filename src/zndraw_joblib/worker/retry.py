"""Which errors pass, and how long to wait before another try."""

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from zndraw_joblib.contract.problems import ProblemException

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_SECONDS, _MOST_SECONDS = 0.25, 15.0
_MOST_ASKED_SECONDS = 300.0
# 401 passes: the next request asks the host for its headers again, and may get a fresh token.
_PASSING = frozenset({401, 408, 425, 429})
_BUSY = frozenset({429, 502, 503, 504})
_SERVER_ERROR = 500


def problem_of(error: BaseException) -> ProblemException | None:
    """Return the server's problem behind an error, also where a host raised a class of its own."""
    for candidate in (error, error.__cause__):
        if isinstance(candidate, ProblemException):
            return candidate
    return None


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error, or None if there was no answer."""
    problem = problem_of(error)
    return problem.problem.status if problem else None


def lost(error: BaseException) -> bool:
    """Tell whether there was no answer at all: the network, or a server that is not there."""
    return problem_of(error) is None and isinstance(
        error, httpx.TransportError | ConnectionError | TimeoutError
    )


def unreachable(error: BaseException) -> bool:
    """Tell whether the server could not be asked: no answer, or it is too busy or still starting."""
    return lost(error) or status_of(error) in _BUSY


def passing(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    status = status_of(error)
    return lost(error) or (status is not None and (status in _PASSING or status >= _SERVER_ERROR))


def describe(error: BaseException) -> str:
    """Return the error's class and text in one line; some of httpx's have no text."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


class Backoff:
    """Growing pauses with jitter, from a quarter of a second to `most` seconds."""

    def __init__(self, most: float = _MOST_SECONDS) -> None:
        self._most = most
        self._tries = 0

    def reset(self) -> None:
        """Start over: the last try went well."""
        self._tries = 0

    def after(self, error: BaseException) -> float:
        """Return the seconds to wait after `error`; never less than its Retry-After, up to 5 minutes."""
        pause = min(self._most, _FIRST_SECONDS * 2.0 ** min(self._tries, 10))
        self._tries += 1
        jitter = random.uniform(0.7, 1.0)  # noqa: S311 - nobody guards a secret with it
        return max(pause * jitter, retry_after(error))


def retry_after(error: BaseException) -> float:
    """Return the seconds that the server asked to wait, 0 if it did not, 300 at most."""
    problem = problem_of(error)
    text = problem.headers.get("Retry-After", "") if problem else ""
    try:
        seconds = float(text) if text.strip().isdigit() else _until(text)
    except ValueError:
        return 0.0
    return min(max(0.0, seconds), _MOST_ASKED_SECONDS)


def _until(date: str) -> float:
    return (parsedate_to_datetime(date).astimezone(UTC) - datetime.now(UTC)).total_seconds()


def persist(
    call: Callable[[], T],
    what: str,
    *,
    patience: float,
    over: threading.Event,
    again: Callable[[BaseException], bool] = passing,
) -> T:
    """Return what `call` returns; while it raises what `again` accepts, repeat it for `patience` seconds.

    The last error is raised when the patience ends, or at once when `over` is set.
    """
    deadline = time.monotonic() + patience
    backoff = Backoff()
    while True:
        try:
            return call()
        except Exception as error:
            pause = backoff.after(error)
            if over.is_set() or not again(error) or time.monotonic() + pause > deadline:
                raise
            log.warning("%s: %s; trying again in %.1f s", what, describe(error), pause)
        over.wait(pause)
