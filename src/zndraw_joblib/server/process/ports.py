"""Types and protocols that the layers of the server and a host share, and the keys of waiters."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from zndraw_joblib.wire.names import GLOBAL
from zndraw_joblib.wire.scopes import ANY_SCOPE, DEFAULT_SCOPES, Scope, scopes_of

# The most bytes that a result backend reads or writes at once.
PART_BYTES = 1024 * 1024


class WorkerGrant(NamedTuple):
    """What the token of a worker grants: its workers claim at most `max_tasks` tasks together.

    They have these labels, whatever they say about themselves.
    """

    max_tasks: int | None
    labels: tuple[tuple[str, Any], ...] = ()


class TaskKey(NamedTuple):
    """The claim of a task that the token of a task is about."""

    id: UUID
    attempt: int


class UploadKey(NamedTuple):
    """The request to an internal provider that the token of its executor is about."""

    provider_id: UUID
    request_hash: str


class Identity(NamedTuple):
    """The caller of a request. `id` is opaque text; equal ids mean the same caller.

    `roles` are names of roles and scopes; None for what users could do before there were roles. `rooms` are
    those in which the caller has these rights, and `jobs` patterns like ``lab:*`` of the full names of jobs
    that it may submit and serve; None for all. A superuser with `roles` or `rooms` has only these.

    The other fields are for the server: `limited` derives `scopes`, `token_created_at` is of a token that is
    stored, `worker` of the token of a worker, `task` of the token of a task, which permits only the rows of
    `ForTask`, and `upload` of the token of a request to an internal provider, which permits only to upload
    its result.
    """

    id: str
    is_superuser: bool
    roles: Collection[str] | None = None
    rooms: Collection[str] | None = None
    jobs: Collection[str] | None = None
    scopes: Scope | None = None
    worker: WorkerGrant | None = None
    task: TaskKey | None = None
    upload: UploadKey | None = None
    token_created_at: datetime | None = None

    def limited(self) -> "Identity":
        """Return the identity with the rights of its roles and rooms, in sets that can be compared.

        Raises ValueError for a role that does not exist, and for a text in place of a list.
        """
        names = {"roles": self.roles, "rooms": self.rooms, "jobs": self.jobs}
        for name, values in names.items():
            if isinstance(values, str) or not all(isinstance(value, str) for value in values or ()):
                raise ValueError(f"{name} is {values!r:.100}, not a list of texts")
        roles, rooms, jobs = [None if values is None else frozenset(values) for values in names.values()]
        if roles is None and rooms is None and jobs is None:
            return Identity(self.id, self.is_superuser)
        scopes = ANY_SCOPE if self.is_superuser else None
        if roles is not None:
            scopes = scopes_of(sorted(roles))
        # Who operates all rooms is what the rules call a superuser; the scopes refuse the rest.
        is_superuser = scopes is not None and Scope.OPERATE in scopes and rooms is None
        return Identity(self.id, is_superuser, roles, rooms, jobs, scopes)

    def may(self, scopes: Scope) -> bool:
        """Return whether the caller has one of these scopes."""
        if self.scopes is None:
            return self.is_superuser or bool(scopes & DEFAULT_SCOPES)
        return bool(scopes & self.scopes)

    def sees(self, owner_id: str | None) -> bool:
        """Return whether the caller may see what a user has made, in the rooms that it may read.

        Without the scope `read` it sees what it has made itself; operators see what they may act on.
        """
        return self.may(Scope.READ | Scope.OPERATE) or owner_id == self.id

    def is_in(self, room_id: str) -> bool:
        """Return whether the caller has its rights in a room, if the host's guards agree."""
        return self.rooms is None or room_id in self.rooms

    @property
    def is_operator(self) -> bool:
        """Whether the caller acts on what belongs to others, in all rooms or in its own."""
        return self.is_superuser or (self.scopes is not None and Scope.OPERATE in self.scopes)

    def operates(self, room_id: str) -> bool:
        """Return whether the caller may act on what belongs to others in a room."""
        return self.is_superuser or (self.is_operator and self.is_in(room_id))

    def serves(self, room_id: str) -> bool:
        """Return whether the caller may serve jobs and providers of a room, if the host's guards agree.

        Who serves ``@global`` gets the payloads of all rooms: it takes a role, not only the default rights.
        """
        if room_id == GLOBAL and self.scopes is None:
            return self.is_superuser
        return self.is_superuser or (self.may(Scope.WORK) and self.is_in(room_id))

    @property
    def has_signed_token(self) -> bool:
        """Whether the caller is no user, but the code that runs a task or answers a request."""
        return self.task is not None or self.upload is not None

    @property
    def max_claims(self) -> int | None:
        """How many tasks the workers of the token may claim in all; None for no limit."""
        return None if self.worker is None else self.worker.max_tasks

    def names_job(self, full_name: str) -> bool:
        """Return whether the caller may submit and serve a job by its name."""
        return self.jobs is None or any(fnmatchcase(full_name, pattern) for pattern in self.jobs)


class RequestKey(NamedTuple):
    """The `Idempotency-Key` of a request: a digest of its caller and the key, and one of the request.

    The answer to the first request with a key is kept for `keep`, and counts for the user `user_id`.
    """

    id: UUID
    fingerprint: UUID
    keep: timedelta
    user_id: str


# Whether an event to a Socket.IO room may reach a client.
Reaches = Callable[[str], bool]


def reaches_all(_: str) -> bool:
    """Return that an event to any room may reach a client."""
    return True


class Wake(NamedTuple):
    """Wake the first `limit` waiters of `key`; all of them where it is None."""

    key: str
    limit: int | None = None


class Page(NamedTuple):
    """A page of a list: at most `limit` items after the first `offset`."""

    limit: int
    offset: int


