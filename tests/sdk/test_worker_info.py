"""What a worker says about itself to the server."""

import os
import socket
from collections.abc import Callable
from importlib.metadata import version
from uuid import UUID

import pytest

from sdk.jobs import Add
from sdk.providers import Echo
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.wire.messages import HeartbeatRequest, WorkerInfo
from zndraw_joblib.wire.operators import WorkerSummary
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]


def known(api: Connection, worker_id: UUID | None) -> WorkerSummary:
    """Return what the server knows about a worker."""
    return next(w for w in JobClient(RestApi(api)).workers(limit=500).items if w.id == worker_id)


def test_a_worker_says_who_it_is(worker: Make, room: str, api: Connection) -> None:
    """However its first registration is; the name of the host is the default name."""
    created, with_job, with_provider = worker(), worker(name="bench", concurrency=3), worker(name="share")
    created.create_worker()
    with_job.register(Add, room=room)
    with_provider.register_provider(Echo, name="Echo", handler=None, room=room)
    host = socket.gethostname()
    for manager, name, slots in ((created, host, 1), (with_job, "bench", 3), (with_provider, "share", 1)):
        found = known(api, manager.worker_id)
        assert (found.name, found.slots, found.host) == (name, slots, host)
        assert (found.pid, found.version) == (os.getpid(), version("zndraw-joblib"))
    assert known(api, with_job.worker_id).jobs == [f"{room}:modifiers:Add"]


def test_a_heartbeat_tells_a_newer_server(worker: Make, room: str, api: Connection) -> None:
    """The server of the registration may have been older; heartbeats repeat it now and then."""
    manager = worker(name="bench")
    worker_id = manager.create_worker()
    RestApi(api).heartbeat(worker_id, HeartbeatRequest(worker=WorkerInfo(name="unknown")), 10)
    for _ in range(20):
        manager.heartbeat()
    assert known(api, worker_id).name == "bench"


def test_an_invalid_name_is_refused(api: Connection, subtests: pytest.Subtests) -> None:
    """Before a request is sent."""
    for name in ("", "a\nb", "n" * 129):
        with subtests.test(name=name), pytest.raises(ValueError, match=r"worker\.name"):
            JobManager(api, name=name)
