"""A reverse proxy that answers chosen requests by itself."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import httpx

_HOP_BY_HOP = {"connection", "content-length", "host", "transfer-encoding"}
Rule = Callable[[str, str], bytes | None]


def raw(status: str, content: bytes, kind: str = "text/html", **headers: str) -> bytes:
    """Return a raw HTTP response."""
    fields = {"Content-Type": kind, "Content-Length": str(len(content)), "Connection": "close"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


class Proxy:
    """A proxy of the server at `target` while its block is open.

    `rule` gets each request's method and path. It returns a raw response, and the request does not reach the
    server; or None, and it does. `answered` counts the responses of the proxy itself.
    """

    def __init__(self, target: str, rule: Rule = lambda method, path: None) -> None:
        self.rule = rule
        self.answered: Counter[tuple[str, str]] = Counter()
        self._limit: tuple[int, bytes] | None = None
        self._client = httpx.Client(base_url=target, timeout=60, trust_env=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def limit_body(self, size: int, response: bytes) -> None:
        """Answer each request whose body is larger than `size` with `response`."""
        self._limit = size, response

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the raw response to a request."""
        too_large = self._limit[1] if self._limit and len(body) > self._limit[0] else None
        own = too_large or self.rule(method, path.partition("?")[0])
        if own is not None:
            self.answered[method, path] += 1
            return own
        sent = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
        got = self._client.request(method, path, headers=sent, content=body)
        kept = {name: value for name, value in got.headers.items() if name not in _HOP_BY_HOP}
        kind = kept.pop("content-type", "")
        return raw(f"{got.status_code} {got.reason_phrase}", got.content, kind, **kept)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()


def _handler_of(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _answer(self) -> None:
            body = self._read_body()
            self.close_connection = True
            # The client or the server may have gone.
            with suppress(OSError, httpx.TransportError):
                self.wfile.write(proxy.respond(self.command, self.path, dict(self.headers), body))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    return Handler
