"""One run of an internal task, in a thread of its own."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zndraw_joblib.contract.extensions import NonRetryable
from zndraw_joblib.contract.forks import default_signals_in_forks, exit_if_forked
from zndraw_joblib.contract.outcomes import ResultRejected, error_text, jsonable_result, text_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class InternalContext:
    """The default argument of an internal job's `run`.

    `cancelled` is set when the task was cancelled or this attempt lost it: a job that checks it may stop.
    """

    task_id: str
    room_id: str
    attempt: int
    cancelled: threading.Event = field(default_factory=threading.Event, repr=False)


class Outcome(NamedTuple):
    """The end of a run: a result, or an error; `retry` is false where another attempt is of no use."""

    result: Any = None
    error: str | None = None
    retry: bool = True


def outcome_of(
    cls: type[Any],
    payload: dict[str, Any],
    context: InternalContext,
    argument_of: Callable[[InternalContext], Any],
) -> Outcome:
    """Run a task to its end, and return its outcome, whatever the job's code raises."""
    # Not Exception: SystemExit and the like end the task, not this process.
    try:
        extension = cls.model_validate(payload)
    except BaseException as error:
        text = text_of(error) if isinstance(error, ValueError) else error_text(error)
        return Outcome(error=error_text(f"The payload does not fit {cls.__name__}: {text}"), retry=False)
    pid = os.getpid()
    try:
        value = extension.run(argument_of(context))
        exit_if_forked(pid)
        return Outcome(jsonable_result(value))
    except ResultRejected as error:
        return Outcome(error=str(error))
    except BaseException as error:
        exit_if_forked(pid, error)
        logger.warning("Failed task_id=%s", context.task_id, exc_info=True)
        return Outcome(error=error_text(error), retry=not isinstance(error, NonRetryable))


def start_thread(name: str, work: Callable[[], Outcome]) -> "asyncio.Future[Outcome]":
    """Call `work` in a thread, and return a future of its outcome.

    Not a thread of a pool: Python waits for those at exit, however long they take.
    """
    loop, pid = asyncio.get_running_loop(), os.getpid()
    done: asyncio.Future[Outcome] = loop.create_future()

    def finish(outcome: Outcome) -> None:
        if not done.done():
            done.set_result(outcome)

    def run() -> None:
        try:
            with default_signals_in_forks():
                outcome = work()
        except BaseException as error:
            outcome = Outcome(error=error_text(error))
        exit_if_forked(pid)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(finish, outcome)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the system allows no more threads
        finish(Outcome(error=f"The server cannot start a thread for this task: {error}"))
    return done
