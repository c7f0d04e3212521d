"""Pauses between requests, and which errors are transient; these tests do not sleep."""

import logging
import math
import re
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count

import httpx
import pytest

from zndraw_joblib.client.retry import (
    FailureLog,
    Outage,
    RequestBackoff,
    is_transient,
    is_unreachable,
    retry_after,
)
from zndraw_joblib.wire.problems import ServiceUnavailable, TooManyRequests
from zndraw_joblib.worker.session import sleep_until


def test_pauses_grow_to_a_limit_and_reset() -> None:
    """A quarter of a second at first, 15 s at most, with jitter, and short again after a success."""
    backoff = RequestBackoff()
    pauses = [backoff.after(httpx.ConnectError("")) for _ in range(50)]
    assert pauses[0] <= 0.25
    assert 10 < pauses[-1] <= 15
    assert len(set(pauses[20:])) > 1
    backoff.reset()
    assert backoff.after(httpx.ConnectError("")) <= 0.25


def in_seconds(seconds: int) -> str:
    """Return a date in the format of HTTP."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds))


def test_retry_after_is_the_shortest_pause(subtests: pytest.Subtests) -> None:
    """Retry-After, in seconds or as a date; 5 minutes at most."""
    for case, header, seconds in [
        ("seconds", lambda: "7", 7),
        ("too-many", lambda: "100000", 300),
        ("date", lambda: in_seconds(60), 58),
        ("past", lambda: in_seconds(-60), 0),
        ("word", lambda: "soon", 0),
        ("empty", lambda: "", 0),
    ]:
        with subtests.test(case):
            error = TooManyRequests("slower", headers={"Retry-After": header()})
            assert seconds <= retry_after(error) <= seconds + 3
            assert seconds <= RequestBackoff().after(error) <= seconds + 3


def test_a_hosts_error_is_classified_by_its_cause() -> None:
    """A host may raise any class: the problem that caused it decides whether to retry."""
    error = RuntimeError("the host's own")
    assert not is_transient(error)
    error.__cause__ = ServiceUnavailable()
    assert is_transient(error)
    assert is_unreachable(error)
    assert not is_transient(PermissionError("a refusal is no outage"))


def test_a_resumed_machine_ends_the_sleep() -> None:
    """The monotonic clock stops while a machine is suspended; the sleep ends by the wall clock."""
    clock = count(0, 3600)
    sleeping = threading.Thread(
        target=sleep_until, args=(threading.Event(), 3600, lambda: next(clock)), daemon=True
    )
    sleeping.start()
    sleeping.join(30)
    assert not sleeping.is_alive()


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of what was logged, without durations."""
    found = [(record.levelname, record.message) for record in caplog.records]
    return [(level, re.sub(r"in \d+ s", "in N s", text)) for level, text in found]


def test_an_outage_is_one_line_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Further failures are counted until the interval is over; another kind of error is logged at once."""
    caplog.set_level(logging.INFO)
    refused, silent = httpx.ConnectError("refused"), httpx.ReadTimeout("silent")
    failures = FailureLog(logging.getLogger("test"), "Claiming", seconds=math.inf)
    failures.succeeded()
    for error in (refused, refused, refused, silent, silent):
        failures.failed(error, 0.5)
    failures.succeeded()
    failures.succeeded()
    failures.failed(refused, 0.5)
    failures.succeeded()
    assert messages(caplog) == [
        ("WARNING", "Claiming: ConnectError: refused; trying again in 0.5 s"),
        ("WARNING", "Claiming: ReadTimeout: silent; trying again in 0.5 s (4 failures in N s)"),
        ("INFO", "Claiming succeeds again after 5 failures in N s"),
        ("WARNING", "Claiming: ConnectError: refused; trying again in 0.5 s"),
    ]
    caplog.clear()
    failures = FailureLog(logging.getLogger("test"), "Claiming", seconds=0)
    for _ in range(3):
        failures.failed(refused, 0.5)
    assert [text[-22:] for _, text in messages(caplog)[1:]] == [
        f" s ({count} failures in N s)" for count in (2, 3)
    ]


def test_several_requests_log_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    """The first that notices it logs it and its end; another kind of error is logged by each."""
    caplog.set_level(logging.INFO)
    outage, refused = Outage(), httpx.ConnectError("refused")
    claims, heartbeats = (FailureLog(logging.getLogger("test"), what, outage=outage) for what in ("C", "H"))
    for _ in range(2):
        claims.failed(refused, 1)
        heartbeats.failed(refused, 1)
    heartbeats.failed(RuntimeError("bug"), 1)
    heartbeats.succeeded()
    claims.succeeded()
    heartbeats.failed(refused, 1)
    assert messages(caplog) == [
        ("WARNING", "C: ConnectError: refused; trying again in 1.0 s"),
        ("WARNING", "H: RuntimeError: bug; trying again in 1.0 s"),
        ("INFO", "C succeeds again after 2 failures in N s"),
        ("WARNING", "H: ConnectError: refused; trying again in 1.0 s"),
    ]
