"""Random heads on raw connections, and random malformed batches: each is answered shortly, and none hangs."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from cli.program import TIMEOUT, Program, RunningServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.rows import V1

MANY = int(os.environ.get("FUZZ_EXAMPLES", "0"))
MAX_ANSWER = 200_000
options = settings(
    max_examples=MANY or 30,
    derandomize=not MANY,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Serve with less time for requests than a test has. No request needs it: each ends on its own."""
    with RunningServer(Program(tmp_path_factory.mktemp("heads")), REQUEST_TIMEOUT_SECONDS="20") as server:
        yield server


texts = st.sampled_from(
    [
        *(b"GET / HTTP/1.1\r\n", b"POST /v1/joblib/workers HTTP/1.1\r\n", b"HEAD /docs HTTP/1.0\r\n"),
        *(b"Host: a\r\n", b"\r\n", b"\n", b"\r", b": ", b"x", b"\x00", b"\xff", b" ", b"%00", b"\t"),
        *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"),
        *(
            b"5\r\nabcde\r\n",
            b"0\r\n",
            b"ffffffffffffffff\r\n",
            b"1;a=b\r\na\r\n",
            b"Expect: 100-continue\r\n",
        ),
        *(b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n"),
    ]
)
sizes = st.sampled_from([1, 1, 1, 2, 100, 10_000])
drawn = st.lists(st.tuples(texts, sizes), min_size=1, max_size=8)


@given(drawn=drawn, sends_at_once=st.booleans())
@options
def test_each_head_is_answered_or_closed(
    server: RunningServer, drawn: list[tuple[bytes, int]], sends_at_once: bool
) -> None:
    """The connection ends, or is kept for the next request; no response is a 5xx, and the server goes on."""
    parts, received = [text * size for text, size in drawn], b""
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT) as connection:
        broken = suppress(OSError)  # also "not connected"
        with broken:
            for part in [b"".join(parts)] if sends_at_once else parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        with broken:
            while (data := connection.recv(65536)) and len(received) < MAX_ANSWER:
                received += data
    assert not received or received.startswith((b"HTTP/1.1 1", b"HTTP/1.1 2", b"HTTP/1.1 3", b"HTTP/1.1 4"))
    assert httpx.get(f"{server.url}/health/live", timeout=TIMEOUT).status_code == 200


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)
names = ["room_id", "job_name", "payload", "id", "status", "attempt", "log", "failure", "progress", "result"]
inner = st.fixed_dictionaries({}, optional={"first": values, "lines": st.lists(values, max_size=3)})
items = values | st.fixed_dictionaries({}, optional=dict.fromkeys(names, values | inner))


@given(
    path=st.sampled_from(["tasks/submit", "tasks/report"]),
    found=st.lists(items, min_size=1, max_size=4),
    times=st.sampled_from([1, 20, 250, 2000]),
)
@options
def test_the_answer_to_a_malformed_batch_is_short(
    server: RunningServer, path: str, found: list[Any], times: int
) -> None:
    """It lists 100 errors at most, however many items are wrong."""
    body = {"tasks" if path.endswith("submit") else "reports": found * times}
    headers = {"Authorization": f"Bearer {server.token}"}
    response = httpx.post(f"{server.url}{V1}/{path}", json=body, headers=headers, timeout=TIMEOUT)
    assert response.status_code in {200, 413, 422}, response.text[:1000]
    if response.status_code == 422:
        assert len(response.content) < MAX_ANSWER
        assert len(response.json().get("errors", [])) <= 100
