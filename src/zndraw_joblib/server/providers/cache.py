"""The entries of a provider request in a result backend: its result, the metadata of it, or its error."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import (
    InvalidRequest,
    Problem,
    ProblemException,
    ProviderExecutionFailed,
    ProviderFailed,
)
from zndraw_joblib.contract.providers import ProviderError, inflight_key, result_key
from zndraw_joblib.server.ports import ResultBackend, StreamingBackend
from zndraw_joblib.server.providers import parts
from zndraw_joblib.server.service.provider_requests import ProviderRef
from zndraw_joblib.server.service.rules import truncate_error

_ERROR_TTL = 30
# The metadata must outlive the result: a result without metadata counts as stored by the host.
_EXTRA_META_TTL = 60
# A body with one of these is a problem; a `ProviderError` has none of them.
_PROBLEM_MEMBERS = frozenset({"type", "title", "status"})
_MIN_STATUS, _MAX_STATUS = 400, 599
# The size of a problem, and of its title and detail, which are truncated.
_MAX_PROBLEM_BYTES, _MAX_TITLE_BYTES, _MAX_DETAIL_BYTES = 64 * 1024, 1024, 32 * 1024
# The last is the type of a problem that means no more than its status.
_TYPE_BEGINNINGS = ("http://", "https://", "/", "about:blank")
# What these say is about the reader's connection to the server, so a reader would act on it.
_STATUSES_OF_CONNECTION = frozenset({401, 407, 421, 426, 511})


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of a request: `size` bytes in `chunks`. `etag` is None if the host stored the bytes."""

    size: int
    chunks: AsyncIterator[bytes]
    content_type: str
    etag: str | None


class CacheKeys(NamedTuple):
    """The names of a request's entries and locks in a result backend."""

    result: str
    inflight: str
    stale_lock: str
    upload: str
    meta: str
    error: str
    problem: str


def cache_keys(name: JobName, request_hash: str) -> CacheKeys:
    """Return the names for a request."""
    rest = f"{name}:{request_hash}"
    return CacheKeys(
        result_key(str(name), request_hash),
        inflight_key(str(name), request_hash),
        f"provider-stale-lock:{rest}",
        f"provider-upload:{rest}",
        f"provider-meta:{rest}",
        f"provider-error:{rest}",
        f"provider-problem:{rest}",
    )


async def find(backend: ResultBackend, provider: ProviderRef, keys: CacheKeys) -> CachedResult | None:
    """Return the result of the provider's current registration; remove one of an earlier registration.

    Raises the problem that the provider uploaded in place of a result.
    """
    meta = await backend.get(keys.meta)
    if not _is_current(meta, provider):
        await backend.delete(keys.result)
        await backend.delete(keys.meta)
        return None
    fields = json.loads(meta) if meta is not None else {}
    opened = await _open(backend, keys.result)
    if opened is None:
        await _raise_problem(backend, provider, keys)
        return None
    return CachedResult(*opened, fields.get("content_type", provider.content_type), fields.get("etag"))


async def _raise_problem(backend: ResultBackend, provider: ProviderRef, keys: CacheKeys) -> None:
    stored = await backend.get(keys.problem)
    if stored is not None and _is_current(stored, provider):
        problem = Problem.model_validate(json.loads(stored)["problem"])
        error = ProviderExecutionFailed(problem.detail)
        error.problem = problem
        raise error


def _is_current(meta: bytes | None, provider: ProviderRef) -> bool:
    """Return whether a result is of the current registration. One without metadata is the host's own."""
    return meta is None or json.loads(meta)["registration"] == str(provider.registration)


