"""Tokens of tasks: signed with a key in the database, for one claim of one task, and stored nowhere.

A token has the task, the attempt and when it expires. It is valid while the task is held by this attempt, so
each use reads the row of the task.
"""

import binascii
import hmac
import secrets
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from uuid import UUID

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, TaskKey
from zndraw_joblib.server.queue import sql_task_tokens
from zndraw_joblib.wire.names import RESERVED_IDS
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.wire.scopes import DEFAULT_SCOPES
from zndraw_joblib.wire.statuses import HELD

PREFIX = "jlt_"
# For how long a token is valid; heartbeats renew it.
TOKEN_SECONDS = 3600
_KEY_NAME = "task_token_key"
# A version, the task, the attempt, and when it expires, in seconds since 1970.
_BODY = struct.Struct(">B16sII")
_VERSION, _SIGNATURE_BYTES = 1, 32
_LENGTH = len(PREFIX) + (_BODY.size + _SIGNATURE_BYTES) * 4 // 3
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
    body = _BODY.pack(_VERSION, task_id.bytes, attempt, expires_at)
    return PREFIX + urlsafe_b64encode(body + hmac.digest(key, body, "sha256")).decode()


def verify(key: bytes, token: str) -> TaskKey:
    """Return the claim that a token is about. Raises `Unauthorized`."""
    try:
        content = urlsafe_b64decode(token[len(PREFIX) :].encode("ascii")) if len(token) == _LENGTH else b""
    except (ValueError, binascii.Error):
        content = b""
    body, signature = content[: _BODY.size], content[_BODY.size :]
    if len(body) < _BODY.size or not hmac.compare_digest(hmac.digest(key, body, "sha256"), signature):
        raise Unauthorized("The token of a task is not one of this server", headers=_CHALLENGE)
    version, task_id, attempt, expires_at = _BODY.unpack(body)
    if version != _VERSION or expires_at <= time.time():
        raise Unauthorized(
            f"The token of a task has expired. Heartbeats with `tokens` renew it; it is valid for "
            f"{TOKEN_SECONDS} s, or for `token_seconds` of its claim",
            headers=_CHALLENGE,
        )
    return TaskKey(UUID(bytes=task_id), attempt)


async def holder(tx: Transaction, claim: TaskKey) -> Identity:
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
