"""When this server process last wrote the heartbeat of each worker, and which it is writing."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire.problems import Forbidden, WorkerNotFound

Pair = tuple[str, UUID]


class LastHeartbeats:
    """The last heartbeats of workers. A request of a worker writes one only if it is due."""

    def __init__(self, settings: JobLibSettings) -> None:
        self._settings = settings
        self._written: dict[UUID, float] = {}
        self._refused: dict[Pair, float] = {}
        self._under_way: set[Pair] = set()

    def force(self, worker_id: UUID) -> None:
        """Make the next heartbeat of a worker due."""
        self._written[worker_id] = -math.inf

    def is_forced(self, worker_id: UUID) -> bool:
        """Return whether the next heartbeat is due, however recent the last one is."""
        return self._written.get(worker_id) == -math.inf

    def add(self, worker_id: UUID) -> None:
        """Record that a heartbeat was written now."""
        self._put(self._written, worker_id)

    def is_due(self, user: str, worker_id: UUID) -> bool:
        """Return whether a request of a user should write a heartbeat.

        Not while another request of the user writes it, and not soon after it was refused.
        """
        pair = user, worker_id
        last = max(self._written.get(worker_id, 0), self._refused.get(pair, -math.inf))
        return pair not in self._under_way and time.monotonic() >= last + self._settings.heartbeat_seconds

    @contextmanager
    def writing(self, user: str, worker_id: UUID) -> Iterator[None]:
        """Write a heartbeat in a block, and record a refusal of it."""
        pair = user, worker_id
        self._under_way.add(pair)
        try:
            yield
        except (Forbidden, WorkerNotFound):
            self._put(self._refused, pair)
            raise
        finally:
            self._under_way.discard(pair)

    def _put(self, times: dict[Any, float], key: Any) -> None:
        if len(times) > 2 * self._settings.max_waiting_requests + 1000:
            times.clear()
        times[key] = time.monotonic()
