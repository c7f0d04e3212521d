"""Refuse requests that a page of another site makes with the credentials of the user's browser.

A browser adds cookies to requests of any page, so an unsafe request needs a sign that it comes from a page
that may act for the user. Clients that are no browsers send neither `Origin` nor `Sec-Fetch-Site`.
"""

import re
from typing import Any

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware

from zndraw_joblib.contract.problems import Forbidden
from zndraw_joblib.server.http.state import queue_state

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_READ_ONLY = b"x-joblib-read-only"
_LOOKED_AT = frozenset({b"origin", b"sec-fetch-site", b"authorization", b"host", _READ_ONLY})
# A browser sends these by itself once it knows the password; a page has to send any other.
_SENT_BY_BROWSERS = ("basic", "digest", "negotiate", "ntlm")


def check_unsafe(request: Request) -> None:
    """Raise `Forbidden` for an unsafe request of a foreign page, or of a page that may only read."""
    scope = request.scope
    if scope["method"] in _SAFE:
        return
    found = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
    if _READ_ONLY in found:
        raise Forbidden(
            "The request has the header X-Joblib-Read-Only, so it may change nothing: the page is read-only"
        )
    origin, site = found.get(b"origin", b"").decode("latin-1"), found.get(b"sec-fetch-site")
    if (not origin and site is None) or _has_own_credentials(found.get(b"authorization", b"")):
        return
    is_own = site in {b"same-origin", b"none"} if site is not None else _is_host(origin, found.get(b"host"))
    if not is_own and not _is_trusted(request, origin):
        raise Forbidden(
            f"The request comes from a page of another origin, {origin[:200] or 'unknown'!r}. To let such "
            "pages act with the cookies of a user, add the origin to the setting trusted_origins"
        )


def _has_own_credentials(authorization: bytes) -> bool:
    scheme = authorization.partition(b" ")[0].decode("latin-1").lower()
    return bool(scheme) and scheme not in _SENT_BY_BROWSERS


def _is_host(origin: str, host: bytes | None) -> bool:
    """Return whether an origin is the server's, as far as it knows: a proxy may have ended TLS."""
    _, _, named = origin.lower().partition("://")
    given = (host or b"").decode("latin-1").lower()
    # Some proxies add the default port, which an origin never has.
    known = {given, given.removesuffix(":443"), given.removesuffix(":80")}
    return bool(named) and named in known


def _is_trusted(request: Request, origin: str) -> bool:
    if not origin or origin == "null":
        return False
    if origin in queue_state(request).runtime.settings.trusted_origins:
        return True
    return any(_allows(options, origin) for options in _cors_options(request.app))


def _cors_options(app: FastAPI) -> list[dict[str, Any]]:
    """Return the options of the app's CORS middleware: origins that it names may call the app already."""
    found: list[tuple[Any, Any]] = [(each.cls, each.kwargs) for each in app.user_middleware]
    return [
        dict(options)
        for kind, options in found
        if isinstance(kind, type) and issubclass(kind, CORSMiddleware)
    ]


def _allows(options: dict[str, Any], origin: str) -> bool:
    pattern = options.get("allow_origin_regex")
    return origin in options.get("allow_origins", ()) or bool(pattern and re.fullmatch(pattern, origin))
