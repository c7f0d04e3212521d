"""Distinguish the server's problems from responses of a proxy in front of it."""

from typing import Any

import httpx

from zndraw_joblib.contract.problems import PROBLEM_MEDIA_TYPE, ProblemException, is_own_type, problem_for

_SHOWN_CHARACTERS = 120
_REFUSALS = frozenset({401, 403, 423})
_PROXY = (
    "This is not a response of a zndraw-joblib server; a proxy in front of it, or another program at this "
    "address, probably sent it"
)
_HOST = (
    "The application that hosts the zndraw-joblib server, or a proxy in front of it, probably refused the "
    "request: check the token or the permissions"
)


class UnexpectedResponse(ConnectionError):
    """The response is not from a zndraw-joblib server, but probably from a proxy in front of it.

    The request may or may not have been applied, except if `is_refusal` is true: for a 401, 403 or 423 in
    JSON, as applications that host the server send it.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        body = _json_of(response) if self.status in _REFUSALS else None
        self.is_refusal = isinstance(body, dict) and "detail" in body
        request = response.request
        url = request.url.copy_with(username=None, password=None, query=None, fragment=None)
        kind = response.headers.get("Content-Type", "without a content type")
        super().__init__(
            f"{request.method} {url} answered {self.status} ({kind}): {_excerpt(response)!r}. "
            + (_HOST if self.is_refusal else _PROXY)
        )


def read_error(response: httpx.Response) -> ProblemException | UnexpectedResponse:
    """Return the exception for an error response; its `headers` keep Retry-After.

    Only a problem of this project is a response of the server.
    """
    body = _json_of(response)
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != PROBLEM_MEDIA_TYPE or not isinstance(body, dict) or not is_own_type(body.get("type")):
        return UnexpectedResponse(response)
    problem = problem_for(response.status_code, body)
    if "Retry-After" in response.headers:
        problem.headers = {"Retry-After": response.headers["Retry-After"]}
    return problem


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _excerpt(response: httpx.Response) -> str:
    """Return the beginning of a body in one line, without the token of the request."""
    text = " ".join(response.text.split())
    token = response.request.headers.get("Authorization", "").rpartition(" ")[2]
    return (text.replace(token, "***") if token else text)[:_SHOWN_CHARACTERS]
