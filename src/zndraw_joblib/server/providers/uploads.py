"""The walk of an answer: from whoever was asked, into the result backend, to all who wait for it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import Any

from zndraw_joblib.contract.problems import ContentTooLarge, ServiceUnavailable, StaleResult
from zndraw_joblib.contract.providers import ProviderError
from zndraw_joblib.server.ports import PART_BYTES, ResultBackend
from zndraw_joblib.server.providers import cache
from zndraw_joblib.server.providers.cache import CacheKeys
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import provider_requests
from zndraw_joblib.server.service.provider_requests import ProviderRef

# So many results of the largest size may be on their way in at once.
_UPLOADS = 4
_UPLOAD_SECONDS = 30
_ETAG_LENGTH = 32


class Uploads:
    """Takes what providers bring."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._incoming = 0

    async def upload(
        self,
        backend: ResultBackend,
        target: ProviderRef,
        request_hash: str,
        chunks: AsyncIterator[bytes],
        announced: int = 0,
    ) -> None:
        """Keep the answer to a read for all who ask for the same, and let those who wait know.

        `announced` is how many bytes there will be, 0 where that is not known.

        Raises `ContentTooLarge`, which readers are told too, `StaleResult`, and `ServiceUnavailable` while
        too much is on its way in, or the same. What cannot be kept is asked for anew.
        """
        keys, most = cache.cache_keys(target.name, request_hash), self._runtime.settings.max_result_bytes
        # Bytes, and what is known of them, must not be of two registrations.
        if not await backend.acquire_inflight(keys.upload, _UPLOAD_SECONDS):
            raise _busy("The answer to this read is on its way in already")
        try:
            await self._runtime.database.read_short(provider_requests.check_current, target=target)
            if announced > most:
                raise _too_large(most)
            await self._keep(backend, target, keys, chunks)
        except ContentTooLarge as problem:
            said = ProviderError(error=type(problem).__name__, detail=str(problem))
            await self.upload_error(backend, target, request_hash, said.model_dump_json().encode())
            raise
        except StaleResult:
            raise
        except Exception:
            await backend.release_inflight(keys.inflight)
            await self._runtime.write(provider_requests.discard, target=target, request_hash=request_hash)
            raise
        else:
            await self._settle(backend, target, request_hash, keys)
        finally:
            await backend.release_inflight(keys.upload)

    async def upload_error(
        self, backend: ResultBackend, target: ProviderRef, request_hash: str, body: bytes
    ) -> None:
        """Let those who wait for a read know what went wrong. Who asks later asks the provider again."""
        keys = cache.cache_keys(target.name, request_hash)
        await cache.store_failure(backend, keys, body)
        await self._settle(backend, target, request_hash, keys)

    async def _keep(
        self, backend: ResultBackend, target: ProviderRef, keys: CacheKeys, chunks: AsyncIterator[bytes]
    ) -> None:
        ttl, digest = self._runtime.settings.provider_result_ttl_seconds, sha256()
        has_room = await cache.make_room(backend, target, keys)
        async with aclosing(self._measured(chunks, digest.update)) as measured:
            begin = await _begin(measured)
            is_whole = len(begin) <= PART_BYTES
            # Bytes that are there already must not be taken for these: only then the ETag comes last.
            is_known = is_whole and has_room
            await cache.describe(backend, target, keys, ttl, _etag(digest) if is_known else None)
            if is_whole:
                await backend.store(keys.result, begin, ttl)
            else:
                await cache.store(backend, keys.result, _joined(begin, measured), ttl)
        if not is_known:
            await cache.describe(backend, target, keys, ttl, _etag(digest))

    async def _settle(
        self, backend: ResultBackend, target: ProviderRef, request_hash: str, keys: CacheKeys
    ) -> None:
        await backend.release_inflight(keys.inflight)
        await backend.notify_key(keys.result)
        answered = partial(provider_requests.complete, target=target, request_hash=request_hash)
        await self._runtime.write_short(answered)

    async def _measured(
        self, chunks: AsyncIterator[bytes], note: Callable[[bytes], None]
    ) -> AsyncGenerator[bytes]:
        most, size = self._runtime.settings.max_result_bytes, 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                self._incoming += len(chunk)
                if size > most:
                    raise _too_large(most)
                if self._incoming > _UPLOADS * most:
                    raise _busy("Too many results are on their way in")
                note(chunk)
                yield chunk
        finally:
            self._incoming -= size


async def _begin(chunks: AsyncIterator[bytes]) -> bytes:
    """Take what fits into one part, and a little more if there is more."""
    begin = bytearray()
    async for chunk in chunks:
        begin += chunk
        if len(begin) > PART_BYTES:
            break
    return bytes(begin)


async def _joined(begin: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begin
    async for chunk in chunks:
        yield chunk


def _etag(digest: Any) -> str:
    text: str = digest.hexdigest()
    return text[:_ETAG_LENGTH]


def _busy(what: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"{what}; try again", headers={"Retry-After": "1"})


def _too_large(most: int) -> ContentTooLarge:
    return ContentTooLarge(f"A result may have {most} bytes (setting max_result_bytes)")
