"""How a worker reaches its server: a host's own `ApiManager`, or `connect`."""

from types import TracebackType
from typing import Protocol, Self

import httpx

from zndraw_joblib.contract.problems import ProblemException, problem_for
from zndraw_joblib.worker.realtime import Realtime

API_PREFIX = "/v1/joblib"
DEFAULT_URL = "http://127.0.0.1:8000"
_CONNECT_SECONDS = 5.0


class ApiManager(Protocol):
    """A host's HTTP client, its identity and its way to raise errors.

    `raise_for_status` is called on every answer and shall raise on each that is not 2xx: the problem of
    `contract.problems`, or plainly KeyError (404), PermissionError (401, 403), ValueError (409, 422).
    Where it returns all the same, the problem is raised for it.
    """

    @property
    def http(self) -> httpx.Client:
        """The client for every request; used from several threads, so let its pool hold some connections."""

    @property
    def base_url(self) -> str:
        """Where the server is, e.g. ``https://app.example.com``, without ``/v1/joblib``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity; asked for at every request, so a fresh token is picked up."""

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise if `response` is an error."""


_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Connection:
    """An `ApiManager` of its own, with a bearer token. A context manager; thread-safe.

    `tsio` is its Socket.IO connection, which every `JobManager` of it uses; None without `realtime`.
    """

    def __init__(self, url: str, token: str | None, timeout: float, *, realtime: bool = False) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's url must start with http:// or https://, not {url!r}")
        self._url = url.rstrip("/")
        self._token = token
        limits = httpx.Limits(max_connections=None)
        connect = min(timeout, _CONNECT_SECONDS)
        # A proxy of the environment must not get the token of a server on this machine.
        is_remote = httpx.URL(url).host not in _LOOPBACK
        self.http = httpx.Client(
            timeout=httpx.Timeout(timeout, connect=connect), limits=limits, trust_env=is_remote
        )
        self.tsio = Realtime(self._url, token, trust_proxies=is_remote) if realtime else None

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return self._url

    def get_headers(self) -> dict[str, str]:
        """Return the bearer token's header, if there is a token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise the problem that the server named, as the class of `contract.problems`."""
        if not response.is_success:
            raise read_problem(response)

    def close(self) -> None:
        """Close the Socket.IO connection and the HTTP client."""
        if self.tsio is not None:
            self.tsio.close()
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {self._url}>"


def connect(
    url: str = DEFAULT_URL, token: str | None = None, *, timeout: float = 30.0, realtime: bool = False
) -> Connection:
    """Return a connection to the server at `url`; no request is sent yet.

    `timeout` is how many seconds an ordinary answer may take; a long-poll has its wait on top. An
    error is raised as its class in `contract.problems`, a lost connection as `httpx.TransportError`.
    With `realtime` a Socket.IO connection to the same server is opened in the background, and kept up: a
    worker then hears of tasks and cancellations at once. Without it, or where it fails, it hears later.
    """
    return Connection(url, token, timeout, realtime=realtime)


def read_problem(response: httpx.Response) -> ProblemException:
    """Return what an error answer says, as the exception to raise; `headers` keeps its Retry-After."""
    try:
        body = response.json()
    except ValueError:
        body = response.text[:1000]
    problem = problem_for(response.status_code, body)
    if "Retry-After" in response.headers:
        problem.headers = {"Retry-After": response.headers["Retry-After"]}
    return problem
