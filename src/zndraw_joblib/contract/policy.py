"""What becomes of a task whose attempt went wrong: chosen for each job when it is registered.

Source: seed 004 (release with exponential backoff), with the defaults of seed 000 (fail at once).
"""

from enum import StrEnum
from math import e
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_PRIORITY = 1000
_YEAR_SECONDS = 31_536_000
Seconds = Annotated[float, Field(gt=0, le=_YEAR_SECONDS, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Attempts = Annotated[int, Field(ge=1, le=1000)]


class RetryOn(StrEnum):
    """Why an attempt ended without success: its worker was lost, it failed, or it ran for too long."""

    WORKER_LOST = "worker_lost"
    ERROR = "error"
    TIMEOUT = "timeout"


def _each_once(causes: tuple[RetryOn, ...]) -> tuple[RetryOn, ...]:
    return tuple(sorted(set(causes)))


Causes = Annotated[tuple[RetryOn, ...], AfterValidator(_each_once)]


class Backoff(BaseModel):
    """The pause before the next attempt: ``min(cap_seconds, base_seconds * factor ** failed)``.

    `failed` counts the attempts that went wrong. By default that is exp(min(10, failed)) seconds: 2.7 s,
    7.4 s, 20 s, 55 s, … 6 h. Of each pause, up to the share `jitter` is taken away by chance.
    """

    model_config = ConfigDict(frozen=True)

    base_seconds: Annotated[float, Field(ge=0, le=_YEAR_SECONDS, allow_inf_nan=False)] = 1.0
    factor: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = e
    cap_seconds: Annotated[float, Field(ge=0, le=_YEAR_SECONDS, allow_inf_nan=False)] = e**10
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0

    def pause(self, failed: int, chance: float) -> float:
        """Return the seconds before the next attempt; `chance` is between 0 and 1."""
        try:
            full = self.base_seconds * self.factor**failed
        except OverflowError:
            full = self.cap_seconds
        return min(self.cap_seconds, full) * (1 - self.jitter * chance)


class JobPolicy(BaseModel):
    """How the tasks of a job are treated.

    `max_attempts`: how often a task is tried while the worker says that it failed, or it takes too long;
    with 1 it is tried once, whatever happens. `retry_on`: what it is tried again after. `max_crashes`: so
    many lost workers are one too many; they are counted apart from failures, so that neither a task that
    kills its workers goes on for ever, nor a restart of workers takes a task's last attempt.
    `timeout_seconds`: how long an attempt may run. `start_timeout_seconds`: how long a task may be claimed
    without being started, before it goes back to its queue; 0 for ever. `max_in_flight`: how many tasks of
    the job may be claimed or running at once. `priority`: of its tasks; a higher one goes first.
    """

    max_attempts: Attempts = 1
    retry_on: Causes = (RetryOn.WORKER_LOST,)
    backoff: Backoff = Backoff()
    max_crashes: Attempts = 3
    timeout_seconds: Seconds | None = None
    start_timeout_seconds: Annotated[float, Field(ge=0, le=_YEAR_SECONDS, allow_inf_nan=False)] = 60.0
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    priority: Priority = 0
