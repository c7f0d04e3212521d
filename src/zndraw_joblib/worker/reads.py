"""How a worker answers reads: it claims them, reads in threads of its own, and sends what came of it."""

import json
import logging
import threading
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.contract.problems import ProviderNotFound
from zndraw_joblib.contract.providers import (
    REQUEST_HASH,
    RESULT_ERROR,
    RESULT_OK,
    RESULT_STATUS,
    WORKER_ID,
    ClaimedProviderRequest,
    ProviderError,
)
from zndraw_joblib.worker.answers import Answer, BrokenOff
from zndraw_joblib.worker.offers import Offer
from zndraw_joblib.worker.polls import Pace, Polls
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.retry import describe, passing, persist, status_of
from zndraw_joblib.worker.roster import Roster
from zndraw_joblib.worker.tasks import error_text
from zndraw_joblib.worker.wishes import faults_of

log = logging.getLogger(__name__)

# No reader waits for longer.
PATIENCE_SECONDS = 30.0
_MAX_KIND = 200
_GONE = frozenset({404, 409})
# Readers know already: of an answer that is too large the server tells them itself.
_TOLD = _GONE | {413}


class ClaimedRead(NamedTuple):
    """A read, and the worker that shall answer it."""

    read: ClaimedProviderRequest
    worker_id: UUID

    def headers(self, status: str, content_type: str) -> dict[str, str]:
        """Return what an answer says besides its bytes."""
        return {
            REQUEST_HASH: self.read.request_id,
            WORKER_ID: str(self.worker_id),
            RESULT_STATUS: status,
            "Content-Type": content_type,
        }


class ProviderRequests(Polls[ClaimedRead]):
    """Claims reads and answers each, be it by an error. An answer is sent for 30 seconds, or until `over`."""

    def __init__(
        self, remote: Remote, roster: Roster, wake: threading.Event, over: threading.Event, pace: Pace
    ) -> None:
        super().__init__(roster, wake)
        self._remote = remote
        self._over = over
        self._pace = pace

    def run(self) -> None:
        """Answer reads until the worker stops; nothing that goes wrong ends it."""
        self.keep(self.serve_once, "Claiming reads")

    def serve_once(self) -> bool:
        """Wait a bounded time for a read and answer it; tell whether there was one."""
        claimed = self._next(self._pace)
        if claimed is None:
            return False
        try:
            self._see_through(claimed)
        finally:
            self._hold(-1)
        return True

    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID) -> tuple[ClaimedRead | None, int]:
        answer, applied = self._remote.claim_read(worker_id, wait, claim_id)
        return (ClaimedRead(answer.request, worker_id) if answer.request else None), applied

    def _see_through(self, claimed: ClaimedRead) -> None:
        try:
            failure = self._answered(claimed)
            if failure is not None:
                give = partial(self._remote.answer, claimed.read.provider_id, failure)
                self._persist(claimed, lambda: give(claimed.headers(RESULT_ERROR, "application/json")))
        except Exception as error:
            level = logging.INFO if status_of(error) in _GONE else logging.WARNING
            log.log(level, "The answer to %s was not taken: %s", _named(claimed), describe(error))

    def _answered(self, claimed: ClaimedRead) -> ProviderError | None:
        """Read, and send the bytes; return what went wrong instead, or raise what nobody can be told."""
        name = claimed.read.provider_name
        offer = self._roster.offer_of(name)
        if offer is None:
            log.error("%s cannot be answered: the provider is unknown here", _named(claimed))
            return _failure(ProviderNotFound(f"The worker does not know the provider {name!r}"))
        try:
            wanted = offer.cls.model_validate(json.loads(claimed.read.params))
        except ValueError as error:
            return _failure(error, is_invalid=True)
        except Exception as error:
            return self._raised(claimed, error)
        try:
            self._send(claimed, offer, wanted)
        except BrokenOff as error:
            return self._raised(claimed, error.fault)
        except Exception as error:
            if passing(error) or status_of(error) in _TOLD:
                raise
            log.warning("The server refused the answer to %s: %s", _named(claimed), describe(error))
            return _failure(error)
        return None

    def _send(self, claimed: ClaimedRead, offer: Offer, wanted: Any) -> None:
        """Send what is read. Bytes are kept for another try; a stream is there once, and is read again."""
        headers = claimed.headers(RESULT_OK, offer.content_type)
        kept: list[Answer] = []

        def send() -> None:
            answer = kept.pop() if kept else Answer(lambda: wanted.read(offer.handler), offer.content_type)
            size = {} if answer.length is None else {"Content-Length": str(answer.length)}
            if size:
                kept.append(answer)
            try:
                self._remote.answer(claimed.read.provider_id, answer, {**headers, **size})
            finally:
                answer.close()

        self._persist(claimed, send)

    def _persist(self, claimed: ClaimedRead, send: Any) -> None:
        what = f"The answer to {_named(claimed)}"
        persist(send, what, patience=PATIENCE_SECONDS, over=self._over)

    @staticmethod
    def _raised(claimed: ClaimedRead, error: BaseException) -> ProviderError:
        if isinstance(error, OSError):
            # What a reader asks for may not be there; that is no fault of the provider's code.
            log.warning("%s: %s", _named(claimed), describe(error))
        else:
            log.error("%s raised", _named(claimed), exc_info=error)
        return _failure(error)


def _named(claimed: ClaimedRead) -> str:
    return f"Read {claimed.read.request_id[:12]} of {claimed.read.provider_name}"


def _failure(error: BaseException, *, is_invalid: bool = False) -> ProviderError:
    text = faults_of(error) if isinstance(error, ValidationError) else str(error)
    kind = type(error).__name__[:_MAX_KIND]
    return ProviderError(error=kind, detail=error_text(text), is_invalid=is_invalid)
