"""Which server a client uses, with which token, and what to check if it does not work."""

import os
from dataclasses import dataclass, field

import httpx

from zndraw_joblib.client import credentials
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.problems import ProblemException, Unauthorized

URL_VARIABLE, TOKEN_VARIABLE = "ZNDRAW_JOBLIB_URL", "ZNDRAW_JOBLIB_TOKEN"


@dataclass(frozen=True, slots=True)
class Access:
    """A server's URL and the token for it; `source` is the variable or file that holds the token."""

    url: str
    token: str | None = field(repr=False)
    source: str


def find_access(url: str | None = None, token: str | None = None) -> Access:
    """Return the access to a server: the given one, or that of the environment.

    Without a `url` it is that of ``ZNDRAW_JOBLIB_URL``, or ``http://127.0.0.1:8000``; without a `token`, that
    of ``ZNDRAW_JOBLIB_TOKEN``, or the one saved for this URL in the credentials file. Raises ValueError for
    what is no URL or no token, and `UnreadableCredentials`.
    """
    used = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).strip()
    canonical = credentials.canonical(used)
    if token is not None:
        return Access(used, _checked(token.strip(), "The argument token"), "the argument token")
    variable = os.environ.get(TOKEN_VARIABLE, "").strip()
    if variable:
        return Access(used, _checked(variable, TOKEN_VARIABLE), TOKEN_VARIABLE)
    saved = credentials.load().get(canonical)
    # The canonical URL makes sure that the token goes to the host it was saved for.
    return Access(canonical if saved else used, saved, str(credentials.path()))


class ServerUnreachable(ConnectionError):
    """The server does not respond; the message has its URL and what to check."""


def explained(access: Access, error: Exception) -> Exception:
    """Return the error for the user of a client: it names the server or the token that does not work."""
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


def explain_unauthorized(access: Access, problem: ProblemException) -> str:
    """Return which token the server refused, and how to get another one."""
    if access.token is None:
        return (
            f"The server at {access.url} requires a token, and {access.source} has none for this URL. "
            f"Set {TOKEN_VARIABLE}; the operator creates a token with 'zndraw-joblib token create NAME'"
        )
    return (
        f"The server at {access.url} rejected the token from {access.source}: {problem}. "
        f"Set {TOKEN_VARIABLE} to a valid token; 'zndraw-joblib token create NAME' creates one"
    )


def explain_unreachable(access: Access, error: httpx.TransportError, settings: str) -> str:
    """Return the message that a server does not respond; `settings` names where the user sets its URL."""
    text = str(error) or type(error).__name__
    reason = text.split("] ", 1)[-1] if text.startswith("[Errno") else text
    return (
        f"The server at {access.url} cannot be reached: {reason}. "
        f"Start it with 'zndraw-joblib serve', or set {settings} to another server"
    )
