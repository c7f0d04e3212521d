"""Single sign-on: bearer tokens that are JSON Web Tokens of an OpenID Connect provider.

OpenID Connect Discovery 1.0 names the provider's endpoints and keys (RFC 7517). A token (RFC 7519, RFC 9068)
is checked here with these keys; the provider is asked for nothing else.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from pydantic import BaseModel, ConfigDict, ValidationError

from zndraw_joblib.server.http.pages import SignIn
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.process.settings import OidcClaims, ServerSettings, is_safe_url
from zndraw_joblib.server.queue.rules_tokens import OIDC_PREFIX
from zndraw_joblib.wire.names import MAX_NAME_LENGTH
from zndraw_joblib.wire.problems import ServiceUnavailable, Unauthorized
from zndraw_joblib.wire.scopes import scopes_of

logger = logging.getLogger(__name__)
# Signatures with a public key only: who can check a token must not be able to make one.
ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
]
# Of `typ`: RFC 9068 has `at+jwt`. Other kinds, as those of a logout, are no access.
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_LEEWAY_SECONDS = 60
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 256 * 1024
_MAX_TOKEN = 16 * 1024
_MAX_KEYS = 100
_MAX_VALUES = 1000
# Keys are read again after this time, and earlier for a key that is not among them, which may be a new one.
_KEEP_SECONDS = 3600.0
_EARLIEST_SECONDS = 30.0
# Not compressed, so that the limit of bytes is one of memory.
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
_CHALLENGE = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class Endpoints(BaseModel):
    """What the server and the page use of the provider's metadata (Discovery 1.0, section 3)."""

    model_config = ConfigDict(extra="ignore")

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class Caller(NamedTuple):
    """The identity of a token, and when the token expires, in seconds since 1970."""

    identity: Identity
    expires_at: float


class Provider:
    """The provider of the settings: its endpoints and keys, which are read when they are first needed."""

    def __init__(self, settings: ServerSettings) -> None:
        assert settings.oidc_issuer is not None  # noqa: S101 - checked by the caller
        self.issuer = settings.oidc_issuer
        self.claims, self._login = settings.oidc_claims, settings.oidc_login
        self._registry = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "values": settings.oidc_audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self.find_sign_in = self._sign_in if self._login is not None else None
        self._endpoints: Endpoints | None = None
        self._keys: KeySet | None = None
        # In monotonic seconds: when the keys were read, and when they were last asked for.
        self._read_at = self._tried_at = float("-inf")
        self._lock = asyncio.Lock()

    async def endpoints(self) -> Endpoints:
        """Return the endpoints. Raises `ServiceUnavailable` if the provider does not respond as specified."""
        if self._endpoints is None:
            async with self._lock:
                if self._endpoints is None:
                    self._endpoints = await self._discover()
        return self._endpoints

    async def _sign_in(self) -> SignIn:
        """Return how the page logs users in, or why it cannot."""
        assert self._login is not None  # noqa: S101 - `find_sign_in`
        name = urlsplit(self.issuer).netloc
        try:
            endpoints = await self.endpoints()
        except ServiceUnavailable:
            return SignIn(
                provider=name, fault=f"{name} does not respond. Load this page again, or enter a token."
            )
        return SignIn(
            provider=name,
            authorization_endpoint=endpoints.authorization_endpoint,
            token_endpoint=endpoints.token_endpoint,
            **self._login.model_dump(),
        )

    def knows(self, identity: Identity) -> bool:
        """Return whether an identity is of this provider."""
        return identity.id.startswith(OIDC_PREFIX)

    async def identify(self, token: str) -> Caller:
        """Return the caller that a token is about.

        Raises `Unauthorized` for a token that is not valid here, and `ServiceUnavailable` if the provider's
        keys are not known and cannot be read.
        """
        if len(token) > _MAX_TOKEN:
            raise _refusal(f"it has more than {_MAX_TOKEN} characters")
        decoded = await self._decode(token)
        try:
            self._registry.validate(decoded.claims)
        except JoseError as error:
            raise _refusal(self._fault(error, decoded.claims)) from error
        kind = decoded.header.get("typ", "JWT")
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
            raise _refusal(f"its type {kind!r:.100} is not that of an access token or an ID token")
        if "cnf" in decoded.claims:
            raise _refusal("it is bound to a key of its owner (cnf), which this server does not check")
        return Caller(
            identity_of(decoded.claims, self.claims), float(decoded.claims["exp"]) + _LEEWAY_SECONDS
        )

    async def _decode(self, token: str) -> jwt.Token:
        for keys in (await self._current_keys(), None):
            try:
                return jwt.decode(token, keys or await self._newer_keys(), algorithms=ALGORITHMS)
            except InvalidKeyIdError as error:
                if keys is None:
                    raise _refusal("the provider has no key of this id") from error
            # What a caller sends may fail in the library in any way.
            except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
                raise _refusal(f"{getattr(error, 'error', None) or type(error).__name__}") from error
        raise AssertionError("unreachable")

    async def _current_keys(self) -> KeySet:
        if self._keys is None or time.monotonic() > self._read_at + _KEEP_SECONDS:
            return await self._newer_keys()
        return self._keys

    async def _newer_keys(self) -> KeySet:
        """Return keys that were read within the last seconds; old ones while the provider is away."""
        async with self._lock:
            if self._keys is not None and time.monotonic() < self._tried_at + _EARLIEST_SECONDS:
                return self._keys
            self._tried_at = time.monotonic()
            try:
                if self._endpoints is None:
                    self._endpoints = await self._discover()
                self._keys = _keys_in(await _get(self._endpoints.jwks_uri), self._endpoints.jwks_uri)
                self._read_at = self._tried_at
            except ServiceUnavailable as error:
                if self._keys is None:
                    raise
                logger.warning("The keys of %s were not read again: %s", self.issuer, error)
        return self._keys

    async def _discover(self) -> Endpoints:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            endpoints = Endpoints.model_validate(await _get(url))
        except ValidationError as error:
            missing = ", ".join(str(fault["loc"][0]) for fault in error.errors())
            raise _unavailable(url, f"its metadata lacks {missing}") from error
        if endpoints.issuer != self.issuer:
            raise _unavailable(url, f"it calls itself {endpoints.issuer[:200]!r}: set oidc_issuer to this")
        for name, value in endpoints:
            if not is_safe_url(value):
                raise _unavailable(url, f"its {name} is no https URL")
        return endpoints

    def _fault(self, error: JoseError, claims: Mapping[str, Any]) -> str:
        claim = getattr(error, "claim", None)
        if claim in {"iss", "aud"} and claim in claims:
            expected = self.issuer if claim == "iss" else "one of oidc_audience"
            return f"its {claim} is {claims[claim]!r:.200}, not {expected}"
        return f"{claim}: {error.error}" if claim else error.error


