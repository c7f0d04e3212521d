"""Distinguish the server's problems from responses of a proxy in front of it."""

import httpx

from zndraw_joblib.contract.problems import PROBLEM_MEDIA_TYPE, ProblemException, is_own_type, problem_for

_SHOWN_CHARACTERS = 120


class UnexpectedResponse(ConnectionError):
    """The response is not from a zndraw-joblib server, but probably from a proxy in front of it.

    The request may or may not have been applied.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        request = response.request
        url = request.url.copy_with(username=None, password=None, query=None, fragment=None)
        kind = response.headers.get("Content-Type", "without a content type")
        super().__init__(
            f"{request.method} {url} answered {self.status} ({kind}): {_excerpt(response)!r}. This is not a "
            "response of a zndraw-joblib server; a proxy in front of it, or another program at this address, "
            "probably sent it"
        )


def read_error(response: httpx.Response) -> ProblemException | UnexpectedResponse:
    """Return the exception for an error response; its `headers` keep Retry-After.

    Only a problem of this project is a response of the server.
    """
    try:
        body = response.json()
    except ValueError:
        body = None
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != PROBLEM_MEDIA_TYPE or not isinstance(body, dict) or not is_own_type(body.get("type")):
        return UnexpectedResponse(response)
    problem = problem_for(response.status_code, body)
    if "Retry-After" in response.headers:
        problem.headers = {"Retry-After": response.headers["Retry-After"]}
    return problem


def _excerpt(response: httpx.Response) -> str:
    """Return the beginning of a body in one line, without the token of the request."""
    text = " ".join(response.text.split())
    token = response.request.headers.get("Authorization", "").rpartition(" ")[2]
    return (text.replace(token, "***") if token else text)[:_SHOWN_CHARACTERS]
