"""Messages about providers, and the keys of provider requests and results."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field

from zndraw_joblib.wire.bodies import Name, RequestBody, ResponseBody
from zndraw_joblib.wire.messages import SchemaBody, WorkerInfo

# The headers of an upload: the request, ok or error, the worker.
REQUEST_HASH = "X-Request-Hash"
RESULT_STATUS = "X-Result-Status"
WORKER_ID = "X-Worker-ID"
RESULT_OK, RESULT_ERROR = "ok", "error"

MAX_CONTENT_TYPE = 255
MAX_PARAMS_BYTES = 32 * 1024
_MEDIA_TYPE = re.compile(
    r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:\s*;\s*[\w!#$&^.+-]+=(?:[\w!#$&^.+-]+|\"[^\"\\]*\"))*", re.A
)

_REQUEST_HASH = re.compile(r"[\w.-]{1,128}", re.A)


def media_type(text: str) -> str:
    """Return a content type, which is ASCII. Raises ValueError for another text."""
    if not is_media_type(text):
        raise ValueError(
            f"{text[:100]!r} is no content type: it has the form type/subtype, with optional parameters, in "
            "ASCII, like 'text/plain; charset=utf-8'"
        )
    return text


def is_media_type(text: str) -> bool:
    """Return whether a text is a content type that a header can have."""
    is_header = len(text) <= MAX_CONTENT_TYPE and text.isascii() and text.isprintable()
    return is_header and _MEDIA_TYPE.fullmatch(text) is not None


ContentType = Annotated[str, AfterValidator(media_type)]


class ProviderRegisterRequest(SchemaBody, RequestBody):
    """Register a provider, and a worker for it; without `worker_id` a new worker is made.

    `schema` describes the parameters of a request; `content_type` is that of the results. `worker` describes
    a new worker.
    """

    category: Name
    name: Name
    content_type: ContentType = "application/json"
    worker_id: UUID | None = None
    worker: WorkerInfo | None = None


class ProviderResponse(SchemaBody, ResponseBody):
    """A provider; the worker `worker_id` answers its requests, with bytes of `content_type`.

    A provider of ``@internal`` has no worker: the server sends its requests to a broker.
    """

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    worker_id: UUID | None
    created_at: datetime
    content_type: str


class ProviderClaimRequest(RequestBody):
    """Claim the oldest request that waits for one of the worker's providers.

    A claim that is repeated with the same `claim_id`, because its response was lost, gets the same request.
    """

    worker_id: UUID
    claim_id: UUID | None = None


class ClaimedProviderRequest(ResponseBody):
    """A provider request, to be answered by ``POST /providers/{provider_id}/results``.

    `request_id` is its hash. `params` are the parameters of the query as canonical JSON: a string for each,
    or a list of strings for one that was repeated.
    """

    request_id: str
    provider_id: UUID
    provider_name: str
    params: str


class ProviderClaimResponse(ResponseBody):
    """The claimed request, or null."""

    request: ClaimedProviderRequest | None = None


class ProviderError(BaseModel):
    """Why a provider request failed. `error` is the name of an exception, `detail` its text.

    `is_invalid`: the parameters are invalid.
    """

    error: str = Field(default="Error", max_length=200)
    detail: str = ""
    is_invalid: bool = False


def params_of(query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the parameters of a query: a string for each name, a list of strings for a repeated one."""
    params: dict[str, list[str]] = {}
    for name, value in query:
        params.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in params.items()}


def canonical(params: dict[str, Any]) -> str:
    """Return parameters as canonical JSON: sorted keys, no spaces."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


def request_hash(params: dict[str, Any] | str) -> str:
    """Return the id of a request with these parameters, or their canonical JSON: its SHA-256 in hex."""
    text = params if isinstance(params, str) else canonical(params)
    return sha256(text.encode()).hexdigest()


def is_request_hash(text: str) -> bool:
    """Return whether `text` may be the id of a request: SHA-256 in hex, or an id of the host."""
    return _REQUEST_HASH.fullmatch(text) is not None


def result_key(provider_name: str, request_hash: str) -> str:
    """Return the key of a result in a result backend. Hosts use it too."""
    return f"provider-result:{provider_name}:{request_hash}"


def inflight_key(provider_name: str, request_hash: str) -> str:
    """Return the key of the lock in a result backend that lets one request run at a time."""
    return f"provider-inflight:{provider_name}:{request_hash}"
