"""The jobs and providers that this process serves, and the worker's id on the server."""

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.older_servers import PolicyIgnored
from zndraw_joblib.client.retry import Outage, describe, is_transient, problem_of
from zndraw_joblib.jobs.batches import Batch, batch_of
from zndraw_joblib.jobs.extensions import category_of
from zndraw_joblib.wire.messages import (
    HeartbeatRequest,
    JobRegisterRequest,
    JobResponse,
    NamedTask,
    WorkerInfo,
    WorkerResponse,
)
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import WorkerNotFound
from zndraw_joblib.wire.providers import ProviderRegisterRequest, ProviderResponse
from zndraw_joblib.worker.reports import LiveReports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.subscriptions import Subscriptions
from zndraw_joblib.worker.tasks import HeldTasks

log = logging.getLogger(__name__)
Response = TypeVar("Response")

_LEAVE_SECONDS = 5.0
_HEARTBEATS_PER_INFO = 20


@dataclass(frozen=True, slots=True)
class JobRegistration:
    """A class that is registered as a job of a room, with the policy fields that its author set.

    `run_kwargs` are keywords for its `run`, which the server does not know.
    """

    cls: type[Any]
    room_id: str
    policy: JobPolicy
    run_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def request(self, worker_id: UUID | None, about: dict[str, Any]) -> JobRegisterRequest:
        """Return the body that registers it; `about` is as in `Registrations`."""
        return JobRegisterRequest(
            category=category_of(self.cls),
            name=self.cls.__name__,
            schema_=self.cls.model_json_schema(),
            worker_id=worker_id,
            **self._schedule(),
            **about,
            **{name: getattr(self.policy, name) for name in self.policy.model_fields_set - {"batch"}},
            batch=batch_of(self.cls),
        )

    def _schedule(self) -> dict[str, Any]:
        schedule = getattr(self.cls, "job_schedule", None)
        return {} if schedule is None else {"schedule": schedule}


@dataclass(frozen=True, slots=True)
class ProviderRegistration:
    """A class that is registered as a provider of a room, and its handler.

    `ids` are the provider's ids, oldest first: each registration gives it another one.
    """

    cls: type[Any]
    name: str
    room_id: str
    handler: Any
    ids: tuple[UUID, ...] = ()

    @property
    def content_type(self) -> str:
        """Return the content type of its results."""
        return str(getattr(self.cls, "content_type", "application/json"))

    def request(self, worker_id: UUID | None, info: WorkerInfo | None = None) -> ProviderRegisterRequest:
        """Return the body that registers it. Raises ValueError for an invalid name or content type."""
        fields = {
            "category": category_of(self.cls),
            "name": self.name,
            "schema": self.cls.model_json_schema(),
            "content_type": self.content_type,
        }
        return validated(ProviderRegisterRequest, {**fields, "worker_id": worker_id, "worker": info})


class NoWorker(RuntimeError, ValueError):
    """The manager has no worker yet, or none any longer."""


