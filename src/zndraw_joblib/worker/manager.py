"""The worker's front door: register classes as jobs and providers, run tasks, answer reads, call others."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from zndraw_joblib.contract.messages import HeartbeatRequest, TaskResponse
from zndraw_joblib.contract.names import GLOBAL, parse_job_name
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.worker import signals
from zndraw_joblib.worker.api import ApiManager
from zndraw_joblib.worker.caller import Caller, name_of
from zndraw_joblib.worker.channel import Channel
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.loops import Execute
from zndraw_joblib.worker.offers import Offer
from zndraw_joblib.worker.polls import NOW, Pace
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.retry import persist, unreachable
from zndraw_joblib.worker.roster import Registration
from zndraw_joblib.worker.shift import Plan, Shift
from zndraw_joblib.worker.tasks import ClaimedTask
from zndraw_joblib.worker.wishes import PolicyWishes, checked, policy_of

__all__ = ["ClaimedTask", "JobManager"]

T = TypeVar("T")
Job = TypeVar("Job", bound=type[Any])

LONG_POLL_SECONDS = 20.0
_START_PATIENCE_SECONDS = 30.0
_BEAT_SECONDS = 10.0
_GOODBYE_SECONDS = 5.0


class JobManager(Caller):
    """A worker. With `execute` it serves by itself, in `concurrency` threads; else call `claim` or `listen`.

    `tsio` is a Socket.IO client of the host, if it has one; without it, that of `api` is used, if there is
    one: see `connect`. By it the worker hears of tasks and cancellations at once. All times are seconds: a
    claim waits up to `long_poll` on the server (0 for never), and where the server does not wait,
    `polling_interval` lies between two claims. The server says how often to send heartbeats, unless
    `heartbeat_interval` does. With `max_tasks`, the server gives it no more tasks than that at once.
    ProviderRequests of its providers are answered in up to `read_concurrency` threads, also without `execute`.
    When an operator drains the worker, it stops claiming, and disconnects once its tasks have ended.
    Thread-safe, and a context manager that disconnects at the end.
    """

    def __init__(  # noqa: PLR0913 - the keywords are the contract's
        self,
        api: ApiManager,
        tsio: Any = None,
        *,
        execute: Execute | None = None,
        heartbeat_interval: float | None = None,
        polling_interval: float = 2.0,
        long_poll: float = LONG_POLL_SECONDS,
        concurrency: int = 1,
        read_concurrency: int = 4,
        max_tasks: int | None = None,
    ) -> None:
        for name, number in (("concurrency", concurrency), ("read_concurrency", read_concurrency)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        limits = {} if max_tasks is None else {"max_tasks": max_tasks}
        checked(HeartbeatRequest, limits)
        super().__init__(Remote(api))
        self._in_flight = InFlight()
        self._channel = Channel(getattr(api, "tsio", None) if tsio is None else tsio, self._in_flight)
        pace = Pace(long_poll, polling_interval)
        self._plan = Plan(execute, concurrency, read_concurrency, heartbeat_interval, pace, limits)
        self._lock = threading.Lock()
        self._shift: Shift | None = None

    @property
    def worker_id(self) -> UUID | None:
        """The id under which the server knows this worker; it changes when the worker is registered anew."""
        shift = self._shift
        return shift.roster.worker_id if shift else None

    @property
    def registry(self) -> Mapping[str, type[Any]]:
        """The registered classes by the full names of their jobs."""
        jobs = dict(self._shift.roster.jobs) if self._shift else {}
        return MappingProxyType({name: registration.cls for name, registration in jobs.items()})

    @property
    def handlers(self) -> Mapping[str, Any]:
        """The handlers of the registered providers, by their full names; extensions may use them."""
        offers = dict(self._shift.roster.offers) if self._shift else {}
        return MappingProxyType({name: offer.handler for name, offer in offers.items()})

    @overload
    def register(self, cls: Job, *, room: str = ..., **policy: Unpack[PolicyWishes]) -> Job: ...
    @overload
    def register(
        self, cls: None = ..., *, room: str = ..., **policy: Unpack[PolicyWishes]
    ) -> Callable[[Job], Job]: ...
    def register(
        self, cls: Job | None = None, *, room: str = GLOBAL, **policy: Unpack[PolicyWishes]
    ) -> Job | Callable[[Job], Job]:
        """Register a class as a job of `room`, and start to serve it; usable as a decorator.

        `policy` is how its tasks are treated, see `JobPolicy`; what is not given is as it was registered
        before, be it by another worker, or as it is by default. Raises TypeError and ValueError where it
        does not fit.
        A server that cannot be reached is asked again for 30 seconds; what it refuses is raised at once.
        """
        register = partial(self._register, room=room, policy=policy_of(policy))
        return register if cls is None else register(cls)

    def unregister(self, job: str | type[Any], *, room: str = GLOBAL) -> None:
        """Serve a job no longer, given its full name or its class. Raises KeyError if it is not served."""
        self._working().roster.strike(job if isinstance(job, str) else str(name_of(job, room)))

    def register_provider(self, cls: type[Any], *, name: str, handler: Any, room: str = GLOBAL) -> UUID:
        """Register a class as the provider `name` of `room`, and start to answer its reads; return its id.

        Each read is an instance of `cls`, made from the reader's parameters; its `read` gets `handler`, in
        one of the threads for reads, and its answer is sent to the reader. Whatever `read` raises is told to
        the reader, as are parameters that do not fit. See `Provider` for what `read` may return.
        A server that cannot be reached is asked again for 30 seconds; what it refuses is raised at once.
        """
        shift = self._working()
        offer = Offer(cls, name, room, handler)
        offer.request(None)  # what can never work is said without the server
        provider_id = _patiently(shift, lambda: shift.roster.provide(offer), f"Registering {name}")
        shift.read()
        return provider_id

    def unregister_provider(self, provider: UUID | str) -> None:
        """Answer no more reads of a provider, given its id or full name. Raises KeyError if there is none."""
        self._working().roster.withdraw(provider)

    def create_worker(self) -> UUID:
        """Make the worker before it has any job; heartbeats start. Returns its id."""
        shift = self._working()
        worker_id = _patiently(shift, shift.roster.create, "Making the worker")
        shift.beat()
        return worker_id

    def heartbeat(self) -> None:
        """Send one heartbeat now; the thread does so by itself."""
        self._working().roster.beat(_BEAT_SECONDS)

    def claim(self, wait: float | None = None) -> ClaimedTask | None:
        """Claim the oldest task of this worker's jobs; wait up to `wait` seconds for one.

        A task that cannot run here (its payload does not fit, its job is unknown) is failed, and the
        next one is taken.
        """
        pace = Pace(wait, min(wait, self._plan.pace.pause)) if wait else NOW
        return self._working().claims.ask(pace)

    def listen(
        self, polling_interval: float | None = None, stop_event: threading.Event | None = None
    ) -> Iterator[ClaimedTask]:
        """Yield tasks as they come, until `stop_event` is set or the manager disconnects.

        `stop_event` is looked at every `polling_interval` seconds, rounded up; a task comes at once.
        """
        pause = self._plan.pace.pause if polling_interval is None else polling_interval
        yield from self._working().claims.stream(Pace(min(pause, self._plan.pace.poll), pause), stop_event)

    def start(self, task: ClaimedTask) -> TaskResponse:
        """Report that the work begins. Raises `InvalidTaskTransition` where the task was taken away."""
        return self._working().reports.start(task)

    def complete(self, task: ClaimedTask, result: Any = None) -> TaskResponse:
        """Report that the work is done; `result` is sent as JSON.

        A result that is no JSON or larger than 1 MiB fails the task, with the reason.
        """
        return self._working().reports.complete(task, result)

    def fail(self, task: ClaimedTask, error: object, *, retry: bool = True) -> TaskResponse:
        """Report that the work failed; `error` is a text or an exception.

        Whether it is tried again, the job's policy says; with `retry` false it is not.
        """
        return self._working().reports.fail(task, error, retry=retry)

    def cancel(self, task: ClaimedTask) -> TaskResponse:
        """Report that the work is given up."""
        return self._working().reports.cancel(task)

    def release(self, task: ClaimedTask) -> TaskResponse:
        """Hand a task back to its queue, for any worker to claim; that counts as no attempt."""
        return self._working().reports.release(task)

    def disconnect(self, timeout: float | None = None) -> None:
        """Claim no more, wait for what runs here, up to `timeout` seconds, and remove the worker.

        Heartbeats go on until the last report is acknowledged. A task that was claimed and not yet begun is
        handed back; one that still runs after `timeout` is lost. ProviderRequests that were claimed are answered first,
        then the providers are taken away. Afterwards the manager is as new.
        """
        shift = self._shift
        if shift is None:
            return
        try:
            shift.close(timeout)
        finally:
            with self._lock:
                if self._shift is shift:
                    self._shift = None

    def wait(self, begin: Callable[[], object] | None = None) -> None:
        """Sleep until the worker leaves elsewhere or, on the main thread, until SIGINT or SIGTERM.

        It leaves by `disconnect`, or because an operator drains it. The first signal disconnects as
        `disconnect` does; a second one leaves running tasks behind.
        `begin`, which may register, is called on a thread of its own: a signal then ends the wait for a
        server that is not there, and never parts a registration from its answer. What it raises ends the
        wait, and is raised here.
        """
        shift = self._shift or self._working()
        errors: list[Exception] = []

        def attempt(begin: Callable[[], object]) -> None:
            try:
                begin()
            except Exception as error:
                errors.append(error)
                shift.end()

        with signals.caught(shift.end):
            if begin:
                threading.Thread(target=attempt, args=(begin,), daemon=True).start()
            shift.wait()
            failed = errors[:1]  # a signal may have come first: then nobody asks what became of it
            self.disconnect()
        for error in failed:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()

    def _working(self) -> Shift:
        with self._lock:
            if self._shift is not None and self._shift.roster.has_left:
                self._shift.gone.wait(_GOODBYE_SECONDS)
            if self._shift is None or self._shift.gone.is_set():
                self._shift = Shift(self._remote, self._channel, self._in_flight, self._plan)
            return self._shift

    def _register(self, cls: Job, room: str, policy: JobPolicy) -> Job:
        shift = self._working()
        registration = Registration(cls, room, policy)
        _patiently(shift, lambda: shift.roster.enroll(registration), f"Registering {cls.__name__}")
        shift.serve()
        return cls

    def _home_of(self, cls: type[Any]) -> str:
        rooms = [parse_job_name(name).room_id for name, known in self.registry.items() if known is cls]
        return rooms[0] if len(rooms) == 1 else GLOBAL


def _patiently(shift: Shift, call: Callable[[], T], what: str) -> T:
    return persist(call, what, patience=_START_PATIENCE_SECONDS, over=shift.over, again=unreachable)
