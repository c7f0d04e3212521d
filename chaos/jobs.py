"""The jobs of a chaos run. None of them does anything; what is written down about them counts."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from zndraw_joblib.contract.extensions import Category, Extension

GLOBAL = "@global"
RETRIED: dict[str, Any] = {
    "max_attempts": 5,
    "retry_on": ["worker_lost", "error", "timeout"],
    "backoff": {"base_seconds": 0.1, "factor": 2, "cap_seconds": 1},
    "max_crashes": 50,
    "start_timeout_seconds": 2,
}


class _Step(Extension):
    """Take `seconds`, or until the file `gate` is there; fail while the attempt is no higher than `failures`.

    `number` tells submits apart.
    """

    category: ClassVar[Category] = Category.MODIFIER
    number: int
    seconds: float = 0.0
    failures: int = 0
    gate: str = ""

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing: the worker of a chaos run has its own way."""


class Once(_Step):
    """Is tried once."""


class Again(_Step):
    """Is tried until it goes well."""


class Few(_Step):
    """Is tried again, and few of it may be in flight at once."""


class Slow(_Step):
    """Is tried again; an attempt that shall fail hangs instead, for longer than it may."""


class Line(_Step):
    """Is tried once, by one worker, in the order of the submits."""


@dataclass(frozen=True)
class Job:
    """A class, the room that it is registered in, and how its tasks are treated."""

    cls: type[_Step]
    room: str = GLOBAL
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.room}:{self.cls.category.value}:{self.cls.__name__}"


ONCE = Job(Once, policy={"start_timeout_seconds": 2})
AGAIN = Job(Again, policy=RETRIED)
HOME = Job(Again, "lab-1", RETRIED)
FEW = Job(Few, policy={**RETRIED, "max_in_flight": 3})
SLOW = Job(Slow, policy={**RETRIED, "timeout_seconds": 1.5})
LINE = Job(Line, "lab-2", {"start_timeout_seconds": 2})
ALL = (ONCE, AGAIN, HOME, FEW, SLOW, LINE)
ROOMS = ("lab-1", "lab-2", "lab-3", "lab-4")
