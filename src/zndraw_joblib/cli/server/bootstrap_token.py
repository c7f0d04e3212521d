"""The superuser's token that a server creates on its first start."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from zndraw_joblib.client import credentials
from zndraw_joblib.client.credentials import UnreadableCredentials
from zndraw_joblib.server.http.tokens import digest, new_token
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.database import Database, Transaction

NAME = "first-start"


class BootstrapToken(NamedTuple):
    """The token for this server's URL.

    `created` is the token of a first start, `saved_in` the credentials file that has a superuser's token,
    `problem` the reason why the token is not saved.
    """

    created: str | None = None
    saved_in: Path | None = None
    problem: str | None = None


async def prepare(database: Database, url: str) -> BootstrapToken:
    """Upgrade the schema; create and save a token if there is none, else look for a saved one."""
    await schema.prepare(database)
    token = new_token()
    if await tokens.add_first(database, NAME, digest(token)):
        return _save(url, token)._replace(created=token)
    try:
        saved = credentials.load()
    except UnreadableCredentials as error:
        return BootstrapToken(problem=str(error))
    known = await database.read(_first_superuser, candidates=[saved.get(url, ""), *saved.values()])
    if known is None:
        return BootstrapToken()
    return BootstrapToken(saved_in=credentials.path()) if saved.get(url) == known else _save(url, known)


async def _first_superuser(tx: Transaction, candidates: Iterable[str]) -> str | None:
    """Return the first candidate that is a superuser's token in this database."""
    for token in candidates:
        row = await tokens.by_digest(tx, digest(token))
        if row is not None and row.is_superuser:
            return token
    return None


def _save(url: str, token: str) -> BootstrapToken:
    try:
        credentials.save(url, token)
    except (OSError, UnreadableCredentials) as error:
        return BootstrapToken(problem=f"It could not be saved in {credentials.path()}: {error}")
    return BootstrapToken(saved_in=credentials.path())
