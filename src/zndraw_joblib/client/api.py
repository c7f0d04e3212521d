"""The connection of a worker to its server: a host's own `ApiManager`, or `connect`."""

import os
from typing import Any, Protocol, Self

import httpx

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.client.retry import read_error

DEFAULT_URL = "http://127.0.0.1:8000"
_CONNECT_SECONDS = 5.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class ApiManager(Protocol):
    """A host's HTTP client, its identity, and its errors.

    `raise_for_status` is called with every response. For each that is not 2xx it raises the problem of
    `wire.problems`, or plainly KeyError (404), PermissionError (401, 403), ValueError (409, 422). If it
    returns, the caller raises the problem.
    """

    @property
    def http(self) -> httpx.Client:
        """The client for every request. Several threads use it: let its pool hold several connections."""

    @property
    def base_url(self) -> str:
        """The server's address without ``/v1/joblib``, e.g. ``https://app.example.com``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity; called for every request, so a fresh token is used at once."""

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise if `response` is an error."""


class _Access:
    """The URL of a server and a bearer token."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's url must start with http:// or https://, not {url!r}")
        self._url = url.rstrip("/")
        self._token = token
        # A proxy of the environment must not get the token of a server on this machine.
        self._is_remote = httpx.URL(url).host not in _LOOPBACK
        self._options: dict[str, Any] = {
            "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            "limits": httpx.Limits(max_connections=None),
            "trust_env": self._is_remote,
        }

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._url

    def get_headers(self) -> dict[str, str]:
        """Return the header with the bearer token, if there is a token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise the problem of an error response, as its class in `wire.problems`."""
        if not response.is_success:
            raise read_error(response)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self._url}>"


class Connection(_Access):
    """An `ApiManager` with a bearer token. A context manager; thread-safe.

    `tsio` is its Socket.IO connection, which every `JobManager` of it uses; None without `realtime`.
    """

    def __init__(self, url: str, token: str | None, timeout: float, *, realtime: bool = False) -> None:
        super().__init__(url, token, timeout)
        self._http, self._pid = httpx.Client(**self._options), os.getpid()
        self.tsio = Realtime(self._url, token, trust_proxies=self._is_remote) if realtime else None

    @property
    def http(self) -> httpx.Client:
        """Return the HTTP client. A forked process gets its own: two processes cannot share a connection."""
        if self._pid != os.getpid():
            self._http, self._pid = httpx.Client(**self._options), os.getpid()
        return self._http

    def close(self) -> None:
        """Close the Socket.IO connection and the HTTP client."""
        if self.tsio is not None:
            self.tsio.close()
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncConnection(_Access):
    """The connection of an asynchronous client, with a bearer token."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        super().__init__(url, token, timeout)
        self.http = httpx.AsyncClient(**self._options)

    async def aclose(self) -> None:
        """Close the HTTP client."""
        await self.http.aclose()


def connect(
    url: str = DEFAULT_URL, token: str | None = None, *, timeout: float = 30.0, realtime: bool = False
) -> Connection:
    """Return a connection to the server at `url`; no request is sent yet.

    `timeout` is how many seconds a response may take; a long-poll may take its wait in addition. An error
    response is raised as its class in `wire.problems`, a lost connection as `httpx.TransportError`, and
    the response of a proxy as `UnexpectedResponse`, a ConnectionError. With `realtime` a Socket.IO connection
    to the same server is kept open in the background, over which the server notifies workers of tasks and
    cancellations at once; without it they get them with their next request.
    """
    return Connection(url, token, timeout, realtime=realtime)
