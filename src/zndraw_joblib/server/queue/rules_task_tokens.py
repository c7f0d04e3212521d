"""Tokens of tasks: signed with a key in the database, for one claim of one task, and stored nowhere.

A token has the task, the attempt and when it expires. It is valid while the task is held by this attempt, so
each use reads the row of the task. The token of an executor of an internal provider is about a request, and
valid while that is open.
"""

import binascii
import hmac
import secrets
import struct
import zlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db import runtime_settings
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, TaskKey, UploadKey
from zndraw_joblib.server.queue import rules_transitions, rules_worker_tokens, sql_task_tokens
from zndraw_joblib.server.queue.rules_tokens import ADMIN, OIDC_PREFIX
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
# With the third the patterns of jobs follow.
_OF_TASK, _OF_UPLOAD, _OF_TASK_AND_JOBS = 1, 2, 3
_SIGNATURE_BYTES = 32
# Of the patterns of jobs in a token, compressed: it is in the headers of requests.
_MAX_JOBS_BYTES = 3_000
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


async def read_key(tx: Transaction) -> str | None:
    """Return the key that all servers of this database share; None before the first token."""
    return await runtime_settings.get(tx, _KEY_NAME)


async def make_key(tx: Transaction) -> str:
    """Return the key; create it if there is none."""
    await runtime_settings.add(tx, _KEY_NAME, secrets.token_urlsafe(32))
    return str(await runtime_settings.get(tx, _KEY_NAME))


class Claim(NamedTuple):
    """The claim that a token is about, and the patterns of the jobs that its code may submit."""

    task: TaskKey
    jobs: frozenset[str] | None


def packed_jobs(jobs: Collection[str] | None) -> bytes:
    """Return the patterns of jobs of the owner of a worker, as tokens have them; nothing for all jobs.

    With too many patterns, tokens permit no job.
    """
    if jobs is None:
        return b""
    packed = zlib.compress(to_json(sorted(jobs)))
    return packed if len(packed) <= _MAX_JOBS_BYTES else zlib.compress(b"[]")


def sign(key: bytes, task_id: UUID, attempt: int, expires_at: int, jobs: bytes = b"") -> str:
    """Return the token of a claim; `jobs` are packed."""
    version = _OF_TASK_AND_JOBS if jobs else _OF_TASK
    return _signed(key, _BODY.pack(version, task_id.bytes, attempt, expires_at) + jobs)


def sign_upload(key: bytes, upload: UploadKey, expires_at: int) -> str:
    """Return the token of a request to an internal provider."""
    content = upload.provider_id.bytes, bytes.fromhex(upload.request_hash), expires_at
    return _signed(key, _UPLOAD_BODY.pack(_OF_UPLOAD, *content))


def _signed(key: bytes, body: bytes) -> str:
    text = urlsafe_b64encode(body + hmac.digest(key, body, "sha256")).decode()
    return PREFIX + text.rstrip("=")


def verify(key: bytes, token: str, now: float) -> Claim | UploadKey:
    """Return the claim or the request that a token is about, at the time `now`. Raises `Unauthorized`."""
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
        about: Claim | UploadKey = UploadKey(UUID(bytes=id_), request_hash.hex())
    else:
        _, id_, attempt, expires_at = _BODY.unpack_from(body)
        packed = body[_BODY.size :]
        about = Claim(
            TaskKey(UUID(bytes=id_), attempt),
            frozenset(from_json(zlib.decompress(packed))) if packed else None,
        )
    if expires_at <= now:
        raise Unauthorized(
            "The token of a task has expired. Heartbeats with `tokens` renew it; it is valid for "
            f"{TOKEN_SECONDS} s, or for `token_seconds` of its claim",
            headers=_CHALLENGE,
        )
    return about


async def identify(tx: Transaction, about: Claim | UploadKey, *, has_stored_users: bool = False) -> Identity:
    """Return the identity of the code that has a token. Raises `Unauthorized` once its work has ended.

    With `has_stored_users` it ends with the token of the worker, and has no more rights than that has now.
    """
    if isinstance(about, UploadKey):
        return await _uploader(tx, about)
    return await _holder(tx, about, has_stored_users=has_stored_users)


async def _uploader(tx: Transaction, upload: UploadKey) -> Identity:
    """Return the owner of an internal provider, with the right to upload the result of one request."""
    owner_id = await sql_task_tokens.owner_of_request(tx, *upload)
    if owner_id is None:
        raise Unauthorized(
            "The token is of a request to an internal provider that is no longer open: it was answered, "
            "or not answered in time (provider_inflight_ttl_seconds)",
            headers=_CHALLENGE,
        )
    return Identity(
        owner_id, is_superuser=False, rooms=frozenset([INTERNAL]), scopes=Scope.WORK, upload=upload
    )


async def _holder(tx: Transaction, about: Claim, *, has_stored_users: bool) -> Identity:
    """Return the identity of the code that runs a claim. Raises `Unauthorized` once the claim has ended.

    It is the user of the worker, or of an internal task the user who submitted it, with the rights of the
    task in its room.
    """
    claim = about.task
    task = await sql_task_tokens.get(tx, claim.id)
    if task is None or task.status not in HELD or task.attempt != claim.attempt:
        raise rules_transitions.claim_ended(claim)
    users = (task.worker_owner_id, task.created_by)
    user = next((user for user in users if user is not None and user not in RESERVED_IDS), f"task:{claim.id}")
    owner = task.identity(user)
    if user == f"task:{claim.id}":
        jobs = about.jobs
    elif has_stored_users and user != ADMIN.id and not user.startswith(OIDC_PREFIX):
        if task.expires_at is not None and task.expires_at <= await tx.now():
            owner = None
        jobs = _jobs_of_stored(task, user, owner, about)
    elif user == task.worker_owner_id:
        jobs = about.jobs
    else:
        jobs = None if owner is None or owner.jobs is None else frozenset(owner.jobs)
    rooms = frozenset([task.room_id])
    return Identity(user, is_superuser=False, rooms=rooms, jobs=jobs, scopes=DEFAULT_SCOPES, task=claim)


def _jobs_of_stored(
    task: sql_task_tokens.HeldTask, user: str, owner: Identity | None, about: Claim
) -> frozenset[str] | None:
    """Return the patterns of the jobs that the code of a claim may submit; `owner` has the stored token.

    Raises `Unauthorized` once the owner of the worker may not serve the job. The claim of an internal task
    is not one of its submitter, so it goes on, and without the submitter's token it submits no job.
    """
    if user != task.worker_owner_id:
        jobs = frozenset[str]() if owner is None else owner.jobs
        return None if jobs is None else frozenset(jobs)
    if owner is None or not owner.may(Scope.WORK) or not owner.serves(task.job_room):
        raise Unauthorized(
            f"The token of task {about.task.id} ended with the token {user!r} of its worker, which has "
            f"expired, was revoked, or may no longer serve jobs of {task.job_room}",
            headers=_CHALLENGE,
        )
    return rules_worker_tokens.common_jobs(about.jobs, owner.jobs)


async def unrelated(tx: Transaction, claim: TaskKey, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that the token of a claim does not reach.

    It reaches its task, the predecessors and children of this, and the groups that this has made.
    """
    others = set(ids) - {claim.id}
    return others - await sql_task_tokens.related(tx, claim.id, others) if others else set()


async def not_below(tx: Transaction, claim: TaskKey, ids: Collection[UUID]) -> set[UUID]:
    """Return those of these ids that are of no task below that of a claim."""
    return set(ids) - await sql_task_tokens.below(tx, claim.id, ids)
