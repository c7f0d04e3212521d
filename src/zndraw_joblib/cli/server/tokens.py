"""The commands token create, list, update and revoke, and the superuser's token of a server's first start."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from zndraw_joblib.cli.display import CommandError, ItemTable, UsageError
from zndraw_joblib.cli.server.database import load_settings, run, run_or_create
from zndraw_joblib.cli.times import future_time, local_now
from zndraw_joblib.client import connection
from zndraw_joblib.client.connection import UnreadableCredentials
from zndraw_joblib.server.admin import rules_token_updates, sql_operators
from zndraw_joblib.server.admin.rules_token_updates import TokenChanges, TokenUpdate
from zndraw_joblib.server.admin.sql_operators import DEFAULT_RIGHTS, TokenRecord, TokenRights
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue.rules_tokens import ADMIN, OIDC_PREFIX, digest, new_token
from zndraw_joblib.wire.names import MAX_NAME_LENGTH, validate_room_id
from zndraw_joblib.wire.operators import MAX_FILTER_VALUES
from zndraw_joblib.wire.problems import InvalidRoomId
from zndraw_joblib.wire.scopes import AccessRole

# Of a room or of a pattern.
_MAX_VALUE_LENGTH = 256
# For `update`: no limit of rooms or jobs, and no end.
_ALL, _NEVER = "*", "never"
# The user of the first token: what it did is shown with this name.
NAME = "operator"


def _role_of(token: TokenRecord) -> str:
    """Return the role and scopes of a token; that of a superuser of an earlier release is `admin`."""
    return ",".join(sorted(token.identity.roles or ([AccessRole.ADMIN] if token.is_superuser else [])))


def _claims_of(token: TokenRecord) -> str | None:
    return None if token.max_tasks is None else f"{token.claims} of {token.max_tasks}"


def _state_of(token: TokenRecord) -> str | None:
    return "expired" if token.expires_at is not None and token.expires_at <= local_now() else None


_TOKENS = ItemTable(
    {
        "name": "name",
        "superuser": lambda token: "yes" if token.is_superuser else "no",
        "role": _role_of,
        "rooms": lambda token: "all" if token.rooms is None else ",".join(sorted(token.identity.rooms)),
        "jobs": lambda token: "all" if token.jobs is None else ",".join(sorted(token.identity.jobs)),
        "created": "created_at",
        "expires": "expires_at",
        "last_used": "last_used_at",
        "state": _state_of,
        "issued_by": "issued_by",
        "claims": _claims_of,
    },
    wide=["name", "rooms", "jobs"],
    sparse=["state", "issued_by", "claims"],
)


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
    if await sql_operators.add_first_token(database, NAME, digest(token)):
        return save(url, token)._replace(created=token)
    try:
        saved = connection.load_tokens()
    except UnreadableCredentials as error:
        return BootstrapToken(problem=str(error))
    current = await database.read(_first_superuser, candidates=[saved.get(url, ""), *saved.values()])
    if current is None:
        return BootstrapToken()
    return (
        BootstrapToken(saved_in=connection.credentials_path())
        if saved.get(url) == current
        else save(url, current)
    )


async def _first_superuser(tx: Transaction, candidates: Iterable[str]) -> str | None:
    """Return the first candidate that is a superuser's token in this database."""
    for token in candidates:
        row = await sql_operators.token_by_digest(tx, digest(token))
        if row is not None and row.is_superuser:
            return token
    return None


def save(url: str, token: str) -> BootstrapToken:
    """Save the token of this server's URL for the commands of this user."""
    try:
        connection.save_token(url, token)
    except (OSError, UnreadableCredentials) as error:
        return BootstrapToken(problem=f"It could not be saved in {connection.credentials_path()}: {error}")
    return BootstrapToken(saved_in=connection.credentials_path())


# The commands token create, list, update and revoke, on the server's database.


def rights(names: Sequence[str], rooms: str | None, jobs: str | None, expires: str | None) -> TokenRights:
    """Return the rights that options give a token. Raises `UsageError`."""
    listed_rooms, listed_jobs = _listed(rooms, "--rooms"), _listed(jobs, "--jobs")
    for room in listed_rooms or ():
        try:
            validate_room_id(room)
        except InvalidRoomId as error:
            raise UsageError(f"--rooms: {error}") from error
    expires_at = future_time(expires, "--expires")
    if expires_at is not None and expires_at <= local_now():
        raise UsageError(f"--expires: {expires!r} is past. Pass a time to come, like 90d")
    return TokenRights(names or None, listed_rooms, listed_jobs, expires_at)