class Registrations:
    """The worker as the server knows it: one id, its jobs and its providers. Thread-safe.

    `about` has `worker`, what it says about itself, and may have `max_tasks`, how many tasks it holds at
    once; now and then a heartbeat repeats it, in case the server was older. `drain` is called when the server
    asks the worker to leave; it must return at once. Heartbeats carry what waits in `live`.
    """

    def __init__(
        self,
        rest: RestApi,
        subscriptions: Subscriptions,
        held: HeldTasks,
        about: dict[str, Any],
        drain: Callable[[], None],
        live: LiveReports,
    ) -> None:
        self.drain = drain
        # Of the worker's claims, heartbeats and reports.
        self.outage = Outage()
        self.worker_id: UUID | None = None
        self.jobs: dict[str, JobRegistration] = {}
        self.providers: dict[str, ProviderRegistration] = {}
        self.has_left = False
        # The jobs that take batches, by their full names; replaced at each change.
        self.batches: Mapping[str, Batch] = {}
        self._known: dict[str, JobRegistration] = {}
        self._time_limits: dict[str, float | None] = {}
        self._rest = rest
        self._subscriptions = subscriptions
        self._held = held
        self._about = about
        self._heartbeats = itertools.count()
        self._live = live
        self._lock = threading.RLock()

    def worker(self) -> UUID:
        """Return the worker's id. Raises `NoWorker` before the first registration and after the end."""
        worker_id = self.worker_id
        if worker_id is None:
            raise NoWorker("Worker ID not set: there is no worker. Call register() or create_worker() first")
        return worker_id

    def create(self, operation: UUID) -> UUID:
        """Create the worker, unless there is one; return its id. Repeat it with the same `operation`."""
        with self._lock:
            self._check_open()
            if self.worker_id is None:
                self.worker_id = self._rest.create_worker(operation, self._about["worker"]).id
            return self.worker_id

    def register(self, job: JobRegistration, operation: UUID) -> None:
        """Register a job; the first registration creates the worker. Repeat it with the same `operation`."""
        with self._lock:
            response = self._first_time(lambda: self._register_job(job, self.worker_id, operation))
            self.worker_id = response.worker_id
            self._check_requirements(job, response)
            self.jobs[response.full_name] = job
            self._known[response.full_name] = job
            # A server that knows `expected_seconds` compares them with `remaining_seconds` of claims.
            if "expected_seconds" not in response.model_fields_set:
                self._time_limits[response.full_name] = response.timeout_seconds
            self.batches = {
                name: batch
                for name, known in self._known.items()
                if (batch := batch_of(known.cls)) is not None
            }
            self._subscriptions.join(response.full_name, self.worker())

    def _check_requirements(self, job: JobRegistration, response: JobResponse) -> None:
        """Unregister a job, and raise `PolicyIgnored`, if the server is too old to know `requires`."""
        if job.policy.requires and "requires" not in response.model_fields_set:
            self._rest.unregister(self.worker(), response.full_name)
            raise PolicyIgnored(
                f"requires: the server is an older release, which ignores it: workers without these labels "
                f"would get tasks of {response.full_name}. The worker has left the job. Update the server, "
                "or register without requires if each worker of the job can run it"
            )

    def register_provider(self, provider: ProviderRegistration, operation: UUID) -> UUID:
        """Register a provider and return its id; the first registration creates the worker.

        Repeat it with the same `operation`.
        """
        with self._lock:
            response = self._first_time(lambda: self._register_provider(provider, self.worker_id, operation))
            self.worker_id = response.worker_id
            self._subscriptions.join_provider(response.full_name, self.worker())
            return response.id

    def job_of(self, full_name: str) -> JobRegistration | None:
        """Return a job, also one unregistered since; None if it was never registered here.

        A task may come before the response to the registration of its job: this waits for the response.
        """
        with self._lock:
            return self._known.get(full_name)

    def time_limits(self) -> dict[str, float]:
        """Return the `timeout_seconds` of jobs, of servers that give a worker tasks that do not fit."""
        with self._lock:
            limits = {name: self._time_limits.get(name) for name in self.jobs}
        return {name: seconds for name, seconds in limits.items() if seconds is not None}

    def provider_of(self, full_name: str) -> ProviderRegistration | None:
        """Return a provider, None if it is not registered here; wait for a registration under way."""
        with self._lock:
            return self.providers.get(full_name)

    def unregister(self, full_name: str) -> None:
        """Unregister a job. Raises KeyError if it is not registered here."""
        with self._lock:
            if full_name not in self.jobs:
                raise KeyError(full_name)
            _ignore_missing(lambda: self._rest.unregister(self.worker(), full_name))
            del self.jobs[full_name]
            self._subscriptions.leave(full_name)

    def unregister_provider(self, provider: UUID | str) -> None:
        """Unregister a provider, given its id, or an earlier one, or its full name.

        Raises KeyError if it is not registered here.
        """
        with self._lock:
            for full_name, registered in self.providers.items():
                if provider == full_name or str(provider) in map(str, registered.ids):
                    break
            else:
                raise KeyError(provider)
            _ignore_missing(lambda: self._rest.remove_provider(registered.ids[-1], self.worker()))
            del self.providers[full_name]
            self._subscriptions.leave_provider(full_name)

    def heartbeat(self, timeout: float) -> WorkerResponse | None:
        """Send a heartbeat and apply the verdicts on the held tasks.

        Register everything again if the server does not know the worker; return None then.
        """
        worker_id, named, about = self.worker(), self._held.to_name(), self._about
        if next(self._heartbeats) % _HEARTBEATS_PER_INFO:
            about = {name: value for name, value in about.items() if name != "worker"}
        if self._held.has_old_tokens:
            about = {**about, "tokens": True}

        def send(tasks: Sequence[NamedTask]) -> WorkerResponse:
            request = HeartbeatRequest(tasks=list(tasks), **about)
            return self._rest.heartbeat(worker_id, request, timeout)

        try:
            response = self._live.send_heartbeat(named, send)
        except Exception as error:
            if not self.renew_if_unknown(worker_id, error):
                raise
            return None
        self._held.apply_verdicts(named, response.tasks)
        if response.drain:
            self.drain()
        return response

    def renew_if_unknown(self, worker_id: UUID, error: Exception) -> bool:
        """Return whether `error` says that the server does not know the worker; if so, register it again."""
        if not _is_unknown_worker(error):
            return False
        self._renew(worker_id)
        return True

    def _renew(self, worker_id: UUID) -> None:
        """Register everything for a new worker, unless another thread did so since the worker had this id.

        The tasks of the old worker are lost: the server has ended them or put them back into their queues.
        """
        with self._lock:
            if self.has_left or self.worker_id != worker_id:
                return
            log.warning(
                "The server does not know worker %s; registering a new one",
                worker_id,
                extra={"worker_id": str(worker_id)},
            )
            self._held.lose_all(worker_id)
            self.worker_id = self._register_all(worker_id)
            for full_name in self.jobs:
                self._subscriptions.join(full_name, self.worker_id)
            for full_name in self.providers:
                self._subscriptions.join_provider(full_name, self.worker_id)
            log.warning(
                "Worker %s replaces worker %s", self.worker_id, worker_id, extra={"worker_id": str(worker_id)}
            )

    def _check_open(self) -> None:
        if self.has_left:
            raise RuntimeError("The worker has just disconnected; try again")

    def _first_time(self, register: Callable[[], Response]) -> Response:
        """Register something; if the server does not know the worker, register the rest again first."""
        self._check_open()
        try:
            return register()
        except Exception as error:
            if self.worker_id is None or not _is_unknown_worker(error):
                raise
            self._renew(self.worker_id)
            return register()

    def _register_job(self, job: JobRegistration, worker_id: UUID | None, operation: UUID) -> JobResponse:
        return self._rest.register(job.room_id, job.request(worker_id, self._about), operation)

    def _register_provider(
        self, provider: ProviderRegistration, worker_id: UUID | None, operation: UUID
    ) -> ProviderResponse:
        request = provider.request(worker_id, self._about["worker"])
        response = self._rest.register_provider(provider.room_id, request, operation)
        self.providers[response.full_name] = replace(provider, ids=(*provider.ids, response.id))
        return response

    def _register_all(self, lost_id: UUID) -> UUID:
        """Register everything for a new worker and return its id; log what the server refuses.

        The lost worker's id is the operation, so a repeat does not replace the worker a second time.
        """
        new_id: UUID | None = None
        refusal: Exception | None = None
        calls: dict[str, Callable[[UUID | None, UUID], JobResponse | ProviderResponse]] = {
            **{f"Job {name}": partial(self._register_job, job) for name, job in self.jobs.items()},
            **{f"Provider {name}": partial(self._register_provider, p) for name, p in self.providers.items()},
        }
        for what, register in calls.items():
            try:
                response = register(new_id, lost_id)
            except Exception as error:
                if is_transient(error):
                    raise
                log.error("%s cannot be registered again: %s", what, describe(error))
                refusal = error
            else:
                new_id = response.worker_id
        if new_id is None and refusal is not None:
            raise refusal
        return new_id or self._rest.create_worker(lost_id, self._about["worker"]).id

    def unregister_jobs(self) -> None:
        """Unregister all jobs, so that the worker gets no more tasks; it keeps the tasks that it holds."""
        # The rooms first: the server would refuse a join that comes after the unregistration.
        for full_name in list(self.jobs):
            self._subscriptions.leave(full_name)
        try:
            for full_name in list(self.jobs):
                self._rest.unregister(self.worker(), full_name, _LEAVE_SECONDS)
            self.jobs = {}
        except Exception as error:
            log.warning("The worker's jobs could not be unregistered: %s", describe(error))

    def unregister_providers(self) -> None:
        """Unregister all providers."""
        try:
            for full_name, provider in list(self.providers.items()):
                self._subscriptions.leave_provider(full_name)
                self._rest.remove_provider(provider.ids[-1], self.worker(), _LEAVE_SECONDS)
            self.providers = {}
        except Exception as error:
            log.warning("The worker's providers could not be unregistered: %s", describe(error))

    def forget(self) -> None:
        """Leave without a request: the server would refuse it, and removes the worker after its timeout."""
        self.has_left = True
        with self._lock:
            self.jobs, self.providers = {}, {}
            worker_id, self.worker_id = self.worker_id, None
        if worker_id is not None:
            self._held.lose_all(worker_id)

    def leave(self) -> None:
        """Remove the worker; a server that does not respond removes it after its worker timeout."""
        self.has_left = True
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            return
        try:
            for full_name in self.jobs:
                self._subscriptions.leave(full_name)
            for full_name in self.providers:
                self._subscriptions.leave_provider(full_name)
            self.jobs, self.providers = {}, {}
            worker_id, self.worker_id = self.worker_id, None
            if worker_id is not None:
                self._held.lose_all(worker_id)
                self._rest.remove_worker(worker_id, _LEAVE_SECONDS)
        except Exception as error:
            log.warning("The worker could not be removed: %s", describe(error))
        finally:
            self._lock.release()


def _is_unknown_worker(error: Exception) -> bool:
    return isinstance(problem_of(error), WorkerNotFound)


def _ignore_missing(remove: Callable[[], None]) -> None:
    try:
        remove()
    except Exception as error:
        if not isinstance(problem_of(error), KeyError):
            raise
