"""Identity by bearer token, for the standalone server."""

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated

from cachetools import TTLCache
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr

from zndraw_joblib.contract.problems import Unauthorized
from zndraw_joblib.server.ports import Identity

ADMIN = Identity("admin", is_superuser=True)
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
_CACHE_SECONDS = 5.0
_MAX_CACHED = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `zndraw-joblib token create`")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return f"zj_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return the digest that is stored of a token. With 256 random bits, a plain hash keeps it secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class BearerTokens:
    """The dependency that turns a bearer token into an identity.

    `find` returns the identity of a digest, None for an unknown one. It is cached, so a revoked token works
    for 5 s more at most.
    """

    def __init__(
        self, find: Callable[[str], Awaitable[Identity | None]], admin_token: SecretStr | None
    ) -> None:
        self._find = find
        self._admin_digest = digest(admin_token.get_secret_value()) if admin_token else None
        self._cached: TTLCache[str, Identity] = TTLCache(_MAX_CACHED, _CACHE_SECONDS)

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        """Return the caller. Raises `Unauthorized`."""
        return await self.identify(request)

    async def identify(self, request: Request) -> Identity:
        """Return the caller. Raises `Unauthorized`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized(
                "The request has no bearer token: send the header 'Authorization: Bearer <token>'",
                headers=_CHALLENGE,
            )
        return await self._of_digest(digest(token.strip()))

    async def _of_digest(self, hashed: str) -> Identity:
        if self._admin_digest is not None and hmac.compare_digest(hashed, self._admin_digest):
            return ADMIN
        identity: Identity | None = self._cached.get(hashed)
        if identity is None:
            identity = await self._find(hashed)
            if identity is None:
                raise Unauthorized("The bearer token is unknown or was revoked", headers=_CHALLENGE)
            self._cached[hashed] = identity
        return identity
