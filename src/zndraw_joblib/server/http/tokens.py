"""Identity by bearer token, for the standalone server."""

import hashlib
import hmac
import secrets
import time
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr

from zndraw_joblib.contract.problems import Unauthorized
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.store import tokens
from zndraw_joblib.server.store.database import Database

ADMIN = Identity("admin", is_superuser=True)
CHALLENGE = {"WWW-Authenticate": "Bearer"}
_TRUSTED_SECONDS = 5.0
_MAX_TRUSTED = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `zndraw-joblib token create`")


def new_token() -> str:
    """Return a fresh token: 256 bits of chance."""
    return f"zj_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """Return what is stored of a token. It has 256 bits of chance, so a plain hash keeps it secret."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class BearerTokens:
    """The dependency that turns a bearer token into an identity. A revoked token works 5 s longer at most."""

    def __init__(self, database: Database, admin_token: SecretStr | None) -> None:
        self._database = database
        self._admin_digest = digest(admin_token.get_secret_value()) if admin_token else None
        self._trusted: dict[str, tuple[Identity, float]] = {}

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Identity:
        """Return who asks. Raises `Unauthorized`."""
        return await self.of(request)

    async def of(self, request: Request) -> Identity:
        """Return who asks. Raises `Unauthorized`."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized(
                "A bearer token is needed: send the header 'Authorization: Bearer <token>'", headers=CHALLENGE
            )
        return await self.identify(token.strip())

    async def identify(self, token: str) -> Identity:
        """Return whose token this is. Raises `Unauthorized`."""
        hashed = digest(token)
        if self._admin_digest is not None and hmac.compare_digest(hashed, self._admin_digest):
            return ADMIN
        identity, until = self._trusted.get(hashed, (None, 0.0))
        if identity is None or time.monotonic() > until:
            identity = await self._look_up(hashed)
        return identity

    async def _look_up(self, hashed: str) -> Identity:
        self._trusted.pop(hashed, None)
        row = await self._database.read_short(tokens.by_digest, digest=hashed)
        if row is None:
            raise Unauthorized("The token is unknown or was revoked", headers=CHALLENGE)
        identity = Identity(row.name, row.is_superuser)
        if len(self._trusted) >= _MAX_TRUSTED:
            self._trusted.clear()
        self._trusted[hashed] = identity, time.monotonic() + _TRUSTED_SECONDS
        return identity
