"""What is said of providers: they answer reads, from whoever is connected for them."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, Field

from zndraw_joblib.contract.messages import Name, SchemaBody

# The headers of an upload: which read it answers, how it went, and who says so.
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


def _media_type(text: str) -> str:
    if len(text) > MAX_CONTENT_TYPE or not text.isprintable() or not _MEDIA_TYPE.fullmatch(text):
        raise ValueError("a content type is of the form type/subtype, with parameters if need be")
    return text


ContentType = Annotated[str, AfterValidator(_media_type)]


class ProviderRegisterRequest(SchemaBody):
    """Register a provider, and a worker for it; without `worker_id` a new worker is made.

    `schema` says which parameters a read may have, `content_type` what kind of bytes it gives.
    """

    category: Name
    name: Name
    content_type: ContentType = "application/json"
    worker_id: UUID | None = None


class ProviderResponse(SchemaBody):
    """A provider; reads are answered by the worker `worker_id`, with bytes of `content_type`."""

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    worker_id: UUID
    created_at: datetime
    content_type: str


class ProviderClaimRequest(BaseModel):
    """Ask for the oldest read that waits for one of the worker's providers.

    Who repeats a claim with the same `claim_id`, for its answer was lost, gets the same read again.
    """

    worker_id: UUID
    claim_id: UUID | None = None


class ClaimedProviderRequest(BaseModel):
    """A read, to be answered by ``POST /providers/{provider_id}/results``; `request_id` is its hash.

    `params` are those of the query as canonical JSON: a text for each, or a list of texts if it was repeated.
    """

    request_id: str
    provider_id: UUID
    provider_name: str
    params: str


class ProviderClaimResponse(BaseModel):
    """The read to answer, or null."""

    request: ClaimedProviderRequest | None = None


class ProviderError(BaseModel):
    """What went wrong with a read. `error` is the kind, the name of an exception; `detail` is for people.

    `is_invalid`: the fault is in the parameters.
    """

    error: str = Field(default="Error", max_length=200)
    detail: str = ""
    is_invalid: bool = False


def params_of(query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the parameters of a read: a text for each name, a list of texts where it was repeated."""
    found: dict[str, list[str]] = {}
    for name, value in query:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def canonical(params: dict[str, Any]) -> str:
    """Return parameters as the one JSON text that all who hash them agree on."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


def request_hash(params: str) -> str:
    """Return the hash of canonical parameters, which names the read."""
    return sha256(params.encode()).hexdigest()


def is_request_hash(text: str) -> bool:
    """Tell whether a text may name a read. Ours are SHA-256 in hex; a host's own need not be."""
    return _REQUEST_HASH.fullmatch(text) is not None


def result_key(provider_name: str, request_hash: str) -> str:
    """Name the bytes of a read in a result backend. Hosts read and write there themselves."""
    return f"provider-result:{provider_name}:{request_hash}"


def inflight_key(provider_name: str, request_hash: str) -> str:
    """Name the lock in a result backend that one read at a time has."""
    return f"provider-inflight:{provider_name}:{request_hash}"