async def _open(backend: ResultBackend, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
    if isinstance(backend, StreamingBackend):
        return await backend.open_stream(key)
    data = await backend.get(key)
    return None if data is None else (len(data), parts.stream(data))


async def remove_outdated(backend: ResultBackend, provider: ProviderRef, keys: CacheKeys) -> bool:
    """Remove a result of an earlier registration. Return whether no result is left."""
    meta = await backend.get(keys.meta)
    if not _is_current(meta, provider):
        await backend.delete(keys.result)
        return True
    return meta is None


async def store_meta(
    backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, ttl: int, etag: str | None = None
) -> None:
    """Store the metadata of a result that is stored already or is being uploaded."""
    fields = {"registration": str(provider.registration), "content_type": provider.content_type, "etag": etag}
    await backend.store(keys.meta, json.dumps(fields).encode(), ttl + _EXTRA_META_TTL)


async def store_result(backend: ResultBackend, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
    """Store the bytes of a result, as a stream if the backend can."""
    if isinstance(backend, StreamingBackend):
        await backend.store_stream(key, chunks, ttl)
    else:
        await backend.store(key, b"".join([chunk async for chunk in chunks]), ttl)


async def store_problem(
    backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, problem: Problem, ttl: int
) -> None:
    """Store a problem in place of the result of a request, under a key that hosts do not read."""
    fields = {"registration": str(provider.registration), "problem": problem.model_dump(exclude_none=True)}
    await backend.store(keys.problem, json.dumps(fields).encode(), ttl)
    await backend.delete(keys.result)
    await backend.delete(keys.meta)


async def get_error(backend: ResultBackend, keys: CacheKeys) -> bytes | None:
    """Return the latest error of a request, or None. Two errors are never equal."""
    return await backend.get(keys.error)


def problem_of(body: bytes) -> Problem | None:
    """Return the problem (RFC 9457) that a body is; None for a `ProviderError` or a text.

    A member that is missing is that of `provider-execution-failed`. Raises `InvalidRequest`.
    """
    try:
        fields = from_json(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or _PROBLEM_MEMBERS.isdisjoint(fields):
        return None
    kind = ProviderExecutionFailed
    try:
        problem = Problem.model_validate(
            {"type": kind.type_uri(), "title": kind.title, "status": kind.status, **fields}
        )
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidRequest(f"body.{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    if not _MIN_STATUS <= problem.status <= _MAX_STATUS or problem.status in _STATUSES_OF_CONNECTION:
        raise InvalidRequest(
            f"body.status: {problem.status} is not the status of a provider's problem: send one from "
            f"{_MIN_STATUS} to {_MAX_STATUS}, except {', '.join(map(str, sorted(_STATUSES_OF_CONNECTION)))}"
        )
    return _bounded(problem)


def _bounded(problem: Problem) -> Problem:
    """Return a problem with a short title and detail. Raises `InvalidRequest` if other members are large."""
    if not problem.type.startswith(_TYPE_BEGINNINGS):
        raise InvalidRequest(
            f"body.type: {problem.type[:100]!r} is not the type of a provider's problem: send a URL of http "
            "or https, or a path that begins with '/'"
        )
    problem.title = truncate_error(problem.title, _MAX_TITLE_BYTES) or ProviderExecutionFailed.title
    problem.detail = truncate_error(problem.detail, _MAX_DETAIL_BYTES)
    sizes = {name: len(to_json(value)) for name, value in problem.model_dump(exclude_none=True).items()}
    if sum(sizes.values()) > _MAX_PROBLEM_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidRequest(
            f"body.{largest[:100]}: it has {sizes[largest]} bytes, the problem {sum(sizes.values())}, and at "
            f"most {_MAX_PROBLEM_BYTES} are allowed; send less"
        )
    return problem


async def store_error(
    backend: ResultBackend, keys: CacheKeys, body: bytes, *, is_of_provider: bool = True
) -> None:
    """Store the error of a request: a `ProviderError` as JSON, or any text."""
    try:
        error = ProviderError.model_validate_json(body)
    except ValidationError:
        error = ProviderError(detail=body.decode("utf-8", "replace"))
    fields = {**error.model_dump(), "detail": truncate_error(error.detail) or "", "id": uuid4().hex}
    fields["is_of_provider"] = is_of_provider
    await backend.store(keys.error, json.dumps(fields).encode(), _ERROR_TTL)


def as_problem(provider: ProviderRef, error: bytes) -> ProblemException:
    """Return a stored error as the problem for the caller."""
    fields = json.loads(error)
    detail = f"Provider {str(provider.name)!r}: {fields['detail'] or fields['error']}"
    if fields["is_invalid"]:
        return InvalidRequest(detail, error=fields["error"])
    kind = ProviderExecutionFailed if fields.get("is_of_provider", True) else ProviderFailed
    return kind(detail, error=fields["error"])
