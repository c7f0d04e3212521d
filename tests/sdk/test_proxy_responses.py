"""Responses of a proxy instead of the server's: none of them ends a request for good."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.providers import Echo
from sdk.proxy import Proxy, raw
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.wire.problems import InvalidCategory, JobNotFound
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]

PAGE = b"<html><body>The site is under maintenance.</body></html>"
ABOUT_BLANK = b'{"type": "about:blank", "title": "Not Found", "status": 404}'
RESPONSES = {
    "404-text": raw("404 Not Found", b"404 page not found\n", "text/plain"),
    "404-json": raw("404 Not Found", b'{"detail":"Not Found"}', "application/json"),
    "404-problem-of-another-program": raw("404 Not Found", ABOUT_BLANK, "application/problem+json"),
    "403-page": raw("403 Forbidden", PAGE),
    "409-page": raw("409 Conflict", PAGE),
    "302": raw("302 Found", b"", Location="https://login.example/?state=secret"),
    "200-page": raw("200 OK", PAGE),
    "200-empty-object": raw("200 OK", b"{}", "application/json"),
    "204": b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "truncated-json": raw("200 OK", b'{"id": "f3', "application/json"),
    "cut-off": raw("200 OK", b'{"id": "f3', "application/json", Content_Length="500"),
    "not-gzip": raw("200 OK", PAGE, Content_Encoding="gzip"),
    "not-http": b"SSH-2.0-OpenSSH_9.6\r\n",
}


class FirstOfEach:
    """Answers the first request of each kind with `response`."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.seen: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str) -> bytes | None:
        """Return the response for the first request of a kind."""
        parts = path.split("/")
        kind = method, parts[3] if parts[3] in {"workers", "providers"} else parts[-1][:5]
        with self._lock:
            self.seen[kind] += 1
            return self.response if self.seen[kind] == 1 else None


@pytest.fixture(params=RESPONSES.values(), ids=RESPONSES)
def response(request: pytest.FixtureRequest) -> bytes:
    """Return the raw response of a proxy."""
    raw_response: bytes = request.param
    return raw_response


@pytest.fixture
def proxy(server: LiveServer) -> Iterator[Proxy]:
    """Run a proxy in front of the common server."""
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def api_by_proxy(proxy: Proxy) -> Iterator[Connection]:
    """Return a connection through the proxy."""
    with connect(proxy.url, TOKEN) as api:
        yield api


def test_a_finished_task_is_reported(
    worker: Make, room: str, proxy: Proxy, api_by_proxy: Connection, response: bytes
) -> None:
    """The registration, claims, heartbeats and reports are repeated; the result arrives once."""
    proxy.rule = FirstOfEach(response)
    runs: list[int] = []

    def execute(task: Any) -> str:
        runs.append(task.attempt)
        proxy.rule = FirstOfEach(response)
        return "kept"

    manager = worker(execute, at=api_by_proxy, heartbeat_interval=0.2)
    manager.register(Add, room=room)
    worker_id = manager.worker_id
    task_id = worker().submit(f"{room}:modifiers:Add")
    ended = worker().wait_for(task_id, 40)
    assert (ended.status, ended.result, runs) == (TaskStatus.COMPLETED, "kept", [1])
    assert manager.worker_id == worker_id
    assert proxy.answered


def test_a_provider_result_is_uploaded(
    worker: Make, room: str, proxy: Proxy, api_by_proxy: Connection, response: bytes
) -> None:
    """The claim and the upload are repeated. An empty 204 is what the server itself answers to an upload."""
    manager = worker(at=api_by_proxy)
    manager.register_provider(Echo, name="one", handler=None, room=room)
    if response != RESPONSES["204"]:
        proxy.rule = FirstOfEach(response)
    result = worker().read_provider(f"{room}:echoes:one", {"word": "hello"}, timeout=30)
    assert result.json()["word"] == "hello"


def test_a_result_too_large_for_the_proxy_fails_its_task(
    worker: Make, room: str, proxy: Proxy, api_by_proxy: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy's 413 is repeated for a shorter time; then the task fails with the reason."""
    # A `JobManager` has no argument for it: no user needs another value.
    monkeypatch.setattr("zndraw_joblib.client.retry.TOO_LARGE_SECONDS", 1.0)
    manager = worker(lambda task: "x" * 1000, at=api_by_proxy)
    manager.register(Add, room=room)
    too_large = raw("413 Request Entity Too Large", b"<h1>413 Request Entity Too Large</h1>")
    proxy.limit_body(500, too_large)
    ended = worker().wait_for(worker().submit(f"{room}:modifiers:Add"), 30)
    assert ended.status == TaskStatus.FAILED
    assert "413 Request Entity Too Large" in (ended.error or "")


def test_the_error_names_the_response_and_its_url(server: LiveServer) -> None:
    """It has no secret: no token, no password and no query."""
    echo = raw("403 Forbidden", f"Bearer {TOKEN} is unknown here".encode(), "text/plain")
    with Proxy(server.url, lambda method, path: echo) as proxy:
        url = f"{proxy.url}/v1/joblib/rooms/lab/jobs"
        for address in (proxy.url, proxy.url.replace("http://", "http://user:password@")):
            with connect(address, TOKEN) as api, pytest.raises(ConnectionError) as caught:
                JobClient(RestApi(api)).jobs("lab")
            assert f"GET {url} answered 403 (text/plain): 'Bearer " in str(caught.value)
            assert "password" not in str(caught.value)
            assert "limit=" not in str(caught.value)
            assert address != proxy.url or TOKEN not in str(caught.value)


class HostOf01(Connection):
    """A host whose `raise_for_status` raises plain builtins."""

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise KeyError for 404, else RuntimeError."""
        if not response.is_success:
            raise KeyError(response.url) if response.status_code == 404 else RuntimeError(response.text)


@pytest.mark.parametrize("status", ["404 Not Found", "418 I'm a teapot"])
def test_a_host_that_raises_its_own_errors(
    worker: Make, room: str, proxy: Proxy, caplog: pytest.LogCaptureFixture, status: str
) -> None:
    """Its error for a proxy's response is no refusal either, and the log shows the response."""
    with HostOf01(proxy.url, TOKEN, 30) as api:
        manager = worker(lambda task: "kept", at=api)
        proxy.rule = FirstOfEach(raw(status, PAGE))
        manager.register(Add, room=room)
        assert worker().wait_for(worker().submit(f"{room}:modifiers:Add"), 40).result == "kept"
        manager.disconnect()
    assert f"answered {status[:3]} (text/html): '<html><body>The site is" in caplog.text


def test_a_refusal_of_the_server_is_final(worker: Make, room: str, api_by_proxy: Connection) -> None:
    """A problem of the server passes a proxy unchanged and is raised at once."""
    manager = worker(at=api_by_proxy)
    with pytest.raises(JobNotFound):
        manager.submit(f"{room}:modifiers:Absent")
    with pytest.raises(InvalidCategory):
        manager.register(type("Odd", (Add,), {"category": "odd"}), room=room)
