"""Tokens of workers: what an operator may grant, and the limit of the tasks that they claim."""

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_transitions, sql_worker_tokens
from zndraw_joblib.server.queue.rules_tokens import ADMIN, OIDC_PREFIX, digest, new_token
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import Forbidden, InvalidRequest, TooManyRequests, Unauthorized
from zndraw_joblib.wire.scopes import Scope
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest, WorkerTokenResponse

# Of one issuer, that have not expired.
MAX_TOKENS = 1_000
# A worker needs no right to submit: its tasks submit others with their own tokens.
_SCOPES = [name for scope in (Scope.READ, Scope.WORK) for name in scope.names]
_RETRY_SECONDS = "60"


def new_name() -> str:
    """Return the name of a new token, which is the user that its workers belong to."""
    return f"jit-{secrets.token_hex(8)}"


def check(issuer: Identity, request: WorkerTokenRequest) -> None:
    """Raise the problem of a token with more rights than its issuer."""
    if not issuer.is_operator:
        raise rules_transitions.missing_scope(issuer, Scope.OPERATE)
    if INTERNAL in request.rooms:
        raise InvalidRequest(f"rooms: {INTERNAL} has no workers; its jobs run in the server's processes")
    for room_id in request.rooms:
        if not issuer.operates(room_id):
            raise rules_transitions.outside_rooms(issuer, room_id)
    for pattern in request.jobs:
        if issuer.jobs is not None and not _covers(issuer.jobs, pattern):
            raise Forbidden(
                f"Not authorized: jobs: {pattern!r} has jobs that the caller may not name. Name only jobs of "
                f"{', '.join(sorted(issuer.jobs)[:10])}, or use a token without `--jobs`"
            )


def _covers(own: Collection[str], pattern: str) -> bool:
    """Return whether each name that matches `pattern`, whose only wildcard is ``*``, surely matches `own`."""
    # Where the only wildcard of a pattern is ``*``, one that matches the text of another has all its names.
    return pattern in own or any(
        fnmatchcase(pattern, other) for other in own if not {"?", "["}.intersection(other)
    )


def common_jobs(first: Collection[str] | None, second: Collection[str] | None) -> frozenset[str] | None:
    """Return patterns of the jobs that both of these patterns have; None for all jobs.

    Of patterns that overlap, and neither of which has all jobs of the other, there is none.
    """
    if first is None or second is None:
        jobs = second if first is None else first
        return None if jobs is None else frozenset(jobs)
    both = {pattern for pattern in first if _covers(second, pattern)}
    return frozenset(both | {pattern for pattern in second if _covers(first, pattern)})


def _exceeds(issuer: Identity, rooms: Collection[str], jobs: Collection[str]) -> bool:
    """Return whether a token with these rooms and patterns of jobs has more rights than its issuer."""
    if not issuer.is_operator or not all(map(issuer.operates, rooms)):
        return True
    return issuer.jobs is not None and not all(_covers(issuer.jobs, pattern) for pattern in jobs)


async def limit_issued(tx: Transaction, issuer: Identity, expires_at: datetime | None) -> int:
    """Remove the tokens that a token has issued and may not issue now; return how many.

    The others expire at this time at the latest. The row of the issuer is locked.
    """
    issued = await sql_worker_tokens.issued_by(tx, issuer.id)
    names = [row.name for row in issued if _exceeds(issuer, from_json(row.rooms), from_json(row.jobs))]
    if names:
        await sql_worker_tokens.remove(tx, names)
    if issued and expires_at is not None:
        await sql_worker_tokens.limit_times(tx, issuer.id, expires_at)
    return len(names)


async def issue(
    tx: Transaction, issuer: Identity, name: str, request: WorkerTokenRequest
) -> WorkerTokenResponse:
    """Store a new token of workers, and return it with its text, of which only a hash is stored.

    It ends with the token of its issuer. Raises `Unauthorized` if that was revoked, and `TooManyRequests` if
    the issuer has as many as it may.
    """
    ends_at = await _end_of(tx, issuer)
    if await sql_worker_tokens.count(tx, issuer.id) >= MAX_TOKENS:
        raise TooManyRequests(
            f"This caller has issued {MAX_TOKENS} tokens of workers that have not expired, which is the "
            "limit; revoke some with 'zndraw-joblib token revoke', or let them expire sooner",
            headers={"Retry-After": _RETRY_SECONDS},
        )
    token, now = new_token(), await tx.now()
    expires_at = now + timedelta(seconds=request.expires_in_seconds)
    response = WorkerTokenResponse(
        name=name,
        token=token,
        jobs=sorted(set(request.jobs)),
        rooms=sorted(set(request.rooms)),
        max_tasks=request.max_tasks,
        expires_at=expires_at if ends_at is None else min(expires_at, ends_at),
        labels=request.labels or {},
    )
    row = {
        "name": name,
        "digest": digest(token),
        "created_at": now,
        "roles": to_json(_SCOPES).decode(),
        "rooms": to_json(response.rooms).decode(),
        "jobs": to_json(response.jobs).decode(),
        "expires_at": response.expires_at,
        "issued_by": issuer.id,
        "max_tasks": response.max_tasks,
        "labels": response.labels,
    }
    await sql_worker_tokens.add(tx, row)
    return response


async def _end_of(tx: Transaction, issuer: Identity) -> datetime | None:
    """Return when the token of an issuer expires, and lock it until the commit."""
    if issuer.id == ADMIN.id or issuer.id.startswith(OIDC_PREFIX):
        return None  # it is not stored
    row = await sql_worker_tokens.lock_issuer(tx, issuer.id)
    if row is not None and (row.expires_at is None or row.expires_at > await tx.now()):
        lists = [None if text is None else from_json(text) for text in (row.roles, row.rooms, row.jobs)]
        # Its rights were checked with what this process knows, which may be some seconds old.
        stored = Identity(issuer.id, row.is_superuser, *lists).limited()
        if stored._replace(token_created_at=row.created_at) == issuer:
            expires_at: datetime | None = row.expires_at
            return expires_at
    raise Unauthorized(
        f"The token {issuer.id!r} has expired, or was changed or revoked: it issues no more tokens",
        headers={"WWW-Authenticate": "Bearer"},
    )
