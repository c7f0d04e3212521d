"""A client's connection to its server, the URL and token that it uses, and what to check if it does not work.

Tokens are saved by URL in a file that only this user can read. A token is used for the URL it was
saved for, and for no other.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self
from urllib.parse import urlsplit

from platformdirs import user_config_path

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.client.retry import read_error
from zndraw_joblib.wire.problems import ProblemException, Unauthorized

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
_CONNECT_SECONDS = 5.0
_LOOPBACK_ADDRESS = "127.0.0.1"
_LOOPBACK = {"localhost", _LOOPBACK_ADDRESS, "::1"}


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    return host in _LOOPBACK


class ApiManager(Protocol):
    """A host's HTTP client, its identity, and its errors.

    `raise_for_status` is called with every response. For each that is not 2xx it raises the problem of
    `wire.problems`, or plainly KeyError (404), PermissionError (401, 403), ValueError (409, 422). If it
    returns, the caller raises the problem.
    """

    @property
    def http(self) -> "httpx.Client":
        """The client for every request. Several threads use it: let its pool hold several connections."""

    @property
    def base_url(self) -> str:
        """The server's address without ``/v1/joblib``, e.g. ``https://app.example.com``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity; called for every request, so a fresh token is used at once."""

    def raise_for_status(self, response: "httpx.Response") -> None:
        """Raise if `response` is an error."""


class _Access:
    """The URL of a server and a bearer token."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"The server's url must start with http:// or https://, not {url!r}")
        # It is imported for the first connection: it takes longer to load than the rest of the client.
        import httpx  # noqa: PLC0415

        self._url = url.rstrip("/")
        self._token = token
        # A proxy of the environment must not get the token of a server on this machine.
        self._is_remote = not is_loopback(httpx.URL(url).host)
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

    def raise_for_status(self, response: "httpx.Response") -> None:
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
        self._http, self._pid = self._new_client(), os.getpid()
        self.tsio = Realtime(self._url, token, trust_proxies=self._is_remote) if realtime else None

    @property
    def http(self) -> "httpx.Client":
        """Return the HTTP client. A forked process gets its own: two processes cannot share a connection."""
        if self._pid != os.getpid():
            self._http, self._pid = self._new_client(), os.getpid()
        return self._http

    def _new_client(self) -> "httpx.Client":
        import httpx  # noqa: PLC0415 - see `_Access`

        return httpx.Client(**self._options)

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
        import httpx  # noqa: PLC0415 - see `_Access`

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


# The tokens of a user, by URL.

_PORTS = {"http": 80, "https": 443}
_FIX_URL = (
    "Set --url or ZNDRAW_JOBLIB_URL, or in Python the argument url, to a URL like http://127.0.0.1:8000"
)


class InvalidUrl(ValueError):
    """A text is not the URL of a server."""


class UnreadableCredentials(Exception):
    """The credentials file cannot be read, or has no tokens."""


def credentials_path() -> Path:
    """Return the path of the file; ``ZNDRAW_JOBLIB_CREDENTIALS`` overrides it."""
    override = os.environ.get("ZNDRAW_JOBLIB_CREDENTIALS")
    if override:
        return Path(override)
    return user_config_path("zndraw-joblib", appauthor=False) / "credentials.json"


def canonical_url(url: str) -> str:
    """Return the canonical form of a server's URL, with 127.0.0.1 for localhost. Raises `InvalidUrl`."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError as error:
        raise InvalidUrl(f"{url!r} is not a URL: {error}. {_FIX_URL}") from error
    if port is None or not parts.hostname:
        raise InvalidUrl(f"{url!r} is not the URL of a server: http:// or a host is missing. {_FIX_URL}")
    host = _LOOPBACK_ADDRESS if parts.hostname == "localhost" else parts.hostname
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path.rstrip('/')}"


def load_tokens() -> dict[str, str]:
    """Return all tokens by canonical URL. Raises `UnreadableCredentials` if the file cannot be read."""
    try:
        tokens = json.loads(credentials_path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UnreadableCredentials(
            f"The credentials file {credentials_path()} cannot be read: {error}. Repair or remove it"
        ) from error
    if not isinstance(tokens, dict) or not all(isinstance(token, str) for token in tokens.values()):
        raise UnreadableCredentials(
            f"The credentials file {credentials_path()} is not a JSON object of URLs and tokens. "
            "Repair or remove it"
        )
    return tokens


def save_token(url: str, token: str) -> None:
    """Save the token of a URL and replace an earlier one. Raises `OSError`, `UnreadableCredentials`."""
    tokens = {**load_tokens(), canonical_url(url): token}
    folder = credentials_path().parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates a file of mode 0600, and the rename is atomic: a reader sees the old or the new file.
    descriptor, draft = tempfile.mkstemp(prefix=".credentials-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(tokens, indent=2) + "\n")
        Path(draft).replace(credentials_path())
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


# The access of a client, and explanations of its failures.

URL_VARIABLE, TOKEN_VARIABLE = "ZNDRAW_JOBLIB_URL", "ZNDRAW_JOBLIB_TOKEN"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """A server's URL and the token for it; `source` is the variable or file that holds the token."""

    url: str
    token: str | None = field(repr=False)
    source: str

    @property
    def shown_url(self) -> str:
        """The URL for messages: without a name and a password."""
        scheme, separator, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def find_access(url: str | None = None, token: str | None = None) -> ServerAccess:
    """Return the access to a server: the given one, or that of the environment.

    Without a `url` it is that of ``ZNDRAW_JOBLIB_URL``, or ``http://127.0.0.1:8000``; without a `token`, that
    of ``ZNDRAW_JOBLIB_TOKEN``, or the one saved for this URL in the credentials file. Raises ValueError for
    what is no URL or no token, and `UnreadableCredentials`.
    """
    server_url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).strip()
    canonical = canonical_url(server_url)
    if token is not None:
        return ServerAccess(server_url, _checked(token.strip(), "The argument token"), "the argument token")
    variable = os.environ.get(TOKEN_VARIABLE, "").strip()
    if variable:
        return ServerAccess(server_url, _checked(variable, TOKEN_VARIABLE), TOKEN_VARIABLE)
    saved = load_tokens().get(canonical)
    # The canonical URL makes sure that the token goes to the host it was saved for.
    return ServerAccess(canonical if saved else server_url, saved, str(credentials_path()))


class ServerUnreachable(ConnectionError):
    """The server does not respond; the message has its URL and what to check."""


def explained(access: ServerAccess, error: Exception) -> Exception:
    """Return the error for the user of a client: it names the server or the token that does not work."""
    import httpx  # noqa: PLC0415 - see `_Access`

    if isinstance(error, httpx.TransportError):
        better: Exception = ServerUnreachable(
            explain_unreachable(access, error, f"the argument url or {URL_VARIABLE}")
        )
    elif isinstance(error, Unauthorized):
        better = Unauthorized(explain_unauthorized(access, error))
    else:
        return error
    for note in getattr(error, "__notes__", ()):
        better.add_note(note)
    return better


def _checked(token: str, source: str) -> str:
    if not (token and token.isascii() and token.isprintable()):
        raise ValueError(
            f"{source} is not a token: it is empty or has characters other than printable ASCII. "
            "Copy the token again"
        )
    return token


def explain_unauthorized(access: ServerAccess, problem: ProblemException) -> str:
    """Return which token the server refused, and how to get another one."""
    how = (
        "'zndraw-joblib token create NAME' creates one for a standalone server, and an app that has the "
        "queue issues its own"
    )
    if access.token is None:
        return (
            f"The server at {access.shown_url} requires a token, and {access.source} has none for this URL. "
            f"Set {TOKEN_VARIABLE} to a token; {how}"
        )
    rejected = f"The server at {access.shown_url} rejected the token from {access.source}: {problem}. "
    if _is_replaced(access):
        return f"{rejected}This file has another token for the server now: start the program again"
    return f"{rejected}Set {TOKEN_VARIABLE} to a valid token; {how}"


def _is_replaced(access: ServerAccess) -> bool:
    """Return whether the credentials file has another token since, as after a start with a new database."""
    if access.source != str(credentials_path()):
        return False
    try:
        return load_tokens().get(canonical_url(access.url), access.token) != access.token
    except UnreadableCredentials:
        return False


def explain_unreachable(access: ServerAccess, error: "httpx.TransportError", settings: str) -> str:
    """Return the message that a server does not respond; `settings` names where the user sets its URL."""
    text = str(error) or type(error).__name__
    reason = text.split("] ", 1)[-1] if text.startswith("[Errno") else text
    return (
        f"The server at {access.shown_url} cannot be reached: {reason}. "
        f"Start it with 'zndraw-joblib serve', or set {settings} to another server"
    )


# Raise an error as one that says what to check.

Explain = Callable[[Exception], Exception]


def as_it_is(error: Exception) -> Exception:
    """Return an error unchanged."""
    return error


def raise_explained(error: Exception, explain: Explain) -> NoReturn:
    """Raise the error that `explain` returns for another one."""
    better = explain(error)
    if better is error:
        raise error
    raise better from error
