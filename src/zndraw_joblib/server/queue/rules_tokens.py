"""Tokens of users, and short-lived ones, signed with a key in the database, which no server stores."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.history import StreamToken
from zndraw_joblib.wire.problems import Unauthorized

_MAX_LENGTH = 4096
# The identity of the token that an operator sets.
ADMIN = Identity("admin", is_superuser=True)
# Names of users of an identity provider begin with it; `token create` refuses them.
OIDC_PREFIX = "oidc:"


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return f"zj_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the digest that is stored of a token. With 256 random bits, a plain hash keeps it secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class SignedFields(NamedTuple):
    """The fields of a token whose signature is right; `seconds` are left until it expires, or negative."""

    fields: list[Any]
    expires_at: datetime
    seconds: float


class Signer(NamedTuple):
    """Signs tokens of one kind. Its key is the runtime setting `key_name`, which the first token creates."""

    key_name: str
    prefix: str = ""

    async def issue(
        self, tx: Transaction, fields: Sequence[Any], expires_at: datetime, about: Sequence[Any] = ()
    ) -> str:
        """Return a token with these fields, which is valid only for what it is `about`."""
        key = await runtime_settings.get(tx, self.key_name)
        if key is None:
            await runtime_settings.add(tx, self.key_name, secrets.token_urlsafe(32))
            key = await runtime_settings.get(tx, self.key_name)
        body = to_json([*fields, expires_at.timestamp()])
        text = base64.urlsafe_b64encode(body).decode().rstrip("=")
        return f"{self.prefix}{text}.{_sign(str(key), text, about)}"

    async def verify(self, tx: Transaction, token: str, about: Sequence[Any] = ()) -> SignedFields | None:
        """Return the fields of a token, also if it has expired; None if the signature is wrong."""
        key, now = await runtime_settings.get(tx, self.key_name), await tx.now()
        text, _, signature = token.removeprefix(self.prefix).partition(".")
        if key is None or len(token) > _MAX_LENGTH:
            return None
        expected = _sign(key, text, about)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return None
        *fields, expires_at = from_json(base64.urlsafe_b64decode(text + "=="))
        return SignedFields(fields, datetime.fromtimestamp(expires_at, UTC), expires_at - now.timestamp())


def _sign(key: str, text: str, about: Sequence[Any]) -> str:
    signed = to_json([text, *about]) if about else text.encode("utf-8", "replace")
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


# Tokens that open one event stream for a few minutes, for clients that cannot send a header.

# Also a stream that was opened with a token ends then: the client requests a new token, and the host's guards
# decide again.
STREAM_TOKEN_TIME = timedelta(minutes=5)
_stream_signer = Signer("stream_token_key", "zs_")


class StreamTokenOwner(NamedTuple):
    """The caller of a token, the room that it may read, and for how many more `seconds`."""

    caller: Identity
    room_id: str
    seconds: float
    issued_at: datetime


async def issue_stream_token(tx: Transaction, stream: str, caller: Identity, room_id: str) -> StreamToken:
    """Return a token that lets its bearer read one stream as the caller, who may read its room."""
    expires_at = await tx.now() + STREAM_TOKEN_TIME
    token = await _stream_signer.issue(tx, [stream, room_id, caller.id, caller.is_superuser], expires_at)
    return StreamToken(token=token, expires_at=expires_at)


async def verify_stream_token(tx: Transaction, stream: str, token: str) -> StreamTokenOwner:
    """Return the owner of a token for a stream. Raises `Unauthorized`."""
    signed = await _stream_signer.verify(tx, token)
    if signed is not None and signed.seconds > 0:
        of_stream, room_id, caller_id, is_superuser = signed.fields
        if of_stream == stream:
            caller = Identity(caller_id, is_superuser)
            return StreamTokenOwner(caller, room_id, signed.seconds, signed.expires_at - STREAM_TOKEN_TIME)
    raise Unauthorized("The stream token is unknown, expired, or of another stream: request a new one")
