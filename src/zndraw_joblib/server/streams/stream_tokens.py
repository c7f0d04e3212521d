"""Tokens that open one event stream for a few minutes, for clients that cannot send a header.

A token is signed with a key in the database, so that every server accepts it and none stores it.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.history import StreamToken
from zndraw_joblib.wire.problems import Unauthorized

# Also a stream that was opened with a token ends then: the client requests a new token, and the host's guards
# decide again.
LIFETIME = timedelta(minutes=5)
_KEY = "stream_token_key"
_PREFIX = "zs_"
_MAX_LENGTH = 4096


class TokenOwner(NamedTuple):
    """The caller for whom a token was made, and for how many seconds more it may read a stream of a room."""

    caller: Identity
    room_id: str
    seconds: float
    issued_at: datetime


async def issue(tx: Transaction, stream: str, caller: Identity, room_id: str) -> StreamToken:
    """Return a token that lets its bearer read one stream as the caller, who may read its room."""
    expires_at = await tx.now() + LIFETIME
    key = await runtime_settings.get(tx, _KEY)
    if key is None:
        await runtime_settings.add(tx, _KEY, secrets.token_urlsafe(32))
        key = await runtime_settings.get(tx, _KEY)
    body = to_json([stream, room_id, caller.id, caller.is_superuser, expires_at.timestamp()])
    text = base64.urlsafe_b64encode(body).decode().rstrip("=")
    return StreamToken(token=f"{_PREFIX}{text}.{_sign(str(key), text)}", expires_at=expires_at)


async def verify(tx: Transaction, stream: str, token: str) -> TokenOwner:
    """Return the owner of a token for a stream. Raises `Unauthorized`."""
    key, now = await runtime_settings.get(tx, _KEY), await tx.now()
    owner = _owner(str(key), stream, token, now) if key is not None and len(token) <= _MAX_LENGTH else None
    if owner is None:
        raise Unauthorized("The stream token is unknown, expired, or of another stream: request a new one")
    return owner


def _owner(key: str, stream: str, token: str, now: datetime) -> TokenOwner | None:
    text, _, signature = token.removeprefix(_PREFIX).partition(".")
    if not hmac.compare_digest(_sign(key, text).encode(), signature.encode("utf-8", "replace")):
        return None
    of_stream, room_id, caller_id, is_superuser, expires_at = from_json(base64.urlsafe_b64decode(text + "=="))
    left = expires_at - now.timestamp()
    if of_stream != stream or left <= 0:
        return None
    issued_at = datetime.fromtimestamp(expires_at, UTC) - LIFETIME
    return TokenOwner(Identity(caller_id, is_superuser), room_id, left, issued_at)


def _sign(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