def _listed(text: str | None, option: str) -> list[str] | None:
    if text is None:
        return None
    values = list(dict.fromkeys(value.strip() for value in text.split(",")))
    if not all(values) or len(values) > MAX_FILTER_VALUES:
        raise UsageError(f"{option}: {text[:100]!r} is no list of 1 to {MAX_FILTER_VALUES} names, like a,b")
    if any(len(value) > _MAX_VALUE_LENGTH for value in values):
        raise UsageError(f"{option}: a name has more than {_MAX_VALUE_LENGTH} characters")
    return values


def create(
    name: str, database_url: str | None, rights: TokenRights, *, is_superuser: bool, allow_new: bool
) -> None:
    """Store a new token's hash, and print the token to standard output.

    Raises `CommandError` if the database does not exist, unless `allow_new`: the server's is probably in
    another folder.
    """
    _check_name(name)
    if is_superuser and rights != DEFAULT_RIGHTS._replace(expires_at=rights.expires_at):
        raise UsageError("--superuser means all rights in all rooms: use --role instead to limit them")
    identity = Identity(name, is_superuser, *rights[:3]).limited()
    token = new_token()

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        added, _ = await database.write(
            sql_operators.add_token, name, digest(token), is_superuser=identity.is_superuser, rights=rights
        )
        return added

    loaded = load_settings(database_url)
    if not run_or_create(loaded, work, allow_new=allow_new):
        raise CommandError(
            f"There is already a token {name!r}. Choose another name, "
            f"or revoke it with 'zndraw-joblib token revoke {name}'"
        )
    typer.echo(token)


def show(database_url: str | None) -> None:
    """Print the tokens, also those that have expired."""

    async def work(database: Database) -> list[TokenRecord]:
        await schema.prepare(database)
        return await database.read(sql_operators.list_tokens)

    _TOKENS.print(run(load_settings(database_url).database_url, work, allow_new=False))


def revoke(name: str, database_url: str | None) -> None:
    """Remove a token, and those that it has issued."""

    async def work(database: Database) -> bool:
        await schema.prepare(database)
        return (await database.write(sql_operators.remove_token, name=name))[0]

    if not run(load_settings(database_url).database_url, work, allow_new=False):
        raise CommandError(f"There is no token {name!r}. 'zndraw-joblib token list' shows the names")
    typer.echo(f"Revoked the token {name!r}; running servers reject it within 5 s.")


def changes(names: Sequence[str], rooms: str | None, jobs: str | None, expires: str | None) -> TokenChanges:
    """Return what options change of a token. Raises `UsageError`."""
    new = rights(
        names,
        None if rooms == _ALL else rooms,
        None if jobs == _ALL else jobs,
        None if expires == _NEVER else expires,
    )
    ends = None if expires is None else [new.expires_at] if new.expires_at else []
    made = TokenChanges(
        new.roles,
        new.rooms if rooms is None else new.rooms or [],
        new.jobs if jobs is None else new.jobs or [],
        ends,
    )
    if made == TokenChanges():
        raise UsageError("Nothing to change: pass --role, --scope, --rooms, --jobs or --expires")
    return made


def update(name: str, database_url: str | None, changes: TokenChanges) -> None:
    """Change the rights of a token."""

    async def work(database: Database) -> TokenUpdate | None:
        await schema.prepare(database)
        return (await database.write(rules_token_updates.update, name, changes))[0]

    updated = run(load_settings(database_url).database_url, work, allow_new=False)
    if updated is None:
        raise CommandError(f"There is no token {name!r}. 'zndraw-joblib token list' shows the names")
    if updated.issued_by is not None:
        raise CommandError(
            f"{updated.issued_by!r} has issued the token {name!r}, with rights that do not change: issue "
            f"another one, and revoke this one with 'zndraw-joblib token revoke {name}'"
        )
    ended = f" {updated.ended} tokens of workers that it has issued ended." if updated.ended else ""
    typer.echo(f"Changed the token {name!r}; running servers apply it within 5 s.{ended}")


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
    if name.startswith(OIDC_PREFIX):
        raise UsageError(
            f"The token name {name!r} is reserved: users of an identity provider have names that begin with "
            f"{OIDC_PREFIX!r}. Choose another name"
        )
