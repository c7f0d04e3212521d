"""What the floors of the server ask of each other and of a host."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from zndraw_joblib.contract.events import Emission


class Identity(NamedTuple):
    """Who asks. `id` is opaque text; two identities are the same when their ids are."""

    id: str
    is_superuser: bool


class Wake(NamedTuple):
    """Wake the first `limit` of those that sleep on `key`; all of them where it is None."""

    key: str
    limit: int | None = None


class Page(NamedTuple):
    """Which part of a list: at most `limit` items after the first `offset`."""

    limit: int
    offset: int


class Publisher(Protocol):
    """Tells front-ends and workers what was committed. May fail: an event is a hint.

    One with an attribute `is_heard` that is false is not called: nobody would hear of it.
    """

    async def __call__(self, emissions: Sequence[Emission]) -> None:
        """Send the emissions in their order."""


class InternalTask(Protocol):
    """A task kind of a broker (taskiq's decorated task): `kiq` hands one call to it."""

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any]) -> object:
        """Queue one call."""


class Line(Protocol):
    """Carries texts between the replicas of a server. A text may get lost; what arrives is in order."""

    @property
    def frame_size(self) -> int:
        """How many characters of ASCII a text may have."""

    async def send(self, text: str) -> None:
        """Send a text to all who listen."""

    async def listen(self, hear: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Give every text that is sent from `ready` on to `hear`. Raises when the line is broken."""


OpenLine = Callable[[], AbstractAsyncContextManager[Line]]
# Any callable that opens an AsyncSession, SQLAlchemy's or SQLModel's.
SessionMaker = Callable[[], AbstractAsyncContextManager[Any]]


def task_key(task_id: object) -> str:
    """Name what the waiters for a task's end sleep on."""
    return f"task:{task_id}"


def job_key(job_name: object) -> str:
    """Name what the claims for a job sleep on."""
    return f"job:{job_name}"


def claim_key(claim_id: object) -> str:
    """Name what the claims with one `claim_id` sleep on."""
    return f"claim:{claim_id}"


def place_key(worker_id: object) -> str:
    """Name what the claims of a worker sleep on that holds as many tasks as it may."""
    return f"place:{worker_id}"


def worker_key(worker_id: object) -> str:
    """Name what the claims of a worker sleep on."""
    return f"worker:{worker_id}"
