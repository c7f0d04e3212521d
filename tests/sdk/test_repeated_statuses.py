"""Each status that the SDK repeats, from a real proxy: dropping one from a list fails a test."""

from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

import pytest

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy, raw
from zndraw_joblib.client.connection import connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.wire.problems import PROBLEM_MEDIA_TYPE, Problem, ProblemException
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

# The server, or a proxy in its place, may give these answers at any time.
BUSY = [429, 502, 503, 504]
TRANSIENT = [401, 408, 425, 500, 507, *BUSY]


def problem(status: int) -> bytes:
    """Return a raw response with a problem of the server."""
    body = Problem(type="/v1/problems/conflict", title=HTTPStatus(status).phrase, status=status)
    content = body.model_dump_json().encode()
    return raw(f"{status} {body.title}", content, PROBLEM_MEDIA_TYPE)


class OnceBusy:
    """A rule of a proxy: the first request of each kind gets `response`, the others reach the server."""

    def __init__(self, response: bytes, *ends: str) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self._response = response
        self._ends = ends

    def __call__(self, method: str, path: str) -> bytes | None:
        """Return the proxy's response, or None."""
        if not path.endswith(self._ends):
            return None
        self.seen[method, path] += 1
        return self._response if self.seen[method, path] == 1 else None


@pytest.mark.parametrize("status", BUSY)
def test_busy_answers_are_repeated(
    worker: Callable[..., JobManager], room: str, server: LiveServer, status: int
) -> None:
    """Registering, submitting and waiting for a task go on after a problem that says the server is busy."""
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as api:
        proxy.rule = rule = OnceBusy(problem(status), "/jobs", "%3AAdd")
        manager = worker(lambda task: 7, at=api)
        manager.register(Add, room=room)
        task_id = manager.submit(Add(), room=room)
        proxy.rule = waited = OnceBusy(problem(status), task_id)
        assert JobClient(RestApi(api)).wait_for(task_id, 30).result == 7
        manager.disconnect()
    assert sorted(rule.seen.values()) == [2, 2]
    assert waited.seen["GET", f"/v1/joblib/tasks/{task_id}"] >= 2


@pytest.mark.parametrize("status", TRANSIENT)
def test_transient_answers_to_reports_are_repeated(
    worker: Callable[..., JobManager], room: str, server: LiveServer, status: int
) -> None:
    """A report goes on after each answer that may be another one later."""
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as api:
        manager = worker(at=api)
        manager.register(Add, room=room)
        task_id = manager.submit(Add(), room=room)
        task = manager.claim(wait=10)
        assert task is not None
        manager.start(task)
        proxy.rule = rule = OnceBusy(problem(status), task_id)
        assert manager.complete(task).status == TaskStatus.COMPLETED
        manager.disconnect()
    assert list(rule.seen.values()) == [2]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422, 423])
def test_final_answers_are_not_repeated(
    worker: Callable[..., JobManager], room: str, server: LiveServer, status: int
) -> None:
    """A problem of the server that will not change is raised after one request."""
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as api:
        manager = worker(at=api)
        manager.register(Add, room=room)
        proxy.rule = rule = OnceBusy(problem(status), "%3AAdd")
        with pytest.raises(ProblemException):
            manager.submit(Add(), room=room)
        manager.disconnect()
    assert [count for (method, _), count in rule.seen.items() if method == "POST"] == [1]
