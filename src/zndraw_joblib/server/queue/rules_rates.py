"""The rate of each user's submits: a token bucket in the database, which all servers share."""

from datetime import timedelta
from math import ceil

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import sql_rates
from zndraw_joblib.wire.problems import TooManyRequests

_NAME = "submits"


async def take(tx: Transaction, user_id: str, count: int, limit: int, window: timedelta) -> dict[str, str]:
    """Take the tokens of `count` tasks from the bucket of a user. Return the headers of the response.

    The bucket has up to `limit` tokens, and gains them evenly in `window`. A batch of more than `limit` tasks
    needs a full bucket, and owes the rest. Raises `TooManyRequests`, after which nothing was taken.
    """
    await tx.commit_lazily()
    token = window / limit
    needed = min(count * token, window)
    is_taken, until_full = await sql_rates.take(tx, user_id, count * token, needed, window)
    headers = {
        "RateLimit-Policy": f'"{_NAME}";q={limit};w={ceil(window.total_seconds())}',
        "RateLimit": f'"{_NAME}";r={max(0, int((window - until_full) / token))};'
        f"t={ceil(until_full.total_seconds())}",
    }
    if is_taken:
        return headers
    wait = ceil((until_full + needed - window).total_seconds())
    raise TooManyRequests(
        f"This caller has submitted as many tasks as it may: max_submits_per_user is {limit} in "
        f"{window.total_seconds():g} s (submit_window_seconds), shared by all servers; retry in {wait} s",
        headers={**headers, "Retry-After": str(max(1, wait))},
    )
