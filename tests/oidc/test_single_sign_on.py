"""Tokens of an identity provider, and the page's log-in there."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey
from servers import ServerProcess
from socketio import AsyncClient

from oidc.provider import AUDIENCE, OidcProvider, new_key
from zndraw_joblib.server.http import oidc
from zndraw_joblib.server.http.oidc import Provider
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.problems import ServiceUnavailable, Unauthorized

CLAIMS = '{"roles": "groups", "rooms": "rooms"}'


def settings_for(provider: OidcProvider, **changes: Any) -> dict[str, str]:
    """Return the settings of a server whose users come from the provider."""
    return {"oidc_issuer": provider.issuer, "oidc_audience": AUDIENCE, "oidc_claims": CLAIMS, **changes}


@pytest.fixture(scope="module")
def provider() -> Iterator[OidcProvider]:
    """Run one provider for the tests that do not change it."""
    with OidcProvider(new_key("one"), ECKey.generate_key("P-256", {"use": "sig", "kid": "two"})) as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: OidcProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for these tests; identities do not depend on the database."""
    path = tmp_path_factory.mktemp("oidc") / "queue.db"
    with ServerProcess(f"sqlite+aiosqlite:///{path}", **settings_for(provider)) as running:
        yield running


def me(server: ServerProcess, token: str) -> httpx.Response:
    """Return what the server says about the owner of a token."""
    return httpx.get(f"{server.url}/v1/joblib/me", headers={"Authorization": f"Bearer {token}"}, timeout=60)


def test_claims_say_who_the_user_is_and_what_it_may_do(provider: OidcProvider, server: ServerProcess) -> None:
    """Roles and rooms are those of the token; what is no role is ignored."""
    token = provider.token(groups=["submitter", "chess club"], rooms=["lab"])
    assert me(server, token).json()["id"] == "oidc:anna"
    headers = {"Authorization": f"Bearer {token}"}
    url = f"{server.url}/v1/joblib/rooms"
    assert httpx.get(f"{url}/lab/tasks", headers=headers, timeout=60).status_code == 200
    refused = httpx.get(f"{url}/other/tasks", headers=headers, timeout=60)
    assert refused.status_code == 403
    elliptic = provider.token(provider.keys[1], {"alg": "ES256", "kid": "two"}, groups="viewer", rooms="lab")
    headers = {"Authorization": f"Bearer {elliptic}"}
    assert httpx.get(f"{url}/lab/tasks", headers=headers, timeout=60).status_code == 200


def test_a_user_without_a_role_may_nothing(provider: OidcProvider, server: ServerProcess) -> None:
    """Being known to the provider gives no right, and neither does a room."""
    headers = {"Authorization": f"Bearer {provider.token(rooms=['lab'])}"}
    response = httpx.get(f"{server.url}/v1/joblib/rooms/lab/tasks", headers=headers, timeout=60)
    assert response.status_code == 403
    assert "read" in response.json()["detail"]


