"""Tokens of tasks: signed with a key in the database, for one claim of one task, and stored nowhere.

A token has the task, the attempt and when it expires. It is valid while the task is held by this attempt, so
each use reads the row of the task. The token of an executor of an internal provider is about a request, and
valid while that is open.
"""

import binascii
import hmac
import secrets
import struct
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection
from uuid import UUID

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, TaskKey, UploadKey
from zndraw_joblib.server.queue import sql_task_tokens
from zndraw_joblib.wire.names import INTERNAL, RESERVED_IDS
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.wire.scopes import DEFAULT_SCOPES, Scope
from zndraw_joblib.wire.statuses import HELD

PREFIX = "jlt_"
# For how long a token is valid; heartbeats renew it.
TOKEN_SECONDS = 3600
_KEY_NAME = "task_token_key"
# A version, the task, the attempt, and when it expires, in seconds since 1970.
_BODY = struct.Struct(">B16sII")
# A version, the provider, the hash of the request, and when it expires.
_UPLOAD_BODY = struct.Struct(">B16s32sI")
_OF_TASK, _OF_UPLOAD = 1, 2
_SIGNATURE_BYTES = 32
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


async def read_key(tx: Transaction) -> str | None:
    """Return the key that all servers of this database share; None before the first token."""
    return await runtime_settings.get(tx, _KEY_NAME)


async def make_key(tx: Transaction) -> str:
    """Return the key; create it if there is none."""
    await runtime_settings.add(tx, _KEY_NAME, secrets.token_urlsafe(32))
    return str(await runtime_settings.get(tx, _KEY_NAME))


def sign(key: bytes, task_id: UUID, attempt: int, expires_at: int) -> str:
    """Return the token of a claim."""
    return _signed(key, _BODY.pack(_OF_TASK, task_id.bytes, attempt, expires_at))


def sign_upload(key: bytes, upload: UploadKey, expires_at: int) -> str:
    """Return the token of a request to an internal provider."""
    content = upload.provider_id.bytes, bytes.fromhex(upload.request_hash), expires_at
    return _signed(key, _UPLOAD_BODY.pack(_OF_UPLOAD, *content))


def _signed(key: bytes, body: bytes) -> str:
    text = urlsafe_b64encode(body + hmac.digest(key, body, "sha256")).decode()
    return PREFIX + text.rstrip("=")


def verify(key: bytes, token: str) -> TaskKey | UploadKey:
    """Return the claim or the request that a token is about. Raises `Unauthorized`."""
    text = token[len(PREFIX) :]
    try:
        content = b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        content = b""
    body, signature = content[:-_SIGNATURE_BYTES], content[-_SIGNATURE_BYTES:]
    if not body or not hmac.compare_digest(hmac.digest(key, body, "sha256"), signature):
        raise Unauthorized("The token of a task is not one of this server", headers=_CHALLENGE)
    if body[0] == _OF_UPLOAD:
        _, id_, request_hash, expires_at = _UPLOAD_BODY.unpack(body)
        about: TaskKey | UploadKey = UploadKey(UUID(bytes=id_), request_hash.hex())
    else:
        _, id_, attempt, expires_at = _BODY.unpack(body)
        about = TaskKey(UUID(bytes=id_), attempt)
    if expires_at <= time.time():
        raise Unauthorized(
            "The token of a task has expired. Heartbeats with `tokens` renew it; it is valid for "
            f"{TOKEN_SECONDS} s, or for `token_seconds` of its claim",
            headers=_CHALLENGE,
        )
    return about


async def identify(tx: Transaction, about: TaskKey | UploadKey) -> Identity:
    """Return the identity of the code that has a token. Raises `Unauthorized` once its work has ended."""
    if isinstance(about, UploadKey):
        return await _uploader(tx, about)
    return await _holder(tx, about)


async def _uploader(tx: Transaction, upload: UploadKey) -> Identity:
    """Return the owner of an internal provider, with the right to upload the result of one request."""
    owner_id = await sql_task_tokens.owner_of_request(tx, *upload)
    if owner_id is None:
        raise Unauthorized(
            "The token is of a request to an internal provider that is not open any more: it was answered, "
            "or nobody has answered it in time (provider_inflight_ttl_seconds)",
            headers=_CHALLENGE,
        )
    return Identity(
        owner_id, is_superuser=False, rooms=frozenset([INTERNAL]), scopes=Scope.WORK, upload=upload
    )


async def _holder(tx: Transaction, claim: TaskKey) -> Identity:
    """Return the identity of the code that runs a claim. Raises `Unauthorized` once the claim has ended.

    It is the user of the worker, or of an internal task the user who submitted it, with the rights of the
    task in its room.
    """
    task = await sql_task_tokens.get(tx, claim.id)
    if task is None or task.status not in HELD or task.attempt != claim.attempt:
        raise Unauthorized(
            f"The token is of attempt {claim.attempt} of task {claim.id}, which does not hold the task any "
            "more: it has ended, or was released or claimed again",
            headers=_CHALLENGE,
        )
    users = (task.worker_owner_id, task.created_by)
    user = next((user for user in users if user is not None and user not in RESERVED_IDS), f"task:{claim.id}")
    rooms = frozenset([task.room_id])
    return Identity(user, is_superuser=False, rooms=rooms, scopes=DEFAULT_SCOPES, task=claim)


async def unrelated(tx: Transaction, claim: TaskKey, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that are no task of the claim: itself, predecessors, and its children."""
    others = set(ids) - {claim.id}
    return others - await sql_task_tokens.related(tx, claim.id, others) if others else set()
