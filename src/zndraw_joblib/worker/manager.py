"""A worker: it registers classes as jobs and providers, runs tasks, serves requests and submits tasks."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, Unpack, get_args, get_type_hints, overload
from uuid import UUID, uuid4

from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import ApiManager
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.retry import SendAttempts, describe, retry
from zndraw_joblib.jobs.batches import batch_of
from zndraw_joblib.jobs.extensions import (
    PolicyOptions,
    check_job,
    class_policy,
    job_name_of,
    job_room_of,
    policy_of,
)
from zndraw_joblib.jobs.forks import check_not_forked
from zndraw_joblib.jobs.results import can_encode
from zndraw_joblib.jobs.traces import RUN_SPANS, RunSpans
from zndraw_joblib.wire.messages import MAX_BATCH, MAX_TASK_TOKEN_SECONDS, HeartbeatRequest, TaskResponse
from zndraw_joblib.wire.names import GLOBAL, parse_job_name
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.worker.allocations import UNLIMITED, Allocation
from zndraw_joblib.worker.registrations import JobRegistration, ProviderRegistration
from zndraw_joblib.worker.remote import ExecutorSource, RemoteExecutor
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.session import Session, SessionConfig, stop_signals
from zndraw_joblib.worker.subscriptions import Subscriptions
from zndraw_joblib.worker.task_poller import NOW, Pace
from zndraw_joblib.worker.task_process import DEFAULT_CANCEL_GRACE, check_importable
from zndraw_joblib.worker.tasks import ClaimedTask, Execute, HeldTasks

log = logging.getLogger(__name__)

__all__ = ["ClaimedTask", "JobManager"]

Executor = Literal["thread", "process"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)
T = TypeVar("T")
RunKwargs = Mapping[str, Any] | None
Job = TypeVar("Job", bound=type[Any])

LONG_POLL_SECONDS = 20.0
DEFAULT_PREFETCH = 100
MAX_CANCEL_GRACE = 3600
_HEARTBEAT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_REGISTER_SECONDS, _FIRST_PAUSE_SECONDS, _MANY_RETRIES = 30.0, 0.25, 20


class JobManager(JobClient):
    """A worker. With `execute` it runs `concurrency` tasks at once; without, call `claim` or `listen`.

    `execute` is called in a thread, or with `executor="process"` in a process that runs one task at a time.
    Such a process ends with its task, also in native code: it has `cancel_grace` seconds after a cancellation
    or a time limit, then its process group gets SIGTERM, and as many seconds later SIGKILL.
    `executor` may also be a `concurrent.futures.Executor`, or a function that makes one: then up to
    `concurrency` tasks at once are submitted to it, and run where it runs them. When it is lost, so are the
    attempts of its tasks, as with a lost worker, and the function makes another one.
    If it returns a coroutine, as an `async def run` does, that is awaited on an event loop, and cancelled
    with its task. The worker claims up to `prefetch` tasks ahead, but no more than it expects to start within
    about 100 ms; it releases those that wait for longer. A slot runs one task, or one batch of a job with a
    `Batch`: batches do not pass through `execute`, because they have tasks of several rooms.

    `tsio` is a Socket.IO client of the host, or a wrapper: its `on` takes the class of an event, its
    `emit` an event. By default it is that of `api`, if it has one (see `connect`). With Socket.IO the worker
    learns of tasks and cancellations at once.

    All times are seconds. A claim waits up to `long_poll` on the server (0: not at all); where the server
    does not wait, `polling_interval` is the pause between two claims. The server sets the interval of
    heartbeats, unless `heartbeat_interval` does. `max_tasks` limits how many tasks the worker holds at once.
    `name` is for people who look at lists of workers, by default the name of the host.
    `labels` are what tasks may require of their worker, like ``{"gpu": "a100", "memory_gb": 80}``.
    Up to `read_concurrency` threads serve the requests of its providers, also without `execute`.

    With `capture_output`, what a task's code prints to `sys.stdout` and `sys.stderr`, and its warnings, are
    also written to the task's log (see `TaskContext`).

    If the program has an OpenTelemetry tracer provider, each run has a span: with ``run_spans="link"`` in a
    trace of its own that has a link to the submitter's, with ``"child"`` in the submitter's trace.

    When an operator drains the worker, it claims no more, and disconnects once its tasks have ended. So it
    does after the server could not be reached for `max_unreachable_seconds`; by default it tries for ever. A
    registration is repeated about `max_startup_retries` times, in growing pauses; by default for 30 seconds.
    With an `allocation` it leaves before its time on a cluster ends, when it is idle, or after some tasks.

    With a token of `connect` it also leaves before this expires: it claims only tasks that are expected to
    end before, and puts those that still run back into their queues. If each response of the server is a 401
    for a minute, it ends. Other clients may get another token at any time, so with these it goes on.

    It is a mapping from the full names of the registered jobs to their classes; without a job it is true too.
    Thread-safe; a context manager that disconnects at the end.
    """

    _rest: RestApi
    _session: Session | None = None
    # It registers for the session of `wait` only.
    _begin_thread: threading.Thread | None = None

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
        prefetch: int = DEFAULT_PREFETCH,
        executor: Executor | ExecutorSource = "thread",
        read_concurrency: int = 4,
        max_tasks: int | None = None,
        capture_output: bool = True,
        run_spans: RunSpans = "link",
        name: str | None = None,
        max_unreachable_seconds: float | None = None,
        max_startup_retries: int | None = None,
        cancel_grace: float = DEFAULT_CANCEL_GRACE,
        allocation: Allocation = UNLIMITED,
        labels: Mapping[str, Any] | None = None,
    ) -> None:
        check_options(execute, concurrency, read_concurrency, prefetch, executor, run_spans)
        check_end(cancel_grace, allocation)
        self._register_seconds = register_seconds(max_unreachable_seconds, max_startup_retries)
        remote = remote_of(executor, execute)
        # Heartbeats do not reach what an executor runs elsewhere.
        super().__init__(RestApi(api, None if remote is None else MAX_TASK_TOKEN_SECONDS))
        self._held, self._lock = HeldTasks(), threading.Lock()
        self.tsio = getattr(api, "tsio", None) if tsio is None else tsio
        self._subscriptions = Subscriptions(self.tsio, self._held)
        self._config = SessionConfig(
            *(execute, concurrency, prefetch, executor == "process", read_concurrency, heartbeat_interval),
            pace=Pace(long_poll, polling_interval),
            limits=limits(max_tasks, name, labels),
            labels=labels,
            capture_output=capture_output,
            run_spans=run_spans,
            name=name,
            max_unreachable_seconds=max_unreachable_seconds,
            cancel_grace=cancel_grace,
            allocation=allocation,
            remote=remote,
        )

    @property
    def worker_id(self) -> UUID | None:
        """The worker's id on the server; it changes when the server had to register the worker again."""
        session = self._session
        return session.registrations.worker_id if session else None

    @property
    def held_tasks(self) -> list[str]:
        """The ids of the tasks that this worker holds: from their claim until their outcome is reported."""
        return self._held.ids()

    @property
    def registry(self) -> Mapping[str, type[Any]]:
        """The registered classes by the full names of their jobs."""
        jobs = dict(self._session.registrations.jobs) if self._session else {}
        return MappingProxyType({name: job.cls for name, job in jobs.items()})

    @property
    def handlers(self) -> Mapping[str, Any]:
        """The handlers of the registered providers by their full names, for use in extensions."""
        providers = dict(self._session.registrations.providers) if self._session else {}
        return MappingProxyType({name: provider.handler for name, provider in providers.items()})

    @overload
    def register(
        self,
        cls: Job,
        *,
        room: str | None = ...,
        run_kwargs: RunKwargs = ...,
        **policy: Unpack[PolicyOptions],
    ) -> Job: ...
    @overload
    def register(
        self,
        cls: None = ...,
        *,
        room: str | None = ...,
        run_kwargs: RunKwargs = ...,
        **policy: Unpack[PolicyOptions],
    ) -> Callable[[Job], Job]: ...
    def register(
        self,
        cls: Job | None = None,
        *,
        room: str | None = None,
        run_kwargs: RunKwargs = None,
        **policy: Unpack[PolicyOptions],
    ) -> Job | Callable[[Job], Job]:
        """Register a class, or a function with `@job`, as a job and start to serve it; usable as a decorator.

        `room` is by default the `job_room` of the class: ``@global``, unless it sets another one. `policy`
        sets fields of the job's `JobPolicy`, over those that the class sets in `policy`, a class attribute
        with a `JobPolicy`; the others keep their registered or default value. `run_kwargs` are keywords for
        `run`: `execute` finds them as `task.run_kwargs`. Raises TypeError for what is no job, and TypeError
        or ValueError for an invalid policy. While the server cannot be reached, the registration is repeated;
        a refusal is raised at once.
        """
        register = partial(self._register, room=room, policy=policy_of(policy), run_kwargs=run_kwargs or {})
        return register if cls is None else register(cls)

    def get_run_kwargs(self, full_name: str) -> dict[str, Any]:
        """Return the keywords that a job was registered with; none for a job without, or an unknown one."""
        job = self._session and self._session.registrations.job_of(full_name)
        return dict(job.run_kwargs) if job else {}

    def unregister(self, job: str | type[Any], *, room: str | None = None) -> None:
        """Unregister a job, given its full name or its class. Raises KeyError if it is not registered."""
        full_name = job if isinstance(job, str) else str(job_name_of(job, room or job_room_of(job)))
        self._active().registrations.unregister(full_name)

    def register_provider(self, cls: type[Any], *, name: str, handler: Any, room: str = GLOBAL) -> UUID:
        """Register a class as the provider `name` of `room`, start to serve its requests, and return its id.

        Each request becomes an instance of `cls`, made from the parameters; the result is what its method
        `read` returns when it gets `handler`. What `read` raises is sent as an error, and so are invalid
        parameters. See `Provider` for what `read` may return. While the server cannot be reached, the
        registration is repeated; a refusal is raised at once.
        """
        session = self._active()
        provider = ProviderRegistration(cls, name, room, handler)
        provider.request(None)  # raises for invalid arguments without a request to the server
        call = partial(session.registrations.register_provider, provider, uuid4())
        provider_id = self._repeat(session, call, f"Registering {name}")
        session.start_providers()
        return provider_id

    def unregister_provider(self, provider: UUID | str) -> None:
        """Unregister a provider, given its id or full name. Raises KeyError if it is not registered."""
        self._active().registrations.unregister_provider(provider)

    def create_worker(self) -> UUID:
        """Create the worker before it has any job, start its heartbeats, and return its id."""
        session = self._active()
        worker_id = self._repeat(
            session, partial(session.registrations.create, uuid4()), "Creating the worker"
        )
        session.start_heartbeats()
        return worker_id

    def heartbeat(self) -> None:
        """Send a heartbeat now; the worker's thread sends them by itself."""
        self._active().registrations.heartbeat(_HEARTBEAT_SECONDS)

    def claim(self, wait: float | None = None) -> ClaimedTask | None:
        """Claim the oldest task of this worker's jobs; wait up to `wait` seconds for one.

        A task that cannot run here (its payload is invalid, its job is unknown) is failed, and the next one
        is claimed.
        """
        pace = Pace(wait, min(wait, self._config.pace.pause)) if wait else NOW
        return self._active().tasks.claim(pace)

    def listen(
        self, polling_interval: float | None = None, stop_event: threading.Event | None = None
    ) -> Iterator[ClaimedTask]:
        """Yield tasks until `stop_event` is set or the manager disconnects.

        `stop_event` is checked every `polling_interval` seconds, rounded up.
        """
        pause = self._config.pace.pause if polling_interval is None else polling_interval
        yield from self._active().tasks.stream(Pace(min(pause, self._config.pace.poll), pause), stop_event)

    def start(self, task: ClaimedTask) -> TaskResponse:
        """Report that the task starts. Raises `InvalidTaskTransition` if this worker lost the task."""
        return self._active().reports.start(task)

    def complete(self, task: ClaimedTask, result: Any = None) -> TaskResponse:
        """Report that the task is done; `result` is sent as JSON.

        A result that is not JSON, or larger than 1 MiB, fails the task with that reason.
        """
        return self._active().reports.complete(task, result)

    def fail(self, task: ClaimedTask, error: object, *, retry: bool = True) -> TaskResponse:
        """Report that the task failed; `error` is a text or an exception.

        The job's policy decides whether it is tried again; with `retry` false it is not.
        """
        return self._active().reports.fail(task, error, retry=retry)

    def cancel(self, task: ClaimedTask) -> TaskResponse:
        """Report that this worker cancelled the task."""
        return self._active().reports.cancel(task)

    def release(self, task: ClaimedTask) -> TaskResponse:
        """Put a task back into its queue, for any worker to claim; this counts as no attempt."""
        return self._active().reports.release(task)

    def disconnect(self, timeout: float | None = None, *, requeue: bool = False) -> None:
        """Claim no more, wait up to `timeout` seconds for running tasks, and remove the worker.

        Heartbeats go on until the last report is acknowledged. A task that was claimed and has not started is
        released; one that still runs after `timeout` is lost. With `requeue` it is released too, which costs
        no attempt, and its `cancelled` is set; a result that is being uploaded has some seconds more.
        Provider requests that were claimed are served before the providers are unregistered. Afterwards the
        manager can register again.
        """
        session = self._session
        if session is None or session.pid != os.getpid():  # a forked process is not the worker
            return
        try:
            session.close(timeout, requeue=requeue)
        finally:
            with self._lock:
                if self._session is session:
                    self._session = None

    def wait(self, begin: Callable[[], object] | None = None) -> None:
        """Wait until the worker disconnects, an operator drains it, or (main thread) SIGINT or SIGTERM comes.

        The first signal disconnects as `disconnect` does; a second one abandons running tasks. `begin`, which
        may register, is called on a thread of its own: so a signal ends the wait for a server that does not
        respond, but never interrupts a registration. An error of `begin` ends the wait and is raised here,
        unless the worker leaves already. Then a registration of `begin` raises RuntimeError.

        Raises `Unauthorized` if the server has refused the worker's token for a minute.
        """
        session = self._active() if begin else self._session or self._active()
        errors: list[Exception] = []

        def run(begin: Callable[[], object]) -> None:
            try:
                begin()
            except Exception as error:
                if session.tasks.stopped:
                    log.info("The worker leaves before it has registered everything: %s", describe(error))
                    return
                errors.append(error)
                session.request_end()

        with stop_signals(session.request_end, with_user_signal=self._config.allocation.is_watched):
            if begin:
                self._begin_thread = threading.Thread(target=run, args=(begin,), daemon=True)
                self._begin_thread.start()
            session.wait()
            session.log_waits()
            failed = errors[:1]  # after a signal, a later error of `begin` does not matter
            self.disconnect()
        for error in failed:
            raise error
        if session.refusal is not None:
            raise session.refusal

    def __contains__(self, full_name: object) -> bool:
        return full_name in self.registry

    def __getitem__(self, full_name: str) -> type[Any]:
        return self.registry[full_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.registry)

    def __len__(self) -> int:
        return len(self.registry)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def _active(self) -> Session:
        if self._session is not None:
            check_not_forked(self._session.pid)
        with self._lock:
            has_left = self._session is None or self._session.registrations.has_left
            if has_left and threading.current_thread() is self._begin_thread:
                raise RuntimeError("The worker has left: it was drained or stopped during its registration")
            if self._session is not None and self._session.registrations.has_left:
                self._session.closed.wait(_CLOSE_SECONDS)
            if self._session is None or self._session.closed.is_set():
                self._session = Session(self._rest, self._subscriptions, self._held, self._config)
            return self._session

    def _register(self, cls: Job, room: str | None, policy: JobPolicy, run_kwargs: Mapping[str, Any]) -> Job:
        check_job(cls)
        if self._config.in_processes or self._config.remote is not None:
            check_importable(cls)
        if self._config.remote is not None:
            self._config.remote.open()
        warn_of_return_type(cls)
        session = self._active()
        job = JobRegistration(cls, room or job_room_of(cls), class_policy(cls, policy), run_kwargs)
        call = partial(session.registrations.register, job, uuid4())
        self._repeat(session, call, f"Registering {cls.__name__}")
        session.start_tasks()
        return cls

    def _repeat(self, session: Session, call: Callable[[], T], what: str) -> T:
        seconds, is_retryable = self._register_seconds, SendAttempts().may_repeat
        return retry(call, what, seconds=seconds, stop=session.stop, is_retryable=is_retryable)

    def _job_room_of(self, cls: type[Any]) -> str | None:
        rooms = [parse_job_name(name).room_id for name, job in self.registry.items() if job is cls]
        return rooms[0] if len(rooms) == 1 else None


