"""The page's log-in at an identity provider."""

import json

import pytest
from oidc.provider import AUDIENCE, OidcProvider
from playwright.async_api import Browser, expect
from servers import ServerProcess

from browser.dashboard import opened

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
LOGIN = {"client_id": "page", "scope": "openid profile offline_access", "parameters": {"resource": AUDIENCE}}
TOKEN = "sessionStorage.getItem('zndraw-joblib token')"


def settings_for(provider: OidcProvider) -> dict[str, str]:
    """Return the settings of a server whose page logs in at the provider."""
    claims = {"roles": "groups", "rooms": "rooms"}
    return {
        "oidc_issuer": provider.issuer,
        "oidc_audience": AUDIENCE,
        "oidc_claims": json.dumps(claims),
        "oidc_login": json.dumps(LOGIN),
    }


async def test_a_user_logs_in_at_the_provider(browser: Browser, database_url: str) -> None:
    """The page comes back where it was, renews its token in time, and logs out; no code stays in a URL."""
    provider = OidcProvider(seconds=36)
    with ServerProcess(database_url, **settings_for(provider)) as server:
        provider.redirect_to(f"{server.url}/")
        with provider:
            async with opened(browser, server.url) as dashboard:
                page = dashboard.page
                await page.goto(f"{server.url}/#/tasks")
                await dashboard.check("sign-in")
                await page.get_by_role("button", name="Log in with").click()
                await page.get_by_placeholder("Enter any login").fill("anna.operator.lab")
                await page.get_by_placeholder("and password").fill("any")
                await page.get_by_role("button", name="Sign-in").click()
                await page.get_by_role("button", name="Continue").click()
                await expect(page.get_by_label("oidc:anna.operator.lab")).to_be_visible()
                assert page.url == f"{server.url}/#/tasks"
                first = await page.evaluate(TOKEN)
                await page.wait_for_function(f"(first) => {TOKEN} !== first", arg=first)
                await page.reload()
                await page.get_by_label("oidc:anna.operator.lab").click()
                await page.get_by_role("button", name="Log out").click()
                await expect(page.get_by_role("button", name="Log in with")).to_be_visible()
                assert await page.evaluate("Object.values(sessionStorage)") == []


async def test_a_log_in_that_another_site_began_is_refused(browser: Browser, database_url: str) -> None:
    """A code with a foreign state is not redeemed, and a refusal of the provider is shown."""
    with OidcProvider() as provider, ServerProcess(database_url, **settings_for(provider)) as server:
        async with opened(browser, server.url) as dashboard:
            page = dashboard.page
            await page.goto(f"{server.url}/?code=stolen&state=foreign")
            await expect(page.get_by_role("alert")).to_contain_text("was not begun in this tab")
            assert page.url == f"{server.url}/"
            assert not [path for path in provider.requests() if "token" in path]


async def test_the_page_takes_tokens_while_the_provider_is_away(browser: Browser, database_url: str) -> None:
    """It says that the provider does not respond; a token of the server opens the page."""
    with ServerProcess(database_url, **settings_for(OidcProvider())) as server:
        async with opened(browser, server.url, str(server.token)) as dashboard:
            await expect(dashboard.title).to_have_text("Overview")
