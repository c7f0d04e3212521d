"""Read headers of a request without a mapping of all of them."""

import re
from collections.abc import Iterable

from starlette.requests import HTTPConnection

_PREFERENCES = re.compile(r'(?:[^,"]|"[^"]*")+')
_WAIT = re.compile(r'\s*wait\s*=\s*("?)(\d+)\1\s*(?:;.*)?', re.IGNORECASE | re.DOTALL)
_MAX_WAIT = 10**6


def header_values(request: HTTPConnection, name: bytes) -> list[str]:
    """Return the values of a header, given in lower case."""
    return [value.decode("latin-1") for key, value in request.scope["headers"] if key == name]


def preferred_wait(headers: Iterable[str]) -> float | None:
    """Return the seconds of the first ``wait=N`` in headers `Prefer` (RFC 7240), None without one."""
    for header in headers:
        for preference in _PREFERENCES.findall(header):
            if match := _WAIT.fullmatch(preference):
                return min(float(match[2]), _MAX_WAIT)
    return None
