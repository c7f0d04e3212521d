"""Serve provider requests: claim them, call the providers, and upload the results."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.client.retry import describe, is_transient, retry, status_of
from zndraw_joblib.jobs.failures import describe_errors, encode, error_text, text_of
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.wire.problems import ProviderNotFound
from zndraw_joblib.wire.providers import (
    REQUEST_HASH,
    RESULT_ERROR,
    RESULT_OK,
    RESULT_STATUS,
    WORKER_ID,
    ClaimedProviderRequest,
    ProviderError,
)
from zndraw_joblib.worker.registrations import ProviderRegistration, Registrations
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.task_poller import Pace, Poller

log = logging.getLogger(__name__)

# No client waits longer for a result.
RETRY_SECONDS = 30.0
_MAX_ERROR_NAME = 200
_PIECE_BYTES = 256 * 1024
_GONE = frozenset({404, 409})
# The server itself reports a result that is too large to the client that waits for it.
_FINAL = _GONE | {413}


class Claimed(NamedTuple):
    """A provider request, and the worker that claimed it."""

    request: ClaimedProviderRequest
    worker_id: UUID

    def headers(self, status: str, content_type: str) -> dict[str, str]:
        """Return the headers of an upload."""
        return {
            REQUEST_HASH: self.request.request_id,
            WORKER_ID: str(self.worker_id),
            RESULT_STATUS: status,
            "Content-Type": content_type,
        }

    def __str__(self) -> str:
        return f"Request {self.request.request_id[:12]} of provider {self.request.provider_name}"


class ProviderPoller(Poller[Claimed]):
    """Claims provider requests and uploads a result or an error for each.

    An upload is repeated for 30 seconds, unless `stop` is set.
    """

    def __init__(
        self,
        rest: RestApi,
        registrations: Registrations,
        wake: threading.Event,
        stop: threading.Event,
        pace: Pace,
    ) -> None:
        super().__init__(registrations, wake)
        self._rest = rest
        self._stop = stop
        self._pace = pace

    def run(self) -> None:
        """Serve provider requests until the worker stops, whatever fails."""
        self.repeat(self.serve_once, "Claiming provider requests")

    def serve_once(self) -> bool:
        """Wait for a provider request for a limited time and serve it; return whether there was one."""
        claimed = self._next(self._pace)
        if claimed is None:
            return False
        try:
            self._serve(claimed)
        finally:
            self._hold(-1)
        return True

    def _claim(
        self, worker_id: UUID, wait: int, claim_id: UUID, limit: int | None
    ) -> tuple[list[Claimed], int]:
        response, applied = self._rest.claim_provider_request(worker_id, wait, claim_id)
        return ([Claimed(response.request, worker_id)] if response.request else []), applied

    def _serve(self, claimed: Claimed) -> None:
        try:
            failure = self._read_and_upload(claimed)
            if failure is not None:
                headers = claimed.headers(RESULT_ERROR, "application/json")
                upload = partial(self._rest.upload_result, claimed.request.provider_id, failure, headers)
                self._retry(claimed, upload)
        except Exception as error:
            level = logging.INFO if status_of(error) in _GONE else logging.WARNING
            log.log(level, "%s: the server did not take the result: %s", claimed, describe(error))

    def _read_and_upload(self, claimed: Claimed) -> ProviderError | None:
        """Call the provider and upload its result; return the error to upload instead, if there is one."""
        name = claimed.request.provider_name
        provider = self._registrations.provider_of(name)
        if provider is None:
            log.error("%s: this worker does not know the provider", claimed)
            return _failure(ProviderNotFound(f"The worker does not know the provider {name!r}"))
        try:
            instance = provider.cls.model_validate(json.loads(claimed.request.params))
        except ValueError as error:
            return _failure(error, is_invalid=True)
        # BaseException: sys.exit() in a validator ends its request, not the worker.
        except BaseException as error:
            return self._log_failure(claimed, error)
        try:
            self._upload(claimed, provider, instance)
        except ProviderRaised as error:
            return self._log_failure(claimed, error.error)
        except Exception as error:
            if is_transient(error) or status_of(error) in _FINAL:
                raise
            log.warning("%s: the server refused the result: %s", claimed, describe(error))
            return _failure(error)
        return None

    def _upload(self, claimed: Claimed, provider: ProviderRegistration, instance: Any) -> None:
        """Upload the result. Bytes are kept for a retry; for a stream the provider is called again."""
        headers = claimed.headers(RESULT_OK, provider.content_type)
        streams: list[ResultStream] = []

        def upload() -> None:
            stream = (
                streams.pop()
                if streams
                else ResultStream(lambda: instance.read(provider.handler), provider.content_type)
            )
            size = {} if stream.length is None else {"Content-Length": str(stream.length)}
            if size:
                streams.append(stream)
            try:
                self._rest.upload_result(claimed.request.provider_id, stream, {**headers, **size})
            finally:
                self._close(claimed, stream)

        self._retry(claimed, upload)

    def _retry(self, claimed: Claimed, upload: Callable[[], None]) -> None:
        retry(upload, f"{claimed}: uploading", seconds=RETRY_SECONDS, stop=self._stop)

    @staticmethod
    def _close(claimed: Claimed, stream: "ResultStream") -> None:
        try:
            stream.close()
        except BaseException as error:
            log.warning("%s: closing the result: %s", claimed, describe(error))

    @staticmethod
    def _log_failure(claimed: Claimed, error: BaseException) -> ProviderError:
        if isinstance(error, OSError):
            # A client may ask for a file that does not exist: the provider's code is not at fault.
            log.warning("%s: %s", claimed, describe(error))
        else:
            log.error("%s raised", claimed, exc_info=error)
        return _failure(error)


def _failure(error: BaseException, *, is_invalid: bool = False) -> ProviderError:
    text = describe_errors(error) if isinstance(error, ValidationError) else text_of(error)
    name = type(error).__name__[:_MAX_ERROR_NAME]
    return ProviderError(error=name, detail=error_text(text), is_invalid=is_invalid)


class ProviderRaised(Exception):
    """The provider itself raised `error`, perhaps after the first pieces."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error  # httpx drops the cause of an exception that it passes on


