"""Identity by bearer token, for the standalone server."""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Annotated

from cachetools import TTLCache
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr

from zndraw_joblib.contract.problems import Unauthorized
from zndraw_joblib.server.http.headers import header_values
from zndraw_joblib.server.ports import Identity

ADMIN = Identity("admin", is_superuser=True)
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_CACHE_SECONDS = 3.0
# SQLite allows 32,766 values in a statement.
_DIGESTS_PER_QUERY = 1000
_MAX_CACHED = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `zndraw-joblib token create`")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return f"zj_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the digest that is stored of a token. With 256 random bits, a plain hash keeps it secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class BearerTokens:
    """The dependency that returns the identity of a bearer token.

    `find` returns the identity of a digest, None for an unknown one. It is cached, so a revoked token works
    for at most 3 s more. `find_existing` returns which digests are known, and `find_named` the identity of a
    name and since when it has its token.
    """

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
        self._cached: TTLCache[str, Identity] = TTLCache(_MAX_CACHED, _CACHE_SECONDS)

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
        identity: Identity | None = self._cached.get(hashed)
        if identity is None:
            identity = await self._find(hashed)
            if identity is None:
                raise Unauthorized("The bearer token is unknown or was revoked", headers=_CHALLENGE)
            self._cached[hashed] = identity
        return identity

    def digest_of(self, request: Request) -> str | None:
        """Return the digest of a request's token, None if it has none."""
        given = header_values(request, b"authorization")
        scheme, _, token = given[0].partition(" ") if given else ("", "", "")
        return digest(token.strip()) if scheme.lower() == "bearer" and token else None

    async def is_valid(self, identity: Identity, at: datetime) -> bool:
        """Return whether the token that this identity had at a time was not revoked."""
        if identity == ADMIN and self._admin_digest is not None:
            return True
        found = await self._find_named(identity.id)
        # A newer token of the same name does not stand for the revoked one.
        return found is not None and found[0] == identity and found[1] <= at

    async def find_revoked(self, digests: Collection[str]) -> set[str]:
        """Return the digests that belong to no token now. It reads the database, not the cache."""
        asked = [hashed for hashed in digests if hashed != self._admin_digest]
        revoked = set(asked)
        for start in range(0, len(asked), _DIGESTS_PER_QUERY):
            revoked -= await self._find_existing(asked[start : start + _DIGESTS_PER_QUERY])
        for hashed in revoked:
            self._cached.pop(hashed, None)
        return revoked
