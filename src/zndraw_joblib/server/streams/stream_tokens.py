"""Tokens that open one event stream for a few minutes, for clients that cannot send a header."""

from datetime import datetime, timedelta
from typing import NamedTuple

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue.rules_tokens import Signer
from zndraw_joblib.wire.history import StreamToken
from zndraw_joblib.wire.problems import Unauthorized

# Also a stream that was opened with a token ends then: the client requests a new token, and the host's guards
# decide again.
LIFETIME = timedelta(minutes=5)
_signer = Signer("stream_token_key", "zs_")


class TokenOwner(NamedTuple):
    """The caller for whom a token was made, and for how many seconds more it may read a stream of a room."""

    caller: Identity
    room_id: str
    seconds: float
    issued_at: datetime


async def issue(tx: Transaction, stream: str, caller: Identity, room_id: str) -> StreamToken:
    """Return a token that lets its bearer read one stream as the caller, who may read its room."""
    expires_at = await tx.now() + LIFETIME
    token = await _signer.issue(tx, [stream, room_id, caller.id, caller.is_superuser], expires_at)
    return StreamToken(token=token, expires_at=expires_at)


async def verify(tx: Transaction, stream: str, token: str) -> TokenOwner:
    """Return the owner of a token for a stream. Raises `Unauthorized`."""
    signed = await _signer.verify(tx, token)
    if signed is not None and signed.seconds > 0:
        of_stream, room_id, caller_id, is_superuser = signed.fields
        if of_stream == stream:
            caller = Identity(caller_id, is_superuser)
            return TokenOwner(caller, room_id, signed.seconds, signed.expires_at - LIFETIME)
    raise Unauthorized("The stream token is unknown, expired, or of another stream: request a new one")
