"""What `serve` accepts on a connection before there is a request: raw sockets on a real port."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path

import pytest
import uvicorn
from h11 import LocalProtocolError
from waiting import until

from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.cli.server.connections import MAX_HEAD_BYTES, limit_connections

START = b"GET /health/live HTTP/1.1\r\nHost: test\r\nX-Filler: "


def head(size: int) -> bytes:
    """Return a whole head of this many bytes."""
    return START + b"x" * (size - len(START) - 4) + b"\r\n\r\n"


def exchange(address: object, *parts: bytes, family: socket.AddressFamily = socket.AF_INET) -> bytes:
    """Send parts on a new connection; return what the server sends until it closes the connection."""
    with socket.socket(family) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(address)  # type: ignore[arg-type]
        received = b""
        broken = suppress(ConnectionResetError, BrokenPipeError)
        with broken:
            for part in parts:
                connection.sendall(part)
        with broken:
            while data := connection.recv(65536):
                received += data
        return received


def status_of(response: bytes) -> int:
    """Return the status of a response, 0 without one."""
    return int(response.split(b" ", 2)[1]) if response else 0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Serve with a short limit, on SQLite: connections have no database."""
    program = Program(tmp_path_factory.mktemp("limits"), REQUEST_TIMEOUT_SECONDS="1")
    with RunningServer(program) as server:
        yield "127.0.0.1", server.port


