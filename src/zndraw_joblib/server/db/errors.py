"""Decide which errors of the database to retry, and explain the others to clients."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from zndraw_joblib.jobs.logs import RepeatedFailure
from zndraw_joblib.server.process.batcher import RowLocked
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable

_unavailable = RepeatedFailure(logging.getLogger(__name__))

_RETRY_AFTER = {"Retry-After": "1"}
_IN_DOUBT = "the commit may or may not have succeeded"
MAYBE_APPLIED = "The request may or may not have been applied; retry it with the same Idempotency-Key."
_NOT_APPLIED = "The request was not applied; retry it later."
# PostgreSQL: serialization failure and deadlock. In both cases nothing was written.
_RETRIABLE = frozenset({"40001", "40P01"})
_LOCK_TIMEOUT = "55P03"
_READ_ONLY = "25006"
# PostgreSQL: connection lost, out of resources, shut down by an operator or a statement timeout.
_AUTHENTICATION_CLASS = "28"
_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57"})
_DISK_FULL = "the disk or the database is full. Free space on the disk of the database"
# Errors after which nothing was written, by PostgreSQL's state or the beginning of SQLite's text.
_REFUSED = {
    "53100": _DISK_FULL,
    "database or disk is full": _DISK_FULL,
    _READ_ONLY: "it is read-only. Name the primary in database_url, or end the read-only mode",
    "attempt to write a readonly database": "it is read-only. Make the file and its folder writable",
}
# Errors for a missing table or column. SQLite's text is compared from its beginning.
_MISSING_STATES = frozenset({"42P01", "42703"})
_MISSING_TEXT = re.compile(r"no such table: \w*\.?joblib_|no such column: |table joblib_\w+ has no column")


class RepeatTransaction(ServiceUnavailable):
    """Rows have changed between the transaction's read and its lock: roll it back and run it again."""


class Unresponsive(Exception):
    """The database did not respond in time."""


DATABASE_ERRORS = (DBAPIError, PoolTimeout, OSError, Unresponsive)


@contextmanager
def in_doubt() -> Iterator[None]:
    """Wrap a commit: after a lost connection the commit may have succeeded, so it must not run again."""
    try:
        yield
    except DBAPIError as error:
        error.add_detail(_IN_DOUBT)
        raise


@contextmanager
def raises_unavailable() -> Iterator[None]:
    """Raise `ServiceUnavailable` for an unavailable database, and `RowLocked` after a lock timeout."""
    try:
        yield
    except DATABASE_ERRORS as error:
        raise_unavailable(error)


def raise_unavailable(error: Exception) -> NoReturn:
    """Raise one of `DATABASE_ERRORS` as `raises_unavailable` does."""
    if isinstance(error, DBAPIError):
        _hide_values(error)
    if isinstance(error, ProblemException):
        raise error
    if _state(error) == _LOCK_TIMEOUT:
        raise RowLocked from error
    refused = _refusal(error)
    if not refused and not _is_unavailable(error):
        raise error
    _unavailable.log(f"Database unavailable: {refused or _reason(error)}")
    text = f"{refused}. {_NOT_APPLIED}" if refused else f"{_reason(error)}. {MAYBE_APPLIED}"
    raise ServiceUnavailable(f"Database unavailable: {text}", headers=_RETRY_AFTER) from error


def _hide_values(error: DBAPIError) -> None:
    """Leave the statement, its parameters and rows out of the texts of an error and its causes."""
    error.statement = error.params = None
    error.args = tuple(str(text).partition("\n")[0] for text in error.args)
    cause: BaseException | None = error.orig
    while cause is not None:
        if isinstance(getattr(cause, "detail", None), str):  # asyncpg's
            cause.__dict__["detail"] = None
        cause = cause.__cause__


def is_read_only(error: DBAPIError) -> bool:
    """Return whether the database refused to write, such as a former primary after a failover."""
    return _state(error) == _READ_ONLY


def is_retriable(error: DBAPIError) -> bool:
    """Return whether it is certain that nothing was written, and a retry may succeed."""
    if _state(error) in _RETRIABLE:
        return True
    return error.connection_invalidated and _IN_DOUBT not in error.detail


def _state(error: BaseException) -> str:
    return getattr(error.orig, "sqlstate", None) or "" if isinstance(error, DBAPIError) else ""


def _refusal(error: BaseException) -> str | None:
    state, text = _state(error), str(getattr(error, "orig", ""))
    if state in _MISSING_STATES or _MISSING_TEXT.match(text):
        return (
            f"the queue's tables (joblib_...) are missing or outdated: {_reason(error)}. Run the app with "
            "its lifespan, which creates them on SQLite (httpx.ASGITransport alone does not), or run "
            "'zndraw-joblib db upgrade' with the same database URL. The app's own lifespan starts before the "
            "queue's: call 'await joblib.prepare_tables()' there first"
        )
    return _REFUSED.get(state or text)


def _reason(error: BaseException) -> str:
    """Return one line for clients, without statements and credentials."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    if _state(error).startswith(_AUTHENTICATION_CLASS):
        return "the server could not log in to it"
    return (str(cause).splitlines() or [type(cause).__name__])[0][:200].rstrip(".")


def _is_unavailable(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError):
        return True
    state = _state(error)
    if state in _RETRIABLE:
        return False
    lost = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return lost or state[:2] in _UNAVAILABLE_CLASSES
