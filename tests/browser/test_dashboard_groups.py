"""Groups on the operators' page: the list, a group that is followed live, its failures, tasks and actions."""

import re
import time
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect
from rest import V1, claim, register, report
from servers import ServerProcess

from browser.dashboard import Dashboard, new_user, opened

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 860}
TASKS = 10_000
_SHOWN_SECONDS = 3.0


class Groups:
    """Makes groups of tasks of one job."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.job: dict[str, Any] = {}

    async def make(self, name: str, tasks: int, *, sealed: bool = True) -> str:
        """Return the id of a group with some tasks."""
        if not self.job:
            self.job = await register(self.client, "Relax")
        on_end = {"job": self.job["full_name"], "payload": {"values": {"$group": "results"}}}
        body = {"room": "lab", "name": name, "on_end": on_end}
        response = await self.client.post(f"{V1}/groups", json=body)
        assert response.status_code == 201, response.text
        group: str = response.json()["id"]
        item = {"room_id": "lab", "job_name": self.job["full_name"], "group": group}
        for first in range(0, tasks, 1000):
            numbers = range(first, min(tasks, first + 1000))
            items = [{**item, "payload": {"structure": f"cell {number}"}} for number in numbers]
            headers = {"Prefer": "return=minimal"}
            response = await self.client.post(f"{V1}/tasks/submit", json={"tasks": items}, headers=headers)
            assert {result["status"] for result in response.json()["results"]} == {202}
        if sealed:
            response = await self.client.patch(f"{V1}/groups/{group}", json={"sealed": True})
            assert response.status_code == 200, response.text
        return group

    async def start(self) -> dict[str, Any]:
        """Start the next task, and return it."""
        task = await claim(self.client, self.job["worker_id"])
        assert task is not None
        assert (await report(self.client, task, "running")).status_code == 200
        return task

    async def run(self, end: str, **fields: Any) -> dict[str, Any]:
        """Run the next task to its end, and return it."""
        task = await self.start()
        assert (await report(self.client, task, end, **fields)).status_code == 200
        return task


async def test_a_group_is_followed_and_repaired(browser: Browser, database_url: str) -> None:
    """Its bar moves with the tasks, the end shows what follows, and bulk actions change all its tasks."""
    with ServerProcess(database_url, worker_timeout_seconds=600) as server:
        async with server.client() as client, opened(browser, server.url, server.token) as dashboard:
            groups = Groups(client)
            group = await groups.make("relax all cells", 6)
            failed = await groups.run("failed", error="ValueError: The cell has no volume")
            await groups.start()
            await _list(dashboard)
            await _follow(dashboard, groups, group)
            await _task(dashboard, failed, group)
            await _act(dashboard, groups)
            await _made_by_a_task(dashboard, groups)
            await _read_only(browser, database_url, server.url, group)


async def _list(dashboard: Dashboard) -> None:
    await dashboard.show("groups?room=lab", "Groups")
    row = dashboard.page.get_by_role("row").filter(has_text="relax all cells")
    await expect(row).to_contain_text("of 6 tasks")
    await expect(row.get_by_role("img")).to_have_attribute("aria-label", "1 failed, 1 running, 4 pending")
    for size in (PHONE, DESKTOP):
        await dashboard.page.set_viewport_size(size)  # type: ignore[arg-type]
        await _check_width(dashboard, size["width"], "groups")
    await row.get_by_role("link", name="relax all cells").click()


async def _check_width(dashboard: Dashboard, width: int, name: str) -> None:
    await dashboard.fits(width)
    await dashboard.check(f"{name}-{width}")


async def _follow(dashboard: Dashboard, groups: Groups, group: str) -> None:
    page = dashboard.page
    await expect(dashboard.title).to_have_text("relax all cells")
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    progress = page.get_by_role("region", name="Progress")
    await expect(progress).to_contain_text("1 of 6 tasks ended")
    await expect(page.get_by_role("table", name="Failures")).to_contain_text("The cell has no volume")
    await expect(progress).to_contain_text("is submitted when all tasks have ended")
    assert page.url.endswith(f"#/groups/{group}")
    await groups.run("completed", result=1)
    await expect(progress).to_contain_text("2 of 6 tasks ended")
    await groups.run("failed", error="OSError: The disk is full")
    await expect(page.get_by_role("table", name="Failures")).to_contain_text("The disk is full")
    for size in (PHONE, DESKTOP):
        await page.set_viewport_size(size)  # type: ignore[arg-type]
        await _check_width(dashboard, size["width"], "group")


async def _task(dashboard: Dashboard, task: dict[str, Any], group: str) -> None:
    """A task leads to its group."""
    await dashboard.show(f"tasks/{task['id']}")
    await dashboard.page.locator(f'a[href="#/groups/{group}"]').click()
    await expect(dashboard.title).to_have_text("relax all cells")


async def _act(dashboard: Dashboard, groups: Groups) -> None:
    page = dashboard.page
    progress = page.get_by_role("region", name="Progress")
    await page.get_by_role("button", name="Cancel 3 …").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Cancel 3 tasks").click()
    await expect(progress).to_contain_text("6 of 6 tasks ended")
    await expect(progress).to_contain_text("was submitted: task")
    await expect(page.get_by_text("ended with failures")).to_be_visible()
    await expect(page.get_by_text("live", exact=True)).to_have_count(0)
    await page.get_by_role("button", name="Retry 5 …").click()
    await dialog.get_by_role("button", name="Retry 5 tasks").click()
    await expect(progress).to_contain_text("1 of 6 tasks ended")
    await page.get_by_role("link", name="Search its tasks").click()
    await expect(page.get_by_role("table", name="Tasks").get_by_role("row")).to_have_count(7)
    await expect(page.get_by_label("Group")).to_have_value(re.compile("-"))
    await groups.make("of no one yet", 0, sealed=False)
    await dashboard.show("groups", "Groups")
    await page.get_by_role("link", name="of no one yet").click()
    await page.get_by_role("button", name="Seal", exact=True).click()
    await dialog.get_by_role("button", name="Seal the group").click()
    await expect(page.get_by_role("region", name="Progress")).to_contain_text("ended")
    await dashboard.show("groups/01a21ee2-5777-74cb-b3e8-12732f527a0b")
    await expect(page.get_by_text("There is no such group.")).to_be_visible()
    assert dashboard.seen == []


async def _made_by_a_task(dashboard: Dashboard, groups: Groups) -> None:
    """The group of a task's token leads to this task."""
    claim = {"worker_id": groups.job["worker_id"], "tokens": True}
    task = (await groups.client.post(f"{V1}/tasks/claim", json=claim)).json()["task"]
    token = {"Authorization": f"Bearer {task['token']}"}
    body = {"room": "lab", "name": "made by a task"}
    group = (await groups.client.post(f"{V1}/groups", json=body, headers=token)).json()
    await dashboard.show(f"groups/{group['id']}", "made by a task")
    await dashboard.page.locator(f'a[href="#/tasks/{task["id"]}"]').click()
    await dashboard.page.wait_for_url(f"**#/tasks/{task['id']}")


