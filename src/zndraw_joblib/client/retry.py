"""Read failed responses: which requests are repeated, after which pause, and for how long."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from zndraw_joblib.jobs.failures import text_of
from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.wire.problems import (
    PROBLEM_MEDIA_TYPE,
    InternalJobNotConfigured,
    ProblemException,
    RequestInProgress,
    TooManyRequests,
    is_own_type,
    problem_for,
)

if TYPE_CHECKING:
    import httpx

_SHOWN_CHARACTERS = 120
_REFUSALS = frozenset({401, 403, 423})
_PROXY = (
    "This is not a response of a zndraw-joblib server; a proxy in front of it, or another program at this "
    "address, probably sent it"
)
_HOST = (
    "The application that hosts the zndraw-joblib server, or a proxy in front of it, probably refused the "
    "request: check the token or the permissions"
)


class UnexpectedResponse(ConnectionError):
    """The response is not from a zndraw-joblib server, but probably from a proxy in front of it.

    The request may or may not have been applied, except if `is_refusal` is true: for a 401, 403 or 423 in
    JSON, as applications that host the server send it.
    """

    def __init__(self, response: "httpx.Response") -> None:
        self.status = response.status_code
        self.headers = response.headers
        body = _json_of(response) if self.status in _REFUSALS else None
        self.is_refusal = isinstance(body, dict) and "detail" in body
        request = response.request
        url = request.url.copy_with(username=None, password=None, query=None, fragment=None)
        kind = response.headers.get("Content-Type", "without a content type")
        super().__init__(
            f"{request.method} {url} answered {self.status} ({kind}): {_excerpt(response)!r}. "
            + (_HOST if self.is_refusal else _PROXY)
        )


def read_error(response: "httpx.Response") -> ProblemException | UnexpectedResponse:
    """Return the exception for an error response; its `headers` keep Retry-After.

    Only a problem of this project is a response of the server.
    """
    body = _json_of(response)
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != PROBLEM_MEDIA_TYPE or not isinstance(body, dict) or not is_own_type(body.get("type")):
        return UnexpectedResponse(response)
    problem = problem_for(response.status_code, body)
    if "Retry-After" in response.headers:
        problem.headers = {"Retry-After": response.headers["Retry-After"]}
    return problem


def _json_of(response: "httpx.Response") -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _excerpt(response: "httpx.Response") -> str:
    """Return the beginning of a body in one line, without the token of the request."""
    text = " ".join(response.text.split())
    token = response.request.headers.get("Authorization", "").rpartition(" ")[2]
    return (text.replace(token, "***") if token else text)[:_SHOWN_CHARACTERS]


# Which failed requests are repeated, after which pause, and for how long.

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 15.0
_LONGEST_RETRY_AFTER_SECONDS = 300.0
_LOG_SECONDS = 60.0
# 401 is transient: the next request asks the host for its headers again, and may get a fresh token.
_TRANSIENT = frozenset({401, 408, 425, 429})
BUSY = frozenset({429, 502, 503, 504})
_SERVER_ERROR, _TOO_LARGE, _UNAUTHORIZED = 500, 413, 401
_MISSING = frozenset({404, 405})
TOO_LARGE_SECONDS = 30.0
_MAX_REFUSALS = 4


def unexpected_response_of(error: BaseException) -> UnexpectedResponse | None:
    """Return the response of a proxy behind an error, also if a host raised an error class of its own."""
    for candidate in (error, error.__cause__):
        if isinstance(candidate, UnexpectedResponse):
            return candidate
    return None


def problem_of(error: BaseException) -> ProblemException | None:
    """Return the server's problem behind an error, also if a host raised an error class of its own."""
    if unexpected_response_of(error) is not None:
        return None
    for candidate in (error, error.__cause__):
        if isinstance(candidate, ProblemException):
            return candidate
    return None


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the server's response, None if there was none."""
    problem = problem_of(error)
    return problem.problem.status if problem else None


def is_connection_error(error: BaseException) -> bool:
    """Return whether the server did not respond, or a proxy responded instead."""
    import httpx  # noqa: PLC0415 - see `client.connection`

    return unexpected_response_of(error) is not None or (
        problem_of(error) is None and isinstance(error, httpx.RequestError | ConnectionError | TimeoutError)
    )


def is_unreachable(error: BaseException) -> bool:
    """Return whether the server did not respond, is too busy, or is still starting."""
    return is_connection_error(error) or status_of(error) in BUSY


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    status = status_of(error)
    return is_connection_error(error) or (
        status is not None and (status in _TRANSIENT or status >= _SERVER_ERROR)
    )


