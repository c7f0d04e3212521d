"""Sequences of requests without I/O: a generator yields a `Call` or a `Pause`, and gets the result.

A driver performs what a flow yields (`TaskRest.run`, `AsyncRest.run`): it sends the request of a call and
sends its result back, or throws its error into the flow; it sleeps for a pause.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.retry import Attempt, RetryPlan, RetryRule, is_repeatable

T = TypeVar("T")


class Pause(NamedTuple):
    """Sleep for some seconds."""

    seconds: float


Flow = Generator[Call[Any] | Pause, Any, T]


def ask(call: Call[T]) -> Flow[T]:
    """Send a request once, and return its result."""
    result: T = yield call
    return result


def repeated(call: Call[T], plan: RetryPlan) -> Flow[T]:
    """Send a request, and repeat it as `plan` says."""
    while True:
        try:
            result = yield from ask(call)
        except Exception as error:
            pause = plan.pause_after(error)
            if pause is None:
                raise
        else:
            plan.succeeded()
            return result
        yield Pause(pause)


def drive(flow: Flow[T], send: Callable[[Call[Any]], Any]) -> T:
    """Return the result of a flow; `send` sends each request."""
    got: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(got) if error is None else flow.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        got = error = None
        try:
            if isinstance(effect, Pause):
                time.sleep(effect.seconds)
            else:
                got = send(effect)
        except BaseException as caught:
            error = caught


async def drive_async(flow: Flow[T], send: Callable[[Call[Any]], Awaitable[Any]]) -> T:
    """Return the result of a flow; `send` sends each request."""
    got: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = flow.send(got) if error is None else flow.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        got = error = None
        try:
            if isinstance(effect, Pause):
                await asyncio.sleep(effect.seconds)
            else:
                got = await send(effect)
        except BaseException as caught:
            error = caught


def read(call: Call[T], what: str, rule: RetryRule) -> Flow[T]:
    """Send a request that changes nothing; repeat it as `rule` says."""
    return (yield from repeated(call, RetryPlan(what, rule.seconds, rule.may_read_again)))


def send_once(what: str, make: Callable[[str], Call[T]], key: str | None, rule: RetryRule) -> Flow[T]:
    """Send the request that `make` returns for a key; repeat it with this key while it gets no response."""
    used = str(uuid4()) if key is None else key
    attempt = Attempt()
    plan = RetryPlan(what, rule.seconds, lambda error: rule.may_repeat(error, attempt))
    try:
        return (yield from repeated(make(used), plan))
    except Exception as error:
        if attempt.was_sent and is_repeatable(error):
            error.add_note(f"The request may or may not have been applied. {rule.how_to_repeat(used)}")
        raise
