"""Which jobs and providers this process serves, and the id under which the server knows it."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.contract.messages import (
    HeartbeatRequest,
    JobRegisterRequest,
    JobResponse,
    WorkerResponse,
)
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.problems import WorkerNotFound
from zndraw_joblib.contract.providers import ProviderResponse
from zndraw_joblib.worker.caller import category_of
from zndraw_joblib.worker.channel import Channel
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.offers import Offer
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.retry import describe, passing, problem_of

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

_GOODBYE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Registration:
    """A class, the room it was registered for, and what its author said of the job's policy."""

    cls: type[Any]
    room_id: str
    policy: JobPolicy

    def request(self, worker_id: UUID | None, limits: dict[str, Any]) -> JobRegisterRequest:
        """Return the body that registers it."""
        return JobRegisterRequest(
            category=category_of(self.cls),
            name=self.cls.__name__,
            schema_=self.cls.model_json_schema(),
            worker_id=worker_id,
            **limits,
            **{name: getattr(self.policy, name) for name in self.policy.model_fields_set},
        )


class Roster:
    """The worker as the server knows it: one id, its jobs and its providers. Thread-safe.

    `limits` may say how many tasks it may hold (`max_tasks`). `drain` is called when the server asks it to
    leave, and shall return at once.
    """

    def __init__(
        self,
        remote: Remote,
        channel: Channel,
        in_flight: InFlight,
        limits: dict[str, Any],
        drain: Callable[[], None],
    ) -> None:
        self.drain = drain
        self._limits = limits
        self.worker_id: UUID | None = None
        self.jobs: dict[str, Registration] = {}
        self.offers: dict[str, Offer] = {}
        self._known: dict[str, type[Any]] = {}
        self._remote = remote
        self._channel = channel
        self._in_flight = in_flight
        self._lock = threading.RLock()
        self.has_left = False

    def worker(self) -> UUID:
        """Return the worker's id. Raises RuntimeError before the first registration, and after the end."""
        worker_id = self.worker_id
        if worker_id is None:
            raise RuntimeError("There is no worker: call register() or create_worker() first")
        return worker_id

    def create(self) -> UUID:
        """Make the worker, unless there is one; return its id."""
        with self._lock:
            self._check_open()
            if self.worker_id is None:
                self.worker_id = self._remote.create_worker().id
            return self.worker_id

    def enroll(self, registration: Registration) -> None:
        """Register a job; the first one makes the worker."""
        with self._lock:
            response = self._introduce(lambda: self._register(registration, self.worker_id))
            self.worker_id = response.worker_id
            self.jobs[response.full_name] = registration
            self._known[response.full_name] = registration.cls
            self._channel.join(response.full_name, self.worker())

    def class_of(self, full_name: str) -> type[Any] | None:
        """Return the class of a job, also of one unregistered since; None if it was never served here.

        A task may come before the answer to its job's registration: that is waited for.
        """
        with self._lock:
            return self._known.get(full_name)

    def provide(self, offer: Offer) -> UUID:
        """Register a provider, the first thing of all makes the worker; return its id."""
        with self._lock:
            response = self._introduce(lambda: self._register_offer(offer, self.worker_id))
            self.worker_id = response.worker_id
            self._channel.join_provider(response.full_name, response.worker_id)
            return response.id

    def offer_of(self, full_name: str) -> Offer | None:
        """Return a provider, None if it is not served here. A registration under way is waited for."""
        with self._lock:
            return self.offers.get(full_name)

    def withdraw(self, provider: UUID | str) -> None:
        """Unregister a provider, by its full name or any id that it has had. Raises KeyError without it."""
        with self._lock:
            for full_name, offer in self.offers.items():
                if provider == full_name or str(provider) in map(str, offer.ids):
                    break
            else:
                raise KeyError(provider)
            try:
                self._remote.remove_provider(offer.ids[-1], self.worker())
            except Exception as error:
                if not isinstance(problem_of(error), KeyError):
                    raise
            del self.offers[full_name]
            self._channel.leave_provider(full_name)

    def strike(self, full_name: str) -> None:
        """Unregister a job. Raises KeyError if it was not registered here."""
        with self._lock:
            if full_name not in self.jobs:
                raise KeyError(full_name)
            try:
                self._remote.unregister(self.worker(), full_name)
            except Exception as error:
                if not isinstance(problem_of(error), KeyError):
                    raise
            del self.jobs[full_name]
            self._channel.leave(full_name)

    def beat(self, timeout: float) -> WorkerResponse | None:
        """Tell that the worker lives, or register anew if the server does not know it any more.

        What the server says of the tasks in flight is passed on to them.
        """
        worker_id, named = self.worker(), self._in_flight.named()
        try:
            request = HeartbeatRequest(tasks=named, **self._limits)
            response = self._remote.beat(worker_id, request, timeout)
        except Exception as error:
            if not self.lost(worker_id, error):
                raise
            return None
        self._in_flight.heed(named, response.tasks)
        if response.drain:
            self.drain()
        return response

    def lost(self, worker_id: UUID, error: Exception) -> bool:
        """Tell whether `error` says that the worker is unknown to the server; if so, it has a new id now."""
        if not _unknown(error):
            return False
        self.renew(worker_id)
        return True

    def renew(self, worker_id: UUID) -> None:
        """Register all jobs anew, unless somebody did since the worker had this id.

        What the old worker held is lost: the server has settled it, and takes no report of it.
        """
        with self._lock:
            if self.has_left or self.worker_id != worker_id:
                return
            log.warning("The server does not know worker %s any more; registering anew", worker_id)
            self._in_flight.lose(worker_id)
            self.worker_id = self._register_all()
            for full_name in self.jobs:
                self._channel.join(full_name, self.worker_id)
            for full_name in self.offers:
                self._channel.join_provider(full_name, self.worker_id)
            log.warning("Worker %s goes on as worker %s", worker_id, self.worker_id)

    def _check_open(self) -> None:
        if self.has_left:
            raise RuntimeError("The worker has just disconnected; try again")

    def _introduce(self, register: Callable[[], Answer]) -> Answer:
        """Register something for the first time, and all the rest too where the worker was lost meanwhile."""
        self._check_open()
        try:
            return register()
        except Exception as error:
            if self.worker_id is None or not _unknown(error):
                raise
            self.renew(self.worker_id)
            return register()

    def _register(self, registration: Registration, worker_id: UUID | None) -> JobResponse:
        return self._remote.register(registration.room_id, registration.request(worker_id, self._limits))

    def _register_offer(self, offer: Offer, worker_id: UUID | None) -> ProviderResponse:
        response = self._remote.register_provider(offer.room_id, offer.request(worker_id))
        self.offers[response.full_name] = replace(offer, ids=(*offer.ids, response.id))
        return response

    def _register_all(self) -> UUID:
        """Register everything for a new worker; what is refused does not keep the rest from it."""
        fresh: UUID | None = None
        refusal: Exception | None = None
        again: dict[str, Callable[[UUID | None], JobResponse | ProviderResponse]] = {
            **{f"Job {name}": partial(self._register, job) for name, job in self.jobs.items()},
            **{f"Provider {name}": partial(self._register_offer, one) for name, one in self.offers.items()},
        }
        for what, register in again.items():
            try:
                response = register(fresh)
            except Exception as error:
                if passing(error):
                    raise
                log.error("%s cannot be registered again: %s", what, describe(error))
                refusal = error
            else:
                fresh = response.worker_id
        if fresh is None and refusal is not None:
            raise refusal
        return fresh or self._remote.create_worker().id

    def retire(self) -> None:
        """Take the jobs off the worker, so that it is given no more tasks; what it holds goes on."""
        # First, so that a join on its way is not refused with a word in the log.
        for full_name in list(self.jobs):
            self._channel.leave(full_name)
        try:
            for full_name in list(self.jobs):
                self._remote.unregister(self.worker(), full_name, _GOODBYE_SECONDS)
            self.jobs = {}
        except Exception as error:
            log.warning("The worker's jobs could not be taken off it: %s", describe(error))

    def retire_offers(self) -> None:
        """Take the providers off the worker."""
        try:
            for full_name, offer in list(self.offers.items()):
                self._channel.leave_provider(full_name)
                self._remote.remove_provider(offer.ids[-1], self.worker(), _GOODBYE_SECONDS)
            self.offers = {}
        except Exception as error:
            log.warning("The worker's providers could not be taken off it: %s", describe(error))

    def leave(self) -> None:
        """Say goodbye, for good; a server that does not answer finds out by itself."""
        self.has_left = True
        if not self._lock.acquire(timeout=_GOODBYE_SECONDS):
            return
        try:
            for full_name in self.jobs:
                self._channel.leave(full_name)
            for full_name in self.offers:
                self._channel.leave_provider(full_name)
            self.jobs, self.offers = {}, {}
            worker_id, self.worker_id = self.worker_id, None
            if worker_id is not None:
                self._in_flight.lose(worker_id)
                self._remote.remove_worker(worker_id, _GOODBYE_SECONDS)
        except Exception as error:
            log.warning("Worker could not say goodbye: %s", describe(error))
        finally:
            self._lock.release()


def _unknown(error: Exception) -> bool:
    return isinstance(problem_of(error), WorkerNotFound)
