"""Make, list and revoke tokens, in the server's database."""

from functools import partial

import typer

from zndraw_joblib.cli.display import note, show_rows
from zndraw_joblib.cli.operator import configuration
from zndraw_joblib.cli.operator.database import describe, is_missing, run
from zndraw_joblib.cli.refusal import Misuse, Refusal
from zndraw_joblib.contract.names import MAX_NAME_LENGTH
from zndraw_joblib.server.http.tokens import ADMIN, digest, new_token
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.database import Database, Transaction


def create(name: str, database_url: str | None, *, is_superuser: bool) -> None:
    """Store a new token's hash, and print the token alone."""
    _check_name(name)
    token = new_token()
    add = partial(tokens.add, name=name, digest=digest(token), is_superuser=is_superuser)

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        return (await database.write(add))[0]

    url = configuration.read(database_url).database_url
    is_new = is_missing(url)
    if not run(url, work):
        raise Refusal(f"There is a token {name!r} already; 'zndraw-joblib token revoke {name}' ends it")
    if is_new:
        note(f"There was no database: {describe(url)} is a new one.")
    typer.echo(token)


def show(database_url: str | None) -> None:
    """Print the tokens' names."""

    async def work(database: Database) -> list[dict[str, object]]:
        await schema.prepare(database)
        return await database.read(_rows)

    rows = run(configuration.read(database_url).database_url, work, is_new_fine=False)
    show_rows(rows, ["name", "superuser", "created"], wide=["name"])


def revoke(name: str, database_url: str | None) -> None:
    """Remove a token."""

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        return (await database.write(tokens.remove, name=name))[0]

    if not run(configuration.read(database_url).database_url, work, is_new_fine=False):
        raise Refusal(f"There is no token {name!r}")
    typer.echo(f"The token {name!r} is revoked; a running server refuses it within 5 s.")


async def _rows(tx: Transaction) -> list[dict[str, object]]:
    return [
        {"name": row.name, "superuser": "yes" if row.is_superuser else "no", "created": row.created_at}
        for row in await tokens.list_all(tx)
    ]


def _check_name(name: str) -> None:
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name.strip() == name):
        raise Misuse(f"A token's name has 1 to {MAX_NAME_LENGTH} printable characters, no space at its ends")
    if name == ADMIN.id:
        raise Misuse(f"{name!r} is who holds ZNDRAW_JOBLIB_ADMIN_TOKEN; take another name")
