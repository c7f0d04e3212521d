"""The page with a large queue: dense lists, failures by kind, narrow windows, long names, hostile texts."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from servers import ServerProcess

from browser import large_queue
from browser.dashboard import MAX_DIFFERENCE, Dashboard, opened

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
_BREAK_THE_TABLE = """
() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(".dense tr { display: flex } .dense td { width: auto !important }");
  document.adoptedStyleSheets = [sheet];
  return sheet;
}
"""
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 860}


@asynccontextmanager
async def _large(browser: Browser, database_url: str) -> AsyncIterator[Dashboard]:
    settings = {"worker_timeout_seconds": 36_000, "sweeper_interval_seconds": 3600}
    with ServerProcess(database_url, **settings) as server:
        async with server.client() as client:
            assert (await client.get("/health/live")).status_code == 200
            await large_queue.fill(database_url)
            async with opened(browser, server.url, server.token) as dashboard:
                yield dashboard


@pytest.mark.slow
async def test_a_large_queue_is_scanned_searched_and_repaired(browser: Browser, database_url: str) -> None:
    """A list has a line for each task and its position; failures are grouped, and a group is retried."""
    async with _large(browser, database_url) as dashboard:
        await _scan(dashboard)
        await _search(dashboard)
        await _suggest(dashboard)
        await _retry_a_group(dashboard)
        await _select_a_time(dashboard)
        for size in (PHONE, DESKTOP):
            await dashboard.page.set_viewport_size(size)  # type: ignore[arg-type]
            await _show_all_pages(dashboard, size["width"])
        assert dashboard.seen == []


async def _scan(dashboard: Dashboard) -> None:
    page = dashboard.page
    await dashboard.show("tasks", "Tasks")
    rows = page.get_by_role("table", name="Tasks").get_by_role("row")
    await expect(rows).to_have_count(51)
    heights = "(rows) => rows.map((row) => row.getBoundingClientRect().height)"
    assert all(height <= 30 for height in await rows.evaluate_all(heights))
    await expect(rows.filter(has_text="42 % Relaxing the cell").first).to_contain_text("gpu-")
    await expect(rows.filter(has_text="scheduled").first).to_contain_text("due in")
    await expect(rows.filter(has_text="predict").filter(has_text="waits for worker").first).to_be_visible()
    await expect(rows.filter(has_text=large_queue.HOSTILE).first).to_be_visible()
    position = page.get_by_role("navigation", name="Parts of the list")
    await expect(position).to_contain_text("1–50 of 15,000")  # noqa: RUF001 - a range
    await dashboard.compare("tasks-1280")
    broken = await page.evaluate_handle(_BREAK_THE_TABLE)
    assert await dashboard.difference("tasks-1280") > MAX_DIFFERENCE
    await broken.evaluate("(sheet) => sheet.replaceSync('')")
    await position.get_by_role("button", name="Older").click()
    await expect(position).to_contain_text("51–100 of 15,000")  # noqa: RUF001
    await position.get_by_role("button", name="Newer").click()
    await expect(position).to_contain_text("1–50 of 15,000")  # noqa: RUF001


async def _search(dashboard: Dashboard) -> None:
    """It reads on by itself to the end, or until it is stopped."""
    page = dashboard.page
    rows = page.get_by_role("table", name="Tasks").get_by_role("row")
    await page.get_by_label("Text in payload or error").fill("needle")
    await expect(rows).to_have_count(4)
    await expect(page.get_by_text("of 3", exact=False).first).to_be_visible()
    await page.route(re.compile("/v1/joblib/tasks.*cursor="), lambda route: None)
    await page.get_by_label("Text in payload or error").fill("nowhere at all")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_text("The search was stopped.")).to_be_visible()
    await page.unroute_all()
    await page.get_by_role("button", name="Go on").click()
    await expect(page.get_by_text("No task matches this filter.")).to_be_visible()


async def _suggest(dashboard: Dashboard) -> None:
    """A worker is chosen by its name; the address has its id."""
    page = dashboard.page
    await dashboard.show("tasks", "Tasks")
    field = page.get_by_label("Worker")
    await field.focus()
    await expect(page.locator("datalist option[value=gpu-007]")).to_have_count(1)
    await field.fill("gpu-007")
    await expect(page).to_have_url(re.compile(r"worker=00000000-0000-0000-0000-0000000003ef$"))
    await expect(field).to_have_value("gpu-007")
    await expect(page.get_by_role("table", name="Tasks").get_by_role("row")).to_have_count(31)


async def _retry_a_group(dashboard: Dashboard) -> None:
    page = dashboard.page
    await dashboard.show("overview", "Overview")
    groups = page.get_by_role("region", name="Failures by job and exception").get_by_role("row")
    row = groups.filter(has_text="crash_often").filter(has_text="RuntimeError")
    await expect(row).to_contain_text("CUDA out of memory")
    size = await row.get_by_role("cell").first.inner_text()
    await row.get_by_role("link", name=size).click()
    await expect(page.get_by_role("row").filter(has_text="crash_often").nth(49)).to_be_visible()
    await page.go_back()
    await row.get_by_role("button", name=re.compile("Retry all")).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=f"Retry {size} tasks").click()
    await expect(page.get_by_text(f"{size} tasks put back into the queue.")).to_be_visible()
    await expect(row).to_be_hidden()


async def _select_a_time(dashboard: Dashboard) -> None:
    """Dragging over a plot leads to the tasks of that time."""
    page = dashboard.page
    await dashboard.show("overview", "Overview")
    plot = page.get_by_role("region", name="Tasks per minute").locator(".u-over")
    await plot.scroll_into_view_if_needed()
    box = await plot.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 100, box["y"] + 50)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 200, box["y"] + 50, steps=4)
    await page.mouse.up()
    await expect(dashboard.title).to_have_text("Tasks")
    await expect(page).to_have_url(re.compile(r"since=20.*Z&until=20.*Z$"))


async def _show_all_pages(dashboard: Dashboard, width: int) -> None:
    """No page is wider than the window, and each is accessible in both themes."""
    page = dashboard.page
    task = await page.evaluate(_NEWEST_TASK)
    job = f"@global:jobs:{large_queue.LONG}"
    addresses = ["overview", "tasks", f"tasks/{task}", "jobs", f"jobs/{job}", "rooms", "workers"]
    addresses += [f"rooms/{large_queue.LONG}", "workers/00000000-0000-0000-0000-0000000003e9"]
    addresses += ["schedules", "groups", "webhooks", "limits", "providers", "sweeper", "settings", "audit"]
    for address in addresses:
        await dashboard.show(address)
        await expect(page.get_by_text("Loading …")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") == width, address
        assert await page.evaluate(_MICROSECONDS) == [], address
        if address in addresses[:6]:
            await dashboard.check(f"large-{address.partition('/')[0]}-{addresses.index(address)}-{width}")
    if width == PHONE["width"]:
        await dashboard.show("tasks", "Tasks")
        await expect(page.get_by_role("table", name="Tasks").get_by_role("row")).to_have_count(51)
        await _use_the_menus(page)
        await dashboard.compare("tasks-390")


# What is shown or said on hover with parts of seconds.
_MICROSECONDS = """
() => [document.body.innerText, ...[...document.querySelectorAll("[title]")].map((each) => each.title)]
  .flatMap((text) => text.match(/\\S*\\d:\\d\\d\\.\\d{3}\\S*/g) ?? [])
"""
_NEWEST_TASK = """
async () => {
  const { get } = await import(new URL("api.js", document.querySelector("script").src));
  return (await get("/tasks", { status: "failed", limit: 1 })).items[0].id;
}
"""


async def _use_the_menus(page: Page) -> None:
    """The pages that do not fit are in a menu, which Escape closes."""
    navigation: Any = page.get_by_role("navigation", name="Pages")
    await expect(navigation.get_by_role("link")).to_have_count(4)
    await navigation.get_by_text("More").press("Enter")
    await expect(navigation.get_by_role("link", name="Rooms")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(navigation.get_by_role("link", name="Rooms")).to_be_hidden()
