"""What the endpoints of a mounted queue need, in one object: ``app.state.joblib``."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any

from fastapi import Request

from zndraw_joblib.server.admin.overviews import Overviews
from zndraw_joblib.server.background.loops import Health, Metrics
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.http.host_dependencies import QUEUE
from zndraw_joblib.server.http.identity import RoomGuards
from zndraw_joblib.server.http.requests import bytes_of_bodies
from zndraw_joblib.server.http.worker_rooms import WorkerRooms
from zndraw_joblib.server.internal.dispatcher import Dispatcher
from zndraw_joblib.server.internal.registry import WorkerTokens
from zndraw_joblib.server.process.ports import Identity, ResultBackend
from zndraw_joblib.server.process.shared_limit import SharedLimit
from zndraw_joblib.server.providers.requests import ProviderRequests, Uploads
from zndraw_joblib.server.realtime.publisher import SocketIoPublisher
from zndraw_joblib.server.results.results import TaskResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.server.streams.streams import Streams
from zndraw_joblib.wire.problems import InternalServerError

logger = logging.getLogger(__name__)


class QueueState(ABC):
    """A queue that is mounted into an app. `JobLib` builds it."""

    runtime: Runtime
    dispatcher: Dispatcher
    sweeper: Sweeper
    health: Health
    metrics: Metrics
    provider_requests: ProviderRequests
    uploads: Uploads
    task_results: TaskResults
    streams: Streams
    overviews: Overviews
    guards: RoomGuards
    worker_tokens: WorkerTokens
    publisher: SocketIoPublisher
    worker_rooms: WorkerRooms
    # What precedes ``/v1`` in the paths of its routes.
    prefix: str = ""
    # The host's dependency, and its value for a request.
    identity: Callable[..., Any]

    @cached_property
    def body_bytes(self) -> SharedLimit:
        """The bytes of the bodies that this process receives."""
        return bytes_of_bodies(self.runtime.settings)

    @abstractmethod
    async def identify(self, request: Request) -> Identity | None:
        """Return the caller of a request; None without an identity."""

    @abstractmethod
    async def is_valid(self, identity: Identity, at: datetime) -> bool:
        """Return whether the access that an identity had at a time is not revoked; true if unknown."""

    @property
    @abstractmethod
    def results(self) -> ResultBackend:
        """The result backend, unless a host overrides `get_result_backend`."""


def queue_state(request: Request) -> QueueState:
    """Return the queue of a request. Raises `InternalServerError` where the app has none."""
    found = request.scope.get(QUEUE)
    if found is None:
        found = getattr(request.app.state, "joblib", None)
        if not isinstance(found, QueueState):
            fault = "The app has no queue: call JobLib(...).mount(app) before it handles requests"
            logger.error("%s. It adds the queue's routes; do not include its router", fault)
            raise InternalServerError(fault)
    state: QueueState = found
    return state


def remember_queue(request: Request) -> QueueState:
    """Return the queue, and keep it in the scope of a request that one of its routes handles."""
    found = request.scope[QUEUE] = queue_state(request)
    return found