def warn_of_return_type(job: type[Any]) -> None:
    """Log a warning if a job is declared to return objects of a class that cannot be encoded."""
    if batch_of(job) is not None:  # it returns a list, perhaps with exceptions
        return
    run = getattr(job, "__wrapped__", job.run)
    try:
        returned = get_type_hints(run).get("return", Any)
    # An annotation may be any code, and names that exist only for type checkers.
    except Exception:
        return
    if not can_encode(returned):
        log.warning(
            "%s() returns objects of %s.%s, which cannot be encoded: its tasks will fail. Return JSON "
            "values or a dataclass, or call register_codec() before the registration",
            *(run.__qualname__, returned.__module__, returned.__qualname__),
        )


def remote_of(executor: Executor | ExecutorSource, execute: Execute | None) -> RemoteExecutor | None:
    """Return what runs tasks on an executor, None for threads and processes of the worker."""
    return None if isinstance(executor, str) or execute is None else RemoteExecutor(executor, execute)


def register_seconds(max_unreachable_seconds: float | None, max_startup_retries: int | None) -> float:
    """Return how long a registration is repeated. Raises ValueError for an option out of its range."""
    if max_unreachable_seconds is not None and max_unreachable_seconds <= 0:
        raise ValueError(f"max_unreachable_seconds must be positive, not {max_unreachable_seconds}")
    if max_startup_retries is None:
        return _REGISTER_SECONDS
    if max_startup_retries < 0:
        raise ValueError(f"max_startup_retries must not be negative, not {max_startup_retries}")
    # The sum of the pauses, each twice as long as the one before.
    return _FIRST_PAUSE_SECONDS * (2.0 ** min(max_startup_retries, _MANY_RETRIES) - 1)


