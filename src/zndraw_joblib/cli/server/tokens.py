"""The commands token create, token list and token revoke, on the server's database."""

import typer

from zndraw_joblib.cli.display import print_note, print_rows
from zndraw_joblib.cli.errors import CommandError, UsageError
from zndraw_joblib.cli.server import settings
from zndraw_joblib.cli.server.database import locate, run
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.contract.names import MAX_NAME_LENGTH
from zndraw_joblib.server.http.tokens import ADMIN, digest, new_token
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.database import Database


def create(name: str, database_url: str | None, *, is_superuser: bool, allow_new: bool) -> None:
    """Store a new token's hash, and print the token to standard output.

    Raises `CommandError` if the default database does not exist, unless `allow_new`: the server's database is
    probably in another folder.
    """
    _check_name(name)
    token = new_token()

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        added, _ = await database.write(tokens.add, name, digest(token), is_superuser=is_superuser)
        return added

    loaded = settings.load(database_url)
    url = loaded.database_url
    location = locate(url)
    is_new = location.is_missing
    if is_new and not allow_new and "database_url" not in loaded.model_fields_set:
        raise CommandError(
            f"There is no database {location.text}: the file does not exist, and no URL names another. Run "
            "the command in the server's folder, or pass the server's --database-url "
            "(ZNDRAW_JOBLIB_DATABASE_URL). To create a new database here, add --create-database"
        )
    if not run(url, work):
        raise CommandError(
            f"There is already a token {name!r}. Choose another name, "
            f"or revoke it with 'zndraw-joblib token revoke {name}'"
        )
    if is_new:
        print_note(f"Created the database {location.text}, because the file did not exist.")
    typer.echo(token)


def show(database_url: str | None) -> None:
    """Print the names of the tokens."""

    async def work(database: Database) -> list[dict[str, object]]:
        await schema.prepare(database)
        return [
            {"name": row.name, "superuser": "yes" if row.is_superuser else "no", "created": row.created_at}
            for row in await database.read(tokens.list_all)
        ]

    rows = run(settings.load(database_url).database_url, work, allow_new=False)
    print_rows(rows, ["name", "superuser", "created"], Layout(wide=["name"]))


def revoke(name: str, database_url: str | None) -> None:
    """Remove a token."""

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        return (await database.write(tokens.remove, name=name))[0]

    if not run(settings.load(database_url).database_url, work, allow_new=False):
        raise CommandError(f"There is no token {name!r}. 'zndraw-joblib token list' shows the names")
    typer.echo(f"Revoked the token {name!r}; running servers reject it within 5 s.")


def _check_name(name: str) -> None:
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and name.strip() == name):
        raise UsageError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a valid token name. Use 1 to {MAX_NAME_LENGTH} printable "
            "characters without a space at the beginning or end"
        )
    if name == ADMIN.id:
        raise UsageError(
            f"The token name {name!r} is reserved for ZNDRAW_JOBLIB_ADMIN_TOKEN. Choose another name"
        )
