"""The frame of the operators' page: token, prefix, keys, permissions, a server that restarts."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import Cookie, FastAPI, Header
from playwright.async_api import Browser, Page, Request, expect
from playwright.async_api import Route as PageRoute
from rest import V1, register, submit
from servers import ServerProcess
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send
from tcp_proxy import TcpProxy

from browser.dashboard import example_queue, new_user, opened
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.wire.problems import Unauthorized

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]


async def test_the_page_asks_for_a_token(browser: Browser, database_url: str) -> None:
    """A wrong token is refused with a reason; the right one opens the page and stays in this tab only.

    The browser reports a language that is no language tag, as Chromium does in the POSIX locale.
    """
    language = "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    with ServerProcess(database_url) as server:
        async with opened(browser, server.url) as dashboard:
            page = dashboard.page
            await page.add_init_script(language)
            await page.goto(server.url)
            await dashboard.check("login")
            await page.get_by_label("Token").fill("wrong")
            await page.get_by_role("button", name="Open").click()
            await expect(page.get_by_role("alert")).to_contain_text("unknown, has expired, or was revoked")
            await page.get_by_label("Token").fill(server.token)
            await page.get_by_role("button", name="Open").click()
            await expect(dashboard.title).to_have_text("Overview")
            await page.reload()
            await expect(dashboard.title).to_have_text("Overview")
            assert server.token not in page.url
            assert await page.evaluate("Object.values(localStorage)") == []
            await page.get_by_label("admin, superuser").click()
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_label("Token")).to_be_visible()
            assert await page.evaluate("Object.values(sessionStorage)") == []
            assert dashboard.seen == []


_TEXTS = """
async () => {
  const { between, duration, exact, localTimes, momentOf } =
    await import(new URL("format.js", document.querySelector("script").src));
  const at = "2026-01-02T03:04:05.123456Z";
  const times = ["2h", "18:00", "9:00", "tomorrow 9:00", "2030-01-31T18:00", "2030-01-31"];
  return [
    exact(at), duration(between(at, at)), duration(0), localTimes("Paused until 2026-01-02 03:04:05 UTC."),
    localTimes(`It failed since 21:05 UTC, at ${at}`), ...times.map((text) => momentOf(text)),
    ...["2h", "18:00", "9:00"].map((text) => momentOf(text, -1)),
    ...["abc", "", "25:00", "1", "-5m"].map((text) => momentOf(text)),
  ];
}
"""
_UTC = ["Jan 2, 2026, 03:04:05 UTC", "< 1 ms", "0 s", "Paused until Jan 2, 2026, 03:04:05 UTC."]
_UTC += ["It failed since 21:05, at Jan 2, 2026, 03:04:05 UTC"]
_COMING = ["2026-11-27T14:00:00", "2026-11-27T18:00:00", "2026-11-28T09:00:00", "2026-11-28T09:00:00"]
_COMING += ["2030-01-31T18:00:00", "2030-01-31T00:00:00"]
_PAST = ["2026-11-27T10:00:00", "2026-11-26T18:00:00", "2026-11-27T09:00:00"]


async def test_times_are_in_the_zone_of_the_browser(browser: Browser, database_url: str) -> None:
    """UTC is named once, no time has microseconds, and users write durations and times of their zone."""
    with ServerProcess(database_url) as server:
        for zone in ("UTC", "Etc/UTC"):
            context = await browser.new_context(timezone_id=zone, locale="en")
            page = await context.new_page()
            await page.clock.set_fixed_time("2026-11-27T12:00:00Z")
            await page.goto(server.url)
            times = [f"{time}.000Z" for time in (*_COMING, *_PAST)]
            assert await page.evaluate(_TEXTS) == [*_UTC, *times, *[None] * 5]
            await context.close()


async def test_the_page_works_with_keys(browser: Browser, database_url: str) -> None:
    """A user without a mouse skips the navigation, opens pages, filters and dialogs, and sees the focus."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page = dashboard.page
        await page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keys")
        await expect(dialog).to_contain_text("Go to the first filter")
        await dashboard.check("keys")
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        await page.keyboard.type("gt")
        await expect(dashboard.title).to_have_text("Tasks")
        await expect(dashboard.title).to_be_focused()
        await expect(page.get_by_role("row")).to_have_count(16)
        await page.keyboard.press("/")
        await page.keyboard.type("no ")
        await expect(page).to_have_url(re.compile(r"text=no$"))
        await page.keyboard.type("volume")  # the space is still there
        await expect(page).to_have_url(re.compile(r"text=no\+volume$"))
        await expect(page.get_by_role("row")).to_have_count(3)
        await page.evaluate("document.activeElement.blur()")
        await page.get_by_role("link", name="Skip to the content").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("main")).to_be_focused()
        assert dashboard.seen == []


