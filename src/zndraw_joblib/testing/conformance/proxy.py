"""A proxy between a worker and the server. It records each request, and loses what a scenario names."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.problems import ServiceUnavailable

# Longer than any request of the scenarios waits.
_SECONDS = 120.0
_OPERATIONS = [
    (name, method, re.compile(f"{PREFIX}{path}"))
    for name, method, path in (
        ("register", "PUT", "/rooms/[^/]+/jobs"),
        ("create", "POST", "/workers"),
        ("heartbeat", "PATCH", "/workers/[^/]+"),
        ("remove", "DELETE", "/workers/[^/]+"),
        ("claim", "POST", "/tasks/claim"),
        ("report", "POST", "/tasks/report"),
        ("report", "PATCH", "/tasks/[^/]+"),
        ("upload", "PUT", "/tasks/[^/]+/result"),
        ("release", "POST", "/tasks/[^/]+/release"),
    )
]
# Of one connection only.
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "host"}


class TaskReport(NamedTuple):
    """A report on one task, alone or in a request for many, and the status of its answer."""

    task_id: str
    status: str | None
    attempt: int | None
    answered: int | None
    fields: dict[str, Any]


@dataclass
class Exchange:
    """A request of the worker, and the server's answer. `fate` says what the proxy did with them."""

    at: float
    operation: str
    method: str
    path: str
    headers: dict[str, str]
    content: bytes
    status: int | None = None
    answer: Any = None
    fate: str = ""

    @property
    def body(self) -> Any:
        """The body as JSON; None if it is none."""
        return parsed(self.content)

    @property
    def claimed(self) -> list[dict[str, Any]]:
        """The tasks of the answer to a claim."""
        if self.operation != "claim" or not isinstance(self.answer, dict):
            return []
        return [task for task in (self.answer.get("task"), *(self.answer.get("tasks") or ())) if task]

    @property
    def reports(self) -> list[TaskReport]:
        """The reports of the request."""
        body = self.body
        if self.operation != "report" or not isinstance(body, dict):
            return []
        if self.method == "PATCH":
            return [_report(self.path.rsplit("/", 1)[-1], body, self.status)]
        results = self.answer.get("results") if isinstance(self.answer, dict) else None
        items = body.get("reports") or []
        answered = [result.get("status") for result in results or ()] or [self.status] * len(items)
        return [_report(item.get("id"), item, status) for item, status in zip(items, answered, strict=False)]

    def __str__(self) -> str:
        """Return the exchange in one line."""
        wait = self.headers.get("prefer", "")
        sent = self.content[:300].decode(errors="replace") if self.operation != "upload" else "…"
        lost = f" ({self.fate})" if self.fate else ""
        return f"{self.method} {self.path} {wait} {sent} -> {self.status or 'no answer'}{lost}"


def _report(task_id: Any, fields: dict[str, Any], answered: int | None) -> TaskReport:
    return TaskReport(str(task_id), fields.get("status"), fields.get("attempt"), answered, fields)


def parsed(content: bytes) -> Any:
    """Return JSON as a value; None for what is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


@dataclass
class Fault:
    """What happens to the next `times` requests of a kind.

    `on` is an operation, or the status of a report; `claim` means one that has got a task. `how`: the
    ``request`` or its ``answer`` is lost, the server is ``unavailable``, a proxy answers with a ``page``, it
    sends the request ``twice``, or the answer is that of a ``newer`` server, with fields more.
    """

    on: str
    how: str
    times: int = 1
    left: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin to count."""
        self.left = self.times

    def takes(self, exchange: Exchange) -> bool:
        """Return whether it happens to a request, which has its answer if it was forwarded."""
        if self.left <= 0:
            return False
        if self.on == "claim" and self.how == "answer":
            return bool(exchange.claimed)
        statuses = {report.status for report in exchange.reports}
        return self.on in {"any", exchange.operation} or self.on in statuses


_BEFORE, _AFTER = ("request", "unavailable", "page"), ("answer", "twice", "newer")


