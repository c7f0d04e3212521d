"""A server on which nothing is configured yet gets a superuser's token."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.exc import IntegrityError

from zndraw_joblib.cli import credentials
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.server.http.tokens import digest, new_token
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.database import Database, Transaction

NAME = "first-start"


class Keys(NamedTuple):
    """How this machine may use the server.

    `made` is the token of a first start, `kept_in` the file that has a superuser's token for this URL;
    `trouble` says why the token could not be kept.
    """

    made: str | None = None
    kept_in: Path | None = None
    trouble: str | None = None


async def prepare(database: Database, url: str) -> Keys:
    """Bring up the schema. Make and keep a token if there is none; else find one that was kept."""
    await schema.prepare(database)
    token = new_token()
    try:
        is_first, _ = await database.write(_claim, token=token)
    except IntegrityError:
        # Another replica has its first start at the same time.
        is_first = False
    if is_first:
        return _keep(url, token)._replace(made=token)
    try:
        kept = credentials.kept()
    except Refusal as refusal:
        return Keys(trouble=str(refusal))
    known = await database.read(_first_known, candidates=[kept.get(url, ""), *kept.values()])
    if known is None:
        return Keys()
    return Keys(kept_in=credentials.path()) if kept.get(url) == known else _keep(url, known)


async def _claim(tx: Transaction, token: str) -> bool:
    """Add the token if it is the first; tell whether it is."""
    if await tokens.count(tx):
        return False
    return await tokens.add(tx, NAME, digest(token), is_superuser=True)


async def _first_known(tx: Transaction, candidates: Iterable[str]) -> str | None:
    """Return the first of these tokens that is a superuser's here."""
    for token in candidates:
        row = await tokens.by_digest(tx, digest(token))
        if row is not None and row.is_superuser:
            return token
    return None


def _keep(url: str, token: str) -> Keys:
    try:
        credentials.keep(url, token)
    except (OSError, Refusal) as error:
        return Keys(trouble=f"It could not be kept in {credentials.path()}: {error}")
    return Keys(kept_in=credentials.path())
