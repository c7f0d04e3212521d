"""The rate of each user's submits: a token bucket in the database, which all servers share."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import RequestKey
from zndraw_joblib.server.queue import sql_idempotency, sql_rates
from zndraw_joblib.wire.problems import TooManyRequests

_NAME = "submits"


@dataclass(slots=True)
class Tokens:
    """The number of tokens that a request took, headers of its response, and how many tasks were accepted."""

    count: int
    headers: dict[str, str]
    accepted: int


async def take(
    tx: Transaction,
    user_id: str,
    keys: Sequence[RequestKey | None],
    count: int,
    limit: int,
    window: timedelta,
) -> Tokens | TooManyRequests:
    """Take the tokens of `count` tasks from the bucket of a user.

    The bucket has up to `limit` tokens, and gains them evenly in `window`. A batch of more than `limit` tasks
    needs a full bucket, and owes the rest. `keys` are those of its tasks, or that of all together: what was
    submitted under one before is only repeated, and needs no token. If nothing was taken, it returns
    `TooManyRequests` and does not raise it, so that the transaction records that a clock went back.
    """
    await tx.commit_lazily()
    if used := [key for key in keys if key is not None]:
        since = await tx.now() - used[0].keep
        stored = await sql_idempotency.stored(tx, [key.id for key in used], since)
        count = count * (len(keys) - len(stored)) // len(keys)
    token = window / limit
    needed = min(count * token, window)
    is_taken, until_full = await sql_rates.take(tx, user_id, count * token, needed, window)
    headers = {
        "RateLimit-Policy": f'"{_NAME}";q={limit};w={ceil(window.total_seconds())}',
        "RateLimit": f'"{_NAME}";r={max(0, int((window - until_full) / token))};'
        f"t={ceil(until_full.total_seconds())}",
    }
    if is_taken or not count:
        return Tokens(count, headers, count)
    wait = ceil((until_full + needed - window).total_seconds())
    return TooManyRequests(
        f"This caller has submitted as many tasks as it may: max_submits_per_user is {limit} in "
        f"{window.total_seconds():g} s (submit_window_seconds), shared by all servers; retry in {wait} s",
        headers={**headers, "Retry-After": str(max(1, wait))},
    )


async def give_back(tx: Transaction, user_id: str, count: int, limit: int, window: timedelta) -> None:
    """Return the tokens of `count` tasks, which were refused, to the bucket of a user."""
    await tx.commit_lazily()
    await sql_rates.give_back(tx, user_id, count * (window / limit))
