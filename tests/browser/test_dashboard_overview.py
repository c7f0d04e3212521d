"""The overview in a browser."""

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from playwright.async_api import Browser, Page, expect
from rest import register, submit
from sqlalchemy import insert

from browser.dashboard import example_queue
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Statistic

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]


async def _add_an_hour(database_url: str) -> int:
    """Store statistics of an hour, as if tasks had run all the time; return how many failed."""
    database, now = open_database(database_url), datetime.now(UTC).replace(second=0, microsecond=0)
    rows = [_minute(now - timedelta(minutes=ago), ago) for ago in range(2, 57)]
    await database.write(partial(_insert, rows=rows))
    await database.close()
    return sum(row["failed"] for row in rows)


async def _insert(tx: Transaction, rows: list[dict[str, Any]]) -> None:
    await tx.execute(insert(Statistic.__table__), rows)


def _minute(start: datetime, ago: int) -> dict[str, Any]:
    completed = round(60 + 25 * math.sin(ago / 7) + 9 * math.sin(ago * 1.7))
    failed = 14 if 20 < ago < 27 else ago % 5 // 4
    waiting = [0, 4, 20, 30, 12, 6 + failed, failed, failed * 2, *[0] * 8]
    running = [0, 0, 2, 10, 24, 30, 12 + failed, 4, *[0] * 6, 30, 0]  # the last ones for hours
    counts = {"submitted": completed + failed, "completed": completed, "failed": failed}
    totals = {"cancelled": 0, "retried": failed // 2, "lost": int(ago == 24)}
    seconds = {"waiting_seconds": 60.0, "running_seconds": 200.0, "waiting": waiting, "running": running}
    causes = {"error": failed, **({"worker-lost": 1} if ago == 24 else {})}
    key = {"resolution": 60, "job_id": UUID(int=0), "start": start}
    return {**key, **counts, **totals, **seconds, "causes": causes}


# How many pixels of each plot are drawn at its left and its right edge, where a label would be cut.
_INK_AT_THE_EDGES = """
() => [...document.querySelectorAll(".uplot canvas")].map((canvas) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
  const isAtEdge = (index) => [0, width - 1].includes((index >> 2) % width);
  return data.filter((value, index) => index % 4 === 3 && value > 0 && isAtEdge(index)).length;
})
"""


async def _count_failures(page: Page, failed: int) -> None:
    """Check that all counts of failures in the last hour are the same, and what they count."""
    await expect(page.get_by_text(f"{failed} failed.").first).to_be_visible()
    recent = page.get_by_label("Counts").get_by_title("Each end of a task counts")
    await expect(recent.filter(has_text="failed")).to_contain_text(f"{failed} failed")
    causes = page.get_by_role("region", name="Why attempts failed")
    await expect(causes).to_contain_text(f"{failed} tasks ended as failed")


async def test_the_overview_shows_what_is_wrong_and_follows_it(browser: Browser, database_url: str) -> None:
    """A job without workers comes first, with what to do; the finding goes once a worker serves the job."""
    async with example_queue(browser, database_url, sweeper_interval_seconds="1") as (dashboard, queue):
        page = dashboard.page
        failed = await _add_an_hour(database_url)
        findings = page.get_by_role("region", name="problem")
        await expect(findings).to_contain_text("lab:modifiers:Export")
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await expect(page.get_by_label("Counts")).to_contain_text("6 queued")
        await _count_failures(page, failed + 2)
        await expect(page.get_by_role("region", name="Servers").get_by_role("row")).to_have_count(2)
        await page.mouse.move(0, 0)
        await dashboard.check("overview")
        assert await page.evaluate(_INK_AT_THE_EDGES) == [0, 0, 0]
        await page.get_by_role("button", name="Week").click()
        await expect(page.get_by_role("heading", name="Tasks per hour")).to_be_visible()
        assert page.url.endswith("#/overview?range=7d")
        await findings.get_by_role("link", name="Show its waiting tasks").click()
        await expect(page.get_by_role("row")).to_have_count(2)
        await page.go_back()
        await expect(findings).to_be_visible()
        job = await register(queue.client, "Export", room="lab")
        await submit(queue.client, job, "lab", format="cif")
        await expect(page.get_by_label("Counts")).to_contain_text("7 queued")
        await expect(findings.filter(has_text="Export")).to_be_hidden()
        assert dashboard.seen == []
