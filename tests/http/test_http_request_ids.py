"""Each response of the standalone server has the id of its request; so have records of its log."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1

from zndraw_joblib.jobs.logs import LogFields
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.http import requests
from zndraw_joblib.server.http.access import verify_readable_room
from zndraw_joblib.server.process.settings import ServerSettings


@asynccontextmanager
async def running(app: FastAPI, call: Any = None) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a superuser's client of a running app, or of `call`, which calls it."""
    transport = httpx.ASGITransport(call or app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


TOKEN = "token-of-the-tests"
VALID = ["r", "a" * 128, "AZaz09._:/+=-"]
INVALID = ["", "a" * 129, "a b", "a\x7f", "a,b", "a\xe9", '"a"']
# A queue's route, one of FastAPI, problems of both, an unknown path, and a preflight request.
REQUESTS = [
    ("GET", f"{V1}/workers", 200),
    ("GET", f"{V1}/tasks/{UNKNOWN_ID}", 404),
    ("POST", f"{V1}/tasks/claim", 422),
    ("GET", f"{V1}/tasks/{UNKNOWN_ID}/events", 404),
    ("GET", "/health/live", 200),
    ("GET", "/health/ready", 200),
    ("GET", "/nothing", 404),
    ("DELETE", f"{V1}/workers", 405),
    ("GET", "/fails", 500),
    ("GET", "/openapi.json", 200),
]


@pytest.fixture(params=[[], ["http://page"]], ids=["direct", "with-cors"])
def app(sqlite_url: str, request: pytest.FixtureRequest) -> FastAPI:
    """Return a standalone app, which answers before its layers, or through them; one route fails."""
    app = create_app(ServerSettings(database_url=sqlite_url, admin_token=TOKEN, cors_origins=request.param))

    async def fail() -> None:
        raise RuntimeError

    app.add_api_route("/fails", fail)
    return app


async def test_every_response_has_the_id(app: FastAPI, subtests: pytest.Subtests) -> None:
    """A valid id comes back once; any other is replaced by a new one."""
    for method, path, status in REQUESTS:
        with subtests.test(method=method, path=path, status=status):
            async with running(app) as client:
                for given in VALID:
                    response = await client.request(method, path, headers={"X-Request-ID": given})
                    # On a busy machine the checks of readiness may take too long.
                    allowed = {status, 503} if path == "/health/ready" else {status}
                    assert response.status_code in allowed, response.text
                    assert response.headers.get_list("X-Request-ID") == [given]
                seen = set()
                for headers in [{}, *({"X-Request-ID": each.encode("latin-1")} for each in INVALID)]:
                    [new] = (await client.request(method, path, headers=headers)).headers.get_list(
                        "X-Request-ID"
                    )
                    seen.add(new)
                    assert new not in INVALID
                assert len(seen) == 1 + len(INVALID)


async def test_records_of_a_request_have_its_id(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error is logged with the id that the client got; later records do not have it."""
    caplog.handler.addFilter(fields := LogFields())
    try:
        async with running(app) as client:
            new = (await client.get("/fails")).headers["X-Request-ID"]
            logging.getLogger("zndraw_joblib").warning("later")
    finally:
        caplog.handler.removeFilter(fields)
    assert [getattr(r, "request_id", None) for r in caplog.records if r.levelname != "INFO"] == [new, None]


class _Collect(logging.Filter):
    """Keeps the request ids of records."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str | None] = []

    def filter(self, record: logging.LogRecord) -> bool:
        LogFields().filter(record)
        self.seen.append(getattr(record, "request_id", None))
        return True


async def test_a_host_keeps_its_responses(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    """Without the standalone app, records have the id of the header, and responses have no such header."""

    async def broken_guard() -> None:
        raise RuntimeError

    app.dependency_overrides[verify_readable_room] = broken_guard
    caplog.handler.addFilter(collect := _Collect())
    try:
        async with running(app, partial(FastAPI.__call__, app)) as client:
            response = await client.get(f"{V1}/rooms/lab/jobs", headers={"X-Request-ID": "of-the-host"})
    finally:
        caplog.handler.removeFilter(collect)
    assert response.status_code == 500, response.text
    assert "X-Request-ID" not in response.headers
    assert "of-the-host" in collect.seen


@pytest.mark.processes
def test_forked_processes_make_other_ids() -> None:
    """A server that forks after its import makes ids that no other process makes."""
    scope: dict[str, Any] = {"headers": []}
    first = requests.request_id_of(scope)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, requests.request_id_of(scope).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with open(reader) as lines:
        other = lines.read()
    assert other.partition("-")[0] != first.partition("-")[0]


async def test_a_refused_stream_has_the_id(app: FastAPI) -> None:
    """The problem replaces the response that would have had it."""
    app.state.joblib.settings.max_streams = 0
    async with running(app) as client:
        headers = {"Accept": "text/event-stream", "X-Request-ID": "mine"}
        response = await client.get(f"{V1}/rooms/lab/events", headers=headers)
        assert response.status_code == 503, response.text
        assert response.headers.get_list("X-Request-ID") == ["mine"]