_TRANSFERRED = """
() => performance.getEntriesByType("resource")
  .filter((entry) => entry.name.includes("/static/") && entry.transferSize > 0).map((entry) => entry.name)
"""


async def test_a_page_that_is_loaded_again_waits_for_little(browser: Browser, database_url: str) -> None:
    """It reads no file again, and shows its rows before the server has said who the caller is."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page, go_on = dashboard.page, asyncio.Event()
        await dashboard.show("tasks", "Tasks")
        await expect(page.get_by_role("row")).to_have_count(16)

        async def wait(route: PageRoute) -> None:
            await go_on.wait()
            await route.continue_()

        await page.reload()
        await expect(page.get_by_role("row")).to_have_count(16)
        assert await page.evaluate(_TRANSFERRED) == []
        await page.route(re.compile(f"{V1}/me"), wait)
        await page.reload()
        await expect(page.get_by_role("row")).to_have_count(16)
        go_on.set()
        await expect(page.get_by_label("admin, superuser")).to_be_visible()
        assert dashboard.seen == []


def _api_requests(page: Page) -> list[Request]:
    """Return the list that gets each request to the API."""
    seen: list[Request] = []
    page.on("request", lambda request: seen.append(request) if V1 in request.url else None)
    return seen


async def test_a_hidden_page_sends_no_requests(browser: Browser, database_url: str) -> None:
    """It closes its stream and polls no more until it is shown again."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, url = dashboard.page, f"/tasks/{queue.tasks['running']['id']}/events"
        await dashboard.show(f"tasks/{queue.tasks['running']['id']}", "Relax · fcc")
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await page.clock.install()
        await page.evaluate(
            "Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true })"
        )
        async with page.expect_event("requestfailed", lambda request: url in request.url):
            await _hide(page, is_hidden=True)
        seen = _api_requests(page)
        await page.clock.run_for(120_000)
        assert seen == []
        await queue.tell("running", log={"first": 14, "lines": [_line("while it was hidden")]})
        async with page.expect_request(lambda request: url in request.url):
            await _hide(page, is_hidden=False)
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await queue.tell("running", log={"first": 15, "lines": [_line("while it is shown")]})
        for text in ("while it was hidden", "while it is shown"):
            await expect(page.get_by_role("log").get_by_text(text)).to_have_count(1)
        assert dashboard.seen == []


def _line(text: str) -> dict[str, str]:
    return {"at": "2026-01-02T03:05:00Z", "text": text, "level": "info", "source": "log"}


async def _hide(page: Page, *, is_hidden: bool) -> None:
    change = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(f"(isHidden) => {{ window.isHidden = isHidden; {change}; }}", is_hidden)


async def test_a_page_survives_a_restart_of_the_server(browser: Browser, database_url: str) -> None:
    """The content stays with a banner, and the page goes on by itself with the next server."""
    async with TcpProxy(0).running() as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        with ServerProcess(database_url) as first:
            proxy.target_port = urlsplit(first.url).port or 0
            async with first.client() as client, opened(browser, url, first.token) as dashboard:
                page, rows = dashboard.page, dashboard.page.get_by_role("row")
                job = await register(client)
                await submit(client, job, steps=1)
                await dashboard.show("tasks", "Tasks")
                await expect(rows).to_have_count(2)
                first.process.kill()
                first.process.wait(10)
                proxy.cut()
                await expect(page.get_by_role("alert")).to_contain_text("has not answered")
                await dashboard.check("server-gone")
                await expect(rows).to_have_count(2)
                with ServerProcess(database_url) as second:
                    proxy.target_port = urlsplit(second.url).port or 0
                    async with second.client() as other:
                        await submit(other, job, steps=2)
                    await expect(rows).to_have_count(3)
                    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_reader_of_a_room_sees_only_that_room(browser: Browser, database_url: str) -> None:
    """The page asks for a room and offers what the user may do: nothing with the tasks of others."""
    async with example_queue(browser, database_url) as (admin, queue):
        token = await new_user(database_url, "ann")
        async with opened(browser, admin.url, token) as dashboard:
            page = dashboard.page
            await expect(dashboard.title).to_have_text("Tasks")
            await expect(page.get_by_role("link", name="Overview")).to_be_hidden()
            await expect(page.get_by_text("Name your room above")).to_be_visible()
            await dashboard.check("reader-without-room")
            await page.get_by_role("banner").get_by_label("Room").fill("teaching")
            await page.get_by_role("button", name="Show").click()
            await expect(page.get_by_role("row")).to_have_count(8)
            await expect(page.get_by_role("link", name="lab")).to_have_count(0)
            await expect(page.get_by_role("button", name="Purge")).to_be_hidden()
            await dashboard.check("reader")
            await dashboard.show("overview")
            await expect(page.get_by_text("You may not read this page")).to_be_visible()
            await dashboard.show(f"tasks/{queue.tasks['waiting']['id']}")
            await expect(page.get_by_text("Why it waits")).to_be_visible()
            await expect(page.get_by_role("link", name="Submit again")).to_be_visible()
            for name in ("Cancel", "Fail", "Release"):
                await expect(page.get_by_role("button", name=name, exact=True)).to_be_hidden()
            assert dashboard.seen == []


