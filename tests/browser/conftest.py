"""A browser without a display, and pages of a site on an origin of its own."""

import os
import platform
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

CHROMIUM = Path(__file__).parent / "node_modules" / ".chromium"
_FLAGS = [
    *("--no-sandbox", "--headless=shell"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
]
# A page on a busy machine, and one that waits for the next server with growing pauses.
MILLISECONDS = 60_000
expect.set_options(timeout=MILLISECONDS)


class _EmptySite(BaseHTTPRequestHandler):
    """Answers every request with an empty page."""

    def do_GET(self) -> None:
        """Send the page."""
        body = b"<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>Test</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture(scope="session")
def origin() -> Iterator[str]:
    """Serve empty pages; return their origin, which is no server of the queue."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptySite) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}"
        site.shutdown()
        thread.join()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Start a browser for all tests. They run in the event loop of the session, as it does."""
    here = f"{platform.system()} {platform.machine()}"
    assert here == "Linux x86_64", f"the browser of the tests is a program for Linux on x86-64, not {here}"
    program = CHROMIUM / "chromium"
    assert program.exists(), f"{program} is not there: run `make peers`"
    libraries = f"{CHROMIUM / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(CHROMIUM / "fonts.conf")}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=_FLAGS, env={**os.environ, **environment}
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, origin: str) -> AsyncIterator[Page]:
    """Open an empty page of `origin`. At the end, check that no error of its code was left to the browser."""
    context = await browser.new_context()
    page = await context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(origin)
    yield page
    await context.close()
    assert errors == []
