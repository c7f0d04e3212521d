"""What a result backend keeps of a read: its bytes, what is known of them, or what went wrong."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from pydantic import ValidationError

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import InvalidRequest, ProblemException, ProviderFailed
from zndraw_joblib.contract.providers import ProviderError, inflight_key, result_key
from zndraw_joblib.server.ports import PART_BYTES, ResultBackend, StreamingBackend
from zndraw_joblib.server.service.provider_requests import ProviderRef
from zndraw_joblib.server.service.rules import truncate_error

_FAILURE_SECONDS = 30
# What is known of a result stays longer than the result: without it, the result would pass for a host's own.
_META_SECONDS = 60


@dataclass(frozen=True, slots=True)
class CachedResult:
    """What a read gives: `size` bytes in `chunks`. `etag` is None where a host has put the bytes there."""

    size: int
    chunks: AsyncIterator[bytes]
    content_type: str
    etag: str | None


class CacheKeys(NamedTuple):
    """Under which names a backend keeps what belongs to a read, and its locks."""

    result: str
    inflight: str
    doubt: str
    upload: str
    meta: str
    failure: str


def cache_keys(name: JobName, request_hash: str) -> CacheKeys:
    """Return the names of a read."""
    rest = f"{name}:{request_hash}"
    return CacheKeys(
        result_key(str(name), request_hash),
        inflight_key(str(name), request_hash),
        f"provider-doubt:{rest}",
        f"provider-upload:{rest}",
        f"provider-meta:{rest}",
        f"provider-failure:{rest}",
    )


async def find(backend: ResultBackend, target: ProviderRef, keys: CacheKeys) -> CachedResult | None:
    """Return what was read by the provider's present registration. What is of another one is forgotten."""
    meta = await backend.get(keys.meta)
    if not _is_of(meta, target):
        await backend.delete(keys.result)
        await backend.delete(keys.meta)
        return None
    said = json.loads(meta) if meta is not None else {}
    opened = await _open(backend, keys.result)
    if opened is None:
        return None
    return CachedResult(*opened, said.get("content_type", target.content_type), said.get("etag"))


def _is_of(meta: bytes | None, target: ProviderRef) -> bool:
    """Tell whether bytes are of the registration that holds now. Else a host put them there."""
    return meta is None or json.loads(meta)["registration"] == str(target.registration)


async def _open(backend: ResultBackend, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
    if isinstance(backend, StreamingBackend):
        return await backend.open_stream(key)
    data = await backend.get(key)
    return None if data is None else (len(data), _sliced(data))


async def _sliced(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


async def make_room(backend: ResultBackend, target: ProviderRef, keys: CacheKeys) -> bool:
    """Forget bytes of another registration, before those of this one come. Tell whether none are left."""
    meta = await backend.get(keys.meta)
    if not _is_of(meta, target):
        await backend.delete(keys.result)
        return True
    return meta is None


async def describe(
    backend: ResultBackend, target: ProviderRef, keys: CacheKeys, ttl: int, etag: str | None = None
) -> None:
    """Note of which registration the bytes are, be they there already or on their way."""
    said = {"registration": str(target.registration), "content_type": target.content_type, "etag": etag}
    await backend.store(keys.meta, json.dumps(said).encode(), ttl + _META_SECONDS)


async def store(backend: ResultBackend, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
    """Keep bytes as they come."""
    if isinstance(backend, StreamingBackend):
        await backend.store_stream(key, chunks, ttl)
    else:
        await backend.store(key, b"".join([chunk async for chunk in chunks]), ttl)


async def failure(backend: ResultBackend, keys: CacheKeys) -> bytes | None:
    """Return what went wrong with a read lately; each failure is another one."""
    return await backend.get(keys.failure)


async def store_failure(backend: ResultBackend, keys: CacheKeys, body: bytes) -> None:
    """Keep what is said of a failed read, be it the shape that is expected or any text."""
    try:
        said = ProviderError.model_validate_json(body)
    except ValidationError:
        said = ProviderError(detail=body.decode("utf-8", "replace"))
    shown = {**said.model_dump(), "detail": truncate_error(said.detail) or "", "id": uuid4().hex}
    await backend.store(keys.failure, json.dumps(shown).encode(), _FAILURE_SECONDS)


def problem_of(target: ProviderRef, failed: bytes) -> ProblemException:
    """Return a failure as the problem that the reader gets."""
    said = json.loads(failed)
    detail = f"Provider {str(target.name)!r}: {said['detail'] or said['error']}"
    if said["is_invalid"]:
        return InvalidRequest(detail, error=said["error"])
    return ProviderFailed(detail, error=said["error"])