def is_repeatable(error: BaseException) -> bool:
    """Return whether a request with an `Idempotency-Key` should be sent again with the same key."""
    problem = problem_of(error)
    if isinstance(problem, InternalJobNotConfigured):
        return False
    return is_unreachable(error) or isinstance(problem, RequestInProgress)


def is_refused(error: BaseException) -> bool:
    """Return whether the request was not sent, because no connection was made."""
    import httpx  # noqa: PLC0415 - see `client.connection`

    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def is_refusal_of_host(error: BaseException) -> bool:
    """Return whether the application that hosts the server refused the token or the permissions."""
    response = unexpected_response_of(error)
    return response is not None and response.is_refusal


def is_unauthorized(error: BaseException) -> bool:
    """Return whether the server, or the application that hosts it, refused the token."""
    response = unexpected_response_of(error)
    if response is not None:
        return response.is_refusal and response.status == _UNAUTHORIZED
    return status_of(error) == _UNAUTHORIZED


def is_too_large_for_proxy(error: BaseException) -> bool:
    """Return whether a proxy refuses bodies of this size."""
    response = unexpected_response_of(error)
    return response is not None and response.status == _TOO_LARGE


def is_missing(error: BaseException) -> bool:
    """Return whether an older server, or a proxy, does not know the path or its method."""
    response = unexpected_response_of(error)
    return (response.status if response else status_of(error)) in _MISSING


def describe(error: BaseException) -> str:
    """Return the error's class and text in one line; some errors of httpx have no text."""
    return f"{type(error).__name__}: {text_of(unexpected_response_of(error) or error)}".rstrip(": ")


class RequestBackoff(ExponentialBackoff):
    """Growing pauses between requests, from a quarter of a second to `longest` seconds."""

    def __init__(self, longest: float = _LONGEST_PAUSE_SECONDS) -> None:
        super().__init__(_FIRST_PAUSE_SECONDS, longest)

    def after(self, error: BaseException) -> float:
        """Return the seconds to wait after `error`, its Retry-After (up to 5 minutes) at least."""
        return max(self.next(), retry_after(error))


class Outage:
    """A server that several requests of a program cannot reach: the first of them logs it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noticed_by: object = None

    def begin(self, by: object) -> bool:
        """Return whether `by` logs the outage, because it is the first that notices it."""
        with self._lock:
            self._noticed_by = self._noticed_by or by
            return self._noticed_by is by

    def end(self) -> None:
        """Notice that a request has reached the server."""
        self._noticed_by = None


class FailureLog:
    """Logs the failures of a request that is repeated: the first, then about one each minute, and their end.

    A failure of another kind is logged at once, and the end if there were several, unless `is_brief`: then
    the lost and the regained connection are a line each. `what` names the request. Logs with the same
    `outage` log only once that the server cannot be reached. Use it in one thread at a time.
    """

    def __init__(
        self,
        logger: logging.Logger,
        what: str,
        seconds: float = _LOG_SECONDS,
        level: int = logging.WARNING,
        *,
        is_brief: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage
        self._logger = logger
        self._what = what
        self._level = level
        self._seconds = seconds
        self._is_brief = is_brief
        self._kind: type[BaseException] | None = None
        self._count = 0
        self._began = self._logged = 0.0

    def failed(self, error: BaseException, pause: float) -> None:
        """Log a failure, after which the request is repeated in `pause` seconds, or only count it."""
        if self._outage is not None and is_connection_error(error) and not self._outage.begin(self):
            self._logger.debug("%s: %s; trying again in %.1f s", self._what, describe(error), pause)
            return
        now = time.monotonic()
        if self._count == 0:
            self._began = now
        self._count += 1
        is_known = self._is_brief and self._count > 1
        if (is_known or type(error) is self._kind) and now - self._logged < self._seconds:
            return
        self._kind, self._logged = type(error), now
        times = f" ({self._count} failures in {now - self._began:.0f} s)" if self._count > 1 else ""
        text = "%s: %s; trying again in %.1f s%s"
        self._logger.log(self._level, text, self._what, describe(error), pause, times)

    def succeeded(self) -> None:
        """Log that the request succeeds again after several failures, or after one with `is_brief`."""
        if self._outage is not None:
            self._outage.end()
        if self._count > (0 if self._is_brief else 1):
            level = self._level if self._is_brief else logging.INFO
            text = "%s succeeds again after %d failure%s in %.0f s"
            plural, seconds = "" if self._count == 1 else "s", time.monotonic() - self._began
            self._logger.log(level, text, self._what, self._count, plural, seconds)
        self._kind, self._count = None, 0


def retry_after(error: BaseException) -> float:
    """Return the seconds of the server's Retry-After header, 0 without one, 300 at most."""
    answer = problem_of(error) or unexpected_response_of(error)
    text = answer.headers.get("Retry-After", "") if answer else ""
    try:
        seconds = float(text) if text.strip().isdigit() else _seconds_until(text)
    except ValueError:
        return 0.0
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER_SECONDS)