async def test_a_read_only_page_offers_no_action(browser: Browser, database_url: str) -> None:
    """There is no button that changes something, and the API refuses what the page would send."""
    async with example_queue(browser, database_url, dashboard="read-only") as (dashboard, queue):
        page = dashboard.page
        await expect(page.get_by_text("read-only")).to_be_visible()
        await dashboard.show("tasks", "Tasks")
        await expect(page.get_by_role("row")).to_have_count(16)
        await expect(page.get_by_role("checkbox")).to_have_count(0)
        await expect(page.get_by_role("button", name="Retry")).to_be_hidden()
        await dashboard.show(f"tasks/{queue.tasks['failed']['id']}", "Relax · hcp")
        await expect(page.get_by_label("Traceback")).to_be_visible()
        await expect(page.get_by_role("button", name="Retry")).to_be_hidden()
        await expect(page.get_by_role("link", name="Submit again")).to_be_hidden()
        refused = await page.evaluate(_ACT_FROM_THE_PAGE, queue.tasks["failed"]["id"])
        assert refused == 403


_ACT_FROM_THE_PAGE = """
async (id) => {
  const { act } = await import(new URL("api.js", document.querySelector("script").src));
  return act("POST", `/tasks/${id}/retry`, {}).then(() => 200, (problem) => problem.status);
}
"""


async def _by_cookie(
    user: Annotated[str | None, Cookie()] = None, x_user: Annotated[str, Header()] = ""
) -> Identity:
    if not (user or x_user):
        raise Unauthorized("Log in first")
    return Identity(user or x_user, is_superuser=True)


class _Host:
    """A host below the paths `/proxied`, which it does not know, and `/mounted`, its root path."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._known = Starlette(routes=[Mount("/mounted", app)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/proxied/"):
            await self._known(scope, receive, send)
            return
        path = scope["path"].removeprefix("/proxied")
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, send)


@asynccontextmanager
async def _hosted(database_url: str, **options: Any) -> AsyncIterator[str]:
    """Serve a host with the queue and its page; return the URL of the server."""
    database, app = open_database(database_url), FastAPI()
    app.router.routes.append(Route("/who.js", _who))
    JobLib(session_maker=database, identity=_by_cookie).mount(app, dashboard="/tools/queue", **options)
    config = uvicorn.Config(_Host(app), log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with app.router.lifespan_context(app):
            running = asyncio.create_task(server.serve([listener]))
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            app.state.joblib.begin_stop()
            server.should_exit = True
            await running
    await database.close()


async def _who(_: object) -> Response:
    return Response("export default async () => ({ 'X-User': 'eve' });", media_type="text/javascript")


async def test_the_page_of_a_host_works_below_any_prefix(browser: Browser, database_url: str) -> None:
    """It sends the host's cookies, or the headers of the host's module, and acts from its own origin."""
    async with _hosted(database_url) as url, opened(browser, f"{url}/proxied/tools/queue") as dashboard:
        page = dashboard.page
        await page.goto(dashboard.url)
        await expect(page.get_by_text("You are not logged in")).to_be_visible()
        await page.context.add_cookies([{"name": "user", "value": "dora", "url": url}])
        for prefix in ("proxied", "mounted"):
            await page.goto(f"{url}/{prefix}/tools/queue#/tasks")
            await expect(dashboard.title).to_have_text("Tasks")
            await expect(page.get_by_text("dora", exact=True)).to_be_visible()
            assert urlsplit(page.url).path == f"/{prefix}/tools/queue/"
            await page.goto(f"{url}/{prefix}/tools/queue/t/0198")
            await expect(page).to_have_url(f"{url}/{prefix}/tools/queue/#/tasks/0198")
            await page.goto(f"{url}/{prefix}/tools/queue#/tasks")
            status = await page.evaluate(_ACT_FROM_THE_PAGE, "00000000-0000-4000-8000-000000000000")
            assert status == 404  # not 403
        assert dashboard.seen == []


async def test_a_module_of_the_host_says_who_the_user_is(browser: Browser, database_url: str) -> None:
    """The page sends the headers that the module returns, also for a stream of events."""
    options = {"headers_module": "../../who.js", "read_only": True}
    async with _hosted(database_url, **options) as url, opened(browser, url) as dashboard:
        seen = _api_requests(dashboard.page)
        await dashboard.page.goto(f"{url}/mounted/tools/queue/")
        await expect(dashboard.page.get_by_text("eve", exact=True)).to_be_visible()
        await expect(dashboard.title).to_have_text("Overview")
        assert {request.headers.get("x-user") for request in seen} == {"eve"}