FAULTS: dict[str, dict[str, Any]] = {
    "expired": {"seconds": -61},
    "aud": {"aud": "https://other.example"},
    "iss": {"iss": "https://evil.example"},
    "nbf": {"nbf": 4_000_000_000},
    "no sub": {"sub": None},
    "no exp": {"exp": None},
    "no aud": {"aud": None},
    "long sub": {"sub": "a" * 200},
    "cnf": {"cnf": {"jkt": "x"}},
    "typ": {"header": {"typ": "logout+jwt"}},
    "kid": {"header": {"kid": "three"}},
    "signature": {"key": new_key("one")},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_token_that_is_not_valid_here_is_refused(
    provider: OidcProvider, server: ServerProcess, fault: str
) -> None:
    """The response says what is wrong with it, and that another token is needed."""
    assert me(server, provider.token(groups=["admin"])).status_code == 200
    response = me(server, provider.token(groups=["admin"], **FAULTS[fault]))
    assert response.status_code == 401
    assert "The bearer token is not valid" in response.json()["detail"]
    assert "invalid_token" in response.headers["WWW-Authenticate"]


def _base64(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def test_only_the_provider_can_sign(provider: OidcProvider, server: ServerProcess) -> None:
    """A token without a signature, or signed with the public key as a secret, or of no form, is refused."""
    good = provider.token(groups=["admin"])
    head, body, signature = good.split(".")
    none = _base64(b'{"alg":"none","kid":"one"}')
    public = provider.keys[0].as_pem(private=False)
    header = _base64(b'{"alg":"HS256","kid":"one"}')
    forgery = f"{header}.{body}"
    forged = f"{forgery}.{_base64(hmac.digest(public, forgery.encode(), 'sha256'))}"
    for token in (
        f"{none}.{body}.",
        forged,
        f"{head}.{body}.{signature[:-4]}AAAA",
        "a.b.c",
        f"{'a' * 17_000}.b.c",
        "..",
    ):
        assert me(server, token).status_code == 401, token[:80]


@pytest.mark.asyncio
async def test_a_token_that_ends_closes_its_sockets_and_streams(
    provider: OidcProvider, server: ServerProcess
) -> None:
    """A minute after its `exp`, for clocks that differ, whoever has only this token reads no more."""
    # The server reads the keys first: the token is valid for ten seconds.
    assert me(server, provider.token(groups=["viewer"])).status_code == 200
    token = provider.token(groups=["viewer"], rooms=["lab"], seconds=-50)
    socket = AsyncClient(reconnection=False, request_timeout=30)
    async with httpx.AsyncClient(base_url=f"{server.url}/v1/joblib", timeout=60) as client:
        await socket.connect(server.url, auth={"token": token}, transports=["websocket"], wait_timeout=30)
        headers = {"Authorization": f"Bearer {token}"}
        async with client.stream("GET", "/rooms/lab/events", headers=headers) as response:
            assert response.status_code == 200
            async for _ in response.aiter_lines():
                pass
        await socket.wait()
        assert (await client.get("/me", headers=headers)).status_code == 401


def test_unknown_keys_do_not_flood_the_provider(provider: OidcProvider, server: ServerProcess) -> None:
    """Who sends tokens with keys that do not exist makes the server ask once in half a minute."""
    assert me(server, provider.token(groups=["viewer"])).status_code == 200
    provider.requests()
    for number in range(20):
        assert me(server, provider.token(header={"kid": f"unknown {number}"})).status_code == 401
    assert len([path for path in provider.requests() if "jwks" in path]) <= 1


def test_tokens_of_the_server_work_without_the_provider(tmp_path: Path) -> None:
    """A provider that is away refuses its users with the reason, for a while, and nobody else."""
    provider = OidcProvider()
    url = f"sqlite+aiosqlite:///{tmp_path}/queue.db"
    with ServerProcess(url, **settings_for(provider)) as server:
        refused = me(server, provider.token(groups=["viewer"]))
        assert refused.status_code == 503
        assert provider.issuer in refused.json()["detail"]
        assert me(server, str(server.token)).status_code == 200


@pytest.mark.asyncio
async def test_new_keys_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rotation tokens with the new key are taken, and old ones refused once the keys were read again.

    While the provider is away, the keys that are known remain.
    """
    monkeypatch.setattr(oidc, "_EARLIEST_SECONDS", 0.0)
    with OidcProvider(new_key("one")) as running:
        known = Provider(
            ServerSettings(**settings_for(running) | {"oidc_claims": {"default_roles": ["viewer"]}})
        )
        old = running.token()
        await known.identify(old)
        running.stop()
        await known.identify(old)
        running.keys = (new_key("two"),)
        with pytest.raises(Unauthorized, match="no key"):
            await known.identify(running.token())
        running.start()
        assert (await known.identify(running.token())).identity.id == "oidc:anna"
        with pytest.raises(Unauthorized, match="no key"):
            await known.identify(old)


@pytest.mark.asyncio
async def test_a_provider_of_another_name_is_not_used() -> None:
    """The issuer has to be what the provider calls itself, or another's tokens might be taken."""
    with OidcProvider() as running:
        wrong = running.issuer.replace("127.0.0.1", "localhost")
        settings = settings_for(running) | {
            "oidc_issuer": wrong,
            "oidc_claims": {"default_roles": ["viewer"]},
        }
        with pytest.raises(ServiceUnavailable, match="calls itself"):
            await Provider(ServerSettings(**settings)).identify(running.token())


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"oidc_issuer": "http://example.com"}, "https://"),
        ({"oidc_audience": ""}, "oidc_audience is empty"),
        ({"oidc_claims": {}}, "gives no user a role"),
        ({"oidc_claims": {"roles": "groups", "default_roles": ["boss"]}}, "neither a role nor a scope"),
        ({"oidc_claims": {"role": "groups"}}, "oidc_claims.role"),
        ({"oidc_issuer": None}, "need oidc_issuer"),
    ],
)
def test_settings_that_would_let_anyone_in_are_refused(changes: dict[str, Any], fault: str) -> None:
    """The error names the setting and the remedy."""
    given: dict[str, Any] = {
        "oidc_issuer": "https://example.com",
        "oidc_audience": AUDIENCE,
        "oidc_claims": {"roles": "groups"},
    }
    with pytest.raises(ValueError, match=fault):
        ServerSettings(**given | changes)
