"""Read the header `Idempotency-Key` of a request."""

import hashlib
from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header, Request

from zndraw_joblib.contract.idempotency import IDEMPOTENCY_KEY, MAX_KEY_LENGTH, parse_key
from zndraw_joblib.contract.problems import InvalidIdempotencyKey
from zndraw_joblib.server.http.callers import CALLER
from zndraw_joblib.server.http.headers import header_values
from zndraw_joblib.server.http.parameters import Omissible
from zndraw_joblib.server.http.request_body import BODY
from zndraw_joblib.server.http.routing import RESOLVED_LAST, RESOLVERS
from zndraw_joblib.server.http.state import queue_state
from zndraw_joblib.server.ports import RequestKey

_HEADER = IDEMPOTENCY_KEY.lower().encode()


async def _idempotency_key(
    idempotency_key: Annotated[
        Omissible[str],
        Header(
            alias=IDEMPOTENCY_KEY,
            description=f"A string or token of 1 to {MAX_KEY_LENGTH} characters. The server applies "
            "requests of one caller with the same key once; a repeat gets the first response.",
        ),
    ] = None,
) -> None:
    """Declare the header for the OpenAPI document; `RESOLVERS` has the function that reads it."""


def _request_key(request: Request) -> RequestKey | None:
    given = header_values(request, _HEADER)
    if not given:
        return None
    if len(given) > 1:
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: the request has it {len(given)} times; send it once"
        )
    key, scope = parse_key(given[0]), request.scope
    target = f"{request.method} {scope['path']}?".encode() + scope["query_string"] + b"\n"
    hours = queue_state(request).runtime.settings.idempotency_key_hours
    return RequestKey(
        # The line break separates the caller from the key, which has none.
        _digest(f"{scope[CALLER].id}\n{key}".encode("utf-8", "surrogatepass")),
        _digest(target + scope.get(BODY, b"")),
        timedelta(hours=hours),
    )


def _digest(content: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(content).digest()[:16])


def item_key(key: RequestKey | None, index: int) -> RequestKey | None:
    """Return the key of an item of a request for many."""
    return key and key._replace(id=_digest(b"%b %d" % (key.id.bytes, index)))


def claim_id_of(claim_id: UUID | None, key: RequestKey | None) -> UUID | None:
    """Return the `claim_id` of a claim: the given one, or one made from the key."""
    return key.id if claim_id is None and key is not None else claim_id


RESOLVERS[_idempotency_key] = _request_key
RESOLVED_LAST.add(_request_key)
Key = Annotated[RequestKey | None, Depends(_idempotency_key)]