class Proxy:
    """Forwards to the server at `target`, a port of this machine, or answers nothing while it is None."""

    def __init__(self) -> None:
        self.target: int | None = None
        self.exchanges: list[Exchange] = []
        self.faults: list[Fault] = []
        self._changed = threading.Condition()
        self._open: set[http.client.HTTPConnection] = set()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["Proxy"]:
        """Accept connections during the block."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self.cut()

    def forget(self) -> None:
        """Forget the faults and what was recorded, and end the requests of a worker that has stopped."""
        self.cut()
        with self._changed:
            self.exchanges, self.faults = [], []

    def cut(self) -> None:
        """Close the connections to the server."""
        with self._changed:
            connections, self._open = self._open, set()
        for connection in connections:
            with suppress(OSError):
                if connection.sock is not None:
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def wait_for(self, condition: Callable[[list[Exchange]], Any], seconds: float) -> Any:
        """Wait until a condition on the exchanges holds; return its value, false after these seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.exchanges), seconds)

    def add(self, exchange: Exchange) -> None:
        """Record a request that has arrived."""
        with self._changed:
            self.exchanges.append(exchange)
            self._changed.notify_all()

    def end(self, exchange: Exchange, fate: str = "") -> None:
        """Record what became of a request."""
        with self._changed:
            exchange.fate = fate
            self._changed.notify_all()

    def fault(self, exchange: Exchange, kinds: tuple[str, ...]) -> str:
        """Return which of these kinds of faults happens to a request, and count it."""
        with self._changed:
            for fault in self.faults:
                if fault.how in kinds and fault.takes(exchange):
                    fault.left -= 1
                    return fault.how
        return ""

    def send(self, exchange: Exchange) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send a request to the server, and return its answer. Raises OSError while there is none."""
        if self.target is None:
            raise ConnectionRefusedError
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=_SECONDS)
        with self._changed:
            self._open.add(connection)
        try:
            headers = {name: value for name, value in exchange.headers.items() if name not in _HOP_BY_HOP}
            connection.request(exchange.method, exchange.path, exchange.content, headers)
            response = connection.getresponse()
            content = response.read()
        except http.client.HTTPException as error:
            raise ConnectionResetError from error
        finally:
            with self._changed:
                self._open.discard(connection)
            connection.close()
        exchange.status, exchange.answer = response.status, parsed(content)
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
        return response.status, kept, content


def _operation(method: str, path: str) -> str:
    plain = path.partition("?")[0]
    matches = (name for name, verb, pattern in _OPERATIONS if verb == method and pattern.fullmatch(plain))
    return next(matches, "other")


class _Handler(BaseHTTPRequestHandler):
    """Passes the requests of one connection to a proxy."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def handle(self) -> None:
        """Serve a connection."""
        with suppress(OSError):  # the worker has closed its connection
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _pass(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        operation = _operation(self.command, self.path)
        exchange = Exchange(
            time.monotonic(), operation, self.command, self.path, headers, _read(self, headers)
        )
        self.proxy.add(exchange)
        fate = "the server is down"
        try:
            fate = self._answer(exchange)
        except OSError:
            self._abort()
        self.proxy.end(exchange, fate)

    def _answer(self, exchange: Exchange) -> str:
        how = self.proxy.fault(exchange, _BEFORE)
        if how == "request":
            self._abort()
            return "request lost"
        if how:
            self._send(*_INSTEAD[how])
            return f"answered by a proxy: {how}"
        answer = self.proxy.send(exchange)
        how = self.proxy.fault(exchange, _AFTER)
        if how == "answer":
            self._abort()
            return "answer lost"
        if how == "twice":
            answer = self.proxy.send(exchange)
        if how == "newer":
            answer = (*answer[:2], _with_more_fields(answer[2]))
        self._send(*answer)
        return {"twice": "sent twice", "newer": "answer with new fields"}.get(how, "")

    def _send(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        has_body = status not in {204, 304}
        if has_body:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if has_body and self.command != "HEAD":
            self.wfile.write(content)

    def _abort(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass


_INSTEAD = {
    "unavailable": (
        503,
        [("Content-Type", "application/problem+json"), ("Retry-After", "1")],
        ServiceUnavailable.create("The server is busy, says the conformance kit").model_dump_json().encode(),
    ),
    "page": (
        200,
        [("Content-Type", "text/html")],
        b"<html><body>Please log in to this network</body></html>",
    ),
}


def _read(handler: BaseHTTPRequestHandler, headers: dict[str, str]) -> bytes:
    """Return the body of a request, with its length or in chunks."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return handler.rfile.read(int(headers.get("content-length", "0")))
    chunks = []
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass  # trailers
    return b"".join(chunks)


def _with_more_fields(content: bytes) -> bytes:
    """Return an answer as a newer server may send it: with fields that the worker does not know."""
    value = parsed(content)
    if not isinstance(value, dict):
        return content
    for item in (value, *(value.get("tasks") or ()), value.get("task")):
        if isinstance(item, dict):
            item["field_of_a_newer_server"] = {"nested": [1, "x"], "task": None}
    return json.dumps(value, separators=(",", ":")).encode()