async def _read_only(browser: Browser, database_url: str, url: str, group: str) -> None:
    """A user of the room sees the group."""
    token = await new_user(database_url, "ada")
    async with opened(browser, url, token) as dashboard:
        await dashboard.show(f"groups/{group}", "relax all cells")
        await expect(dashboard.page.get_by_role("region", name="Progress")).to_contain_text(
            "of 6 tasks ended"
        )


@pytest.mark.slow
async def test_a_group_of_10000_tasks_is_shown_at_once(browser: Browser, database_url: str) -> None:
    """The page reads counts and the newest tasks, not all of them."""
    with ServerProcess(database_url, worker_timeout_seconds=600) as server:
        async with server.client() as client, opened(browser, server.url, server.token) as dashboard:
            groups = Groups(client)
            group = await groups.make("ten thousand", TASKS)
            began = time.monotonic()
            await dashboard.show(f"groups/{group}", "ten thousand")
            rows = dashboard.page.get_by_role("table", name="Tasks").get_by_role("row")
            await expect(rows).to_have_count(51)
            seconds = time.monotonic() - began
            assert seconds < _SHOWN_SECONDS, seconds
            await groups.run("completed")
            progress = dashboard.page.get_by_role("region", name="Progress")
            await expect(progress).to_contain_text("1 of 10,000 tasks ended")
            row, link = (
                await dashboard.page.locator(".dense tbody tr").last.bounding_box(),
                await dashboard.page.get_by_role("link", name="All 10,000 tasks").bounding_box(),
            )
            assert row is not None
            assert link is not None
            assert row["y"] + row["height"] <= link["y"]
            await dashboard.check("group-large")
