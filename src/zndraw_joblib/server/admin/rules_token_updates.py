"""Changes of a token's rights, and what they mean for the tokens that it has issued."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.admin.sql_operators import TokenRecord, TokenRights
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_worker_tokens
from zndraw_joblib.wire.scopes import AccessRole


class TokenChanges(NamedTuple):
    """The new rights of a token: None for what stays, empty for all rooms or jobs.

    `expires_at` is in a list, which is empty if the token is to have no end.
    """

    roles: Sequence[str] | None = None
    rooms: Sequence[str] | None = None
    jobs: Sequence[str] | None = None
    expires_at: Sequence[datetime] | None = None


class TokenUpdate(NamedTuple):
    """The issuer of a token, which alone decides about its rights, or how many tokens of workers ended."""

    issued_by: str | None
    ended: int = 0


async def update(tx: Transaction, name: str, changes: TokenChanges) -> TokenUpdate | None:
    """Change the rights of a token, but not of one that another has issued; None if there is no token.

    Tokens that it has issued end if it may no longer issue them, and not later than it does.
    """
    row = await sql_operators.lock_token(tx, name)
    if row is None or row.issued_by is not None:
        return row and TokenUpdate(row.issued_by)
    rights = _changed(row, changes)
    identity = Identity(name, False, *rights[:3]).limited()
    await sql_operators.set_rights(tx, name, is_superuser=identity.is_superuser, rights=rights)
    return TokenUpdate(None, await rules_worker_tokens.limit_issued(tx, identity, rights.expires_at))


def _changed(row: TokenRecord, changes: TokenChanges) -> TokenRights:
    old = row.identity
    # A superuser of an earlier release has no role.
    roles = old.roles or ([AccessRole.ADMIN.value] if row.is_superuser else None)
    new = (
        changes.roles or roles,
        old.rooms if changes.rooms is None else changes.rooms or None,
        old.jobs if changes.jobs is None else changes.jobs or None,
    )
    expires_at = row.expires_at if changes.expires_at is None else next(iter(changes.expires_at), None)
    roles, rooms, jobs = [None if values is None else sorted(values) for values in new]
    return TokenRights(roles, rooms, jobs, expires_at)
