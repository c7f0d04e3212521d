"""Tokens that confirm an action on many tasks: signed, for one caller, action and filter, for ten minutes.

They are signed with a key in the database, so that every server accepts them and none stores them.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic_core import from_json, to_json

from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.contract.searches import BulkAction, TaskFilter
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.store import runtime_settings
from zndraw_joblib.server.store.database import Transaction

LIFETIME = timedelta(minutes=10)
_KEY = "bulk_token_key"


class Confirmed(NamedTuple):
    """The action that a token confirms; `newest` is the greatest `seq` of its tasks."""

    caller: Identity
    action: BulkAction
    wanted: TaskFilter
    newest: int


class Issued(NamedTuple):
    """A new token, and when it expires."""

    token: str
    expires_at: datetime


async def issue(tx: Transaction, confirmed: Confirmed, lifetime: timedelta = LIFETIME) -> Issued:
    """Return a token for an action that was previewed."""
    expires_at = datetime.fromtimestamp(int((await tx.now() + lifetime).timestamp()), UTC)
    key = await runtime_settings.get(tx, _KEY)
    if key is None:
        await runtime_settings.add(tx, _KEY, secrets.token_urlsafe(32))
        key = await runtime_settings.get(tx, _KEY)
    text = base64.urlsafe_b64encode(to_json([confirmed.newest, int(expires_at.timestamp())])).decode()
    return Issued(f"{text}.{_sign(str(key), text, confirmed)}", expires_at)


async def verify(
    tx: Transaction, token: str, caller: Identity, action: BulkAction, wanted: TaskFilter
) -> Confirmed:
    """Return what a token confirms. Raises `InvalidRequest` if it is for another caller, action or filter."""
    key, now = await runtime_settings.get(tx, _KEY), await tx.now()
    text, _, signature = token.partition(".")
    confirmed = Confirmed(caller, action, wanted, 0)
    expected = "" if key is None else _sign(key, text, confirmed)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) or not expected:
        raise _invalid("it is not the token of a preview of this action with this filter by this caller")
    newest, expires_at = from_json(base64.urlsafe_b64decode(text))
    if expires_at <= now.timestamp():
        raise _invalid("it has expired")
    return confirmed._replace(newest=newest)


def _sign(key: str, text: str, confirmed: Confirmed) -> str:
    caller, action, wanted, _ = confirmed
    # Lists in any order are the same filter.
    fields = {
        name: sorted(value) if isinstance(value, list) else value
        for name, value in wanted.model_dump(mode="json").items()
    }
    signed = to_json([text, caller.id, caller.is_superuser, action.value, fields])
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


def _invalid(reason: str) -> InvalidRequest:
    detail = f"body.token: {reason}; request a new preview, and confirm with its token"
    error = {"loc": ["body", "token"], "message": detail, "type": "invalid_token"}
    return InvalidRequest(detail, errors=[error])
