"""The pages of tasks in a browser."""

import re
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from rest import V1, claim, get_task, report, submit

from browser.dashboard import Dashboard, example_queue
from browser.example_queue import ExampleQueue

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the pages do not depend on the database
]
_LINE = {"at": "2026-01-02T03:05:00Z", "text": "one more line", "level": "info", "source": "log"}


async def _show(dashboard: Dashboard, task: dict[str, Any]) -> None:
    await dashboard.show(f"tasks/{task['id']}")
    await expect(dashboard.title).to_have_text(re.compile(rf"^{task['job_name'].split(':')[-1]} · "))
    await expect(dashboard.page.get_by_label("Summary")).to_contain_text(task["id"])


async def test_a_task_is_followed_to_its_end(browser: Browser, database_url: str) -> None:
    """Its page shows progress, log lines and the end as they come, and the result with all its digits."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, running = dashboard.page, queue.tasks["running"]
        await _show(dashboard, running)
        await expect(page.get_by_text("Relaxing the cell")).to_be_visible()
        await expect(page.get_by_text("live", exact=True)).to_be_visible()
        await expect(page.get_by_role("log")).to_contain_text("it is halved")
        await expect(page.locator(".line").last).to_have_css("padding", "0px")  # as every other line
        await dashboard.check("task")
        await queue.tell("running", progress={"current": 900, "total": 1000, "message": "Nearly there"})
        await expect(page.get_by_text("Nearly there")).to_be_visible()
        await queue.tell("running", log={"first": 14, "lines": [_LINE]})
        await expect(page.get_by_role("log").get_by_text("one more line")).to_be_visible()
        done = await report(queue.client, running, "completed", attempt=1, result={"seed": 2**63 + 1})
        assert done.status_code == 200
        await expect(page.get_by_label("Result").get_by_text(str(2**63 + 1))).to_be_visible()
        await expect(page.get_by_text("live", exact=True)).to_be_hidden()
        await _retry_a_failed_task(dashboard, queue)
        await _show_results(dashboard, queue)
        await _submit_again(dashboard, queue)
        await _release_a_claim(dashboard, queue)
        assert dashboard.seen == []


async def test_the_beginning_of_an_id_leads_to_its_task(browser: Browser, database_url: str) -> None:
    """An id that nothing has is named."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await dashboard.show(f"tasks/{queue.tasks['image']['id'][:-1]}")
        await expect(page.get_by_label("Summary")).to_contain_text(queue.tasks["image"]["id"])
        await dashboard.show("tasks/ffffffff")
        await expect(page.get_by_text("No such task: ffffffff.")).to_be_visible()
        assert dashboard.seen == []


_BREAK_CANVAS = """
() => {
  window.getContext = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = () => { throw new Error("no canvas") };
}
"""
_ARRAY = {"$zndraw": "ndarray", "dtype": "float64", "shape": [1], "data": "AAAAAAAA8D8="}
_COLUMN = {"name": "energy", "dtype": "float64", "values": [1.5]}
_FRAME = {"$zndraw": "pandas.DataFrame", "index": None, "columns": [_COLUMN], "rows": 1}
_NUMBERS = {"$zndraw": "ndarray", "dtype": "int8", "shape": [1], "data": "AQ=="}
_POSITIONS = {**_ARRAY, "shape": [1, 3], "data": "A" * 32}
_ATOMS = {"$zndraw": "ase.Atoms", "atoms": {"numbers": _NUMBERS, "positions": _POSITIONS, "pbc": True}}
# What the SDK never writes, and a payload or a result may have.
_MALFORMED: dict[str, Any] = {
    **{tag: {"$zndraw": tag} for tag in ("ndarray", "pandas.DataFrame", "pandas.Series", "ase.Atoms")},
    "length": {**_ARRAY, "shape": [10**9]},
    "shape": {**_ARRAY, "shape": [-1]},
    "bytes": {**_ARRAY, "data": "no bytes"},
    "rows": {**_FRAME, "rows": -1},
    "many rows": {**_FRAME, "rows": 10**9},
    "no columns": {**_FRAME, "columns": {"energy": 1}},
    "column": {**_FRAME, "columns": [None]},
    "values": {**_FRAME, "columns": [{**_COLUMN, "values": 1}]},
    "numbers": {"$zndraw": "ase.Atoms", "atoms": {"numbers": 1, "positions": 2}},
    "positions": {"$zndraw": "ase.Atoms", "atoms": {"numbers": [1, 1], "positions": [0.0, 0.5]}},
}