def identity_of(claims: Mapping[str, Any], names: OidcClaims) -> Identity:
    """Return the identity that claims are about. Raises `Unauthorized` if they name no user.

    The user's roles are those of `names.roles`, translated by `names.role_names`; what is no role here is
    ignored.
    """
    user = _claim(claims, names.user)
    if names.user == "email" and claims.get("email_verified") is not True:
        raise _refusal("its email is not verified")
    if not isinstance(user, str) or not 0 < len(user) <= MAX_NAME_LENGTH or not user.isprintable():
        raise _refusal(f"its {names.user} is no text of 1 to {MAX_NAME_LENGTH} characters")
    roles = set(names.default_roles)
    for value in _texts(_claim(claims, names.roles)) if names.roles else ():
        roles.update(names.role_names.get(value, [value] if _is_role(value) and not names.role_names else []))
    rooms = frozenset(_texts(_claim(claims, names.rooms))) if names.rooms else None
    return Identity(f"{OIDC_PREFIX}{user}", is_superuser=False, roles=frozenset(roles), rooms=rooms).limited()


def _is_role(name: str) -> bool:
    try:
        scopes_of([name])
    except ValueError:
        return False
    return True


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return the value at a claim's name, or at a path of names as ``realm_access.roles``."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


def _texts(value: Any) -> Iterable[str]:
    """Return the texts of a claim: a list, or words in one text as in `scope`."""
    if isinstance(value, str):
        value = value.split()
    return [text for text in value[:_MAX_VALUES] if isinstance(text, str)] if isinstance(value, list) else ()


def _keys_in(document: Any, url: str) -> KeySet:
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise _unavailable(url, "it has no list of keys")
    # A secret key would let those who know it make tokens, and one for encryption signs nothing.
    usable = [key for key in keys[:_MAX_KEYS] if key.get("kty") != "oct" and key.get("use", "sig") == "sig"]
    try:
        return KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise _unavailable(url, f"its keys cannot be read: {type(error).__name__}") from error


async def _get(url: str) -> Any:
    """Return the JSON at a URL. One time limit is for all of it."""
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            httpx.AsyncClient(follow_redirects=False) as client,
            client.stream("GET", url, headers=_HEADERS) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise _unavailable(url, f"it responded with {response.status_code}")
            content = b""
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > _MAX_BYTES:
                    raise _unavailable(url, f"its response has more than {_MAX_BYTES} bytes")
        return httpx.Response(httpx.codes.OK, content=content).json()
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise _unavailable(url, str(error) or type(error).__name__) from error
    except (ValueError, RecursionError) as error:
        raise _unavailable(url, "its response is no JSON") from error


def _refusal(fault: str) -> Unauthorized:
    return Unauthorized(f"The bearer token is not valid: {fault}", headers=_CHALLENGE)


def _unavailable(url: str, fault: str) -> ServiceUnavailable:
    logger.warning("The identity provider does not respond as it should: url=%s: %s", url, fault)
    return ServiceUnavailable(
        f"The identity provider cannot be used at the moment: {url}: {fault}", headers={"Retry-After": "5"}
    )