def _seconds_until(date: str) -> float:
    return (parsedate_to_datetime(date).astimezone(UTC) - datetime.now(UTC)).total_seconds()


class RetryPlan:
    """Decides after each failure of one request whether it is repeated, and after which pause.

    A retryable failure is repeated for `seconds`, and once even if the first attempt took longer than that. A
    body that is too large for a proxy is repeated for 30 s at most. `is_retryable` is asked about each error.
    `what` names the request in the log.
    """

    def __init__(
        self, what: str, seconds: float, is_retryable: Callable[[BaseException], bool] = is_transient
    ) -> None:
        self._seconds = seconds
        self._is_retryable = is_retryable
        self._began = time.monotonic()
        self._backoff, self._failures = RequestBackoff(), FailureLog(log, what)
        self._is_repeat = False

    def succeeded(self) -> None:
        """Log that the request succeeds again."""
        self._failures.succeeded()

    def pause_after(self, error: BaseException, *, is_stopped: bool = False) -> float | None:
        """Return the seconds until the next attempt, None if `error` is final."""
        pause = self._backoff.after(error)
        limit = min(self._seconds, TOO_LARGE_SECONDS) if is_too_large_for_proxy(error) else self._seconds
        elapsed = time.monotonic() - self._began if self._is_repeat else 0.0
        if not self._is_retryable(error) or pause + elapsed > limit or is_stopped:
            return None
        self._is_repeat = True
        self._failures.failed(error, pause)
        return pause


def retry(
    call: Callable[[], T],
    what: str,
    *,
    seconds: float,
    stop: threading.Event,
    is_retryable: Callable[[BaseException], bool] = is_transient,
) -> T:
    """Return what `call` returns; while it raises a retryable error, repeat it for `seconds`.

    The last error is raised when the time is over, or at once when `stop` is set. See `RetryPlan`.
    """
    plan = RetryPlan(what, seconds, is_retryable)
    while True:
        try:
            result = call()
            plan.succeeded()
            return result
        except Exception as error:
            pause = plan.pause_after(error, is_stopped=stop.is_set())
            if pause is None:
                raise
        stop.wait(pause)


@dataclass(slots=True)
class SendAttempts:
    """The attempts to send a request; `was_sent` is false while no attempt has reached a server.

    `may_be_applied` is false while the server has answered each with a 429, which applies nothing.
    """

    was_sent: bool = False
    may_be_applied: bool = False
    refusals: int = 0

    def may_repeat(self, error: BaseException) -> bool:
        """Count a failed attempt; return whether another one with the same key should follow."""
        is_sent = not (is_refused(error) or is_refusal_of_host(error))
        self.was_sent |= is_sent
        self.may_be_applied |= is_sent and not isinstance(problem_of(error), TooManyRequests)
        self.refusals += is_refusal_of_host(error)
        return is_repeatable(error) and self.refusals < _MAX_REFUSALS


class RetryRule:
    """Which requests of a client are repeated, and for how many seconds.

    A request is repeated while it cannot reach the server or the response is lost.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self.seconds = seconds

    def may_repeat(self, error: BaseException, attempt: SendAttempts) -> bool:
        """Return whether a request with an `Idempotency-Key` is repeated with the same key."""
        return attempt.may_repeat(error)

    def may_read_again(self, error: BaseException) -> bool:
        """Return whether a request that changes nothing is repeated."""
        return is_unreachable(error)

    def may_wait_on(self, error: BaseException) -> bool:
        """Return whether a client that waits for a task goes on, however long it takes."""
        return self.may_read_again(error)

    def how_to_repeat(self, key: str) -> str:
        """Return how to repeat a request that may have been applied."""
        return f"Repeat the call with idempotency_key={key!r}"


class FastRule(RetryRule):
    """As `RetryRule`, but a client that has never reached its server fails at once: its URL may be wrong."""

    def __init__(self, has_reached: Callable[[], bool], seconds: float = 30.0) -> None:
        super().__init__(seconds)
        self._has_reached = has_reached

    def may_repeat(self, error: BaseException, attempt: SendAttempts) -> bool:
        """Return whether a request with an `Idempotency-Key` is repeated with the same key."""
        return super().may_repeat(error, attempt) and (attempt.was_sent or self._has_reached())

    def may_read_again(self, error: BaseException) -> bool:
        """Return whether a request that changes nothing is repeated."""
        return super().may_read_again(error) and (self._has_reached() or not is_refused(error))