class CursorPage(NamedTuple):
    """A part of a list: at most `limit` items from where `cursor` points, None for the start."""

    limit: int
    cursor: str | None


class InternalTask(Protocol):
    """A task that is registered with a broker (taskiq's decorated task)."""

    async def kiq(self, *, task_id: str, room_id: str, payload: dict[str, Any]) -> object:
        """Send one call to the broker."""


class DispatchMode(NamedTuple):
    """How an internal job's tasks reach an executor.

    `exclusive_start`: the executor starts a task once, however many messages name it. `is_bounded`: the
    broker takes a limited number of tasks, so only the dispatcher sends them. `takes_token`: the executor is
    called with a token.
    """

    handle: InternalTask
    exclusive_start: bool
    is_bounded: bool
    takes_token: bool = False


class ResultBackend(Protocol):
    """Keeps provider results for a while, for all server processes. Keys are text, times are seconds.

    A host may pass its own as ``JobLib(result_backend=…)``; `check_result_backend`
    checks that it behaves as the server requires.
    """

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Store bytes under a key for `ttl` seconds; replace what is there."""

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, None if there are none."""

    async def delete(self, key: str) -> None:
        """Delete the bytes of a key."""

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Acquire a lock for at most `ttl` seconds. Return whether it was free: one caller gets it."""

    async def release_inflight(self, key: str) -> None:
        """Release the lock."""

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return the bytes of a key, waiting up to `timeout` seconds for `notify_key`.

        Return existing bytes at once; miss none that are stored and notified during the call. Return None
        after the timeout, or if there are no bytes after a notification.
        """

    async def notify_key(self, key: str) -> None:
        """Wake every waiter of a key, in all processes."""


@runtime_checkable
class StreamingBackend(Protocol):
    """What a `ResultBackend` may offer in addition, so that large results need not fit into memory."""

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a key. They become visible after the last; none if the iterator raises."""

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its bytes in chunks of at most 1 MiB; None if there is none.

        The iterator raises when it cannot return the bytes that were there at the call.
        """


class ContentStore(StreamingBackend, Protocol):
    """Keeps the content of task results, under new keys, which no other value evicts."""

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the whole size of a value and its bytes from `start` on; None if there is none."""

    async def delete(self, key: str) -> None:
        """Delete the bytes of a key."""

    async def close(self) -> None:
        """Close the connections of this event loop."""


class PubSubConnection(Protocol):
    """Carries texts between the replicas of a server. A text may get lost; the others arrive in order."""

    @property
    def frame_size(self) -> int:
        """How many ASCII characters a text may have."""

    async def send(self, text: str) -> None:
        """Send a text to all listeners."""

    async def listen(self, receive: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Call `receive` with every text that is sent after `ready`. Raise when the connection is lost."""


OpenConnection = Callable[[], AbstractAsyncContextManager[PubSubConnection]]
# Any callable that opens an AsyncSession, SQLAlchemy's or SQLModel's.
SessionMaker = Callable[[], AbstractAsyncContextManager[Any]]


# The keys of waiters.

task_key = "task:{}".format  # of the end of a task


# The `job_version` of a row of jobs is the number of its queue: the version of the schema, and `QUEUES` times
# the place of its requirements among those of the job. Without requirements it is the version.
QUEUES = 1_000_000


def version_of(number: int) -> int:
    """Return the version of a job's schema that a queue with this number has."""
    return number % QUEUES


def queue_name(job: object, version: int) -> str:
    """Return the name of a queue of a job by its number, as `sql_jobs.QUEUE_NAME`."""
    return str(job) if version == 1 else f"{job}#{version}"


def job_key(job: object, version: int = 1) -> str:
    """Return the key of the waiting claims of a queue of a job."""
    return f"job:{queue_name(job, version)}"


group_key = "group:{}".format  # of the end of a group
group_change_key = "group:{}:changes".format  # of ended and of new tasks of a group, for those who follow it
claim_key = "claim:{}".format  # the waiting claims with one `claim_id`
# Wakes claims of some workers that wait on a key, at another server.
BEFORE = "before:"


def before_key(key: str, worker_ids: Iterable[UUID]) -> str:
    """Return the key that wakes claims of these workers which wait on `key`."""
    return f"{BEFORE}{','.join(id_.hex for id_ in worker_ids)}:{key}"


def parsed_before(key: str) -> tuple[str, tuple[UUID, ...]]:
    """Return the key that waiters wait on, and the workers, from a `before_key`."""
    ids, _, waited = key.removeprefix(BEFORE).partition(":")
    return waited, tuple(UUID(id_) for id_ in ids.split(","))


slot_key = "slot:{}".format  # the waiting claims of a worker that holds as many tasks as it may
kept_key = "kept:{}".format  # the waiting claims of workers that keep slots free for a task of a queue
worker_key = "worker:{}".format  # all waiting claims of a worker
request_wait_key = "request:{}:{}".format  # of the result of a request: the provider's name and the hash
provider_key = "provider:{}".format  # of all results of a provider, in case it is removed or replaced
SCHEDULES_KEY = "schedules:"  # wakes the loop that submits what is due
WEBHOOKS_KEY = "webhooks:"  # wakes the loop that delivers events to webhooks
SUCCESSORS_KEY = "successors:"  # wakes the loop that handles ends for which tasks wait
PAUSES_KEY = "pauses:"  # wakes the loop that ends pauses
requests_key = "requests:{}".format  # a worker's waiting claims of provider requests
identity_key = "identity:{}".format  # of the end of a user's sockets
events_key = "events:{}".format  # the readers of the events of a room

# A histogram that one process counts: cheap enough for each request.


class LocalHistogram:
    """Counts of values: `buckets` has those up to each bound and above the one before, then the rest."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value
