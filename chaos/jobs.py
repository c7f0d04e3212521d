"""The jobs of a chaos run. Their tasks have no effect; the worker logs start and end of each attempt."""

import os
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.wire.policy import JobPolicy

GLOBAL = "@global"
RETRY_POLICY: dict[str, Any] = {
    "max_attempts": 5,
    "retry_on": ["worker_lost", "error", "timeout"],
    "backoff": {"base_seconds": 0.1, "factor": 2, "cap_seconds": 1},
    "max_crashes": 50,
    "start_timeout_seconds": 2,
}


class _ChaosExtension(Extension):
    """Run for `seconds`, or until the file `release_file` exists. The first `failures` attempts fail.

    `number` identifies the submission.
    """

    category: ClassVar[Category] = Category.MODIFIER
    number: int
    seconds: float = 0.0
    failures: int = 0
    release_file: str = ""
    padding: str = ""

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Do nothing: the workers of a chaos run pass their own `execute`."""


class SingleAttempt(_ChaosExtension):
    """One attempt only."""


class Retried(_ChaosExtension):
    """Retried until an attempt succeeds."""


class Limited(_ChaosExtension):
    """Retried, with a low concurrency limit."""


class Slow(_ChaosExtension):
    """Retried; an attempt that has to fail runs longer than its timeout instead."""


class Ordered(_ChaosExtension):
    """One attempt only, by one worker, in the order of the submissions."""


class Member(_ChaosExtension):
    """A task of a group: retried, and deleted as soon as nothing needs it."""


class Summary(_ChaosExtension):
    """The task at the end of a group, which gets the `results` of its tasks."""

    results: list[Any] = Field(default_factory=list)


class Step(_ChaosExtension):
    """A task that may wait for others, and get their `results`.

    It fails while there is no file `success_file`, if it has the name of one.
    """

    results: list[Any] = Field(default_factory=list)
    success_file: str = ""


class Part(Step):
    """A step that is deleted as soon as nothing needs it."""


class Internal(_ChaosExtension):
    """Retried, run by the processes of the server's side."""

    policy: ClassVar[JobPolicy] = JobPolicy.model_validate(RETRY_POLICY)

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return what the workers return."""
        time.sleep(self.seconds)
        return {"task_id": str(vis.task_id), "attempt": vis.attempt, "pid": os.getpid()}


@dataclass(frozen=True)
class Job:
    """An extension class, the room of its job, and the job's policy."""

    cls: type[_ChaosExtension]
    room: str = GLOBAL
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.room}:{self.cls.category.value}:{self.cls.__name__}"


SINGLE_ATTEMPT = Job(SingleAttempt, policy={"start_timeout_seconds": 2})
RETRIED = Job(Retried, policy=RETRY_POLICY)
RETRIED_IN_ROOM = Job(Retried, "lab-1", RETRY_POLICY)
LIMITED = Job(Limited, policy={**RETRY_POLICY, "max_in_flight": 3})
SLOW = Job(Slow, policy={**RETRY_POLICY, "timeout_seconds": 1.5})
ORDERED = Job(Ordered, "lab-2", {"start_timeout_seconds": 2})
ALL = (SINGLE_ATTEMPT, RETRIED, RETRIED_IN_ROOM, LIMITED, SLOW, ORDERED)
HEALTHY = Job(Retried, "lab-1", RETRY_POLICY)
AFFECTED = Job(Retried, "lab-2", RETRY_POLICY)
INTERNAL = Job(Internal, "@internal")
# Their room is not one of ROOMS: their tasks do not stay, and have rules of their own.
GROUP_ROOM = "groups"
MEMBER = Job(Member, GROUP_ROOM, {**RETRY_POLICY, "keep": {"completed": 1}})
SUMMARY = Job(Summary, GROUP_ROOM, RETRY_POLICY)
GROUPED = (MEMBER, SUMMARY)
# An error is not retried, so a step that is to fail does so at once.
STEP_ROOM = "steps"
_STEP_POLICY = {**RETRY_POLICY, "retry_on": ["worker_lost", "timeout"]}
STEP = Job(Step, STEP_ROOM, _STEP_POLICY)
PART = Job(Part, STEP_ROOM, {**_STEP_POLICY, "keep": {"completed": 1}})
STEPS = (STEP, PART)
ROOMS = ("lab-1", "lab-2", "lab-3", "lab-4")
