"""Identity: the caller that a host's dependency returns, and the bearer tokens of the standalone server."""

import asyncio
import hmac
import inspect
import logging
import math
import time
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
)
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Protocol, Union, get_args, get_origin, get_type_hints

from cachetools import LRUCache
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, SecretStr

from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.server.process.ports import Identity, Wake, identity_key
from zndraw_joblib.server.process.waiters import Waiters
from zndraw_joblib.server.queue.rules_tokens import ADMIN, digest
from zndraw_joblib.server.realtime.rooms import Rooms
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.wire.problems import InternalServerError, Unauthorized
from zndraw_joblib.wire.scopes import Scope

logger = logging.getLogger(__name__)
_REMEDY = (
    "The queue reads `id` and `is_superuser` of each caller. Add the attribute, or return "
    "zndraw_joblib.Identity(id, is_superuser) from the dependency `identity` of JobLib"
)
_WRAPPERS = frozenset({AsyncGenerator, AsyncIterator, Generator, Iterator})
_UNIONS = frozenset({Union, types.UnionType})


def identity_dependency(identity: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency whose value is the `Identity` of the host's user, None without one."""

    # The attributes are read while the host's session is open: the user may be an ORM object.
    async def resolve(user: Annotated[Any, Depends(identity)]) -> Identity | None:
        return None if user is None else _identity(user)

    return resolve


def _identity(user: Any) -> Identity:
    try:
        if user.id is not None:
            identity = Identity(str(user.id), is_superuser(user))
            # Other objects may have a `roles` of their own, which a session loads.
            return _limited(identity, user) if isinstance(user, Identity) else identity
        fault = "its id is None"
    except NotABoolean as error:
        fault = str(error)
    except AttributeError as error:
        if error.obj is not user:
            raise  # inside a property of the host
        fault = f"{type(user).__name__} has no attribute {error.name!r}"
    logger.error("The host's identity is wrong: %s. %s", fault, _REMEDY)
    raise InternalServerError(f"The host's identity is wrong: {fault}. {_REMEDY}")


def _limited(identity: Identity, user: Identity) -> Identity:
    """Return an identity with the roles and rooms of the one that the host has returned."""
    try:
        return identity._replace(roles=user.roles, rooms=user.rooms, jobs=user.jobs).limited()
    except ValueError as error:
        logger.error("The host's identity is wrong: %s", error)
        raise InternalServerError(f"The host's identity is wrong: {error}") from error


class NotABoolean(TypeError):
    """The attribute `is_superuser` of a host's user is no boolean."""


def is_superuser(user: Any) -> bool:
    """Return whether a host's user is a superuser: only True and False count, and None is False.

    Raises `NotABoolean` for all else: a method, or a text, is true and would make each user a superuser.
    """
    value = user.is_superuser
    if isinstance(value, bool | None):
        return value is True
    shown = f"a method (use a property: without @property, {type(user).__name__}.is_superuser is always true)"
    raise NotABoolean(
        f"is_superuser of {type(user).__name__} is {shown if callable(value) else f'{value!r:.100}'}, "
        "neither True nor False"
    )


def check_identity_type(identity: Callable[..., Any]) -> None:
    """Raise TypeError if the declared type of a host's identity lacks an attribute that the queue reads."""
    dependency = getattr(identity, "__qualname__", identity)
    for kind in _returned_types(identity):
        for name in ("id", "is_superuser"):
            if _certainly_lacks(kind, name):
                fault = f"{kind.__name__}, which has no attribute {name!r}"
                raise TypeError(f"The identity {dependency!r} returns {fault}. {_REMEDY}")
        if inspect.isroutine(inspect.getattr_static(kind, "is_superuser", None)):
            raise TypeError(
                f"The identity {dependency!r} returns {kind.__name__}, whose is_superuser is a method, which "
                f"is always true. Make it a property. {_REMEDY}"
            )


def _returned_types(identity: Callable[..., Any]) -> list[type]:
    if isinstance(identity, type):
        return [identity]
    function = identity if inspect.isroutine(identity) else type(identity).__call__
    try:
        declared = get_type_hints(function).get("return")
    except Exception:
        return []  # a name that is imported for type checkers only
    while get_origin(declared) in _WRAPPERS:
        declared = get_args(declared)[0]
    members = get_args(declared) if get_origin(declared) in _UNIONS else (declared,)
    kinds = [get_origin(member) or member for member in members]
    return [kind for kind in kinds if isinstance(kind, type) and kind is not types.NoneType]


def _certainly_lacks(kind: type, name: str) -> bool:
    """Return whether no instance can have an attribute: the class declares all that its instances have."""
    if hasattr(kind, name) or any(name in vars(base).get("__annotations__", ()) for base in kind.__mro__):
        return False
    if issubclass(kind, BaseModel):
        return kind.model_config.get("extra") != "allow"
    is_table = hasattr(kind, "__mapper__")
    is_plain = (kind.__module__ == "builtins" and kind is not object) or hasattr(kind, "_fields")
    return (is_table or is_plain or is_dataclass(kind)) and not hasattr(kind, "__getattr__")


# Identity by bearer token, for the standalone server.

_CHALLENGE = {"WWW-Authenticate": "Bearer"}
# SQLite allows 32,766 values in a statement.
_VALUES_PER_QUERY = 1000
_MAX_CACHED = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `zndraw-joblib token create`")


def _jwt_in(request: Request) -> str | None:
    """Return the bearer token of a request if it has the form of a JSON Web Token; stored ones have not."""
    _, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if token.count(".") == 2 else None


def _digest_in(header: bytes) -> str | None:
    scheme, _, token = header.decode("latin-1").partition(" ")
    return digest(token.strip()) if scheme.lower() == "bearer" and token else None


class FoundToken(NamedTuple):
    """A valid token: its identity, since when there is this token, and for how many `seconds` more."""

    identity: Identity
    created_at: datetime
    seconds: float = math.inf

    @property
    def caller(self) -> Identity:
        """The identity of its bearer, which differs from that of an earlier token of the same name."""
        return self.identity._replace(token_created_at=self.created_at)


class TokenStore(Protocol):
    """The tokens of a standalone server. Those that have expired are like revoked ones."""

    async def by_digest(self, digest: str) -> FoundToken | None:
        """Return the token with a digest."""

    async def by_name(self, name: str) -> FoundToken | None:
        """Return the token with a name."""

    async def by_names(self, names: Collection[str]) -> dict[str, FoundToken]:
        """Return the tokens with these names."""

    async def existing(self, digests: Collection[str]) -> set[str]:
        """Return which of these digests belong to a token."""

    async def record_use(self, digests: Collection[str]) -> None:
        """Record that tokens are used, unless that is recorded for the last minute."""


class TokenProvider(Protocol):
    """An identity provider (`oidc.Provider`), whose tokens are JSON Web Tokens."""

    @property
    def find_sign_in(self) -> Callable[[], Awaitable[Any]] | None:
        """What returns how the page logs users in; None if the page is no client of the provider."""

    async def identify(self, token: str) -> tuple[Identity, float]:
        """Return the caller that a token is about, and when it expires, in seconds since 1970."""

    def knows(self, identity: Identity) -> bool:
        """Return whether an identity is of this provider."""


class BearerTokens:
    """The dependency that returns the identity of a bearer token.

    It is cached, so a revoked token works for at most `cache_seconds` more. Tokens with the form of a JSON
    Web Token are those of `provider`, if there is one.
    """

    cache_seconds = 3.0
    # Between records of which tokens are used.
    use_seconds = 60.0

    def __init__(
        self, store: TokenStore, admin_token: SecretStr | None, provider: TokenProvider | None = None
    ) -> None:
        self._store, self.provider = store, provider
        self._admin_digest = digest(admin_token.get_secret_value()) if admin_token else None
        # By digest, with the time until which this is valid, and that until which the token is.
        self._cached: dict[str, tuple[Identity, float, float]] = {}
        self._used: set[str] = set()
        # Of the tokens of `provider` that were seen last: when they expire, in seconds since 1970.
        self._expiries: LRUCache[str, float] = LRUCache(_MAX_CACHED)

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        """Return the caller. Raises `Unauthorized`."""
        return await self.identify(request)

    async def identify(self, request: Request) -> Identity:
        """Return the caller. Raises `Unauthorized`."""
        hashed = self.digest_of(request)
        if hashed is None:
            raise Unauthorized(
                "The request has no bearer token: send the header 'Authorization: Bearer <token>'",
                headers=_CHALLENGE,
            )
        if self._admin_digest is not None and hmac.compare_digest(hashed, self._admin_digest):
            return ADMIN
        cached = self._cached.get(hashed)
        if cached is not None and time.monotonic() < cached[1]:
            return cached[0]
        if self.provider is not None and (token := _jwt_in(request)) is not None:
            found: FoundToken | None = await self._of_provider(self.provider, token, hashed)
        else:
            found = await self._store.by_digest(hashed)
        if found is None:
            raise Unauthorized("The bearer token is unknown, has expired, or was revoked", headers=_CHALLENGE)
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        is_stored = hashed not in self._expiries
        caller = found.caller if is_stored else found.identity
        now = time.monotonic()
        self._cached[hashed] = caller, now + min(self.cache_seconds, found.seconds), now + found.seconds
        if is_stored and len(self._used) < _MAX_CACHED:
            self._used.add(hashed)
        return caller

    async def _of_provider(self, provider: TokenProvider, token: str, hashed: str) -> FoundToken:
        identity, expires_at = await provider.identify(token)
        self._expiries[hashed] = expires_at
        return FoundToken(identity, datetime.now(UTC), max(expires_at - time.time(), 0.0))

    def seconds_left(self, request: Request) -> float | None:
        """Return for how long the token of a request that was identified is valid; None without an end."""
        cached = self._cached.get(self.digest_of(request) or "")
        if cached is None or math.isinf(cached[2]):
            return None
        return max(0.0, cached[2] - time.monotonic())

    def digest_of(self, request: Request) -> str | None:
        """Return the digest of a request's token, None if it has none."""
        for name, value in request.scope["headers"]:
            if name == b"authorization":
                return _digest_in(value)
        return None

    async def find_reader(self, identity: Identity, at: datetime, room_id: str) -> Identity | None:
        """Return the caller that had this identity at a time, with the rights of its token now.

        None if its token was revoked, or may not read a room.
        """
        if identity == ADMIN and self._admin_digest is not None:
            return identity
        if self.provider is not None and self.provider.knows(identity):
            return identity  # the tokens of streams live for minutes, and a JSON Web Token is not revoked
        found = await self._store.by_name(identity.id)
        # A newer token of the same name does not stand for the revoked one.
        if found is None or found.created_at > at or found.identity.is_superuser != identity.is_superuser:
            return None
        may_read = found.identity.may(Scope.READ) and found.identity.is_in(room_id)
        return found.caller if may_read else None

    async def find_revoked(self, digests: Collection[str]) -> set[str]:
        """Return the digests that belong to no token now. It reads the database, not the cache."""
        now = time.time()
        expired = {hashed for hashed in digests if self._expiries.get(hashed, now) < now}
        stored = {hashed for hashed in digests if hashed not in self._expiries}
        asked = list(stored - {self._admin_digest})
        revoked = set(asked) | expired
        for start in range(0, len(asked), _VALUES_PER_QUERY):
            revoked -= await self._store.existing(asked[start : start + _VALUES_PER_QUERY])
        for hashed in revoked:
            self._cached.pop(hashed, None)
        return revoked

    async def find_changed(self, callers: Collection[Identity]) -> set[str]:
        """Return the users of these callers whose token was revoked, replaced or changed, or has expired."""
        stored = [caller for caller in callers if self._is_stored(caller)]
        names = list({caller.id for caller in stored})
        found: dict[str, FoundToken] = {}
        for start in range(0, len(names), _VALUES_PER_QUERY):
            found |= await self._store.by_names(names[start : start + _VALUES_PER_QUERY])
        current = {name: token.caller for name, token in found.items()}
        return {caller.id for caller in stored if current.get(caller.id) != caller}

    def forget(self, user_id: str) -> None:
        """Look up the tokens of a user again."""
        for hashed, (identity, *_) in list(self._cached.items()):
            if identity.id == user_id:
                del self._cached[hashed]

    def forget_all(self) -> None:
        """Look up all tokens again, because a test clock was advanced."""
        self._cached.clear()

    def _is_stored(self, caller: Identity) -> bool:
        """Return whether the token of a caller is in the database."""
        is_known = self.provider is not None and self.provider.knows(caller)
        return not (is_known or caller.has_signed_token or caller == ADMIN)

    async def run(self) -> None:
        """Record repeatedly which tokens are used, until it is cancelled."""
        while True:
            await asyncio.sleep(self.use_seconds)
            await self.record_use()

    async def record_use(self) -> None:
        """Record the use of the tokens that were looked up since the last record."""
        used, self._used = self._used, set()
        try:
            asked = list(used)
            for start in range(0, len(asked), _VALUES_PER_QUERY):
                await self._store.record_use(asked[start : start + _VALUES_PER_QUERY])
        except Exception as error:
            logger.warning("The use of tokens was not recorded; the next cycle continues: %r", error)


# This time and the lifetime of cached tokens add up to less than 5 s, after which no revoked token works.
_WATCH_SECONDS = 1.5


class TokenWatch:
    """Reads the tokens of all users with open streams or sockets of this process together, again and again.

    A user whose token has changed loses them, in all server processes, and connects again with its rights.
    """

    def __init__(self, tokens: BearerTokens, streams: Streams, rooms: Rooms | None, waiters: Waiters) -> None:
        self._tokens, self._streams, self._rooms, self._waiters = tokens, streams, rooms, waiters
        prefix = identity_key("")
        waiters.subscribe(prefix, lambda key: tokens.forget(key.removeprefix(prefix)))

    async def run(self) -> None:
        """Check the tokens repeatedly, until it is cancelled."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await self.check()
            except Exception as error:
                log_failed_work(
                    logger, error, "Tokens of open streams were not checked; the next cycle retries"
                )

    async def check(self) -> None:
        """End the streams and sockets of users whose tokens have changed."""
        callers = set(self._streams.callers)
        if self._rooms is not None:
            callers |= {owner.identity for owner in self._rooms.supervisor.owners.values()}
        changed = await self._tokens.find_changed(callers)
        if changed:
            self._waiters.notify([Wake(identity_key(name)) for name in sorted(changed)])
