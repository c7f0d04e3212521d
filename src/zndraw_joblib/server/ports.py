"""What the floors of the server ask of each other and of a host."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from zndraw_joblib.contract.events import Emission

# The most bytes that a result backend hands out, or writes, at once.
PART_BYTES = 1024 * 1024


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

    One with an attribute `has_subscribers` that is false is not called: nobody would hear of it.
    """

    async def __call__(self, emissions: Sequence[Emission]) -> None:
        """Send the emissions in their order."""


class InternalTask(Protocol):
    """A task kind of a broker (taskiq's decorated task): `kiq` hands one call to it."""

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any]) -> object:
        """Queue one call."""


class ResultBackend(Protocol):
    """Keeps what providers answered for a while, for all server processes. Keys are text, times are seconds.

    A host may bring its own: ``app.dependency_overrides[get_result_backend] = …``; `check_result_backend`
    shows whether it does what is relied on.
    """

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Keep bytes under a key for `ttl` seconds, in place of what is there."""

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under a key, else None."""

    async def delete(self, key: str) -> None:
        """Forget what is kept under a key."""

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds. Tell whether it was free: one caller gets it."""

    async def release_inflight(self, key: str) -> None:
        """Give the lock back."""

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return what is kept under a key, waiting up to `timeout` seconds for `notify_key`.

        What is there already is returned at once; what is stored and told of meanwhile is not missed. None
        where nothing came, or nothing is kept after a notice.
        """

    async def notify_key(self, key: str) -> None:
        """Wake everybody who waits for a key, in all processes."""


@runtime_checkable
class StreamingBackend(Protocol):
    """What a `ResultBackend` may do on top, so that nobody has to hold large results as a whole."""

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Keep the chunks under a key, to be seen once the last one is there; none if the iterator raises."""

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of what is kept, and its bytes in chunks of at most 1 MiB; None if nothing is kept.

        The iterator raises when it cannot give the very bytes that were kept at the call.
        """


class Line(Protocol):
    """Carries texts between the replicas of a server. A text may get lost; what arrives is in order."""

    @property
    def frame_size(self) -> int:
        """How many characters of ASCII a text may have."""

    async def send(self, text: str) -> None:
        """Send a text to all who listen."""

    async def listen(self, hear: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Give every text that is sent from `ready` on to `hear`. Raises when the line is broken."""


OpenConnection = Callable[[], AbstractAsyncContextManager[Line]]
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


def read_key(provider_name: object, request_hash: str) -> str:
    """Name what the readers of one read sleep on."""
    return f"read:{provider_name}:{request_hash}"


def provider_key(provider_name: object) -> str:
    """Name what all readers of a provider sleep on, for the case that it goes."""
    return f"provider:{provider_name}"


def reads_key(worker_id: object) -> str:
    """Name what the claims of a worker for reads sleep on."""
    return f"reads:{worker_id}"