class ResultStream:
    """The bytes of a result, in pieces. If `length` is None they can be read once.

    The provider returns bytes; or an iterator of bytes, or a file, which are read in pieces; for ``text/…``
    a text instead of bytes; and for JSON any JSON value. Raises `ProviderRaised` if making the first piece
    fails.
    """

    def __init__(self, read: Callable[[], Any], content_type: str) -> None:
        pid = os.getpid()
        try:
            self._value = read()
            whole = _whole(self._value, content_type)
            self.length = None if whole is None else len(whole)
            self._whole = whole
            self._stream = _pieces(self._value, content_type) if whole is None else iter(())
            self._first = next(self._stream, b"")
            exit_if_forked(pid)
        # Not Exception: sys.exit() in a provider ends its request, not the worker.
        except BaseException as error:
            exit_if_forked(pid, error)
            raise ProviderRaised(error) from error

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""
        if self._whole is not None:
            for start in range(0, len(self._whole), _PIECE_BYTES):
                yield bytes(self._whole[start : start + _PIECE_BYTES])
            return
        piece: bytes | None = self._first
        while piece is not None:
            yield piece
            try:
                piece = next(self._stream, None)
            except BaseException as error:
                raise ProviderRaised(error) from error

    def close(self) -> None:
        """Close a stream."""
        if self.length is None and callable(close := getattr(self._value, "close", None)):
            close()


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _whole(value: Any, content_type: str) -> memoryview | None:
    """Return the bytes of a complete value, None for a stream. Raises TypeError, ValueError."""
    if isinstance(value, bytes | bytearray | memoryview):
        return _flat(value, content_type)
    if callable(getattr(value, "read", None)) or isinstance(value, Iterator):
        return None
    media_type = _media_type(content_type)
    if media_type == "application/json" or media_type.endswith("+json"):
        return memoryview(encode(to_jsonable_python(value)))
    return _flat(value, content_type)


def _pieces(stream: Any, content_type: str) -> Iterator[bytes]:
    is_file = callable(getattr(stream, "read", None))
    for piece in iter(partial(stream.read, _PIECE_BYTES), None) if is_file else stream:
        if data := bytes(_flat(piece, content_type)):
            yield data
        elif is_file:
            return


def _flat(value: Any, content_type: str) -> memoryview:
    if isinstance(value, str) and _media_type(content_type).startswith("text/"):
        return memoryview(value.encode())
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"The provider returned {type(value).__name__}; for {content_type} it must return bytes"
        ) from None
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())