UPGRADE = (
    b"GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
CLOSE = b"GET /health/live HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
NO_BODY = b"POST /health/live HTTP/1.1\r\nHost: test\r\n"
CHUNKED = NO_BODY + b"Transfer-Encoding: chunked\r\n\r\n"
# What is sent, and the status of the response; None if that depends on how the bytes arrive.
SENT: dict[str, tuple[list[bytes], int | None]] = {
    "a request": ([CLOSE], 200),
    "nothing": ([], 0),
    "the largest head": ([head(MAX_HEAD_BYTES), CLOSE], 200),
    "a larger head": ([head(MAX_HEAD_BYTES + 1)], 431),
    "a head without an end": ([START, b"x" * 8 * 1024 * 1024], 431),
    "a path without an end": ([b"GET /", b"x" * 8 * 1024 * 1024], 431),
    "many headers": ([START + b"\r\n", b"a: b\r\n" * 100_000], 431),
    "a head that stops": ([START], 408),
    "a trailer without an end": ([CHUNKED + b"1\r\na\r\n0\r\nX-Filler: ", b"x" * 8 * 1024 * 1024], None),
    "a chunk's extension without an end": ([CHUNKED + b"1;", b"x" * 8 * 1024 * 1024], None),
}
AFTER_A_RESPONSE = {
    "a head that stops": (CLOSE.replace(b"close", b"keep-alive"), START, 408),
    "a body that stops": (NO_BODY + b"Content-Length: 9\r\n\r\n", b"a", 0),
}


# These end when their time is over. The others need a limit that they do not reach if this process stops.
ENDED_BY_TIME = {0, 408}


@pytest.mark.parametrize(("parts", "status"), SENT.values(), ids=SENT)
def test_each_connection_ends(
    address: tuple[str, int], stack: Stack, parts: list[bytes], status: int | None
) -> None:
    """The server answers with 431 or 408, or closes a connection that sent nothing."""
    response = exchange(address if status in ENDED_BY_TIME else ("127.0.0.1", stack.server.port), *parts)
    assert status is None or status_of(response) == status


@pytest.mark.parametrize(("first", "second", "status"), AFTER_A_RESPONSE.values(), ids=AFTER_A_RESPONSE)
def test_a_connection_ends_after_a_response(
    address: tuple[str, int], first: bytes, second: bytes, status: int
) -> None:
    """The time of a second head begins with its first byte, and the rest of a body has as much."""
    with socket.create_connection(address, TIMEOUT) as connection:
        connection.sendall(first)
        response = HTTPResponse(connection)
        response.begin()
        assert response.status in {200, 405}
        response.read()
        connection.sendall(second)
        received = connection.recv(65536)
        assert status_of(received) == status


def test_a_slow_head_is_refused(address: tuple[str, int]) -> None:
    """Bytes that arrive one by one do not extend the time."""
    with socket.create_connection(address, TIMEOUT) as connection:
        connection.settimeout(0.05)
        received = b""
        while not received:
            connection.sendall(b"x" if received else START[:1])
            with suppress(TimeoutError):
                received = connection.recv(65536)
    assert status_of(received) in {400, 408}


def test_a_websocket_message_is_small(address: tuple[str, int]) -> None:
    """The server closes the connection at 100 kB of a larger message, and compresses nothing."""
    with socket.create_connection(address, TIMEOUT) as connection:
        connection.sendall(UPGRADE)
        assert b"Sec-WebSocket-Accept" in (answer := connection.recv(65536).replace(b"sec-w", b"Sec-W"))
        assert b"permessage-deflate" not in answer
        # A text of 15 MiB that is never sent as a whole; the mask is zero.
        connection.sendall(b"\x81\xff" + (15 * 1024**2).to_bytes(8, "big") + bytes(4) + b"4" * 200_000)
        received = b""
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                received += data
        assert (1009).to_bytes(2, "big") in received  # message too big


def test_each_process_has_the_limits(program: Program, postgres_url: str) -> None:
    """Several processes that share the port refuse the same."""
    settings = {"DATABASE_URL": postgres_url, "REQUEST_TIMEOUT_SECONDS": "1"}
    with RunningServer(program, "--workers", "2", **settings) as server:
        for _ in range(3):
            assert status_of(exchange(("127.0.0.1", server.port), START, b"x" * 1024 * 1024)) == 431
            assert status_of(exchange(("127.0.0.1", server.port), CLOSE)) == 200
        # An advance of its time would remove the workers of this server.
        other = program.error_of("serve", "--port", "0", "--test-clock", code=2, DATABASE_URL=postgres_url)
        assert "--test-clock needs a database of its own" in other


@asynccontextmanager
async def serving(config: uvicorn.Config) -> AsyncIterator[uvicorn.Server]:
    """Serve in this process."""
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield server
    server.should_exit = True
    await running


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_each_parser_has_the_limits(http: str, tmp_path: Path) -> None:
    """Also on a Unix socket, and with the parser that uvicorn uses without httptools."""

    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        with suppress(LocalProtocolError):  # the connection may have ended
            await send({"type": "http.response.start", "status": 405})  # type: ignore[operator]
            await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    path, seconds = str(tmp_path / "socket"), 30.0
    config = uvicorn.Config(app, uds=path, http=http, lifespan="off", log_level="warning")  # type: ignore[arg-type]
    limit_connections(config, lambda: seconds, lambda: 30)
    async with serving(config):
        for name, (parts, status) in SENT.items():
            seconds = 0.5 if status in ENDED_BY_TIME else 30.0
            response = await asyncio.to_thread(exchange, path, *parts, family=socket.AF_UNIX)
            assert status is None or status_of(response) == (405 if status == 200 else status), name


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_a_client_that_takes_no_response_is_cut_off(http: str, tmp_path: Path) -> None:
    """Its bytes would stay in the server's memory; one that takes them slowly gets all."""
    size = 4 * 1024 * 1024

    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        headers = [(b"content-length", b"%d" % size), (b"connection", b"close")]
        with suppress(LocalProtocolError):
            await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
            await send({"type": "http.response.body", "body": bytes(size)})  # type: ignore[operator]

    path = str(tmp_path / "socket")
    config = uvicorn.Config(app, uds=path, http=http, lifespan="off", log_level="warning")  # type: ignore[arg-type]
    limit_connections(config, lambda: 30, lambda: 1)
    async with serving(config) as server:
        await _read_slowly_and_not(server, path, size)


async def _read_slowly_and_not(server: uvicorn.Server, path: str, size: int) -> None:
    reader, writer = await asyncio.open_unix_connection(path, limit=1024)
    idle, to_idle = await asyncio.open_unix_connection(path, limit=1024)
    for to_server in (writer, to_idle):
        to_server.write(CLOSE)
    await until(lambda: len(server.server_state.connections) == 2)
    received = 0
    while data := await reader.read(256 * 1024):
        received += len(data)
        await asyncio.sleep(0.001)
    assert received > size
    await until(lambda: not server.server_state.connections)
    with suppress(ConnectionResetError):
        assert len(await idle.read()) < size
    for to_server in (writer, to_idle):
        to_server.close()


def test_an_unknown_protocol_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """The server serves without the limits, and logs it."""
    config = uvicorn.Config(lambda: None, http=asyncio.Protocol, lifespan="off", log_config=None)
    limit_connections(config, lambda: 1, lambda: 1)
    assert config.http_protocol_class is asyncio.Protocol
    assert "its connections have no limits" in caplog.text
