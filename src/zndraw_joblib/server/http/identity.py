"""Identity: the caller that a host's dependency returns, and the bearer tokens of the standalone server."""

import hmac
import inspect
import logging
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
from datetime import datetime
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, SecretStr

from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue.rules_tokens import ADMIN, digest
from zndraw_joblib.wire.problems import InternalServerError, Unauthorized

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
            return Identity(str(user.id), is_superuser(user))
        fault = "its id is None"
    except NotABoolean as error:
        fault = str(error)
    except AttributeError as error:
        if error.obj is not user:
            raise  # inside a property of the host
        fault = f"{type(user).__name__} has no attribute {error.name!r}"
    logger.error("The host's identity is wrong: %s. %s", fault, _REMEDY)
    raise InternalServerError(f"The host's identity is wrong: {fault}. {_REMEDY}")


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
_DIGESTS_PER_QUERY = 1000
_MAX_CACHED = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `zndraw-joblib token create`")


def _digest_in(header: bytes) -> str | None:
    scheme, _, token = header.decode("latin-1").partition(" ")
    return digest(token.strip()) if scheme.lower() == "bearer" and token else None


class BearerTokens:
    """The dependency that returns the identity of a bearer token.

    `find` returns the identity of a digest, None for an unknown one. It is cached, so a revoked token works
    for at most `cache_seconds` more. `find_existing` returns which digests are known, and `find_named` the
    identity of a name and since when it has its token.
    """

    cache_seconds = 3.0

    def __init__(
        self,
        find: Callable[[str], Awaitable[Identity | None]],
        find_existing: Callable[[Collection[str]], Awaitable[set[str]]],
        admin_token: SecretStr | None,
        find_named: Callable[[str], Awaitable[tuple[Identity, datetime] | None]],
    ) -> None:
        self._find = find
        self._find_existing = find_existing
        self._find_named = find_named
        self._admin_digest = digest(admin_token.get_secret_value()) if admin_token else None
        # By digest, with the time until which it is valid.
        self._cached: dict[str, tuple[Identity, float]] = {}

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
        identity = await self._find(hashed)
        if identity is None:
            raise Unauthorized("The bearer token is unknown or was revoked", headers=_CHALLENGE)
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[hashed] = identity, time.monotonic() + self.cache_seconds
        return identity

    def digest_of(self, request: Request) -> str | None:
        """Return the digest of a request's token, None if it has none."""
        for name, value in request.scope["headers"]:
            if name == b"authorization":
                return _digest_in(value)
        return None

    async def is_valid(self, identity: Identity, at: datetime) -> bool:
        """Return whether the token that this identity had at a time was not revoked."""
        if identity == ADMIN and self._admin_digest is not None:
            return True
        owner = await self._find_named(identity.id)
        # A newer token of the same name does not stand for the revoked one.
        return owner is not None and owner[0] == identity and owner[1] <= at

    async def find_revoked(self, digests: Collection[str]) -> set[str]:
        """Return the digests that belong to no token now. It reads the database, not the cache."""
        asked = [hashed for hashed in digests if hashed != self._admin_digest]
        revoked = set(asked)
        for start in range(0, len(asked), _DIGESTS_PER_QUERY):
            revoked -= await self._find_existing(asked[start : start + _DIGESTS_PER_QUERY])
        for hashed in revoked:
            self._cached.pop(hashed, None)
        return revoked
