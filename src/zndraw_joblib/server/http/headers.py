"""Read headers of a request without a mapping of all of them."""

from starlette.requests import HTTPConnection


def header_values(request: HTTPConnection, name: bytes) -> list[str]:
    """Return the values of a header, given in lower case."""
    return [value.decode("latin-1") for key, value in request.scope["headers"] if key == name]
