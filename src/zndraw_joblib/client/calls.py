"""Requests as data: what to send, and how to read the response. Nothing here does I/O."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote
from uuid import UUID, uuid5

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.client.api import API_PREFIX
from zndraw_joblib.client.responses import UnexpectedResponse, read_error
from zndraw_joblib.contract.idempotency import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.contract.outcomes import describe_errors, encode
from zndraw_joblib.contract.problems import ProblemException

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Body = BaseModel | bytes | Iterable[bytes] | None

_RESPONSE_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0


class Server(Protocol):
    """A server, the identity of its client, and the client's own errors; see `ApiManager`."""

    @property
    def http(self) -> httpx.Client | httpx.AsyncClient:
        """The client, whose timeouts hold for every request."""

    @property
    def base_url(self) -> str:
        """The server's address without ``/v1/joblib``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity."""

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise if `response` is an error."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request to `path`, whose parts are quoted, and the function that reads its response.

    The server may wait for `wait` seconds, or be silent for `silence` seconds, longer than the timeout of the
    client. `read_timeout` shortens that. `key` is an `Idempotency-Key`, or the id of an operation, whose
    equal requests share a key.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: Body = None
    wait: int = 0
    silence: float = 0
    read_timeout: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | UUID | None = None

    def request(self, server: Server) -> dict[str, Any]:
        """Return the arguments of a method of httpx that sends the request."""
        headers = {**server.get_headers(), **self.headers}
        content = self.body
        if isinstance(content, BaseModel):
            content = encode(to_jsonable_python(content.model_dump(by_alias=True, exclude_unset=True)))
            headers["Content-Type"] = "application/json"
        if self.wait:
            headers["Prefer"] = f"wait={self.wait}"
        if self.key is not None:
            headers[IDEMPOTENCY_KEY] = format_key(_key_of(self.key, f"{self.method} {self.path}", content))
        return {
            "method": self.method,
            "url": f"{server.base_url.rstrip('/')}{API_PREFIX}{self.path}",
            "content": content,
            "headers": headers,
            "extensions": {"timeout": self._timeouts(server.http.timeout)},
        }

    def check(self, response: httpx.Response, server: Server) -> None:
        """Raise the client's error for an error response, `UnexpectedResponse` for another program's."""
        _raise_for_status(response, server)
        if response.request.method != self.method:  # a redirect turned it into a GET
            raise UnexpectedResponse(response)

    def result(self, response: httpx.Response, server: Server) -> T:
        """Return what a response says. Raises as `check`."""
        self.check(response, server)
        return self.read(response)

    def _timeouts(self, timeout: httpx.Timeout) -> dict[str, float | None]:
        """Return the client's timeouts; reading is always limited and includes the wait."""
        timeouts = timeout.as_dict()
        seconds = timeouts.get("read") or _RESPONSE_SECONDS
        if longest := max(self.wait, self.silence):
            seconds = max(seconds, longest + _POLL_MARGIN_SECONDS)
        shortened = min(seconds, self.read_timeout) if self.read_timeout else seconds
        return {**timeouts, "read": shortened}


def _raise_for_status(response: httpx.Response, server: Server) -> None:
    fault = None if response.is_success else read_error(response)
    try:
        server.raise_for_status(response)
    except UnexpectedResponse:
        raise
    except Exception as error:
        if isinstance(error, ProblemException) and isinstance(fault, ProblemException):
            raise
        raise error from fault
    if fault is not None:
        raise fault


def _key_of(key: str | UUID, target: str, content: object) -> str:
    """Return a text as it is; for the id of an operation, return a key that its equal requests share."""
    if isinstance(key, str):
        return key
    return str(uuid5(key, f"{target} {content.decode() if isinstance(content, bytes) else ''}"))


def reading(model: type[Model]) -> Callable[[httpx.Response], Model]:
    """Return a function that reads a response as a model."""
    return lambda response: parse(model, response)


def waiting(model: type[Model]) -> Callable[[httpx.Response], tuple[Model, int]]:
    """Return a function that reads a model, and how many seconds the server agreed to wait."""
    return lambda response: (parse(model, response), applied_wait(response))


def parse(model: type[Model], response: httpx.Response, *required: str) -> Model:
    """Return a response as a model, with at least one of the fields `required` given."""
    try:
        parsed = model.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedResponse(response) from error
    if required and parsed.model_fields_set.isdisjoint(required):
        raise UnexpectedResponse(response)
    return parsed


def check_empty(response: httpx.Response) -> None:
    """Raise `UnexpectedResponse` for a response with content."""
    if response.status_code != httpx.codes.NO_CONTENT:
        raise UnexpectedResponse(response)


def applied_wait(response: httpx.Response) -> int:
    """Return how many seconds the server agreed to wait."""
    name, _, value = response.headers.get("Preference-Applied", "").partition("=")
    return int(value) if name.strip() == "wait" and value.strip().isdigit() else 0


def quoted(text: str) -> str:
    """Return `text` as one part of a path, also when it is ``.`` or ``..``."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Return `fields` as a model. Raises ValueError that names each invalid field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(describe_errors(error)) from None
