"""The operators' page in a browser, on a real server: what its tests share."""

import io
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageStat
from playwright.async_api import Browser, BrowserContext, Locator, Page, expect
from servers import ServerProcess

from browser.conftest import MILLISECONDS
from browser.example_queue import ExampleQueue
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.queue.rules_tokens import digest

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(__file__).parent / "pictures"
# Of 255: other names and times differ by less, a broken table by more.
MAX_DIFFERENCE = 1.5
IMAGES = Path(__file__).parents[2] / "docs" / "images"
THEMES = ("light", "dark")
_RUN_AXE = """
async () => {
  const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const found = await axe.run(document, { runOnly: rules });
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) =>
    `${node.target.join(" ")} (${node.failureSummary})`).slice(0, 3).join("; ")}`);
}
"""


class Dashboard:
    """The operators' page of a server in a page of a browser. `seen` has all errors of its console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url.rstrip("/")
        self.seen: list[str] = []
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("console", self._keep)

    def _keep(self, message: Any) -> None:
        # The browser reports each refused request; the tests provoke some.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.seen.append(f"{message.type}: {message.text}")

    @property
    def title(self) -> Locator:
        """The title of the page that is shown."""
        return self.page.get_by_role("heading", level=1)

    async def log_in(self, token: str) -> None:
        """Open the page and enter a token."""
        await self.page.goto(f"{self.url}/")
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Open").click()
        await expect(self.page.get_by_role("navigation", name="Pages")).to_be_visible()

    async def show(self, address: str, title: str | None = None) -> None:
        """Go to an address such as `tasks?status=failed`, and wait for the title of the page."""
        await self.page.evaluate("(address) => (location.hash = `#/${address}`)", address)
        if title is not None:
            await expect(self.page.get_by_role("heading", level=1, name=title)).to_be_visible()

    async def fits(self, width: int) -> None:
        """Wait until the page is as wide as the window: plots follow it a moment later."""
        is_no_wider = "(width) => document.documentElement.scrollWidth === width"
        await self.page.wait_for_function(is_no_wider, arg=width)

    async def check(self, name: str) -> None:
        """Check the accessibility of what is shown in both themes, and write an image of each."""
        for theme in THEMES:
            await self.page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)
            # Transitions of colours have ended, or their elements are gone.
            await self.page.evaluate(
                "Promise.allSettled(document.getAnimations().map((each) => each.finished))"
            )
            await self._shoot(f"{name}-{theme}")
            # Through the debugger, so that the page's own policy stays in force.
            if not await self.page.evaluate("Boolean(window.axe)"):
                await self.page.evaluate(AXE.read_text(encoding="utf-8"))
            violations = await self.page.evaluate(_RUN_AXE)
            assert violations == [], f"{name}, {theme}: {violations}"
        assert self.seen == []

    async def compare(self, name: str) -> None:
        """Compare what is shown with a stored picture, so tolerantly that only the layout counts.

        With SCREENSHOTS=pictures, store it instead.
        """
        assert await self.difference(name) <= MAX_DIFFERENCE, name

    async def difference(self, name: str) -> float:
        """Return how far the shades of what is shown are from those of a stored picture, on average."""
        await self.page.evaluate("document.documentElement.dataset.theme = 'light'; scrollTo(0, 0)")
        shot = Image.open(io.BytesIO(await self.page.screenshot())).convert("L")
        small, path = shot.resize((shot.width // 10, shot.height // 10)), PICTURES / f"{name}.png"
        if os.environ.get("SCREENSHOTS") == "pictures" and not path.exists():
            small.save(path)
        stored = Image.open(path)
        assert stored.size == small.size
        return float(ImageStat.Stat(ImageChops.difference(stored, small)).mean[0])

    async def _shoot(self, name: str) -> None:
        """Write an image into the folder that SCREENSHOTS names; `docs` is that of the documentation."""
        if folder := os.environ.get("SCREENSHOTS"):
            target = IMAGES if folder == "docs" else Path(folder)
            target.mkdir(parents=True, exist_ok=True)
            await self.page.screenshot(path=target / f"{name}.png", full_page=folder != "docs")


async def new_user(database_url: str, name: str, *, is_superuser: bool = False) -> str:
    """Store a token of a user in the database of a server; return it."""
    database, token = open_database(database_url), f"token-of-{name}-for-the-browser"
    await database.write(
        partial(sql_operators.add_token, name=name, digest=digest(token), is_superuser=is_superuser)
    )
    await database.close()
    return token


@asynccontextmanager
async def opened(browser: Browser, url: str, token: str | None = None) -> AsyncIterator[Dashboard]:
    """Open the page of a server in a window of its own, logged in with a token if there is one."""
    context: BrowserContext = await browser.new_context(
        viewport={"width": 1280, "height": 860},
        reduced_motion="reduce",
        timezone_id="Europe/Berlin",
        locale="en",
    )
    context.set_default_timeout(MILLISECONDS)
    try:
        dashboard = Dashboard(await context.new_page(), url)
        if token is not None:
            await dashboard.log_in(token)
        yield dashboard
    finally:
        await context.close()


@asynccontextmanager
async def example_queue(
    browser: Browser, database_url: str, **settings: str
) -> AsyncIterator[tuple[Dashboard, ExampleQueue]]:
    """Run a server with an example queue, whose workers are silent, and open its page as a superuser."""
    with ServerProcess(database_url, worker_timeout_seconds=600, **settings) as server:
        async with server.client() as client:
            queue = ExampleQueue(client)
            await queue.fill()
            async with opened(browser, server.url, server.token) as dashboard:
                yield dashboard, queue
