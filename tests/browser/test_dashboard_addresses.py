"""Filters and addresses as users write them, in a browser: parts of names, wrong values, unknown paths."""

import re

import pytest
from playwright.async_api import Browser, Page, expect
from rest import V1

from browser.dashboard import Dashboard, example_queue
from browser.example_queue import ExampleQueue

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
_WRONG = {
    "since=abc": "Created in: “abc” is no time. Choose a period, or write 30m, 2h, 1d, 18:00",
    "until=never": "Created until: “never” is no time.",
    "status=wrong": "Status: “wrong” is no status.",
    "version=x": "Version of the job: “x” is no version. Write a number, such as 1.",
    "version=1": "Version of the job: Versions are those of a job: choose a job too.",
    "scheduled=maybe": "Due: “maybe” is neither true nor false.",
    "worker=nobody": "Worker: No worker like “nobody”.",
    "job=zzzzzz": "Job: No job like “zzzzzz”. Look at the list of jobs",
}


async def test_a_filter_takes_a_part_of_a_name(browser: Browser, database_url: str) -> None:
    """That of one job or worker is enough; of several, and of none, the page offers the nearest."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        rows = page.get_by_role("row")
        await dashboard.show("tasks", "Tasks")
        field = page.get_by_label("Job", exact=True)
        await field.fill("rend")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_contain_text("Render")
        await field.press("Enter")
        await expect(field).to_have_value("@global:analysis:Render")
        await expect(page).to_have_url(re.compile("job=%40global%3Aanalysis%3ARender$"))
        await field.fill("modifiers")
        await expect(page.get_by_text("2 jobs are called like “modifiers”:")).to_be_visible()
        await expect(page.get_by_text("All that match")).to_be_hidden()
        await dashboard.check("filter-several")
        await page.get_by_role("button", name="lab:modifiers:Export").click()
        await expect(rows).to_have_count(2)
        await _name_a_job_wrongly(dashboard)
        await _name_a_worker(dashboard, queue)
        assert dashboard.seen == []


async def _name_a_job_wrongly(dashboard: Dashboard) -> None:
    page, rows = dashboard.page, dashboard.page.get_by_role("row")
    await page.get_by_label("Job", exact=True).fill("Rlax")
    await expect(page.get_by_text("No job like “Rlax”. Did you mean:")).to_be_visible()
    await page.get_by_role("button", name="@global:modifiers:Relax").click()
    await expect(rows).to_have_count(14)
    await dashboard.show("tasks?job=analysis:Render")
    await expect(rows).to_have_count(2)
    await dashboard.show("tasks?job=lab:modifiers:Exprt")
    await expect(page.get_by_text("No job is called “lab:modifiers:Exprt”.")).to_be_visible()


async def _name_a_worker(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page, worker = dashboard.page, queue.jobs["relax"]["worker_id"]
    await dashboard.show(f"tasks?worker={worker[:8]}&status=running")
    await expect(page.get_by_role("row")).to_have_count(2)
    field = page.get_by_label("Worker")
    await expect(field).to_have_value(worker[:8])
    await field.press("End")
    await page.keyboard.type(worker[8:12])
    await field.press("Enter")
    await expect(page).to_have_url(re.compile(worker))


async def test_a_wrong_value_is_named_with_its_field(browser: Browser, database_url: str) -> None:
    """No list is shown for it, no action is offered, and the other fields work."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page = dashboard.page
        for address, text in _WRONG.items():
            await dashboard.show(f"tasks?{address}", "Tasks")
            faults = page.get_by_role("status").filter(has_text=text)
            await expect(faults).to_be_visible()
            await expect(page.get_by_role("row")).to_have_count(0)
            await expect(page.get_by_text("All that match")).to_be_hidden()
            await expect(page.get_by_text("validation")).to_have_count(0)
            await faults.get_by_role("button", name="Remove").click()
            await expect(page.get_by_role("row")).to_have_count(16)
        await dashboard.show("tasks?since=abc&room=lab", "Tasks")
        await dashboard.check("filter-wrong")
        await page.get_by_label("Created in").select_option("the last hour")
        await expect(page.get_by_role("row")).to_have_count(8)
        await dashboard.show("tasks?cursor=nonsense", "Tasks")
        await expect(page.get_by_role("alert")).to_contain_text("a value that cannot be used")
        await page.get_by_role("link", name="Remove all filters").click()
        await expect(page.get_by_role("row")).to_have_count(16)
        assert dashboard.seen == []


async def test_short_links_and_unknown_paths_lead_to_a_page(browser: Browser, database_url: str) -> None:
    """A browser gets the page, which says what is wrong and finds tasks; other clients get a problem."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, task = dashboard.page, queue.tasks["image"]["id"]
        for path, title, text in (
            ("t/", "Find a task", "Find a task by its id"),
            ("t/no such task", "Task", "No such task: no such task."),
            ("t/ffffffff", "Task", "No such task: ffffffff."),
            ("nosuch", "Not found", "There is no page “nosuch”."),
            ("nosuch/of/parts", "Not found", "There is no page “nosuch/of/parts”."),
        ):
            await page.goto(f"{dashboard.url}/{path}")
            await expect(dashboard.title).to_have_text(title)
            await expect(page.get_by_text(text).first).to_be_visible()
            await expect(page.get_by_role("search", name="Find tasks")).to_be_visible()
        await dashboard.check("not-found")
        await _find(page, task[:-2])
        await expect(page.get_by_label("Summary")).to_contain_text(task)
        await page.goto(f"{dashboard.url}/t/{task[:8]}")
        table = page.get_by_role("table", name="Tasks")
        await expect(table.get_by_role("row")).to_have_count(11)
        await expect(table.get_by_role("row").filter(has_text="pending").first).to_contain_text("ago")
        await dashboard.check("several-tasks")
        await _find(page, "no volume")
        await expect(dashboard.title).to_have_text("Tasks")
        await expect(page.get_by_role("row")).to_have_count(3)
        for path in ("nosuch", "t/", f"{V1}/nosuch".lstrip("/")):
            for accept in ("application/json", "*/*"):
                answer = await queue.client.get(f"/{path}", headers={"Accept": accept})
                assert answer.status_code == 404, path
                assert answer.headers["content-type"] == "application/problem+json"
        assert (await queue.client.post("/nosuch", headers={"Accept": "text/html"})).status_code == 404
        assert dashboard.seen == []


async def _find(page: Page, text: str) -> None:
    form = page.get_by_role("search", name="Find tasks")
    await form.get_by_role("searchbox").fill(text)
    await form.get_by_role("button", name="Find").click()


async def test_a_room_without_anything_is_not_shown_as_one(browser: Browser, database_url: str) -> None:
    """The page says so, and names rooms that are called alike."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page = dashboard.page
        await dashboard.show("rooms/teachin", "Room teachin")
        await expect(page.get_by_text("No task, job or worker is in a room teachin.")).to_be_visible()
        await expect(page.get_by_role("table")).to_have_count(0)
        await dashboard.check("no-room")
        await page.get_by_role("link", name="teaching").click()
        await expect(dashboard.title).to_have_text("Room teaching")
        await expect(page.get_by_role("region", name="Counts")).to_be_visible()
        assert dashboard.seen == []