async def test_malformed_values_are_shown_as_json(browser: Browser, database_url: str) -> None:
    """A tag without its fields is JSON like any other, and the rest of the page is there."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        for n, (name, value) in enumerate(_MALFORMED.items()):
            task = await queue.finish("render", "lab", {name: value}, n=n, subject=name, value=value)
            await _show(dashboard, task)
            for title in ("Result", "Payload"):
                await expect(page.locator(f"pre[aria-label={title}]")).to_contain_text(
                    f'"{value["$zndraw"]}"'
                )
            for title in ("Log", "Timeline"):
                await expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
            await expect(page.locator(".array")).to_have_count(0)
        series = {"$zndraw": "pandas.Series", "name": {"toString": 1}, "index": None, "rows": -1, **_COLUMN}
        shown = {"array": _ARRAY, "frame": _FRAME, "series": series, "atoms": _ATOMS}
        await _show(dashboard, await queue.finish("render", "lab", shown, kind="all"))
        await expect(page.locator(".array")).to_have_count(len(shown) + 1)  # the positions
        await expect(page.get_by_role("img", name="Structure of 1 H")).to_be_visible()
        assert dashboard.seen == []


async def test_an_error_in_a_part_of_the_page_leaves_the_others(browser: Browser, database_url: str) -> None:
    """The part says why it is not shown, and is shown when there are new data for it."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await page.evaluate(_BREAK_CANVAS)
        await _show(dashboard, queue.tasks["array"])
        result = page.get_by_role("region", name="Result").first
        await expect(result.get_by_text("This part cannot be shown: no canvas")).to_be_visible()
        await expect(result.get_by_role("heading", name="Result")).to_be_visible()
        await expect(result.locator("pre")).to_contain_text("energy")
        for title in ("Payload", "Log", "Timeline"):
            await expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
        await dashboard.check("task-part")
        await page.evaluate("void (HTMLCanvasElement.prototype.getContext = window.getContext)")
        await expect(result.get_by_role("img", name="The array as a picture of 24 by 24")).to_be_visible()
        await expect(result.get_by_text("This part cannot be shown")).to_have_count(0)
        assert dashboard.seen == []


async def _retry_a_failed_task(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    await _show(dashboard, queue.tasks["failed"])
    await expect(page.get_by_label("Traceback")).to_contain_text("energy = self.calculator")
    await expect(page.locator(".error").filter(has_text="The cell has no volume")).to_have_count(1)
    await dashboard.check("task-failed")
    await page.get_by_role("button", name="All frames").click()
    await expect(page.get_by_label("Traceback")).to_contain_text("cause")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("Why it waits")).to_be_visible()
    assert (await get_task(queue.client, queue.tasks["failed"]))["status"] == "pending"


async def _show_results(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    await _show(dashboard, queue.tasks["array"])
    await expect(page.get_by_role("img", name="The array as a picture of 24 by 24")).to_be_visible()
    await dashboard.check("task-array")
    await _show(dashboard, queue.tasks["image"])
    await expect(page.get_by_role("img", name="The result")).to_have_js_property("naturalWidth", 96)
    await dashboard.check("task-image")


async def _submit_again(dashboard: Dashboard, queue: ExampleQueue) -> None:
    """The edited payload arrives with all digits, and 1.0 stays a float."""
    page = dashboard.page
    await page.get_by_role("link", name="Submit again").click()
    text = page.get_by_role("textbox", name="Payload")
    await expect(text).to_have_value(re.compile(str(2**53 + 1)))
    await text.fill('{"width": 9007199254740993, "scale": 1.0}')
    await dashboard.check("task-submit-again")
    await page.get_by_role("button", name="Submit", exact=True).click()
    await expect(page.get_by_text("Submitted.", exact=True)).to_be_visible()
    listed = (await queue.client.get(f"{V1}/rooms/lab/tasks", params={"limit": 1})).json()["items"][0]
    assert repr(listed["payload"]) == "{'width': 9007199254740993, 'scale': 1.0}"


async def _release_a_claim(dashboard: Dashboard, queue: ExampleQueue) -> None:
    """A claim that is released before its start is no attempt; the claim after it is the first."""
    page, job = dashboard.page, queue.jobs["relax"]
    task = await claim(queue.client, job["worker_id"])
    assert task is not None
    await _show(dashboard, task)
    await page.get_by_role("button", name="Release").click()
    await page.get_by_role("dialog").get_by_role("button", name="Release").click()
    await expect(page.get_by_text("Not started", exact=True)).to_have_count(1)
    again = await claim(queue.client, job["worker_id"])
    assert again is not None
    fields = ("id", "attempt", "attempts")
    assert [again[name] for name in fields] == [task["id"], task["attempt"] + 1, task["attempts"]]
    await expect(page.get_by_text(f"Attempt {again['attempts']}", exact=True)).to_be_visible()
    await expect(page.get_by_text(f"Attempt {again['attempt']}", exact=True)).to_have_count(0)


async def test_tasks_are_found_chosen_and_retried(browser: Browser, database_url: str) -> None:
    """The filters are in the address, new tasks appear, and actions apply to what was chosen or matches."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, rows = dashboard.page, dashboard.page.get_by_role("row")
        await dashboard.show("tasks", "Tasks")
        await expect(rows).to_have_count(16)
        await expect(page.get_by_role("button", name="pending 6")).to_be_visible()
        await dashboard.check("tasks")
        await submit(queue.client, queue.jobs["render"], "studio", width=3)
        await expect(rows).to_have_count(17)
        await page.get_by_label("Room", exact=True).fill("teaching,archive")
        await expect(rows).to_have_count(9)
        await page.get_by_role("button", name="failed").click()
        await expect(rows).to_have_count(2)
        await expect(page).to_have_url(re.compile(r"#/tasks\?room=teaching%2Carchive&status=failed$"))
        await page.reload()
        await expect(rows).to_have_count(2)
        await page.get_by_role("checkbox", name="Choose all rows").check()
        await expect(rows.nth(1)).to_have_css("display", "table-row")
        await dashboard.check("tasks-chosen")
        await page.get_by_role("region", name="Chosen tasks").get_by_role("button", name="Retry 1").click()
        await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        await expect(page.get_by_text("1 task put back into the queue.")).to_be_visible()
        await expect(page.get_by_text("No task matches this filter.")).to_be_visible()
        await dashboard.check("tasks-none")


async def test_actions_on_all_that_match(browser: Browser, database_url: str) -> None:
    """A dialog shows how many tasks they would change; a task that does not exist is named."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        await _cancel_all_that_match(dashboard, queue)
        await _purge_all_that_match(dashboard)
        await dashboard.show("tasks/nonsense")
        await expect(dashboard.page.get_by_text("No such task: nonsense.")).to_be_visible()


async def _cancel_all_that_match(dashboard: Dashboard, queue: ExampleQueue) -> None:
    """The dialog counts the tasks of the filter first, and the others stay as they are."""
    page = dashboard.page
    await dashboard.show("tasks?room=teaching", "Tasks")
    await page.get_by_text("All that match").click()
    await page.get_by_role("button", name="Cancel …").click()
    dialog = page.get_by_role("dialog", name="Cancel all that match")
    await expect(dialog).to_contain_text("5 tasks")
    await expect(dialog).to_contain_text("room teaching")
    await dashboard.check("tasks-bulk")
    await dialog.get_by_role("button", name="Cancel 5 tasks").click()
    await expect(page.get_by_text("5 tasks cancelled.")).to_be_visible()
    counts = (await queue.client.get(f"{V1}/tasks/counts")).json()
    assert (counts["cancelled"], counts["pending"], counts["running"]) == (5, 1, 1)


async def test_all_that_match_are_cancelled_with_the_tasks_below(browser: Browser, database_url: str) -> None:
    """If the operator chooses so: the dialog counts them again, and without them as before."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, relax = dashboard.page, queue.jobs["relax"]
        url = f"{V1}/rooms/lab/tasks/{relax['full_name']}"
        parent, ids = queue.tasks["running"]["id"], []
        for _ in range(2):
            response = await queue.client.post(url, json={"payload": {}, "parent": parent})
            parent = response.json()["id"]
            ids.append(parent)
        await dashboard.show("tasks?room=lab&job=Relax&status=running", "Tasks")
        await page.get_by_text("All that match").click()
        await page.get_by_role("button", name="Cancel …").click()
        dialog = page.get_by_role("dialog", name="Cancel all that match")
        await expect(dialog.get_by_role("button", name="Cancel 1 task", exact=True)).to_be_enabled()
        choice = dialog.get_by_role("checkbox", name="Cancel the tasks below them too")
        for is_chosen, text in (
            (True, "1 task and 2 tasks below"),
            (False, "1 task"),
            (True, "1 task and 2"),
        ):
            await choice.press("Space")
            await expect(choice).to_be_checked(checked=is_chosen)
            await expect(dialog.locator(".counted")).to_contain_text(text)
        await dashboard.check("tasks-bulk-tree")
        await page.set_viewport_size({"width": 390, "height": 844})
        await dashboard.fits(390)
        await dashboard.check("tasks-bulk-tree-390")
        await dialog.get_by_role("button", name="Cancel 3 tasks").click()
        await expect(page.get_by_text("3 tasks cancelled.")).to_be_visible()
        for id_ in ids:
            assert (await get_task(queue.client, {"id": id_}))["status"] == "cancelled"
        assert dashboard.seen == []


async def test_a_preview_shows_what_an_action_would_change(browser: Browser, database_url: str) -> None:
    """Each example has its payload, room, age and error, and the filter is in words."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page = dashboard.page
        await dashboard.show("tasks?status=failed&room=lab&since=1h", "Tasks")
        await page.get_by_text("All that match").click()
        await page.get_by_role("button", name="Retry …").click()
        dialog = page.get_by_role("dialog", name="Retry all that match")
        example = dialog.get_by_role("listitem")
        for text in ("Relax structure hcp", "in room lab", "ago", "The cell has no volume"):
            await expect(example).to_contain_text(text)
        await expect(dialog).to_contain_text(re.compile(r"status failed, room lab, created since .*Berlin"))
        await expect(dialog).not_to_contain_text(re.compile(r"T\d\d:\d\d"))
        await dashboard.check("tasks-preview")
        await page.set_viewport_size({"width": 390, "height": 844})
        await dashboard.check("tasks-preview-390")
        await dialog.get_by_role("button", name="Close").last.click()
        await expect(dialog).to_be_hidden()
        assert dashboard.seen == []


async def test_a_dialog_says_what_a_cancel_does(browser: Browser, database_url: str) -> None:
    """A pending task has no worker that could stop."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        texts = {"waiting": "It will never run: no worker has it", "running": "is told to stop it"}
        for name, text in texts.items():
            await _show(dashboard, queue.tasks[name])
            await page.get_by_role("button", name="Cancel", exact=True).click()
            dialog = page.get_by_role("dialog", name="Cancel the task?")
            await expect(dialog).to_contain_text(text)
            await dashboard.check(f"cancel-{name}")
            await dialog.get_by_role("button", name="Close").last.click()
            await expect(dialog).to_be_hidden()
        assert (await get_task(queue.client, queue.tasks["waiting"]))["status"] == "pending"


async def _submit_for_later(queue: ExampleQueue, number: int) -> dict[str, Any]:
    url = f"{V1}/rooms/lab/tasks/{queue.jobs['relax']['full_name']}"
    response = await queue.client.post(url, json={"payload": {"steps": number}, "delay_seconds": 3600})
    return response.json()  # type: ignore[no-any-return]


async def test_scheduled_tasks_are_run_now(browser: Browser, database_url: str) -> None:
    """One on its page, and several that are chosen; those that are due already are left alone."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, tasks = dashboard.page, [await _submit_for_later(queue, number) for number in range(3)]
        await _show(dashboard, tasks[0])
        await page.get_by_role("button", name="Run now").click()
        await expect(page.get_by_text("The task is in its queue.")).to_be_visible()
        await expect(page.get_by_role("button", name="Run now")).to_be_hidden()
        assert (await get_task(queue.client, tasks[0]))["run_at"] is None
        await dashboard.show("tasks?job=Relax&status=pending", "Tasks")
        await page.get_by_role("checkbox", name="Choose all rows").check()
        chosen = page.get_by_role("region", name="Chosen tasks")
        await expect(chosen).to_contain_text("8 chosen")
        await chosen.get_by_role("button", name="Run now 2").click()
        await page.get_by_role("dialog").get_by_role("button", name="Run now 2 tasks").click()
        await expect(page.get_by_text("2 tasks put into the queue.")).to_be_visible()
        for task in tasks:
            assert (await get_task(queue.client, task))["run_at"] is None
        assert dashboard.seen == []


async def test_long_errors_wrap_on_a_phone(browser: Browser, database_url: str) -> None:
    """Two lines are shown, and all of it on tap."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, error = dashboard.page, "The cell has no volume, " * 12 + "so it cannot be relaxed"
        task = await submit(queue.client, queue.jobs["render"], "lab", width=3)
        await claim(queue.client, queue.jobs["render"]["worker_id"])
        for status, fields in {"running": {}, "failed": {"error": error}}.items():
            assert (await report(queue.client, task, status, attempt=1, **fields)).status_code == 200
        await page.set_viewport_size({"width": 390, "height": 844})
        for address in ("tasks?job=Render&status=failed", "overview"):
            await dashboard.show(address)
            text = page.get_by_role("button", name=error[:100]).first
            await expect(text).to_have_attribute("aria-expanded", "false")
            lines = "(element) => element.clientHeight / parseFloat(getComputedStyle(element).lineHeight)"
            assert 1.5 < await text.evaluate(lines) < 2.5
            await dashboard.fits(390)
            await text.click()
            await expect(text).to_have_attribute("aria-expanded", "true")
            assert await text.evaluate(lines) > 4
            await dashboard.check(f"long-error-{address.partition('?')[0]}-390")
        assert dashboard.seen == []


async def _purge_all_that_match(dashboard: Dashboard) -> None:
    """A purge needs the number of its tasks, typed."""
    page = dashboard.page
    await dashboard.show("tasks", "Tasks")
    await page.get_by_text("All that match").click()
    await page.get_by_role("button", name="Purge …").click()
    dialog = page.get_by_role("dialog", name="Purge all that match")
    button = dialog.get_by_role("button", name=re.compile("Purge [0-9]+ tasks"))
    size = (await button.inner_text()).split()[1]
    await expect(button).to_be_disabled()
    await dialog.get_by_label("type the number of tasks").fill("1")
    await expect(button).to_be_disabled()
    await dashboard.check("tasks-purge")
    await dialog.get_by_label("type the number of tasks").fill(size)
    await expect(button).to_be_enabled()
    await dialog.get_by_role("button", name="Close").last.click()