def limits(
    max_tasks: int | None, name: str | None, labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the limits of a worker's heartbeats. Raises ValueError for invalid ones, a name or labels."""
    limits = {} if max_tasks is None else {"max_tasks": max_tasks}
    validated(HeartbeatRequest, {**limits, "worker": {"name": name, "labels": labels}})
    return limits


def check_cancel_grace(seconds: float) -> None:
    """Raise ValueError for a time that is none."""
    if not 0 <= seconds <= MAX_CANCEL_GRACE:
        raise ValueError(f"cancel_grace must be between 0 and {MAX_CANCEL_GRACE} s, not {seconds}")


def check_end(cancel_grace: float, allocation: Allocation) -> None:
    """Raise ValueError for an invalid end of tasks, or of the worker."""
    check_cancel_grace(cancel_grace)
    allocation.check()


def check_options(
    execute: Any, concurrency: int, read_concurrency: int, prefetch: int, executor: Any, run_spans: str
) -> None:
    """Raise ValueError for an option out of its range, and for what another process cannot import."""
    for name, number in (("concurrency", concurrency), ("read_concurrency", read_concurrency)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if not 0 <= prefetch <= MAX_BATCH:
        raise ValueError(f"prefetch must be between 0 and {MAX_BATCH}, not {prefetch}")
    if isinstance(executor, str) and executor not in EXECUTORS:
        raise ValueError(f"executor must be one of {', '.join(EXECUTORS)}, not {executor!r}")
    if not isinstance(executor, str | futures.Executor) and not callable(executor):
        raise ValueError(f"executor must be an Executor or a function that makes one, not {executor!r}")
    if run_spans not in RUN_SPANS:
        raise ValueError(f"run_spans must be one of {', '.join(RUN_SPANS)}, not {run_spans!r}")
    if executor != "thread":
        check_importable(execute)
