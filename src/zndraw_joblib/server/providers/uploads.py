"""Uploads of provider results: into the result backend, and from there to all callers that wait."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from hashlib import sha256

from zndraw_joblib.contract.problems import ContentTooLarge, StaleResult
from zndraw_joblib.contract.providers import ProviderError
from zndraw_joblib.server.ports import PART_BYTES, ResultBackend
from zndraw_joblib.server.providers import cache
from zndraw_joblib.server.providers.cache import CacheKeys
from zndraw_joblib.server.providers.incoming import IncomingBytes, etag_of, unavailable
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import provider_requests
from zndraw_joblib.server.service.provider_requests import ProviderRef

_UPLOAD_LOCK_SECONDS = 30


class Uploads:
    """The uploads of provider results that this server process receives."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._incoming = IncomingBytes(runtime.settings, "max_result_bytes")

    async def upload(
        self,
        backend: ResultBackend,
        provider: ProviderRef,
        request_hash: str,
        chunks: AsyncIterator[bytes],
        content_length: int = 0,
    ) -> None:
        """Store the result of a request and wake the callers that wait for it.

        `content_length` is 0 if it is unknown. Raises `ContentTooLarge`, which the waiting callers get too,
        `StaleResult`, `UploadStalled`, and `ServiceUnavailable` or `TooManyRequests` while the same result or
        too many bytes are being uploaded. The bytes count for the owner of the provider. A result that cannot
        be stored is requested again.
        """
        keys, limit = cache.cache_keys(provider.name, request_hash), self._runtime.settings.max_result_bytes
        # The lock keeps the bytes of one registration from being stored with the metadata of another.
        if not await backend.acquire_inflight(keys.upload, _UPLOAD_LOCK_SECONDS):
            raise unavailable("The result of this request is being uploaded already")
        try:
            await self._runtime.database.read_short(provider_requests.check_current, provider)
            if content_length > limit:
                raise self._incoming.too_large()
            await self._store(backend, provider, keys, chunks)
        except ContentTooLarge as problem:
            await self._report_too_large(backend, provider, request_hash, problem)
            raise
        except StaleResult:
            raise
        except Exception:
            await backend.release_inflight(keys.inflight)
            await self._runtime.write(provider_requests.discard, provider, request_hash)
            raise
        else:
            await self._complete(backend, provider, request_hash, keys)
        finally:
            await backend.release_inflight(keys.upload)

    async def _report_too_large(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, problem: ContentTooLarge
    ) -> None:
        keys = cache.cache_keys(provider.name, request_hash)
        error = ProviderError(error=type(problem).__name__, detail=str(problem))
        await cache.store_error(backend, keys, error.model_dump_json().encode(), is_of_provider=False)
        await self._complete(backend, provider, request_hash, keys)

    async def upload_error(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, body: bytes
    ) -> None:
        """Report an error to the callers that wait for a request. A later caller repeats the request.

        A body that is a problem (RFC 9457) is stored like a result: later callers get it too.
        """
        keys = cache.cache_keys(provider.name, request_hash)
        problem = cache.problem_of(body)
        if problem is None:
            await cache.store_error(backend, keys, body)
        else:
            await self._runtime.database.read_short(provider_requests.check_current, provider)
            ttl = self._runtime.settings.provider_result_ttl_seconds
            await cache.store_problem(backend, provider, keys, problem, ttl)
        await self._complete(backend, provider, request_hash, keys)

    async def _store(
        self, backend: ResultBackend, provider: ProviderRef, keys: CacheKeys, chunks: AsyncIterator[bytes]
    ) -> None:
        ttl, digest = self._runtime.settings.provider_result_ttl_seconds, sha256()
        is_removed = await cache.remove_outdated(backend, provider, keys)
        async with aclosing(self._incoming.limited(chunks, digest.update, provider.owner_id)) as limited:
            head = await _read_head(limited)
            is_whole = len(head) <= PART_BYTES
            # The ETag is stored before the bytes only if no older bytes can be taken for them.
            has_etag = is_whole and is_removed
            await cache.store_meta(backend, provider, keys, ttl, etag_of(digest) if has_etag else None)
            if is_whole:
                await backend.store(keys.result, head, ttl)
            else:
                await cache.store_result(backend, keys.result, _prepend(head, limited), ttl)
        if not has_etag:
            await cache.store_meta(backend, provider, keys, ttl, etag_of(digest))

    async def _complete(
        self, backend: ResultBackend, provider: ProviderRef, request_hash: str, keys: CacheKeys
    ) -> None:
        await backend.release_inflight(keys.inflight)
        await backend.notify_key(keys.result)
        await self._runtime.write_short(provider_requests.complete, provider, request_hash)


async def _read_head(chunks: AsyncIterator[bytes]) -> bytes:
    """Read the whole stream if it fits into one part, else until it exceeds one."""
    head = bytearray()
    async for chunk in chunks:
        head += chunk
        if len(head) > PART_BYTES:
            break
    return bytes(head)


async def _prepend(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk
