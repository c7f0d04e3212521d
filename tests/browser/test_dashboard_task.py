"""The page of one task in a browser: its attempts, its log, its result by kind, another task beside it."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ase.build import add_adsorbate, fcc111
from ase.calculators.singlepoint import SinglePointCalculator
from playwright.async_api import Browser, Locator, Page, expect
from rest import V1, claim, register, report, submit

from browser.dashboard import Dashboard, example_queue
from browser.example_queue import ExampleQueue
from zndraw_joblib.jobs.codecs import plain

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
_ERROR = "ConvergenceError: no convergence after 200 steps"
_NO_SPACE = "OSError: [Errno 28] No space left on device"


async def _show(dashboard: Dashboard, task: dict[str, Any], title: str) -> None:
    await dashboard.show(f"tasks/{task['id']}", title)
    await expect(dashboard.page.get_by_text(task["id"], exact=True)).to_be_visible()


async def _check_both_widths(dashboard: Dashboard, name: str) -> None:
    """Check what is shown at the top of a window and of a phone."""
    page = dashboard.page
    for suffix, size in (("-narrow", (390, 800)), ("", (1280, 860))):
        await page.set_viewport_size({"width": size[0], "height": size[1]})
        await page.evaluate("scrollTo(0, 0)")
        await dashboard.fits(size[0])
        await dashboard.check(f"{name}{suffix}")


async def _fail_three_times(queue: ExampleQueue) -> dict[str, Any]:
    policy = {"max_attempts": 3, "retry_on": ["error"], "backoff": {"base_seconds": 0}}
    job = await register(
        queue.client, "relax_structure", category="analysis", worker={"name": "gpu-07"}, **policy
    )
    task = await submit(queue.client, job, structure="CO-on-Pt-11", steps=90)
    for attempt, error in ((1, _NO_SPACE), (2, _ERROR), (3, _ERROR)):
        assert await claim(queue.client, job["worker_id"]) is not None
        assert (await report(queue.client, task, "running", attempt=attempt)).status_code == 200
        failure = {"type": error.split(":", maxsplit=1)[0], "traceback": f"Traceback …\n{error}\n"}
        await report(queue.client, task, "failed", attempt=attempt, error=error, failure=failure)
    return task


async def test_the_attempts_of_a_task(browser: Browser, database_url: str) -> None:
    """The title names the job and its payload, the error is shown once, and earlier attempts are folded."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        task = await _fail_three_times(queue)
        await _show(dashboard, task, "relax_structure · CO-on-Pt-11")
        await expect(page.get_by_role("link", name="gpu-07").first).to_be_visible()
        error = page.get_by_role("region", name="Error")
        await expect(error.get_by_text(_ERROR).first).to_be_visible()
        timeline = page.get_by_role("region", name="Timeline")
        attempts = timeline.get_by_role("group")
        await expect(attempts).to_have_count(3)
        await expect(attempts.nth(0)).not_to_have_attribute("open", "")
        await expect(attempts.nth(0)).to_contain_text(_NO_SPACE)
        await expect(attempts.nth(2)).to_have_attribute("open", "")
        await expect(attempts.nth(2)).not_to_contain_text("convergence")
        await attempts.nth(0).locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(attempts.nth(0)).to_have_attribute("open", "")
        await expect(page.get_by_role("region", name="Log").last).to_contain_text("has written no line")
        await expect(page.get_by_role("region", name="Result")).to_have_count(0)
        await _check_both_widths(dashboard, "task-attempts")


async def test_the_log_of_a_task(browser: Browser, database_url: str) -> None:
    """It follows its end until the reader scrolls up, is searched, and is downloaded as text."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await _show(dashboard, queue.tasks["running"], "Relax · fcc")
        log = page.get_by_role("log")
        await expect(log.locator(".line")).to_have_count(13)
        await _write(queue, 14, 120)
        await expect(log.get_by_text("line 133", exact=True)).to_be_in_viewport()
        follow = page.get_by_role("button", name="Follow")
        await expect(follow).to_have_attribute("aria-pressed", "true")
        await log.evaluate("(element) => (element.scrollTop = 0)")
        await expect(follow).to_have_attribute("aria-pressed", "false")
        await _write(queue, 134, 1)
        await expect(log.locator(".line")).to_have_count(134)
        await expect(log.get_by_text("line 134", exact=True)).not_to_be_in_viewport()
        await follow.press("Enter")
        await expect(log.get_by_text("line 134", exact=True)).to_be_in_viewport()
        await _search_and_download(dashboard)


async def _search_and_download(dashboard: Dashboard) -> None:
    page, log = dashboard.page, dashboard.page.get_by_role("log")
    await page.get_by_label("Search in the log").fill("LINE 13")
    await expect(page.get_by_text("5 of 134 lines")).to_be_visible()
    await expect(log.locator("mark").first).to_have_text("line 13")
    assert page.url.endswith("?log=LINE+13")
    await _check_both_widths(dashboard, "task-log")
    await page.get_by_label("Search in the log").fill("warning")
    await expect(log.locator(".line")).to_contain_text(["it is halved"])
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Download").click()
    lines = (await (await download.value).path()).read_text(encoding="utf-8").splitlines()
    assert (len(lines), lines[12].split(" ", 1)[1]) == (134, "warning The step is large; it is halved")
    assert dashboard.seen == []


async def _write(queue: ExampleQueue, first: int, size: int) -> None:
    lines = [
        {"at": "2026-01-02T03:05:00Z", "text": f"line {first + n}", "level": "info", "source": "log"}
        for n in range(size)
    ]
    await queue.tell("running", log={"first": first, "lines": lines})


def _slab() -> Any:
    slab = fcc111("Pt", (2, 2, 3), vacuum=6)
    add_adsorbate(slab, "C", 1.8, "ontop")
    add_adsorbate(slab, "O", 2.95, "ontop")
    slab.calc = SinglePointCalculator(slab, energy=-71.25, forces=np.zeros((14, 3)))
    return slab


async def _complete(queue: ExampleQueue, result: Any, **payload: Any) -> dict[str, Any]:
    return await queue.finish("relax", "lab", plain(result), **payload)


async def test_results_by_kind(browser: Browser, database_url: str) -> None:
    """A data frame is a table, a matrix a heat map, long JSON a tree, atoms a picture that turns."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await queue.empty()
        frame = pd.DataFrame({"energy": np.linspace(-8, -7, 240), "phase": ["bcc", None, "fcc"] * 80})
        task = await _complete(queue, {"scan": frame, "gap": float("nan")}, steps=1)
        await _show(dashboard, task, "Relax · steps 1")
        table = page.get_by_role("region", name="Table scan")
        await expect(table.get_by_role("row")).to_have_count(11)
        await expect(table.get_by_role("columnheader")).to_have_text(["energyfloat64", "phasestr"])
        await expect(page.get_by_text("240 rows, 2 columns")).to_be_visible()
        await expect(page.get_by_role("region", name="Result").last).to_contain_text("NaN")
        await page.get_by_role("button", name="100 more rows").click()
        await expect(table.get_by_role("row")).to_have_count(111)
        await _check_both_widths(dashboard, "task-frame")
        await _show_arrays(dashboard, queue)
        await _show_a_tree(dashboard, queue)
        await _show_a_structure(dashboard, queue)


async def _show_arrays(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    map_ = np.outer(np.sin(np.linspace(0, 6, 40)), np.cos(np.linspace(0, 6, 60)))
    map_[5, 5] = np.nan
    task = await _complete(queue, {"trace": np.sin(np.linspace(0, 20, 400)), "map": map_}, steps=2)
    await _show(dashboard, task, "Relax · steps 2")
    await expect(page.get_by_text("400 values in order")).to_be_attached()
    picture = page.get_by_role("img", name="The array as a picture of 60 by 40")
    await picture.scroll_into_view_if_needed()
    await expect(page.get_by_text("NaN or infinite")).to_be_visible()
    await picture.hover()
    await expect(page.get_by_text(re.compile(r"row (19|20), column (29|30): -?0\.\d"))).to_be_visible()
    await _check_both_widths(dashboard, "task-arrays")


async def _show_a_tree(dashboard: Dashboard, queue: ExampleQueue) -> None:
    """The branches of a tree are drawn when they are opened, and long ones in parts."""
    page = dashboard.page
    steps = [{"step": n, "energy": n / 8, "cell": [n, n, n]} for n in range(250)]
    task = await _complete(queue, {"steps": steps, "seed": 2**63 + 1}, steps=3)
    await _show(dashboard, task, "Relax · steps 3")
    tree = page.get_by_role("region", name="Result").last
    await expect(tree).to_contain_text(f"seed: {2**63 + 1}")
    await expect(tree.get_by_text("energy")).to_have_count(0)
    await tree.locator("summary", has_text="steps").focus()
    await page.keyboard.press("Enter")
    await expect(tree.locator("summary")).to_have_count(102)
    await tree.locator("summary", has_text="7: 3 fields").first.click()
    await expect(tree.get_by_text("energy: 0.875")).to_be_visible()
    await _check_both_widths(dashboard, "task-tree")
    await tree.get_by_role("button", name="100 more of 250").click()
    await expect(tree.locator("summary")).to_have_count(202)


async def _show_a_structure(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    first, second = _slab(), _slab()
    second.rattle(0.2)
    task = await _complete(queue, [first, second], steps=4)
    await _show(dashboard, task, "Relax · steps 4")
    picture = page.get_by_role("img", name="Structure of 12 Pt, 1 C, 1 O")
    await expect(picture).to_be_visible()
    await expect(page.get_by_text("-71.25")).to_be_visible()
    await _check_both_widths(dashboard, "task-atoms")
    before = await _pixels(page)
    await picture.press("ArrowLeft")
    turned = await _pixels(page, other_than=before)
    await page.get_by_role("slider").fill("1")
    await expect(page.get_by_text("Structure 2 of 2")).to_be_visible()
    await _pixels(page, other_than=turned)
    assert dashboard.seen == []


async def _pixels(page: Page, other_than: str = "") -> str:
    """Return what the canvas shows, once it shows something else."""
    picture = "const text = document.querySelector('.structure canvas').toDataURL()"
    expression = f"(before) => {{ {picture}; return text !== before && text }}"
    return str(await (await page.wait_for_function(expression, arg=other_than)).json_value())


async def test_two_tasks_are_compared(browser: Browser, database_url: str) -> None:
    """The page shows where payloads and results differ, and the address names the other task."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await queue.empty()
        rest = {"forces": np.zeros((9, 3)), "converged": True}
        first = await _complete(queue, {"energy": -7.5, **rest}, steps=10, structure="bcc")
        second = await _complete(queue, {"energy": -7.2, **rest, "forces": np.full((9, 3), 0.25)}, steps=20)
        await _show(dashboard, first, "Relax · bcc")
        await _compare_with(dashboard, second)
        payloads = page.get_by_role("region", name="Differences of the payloads")
        await expect(payloads.get_by_role("row").nth(1)).to_have_text("steps1020+10, +100 %")
        await expect(payloads.get_by_role("row").nth(2)).to_contain_text('structure"bcc"')
        results = page.get_by_role("region", name="Differences of the results")
        await expect(results.get_by_role("row").nth(1)).to_have_text("energy-7.5-7.2+0.3, +4 %")
        await expect(results.get_by_role("row").nth(2)).to_contain_text("at most 0.25 apart")
        await expect(page.get_by_text("2 differences, 1 equal value.")).to_be_visible()
        await _check_both_widths(dashboard, "task-compared")
        await page.get_by_role("region", name="Compare").get_by_role("button", name="Close").click()
        await expect(results).to_be_hidden()
        assert dashboard.seen == []


async def _compare_with(dashboard: Dashboard, task: dict[str, Any]) -> None:
    """Name the other task by its address; the choice of the last tasks follows."""
    page = dashboard.page
    await page.get_by_role("button", name="Compare").click()
    other = page.get_by_label("Or its id, or its address")
    await other.fill(f"{dashboard.url}/t/{task['id']}")
    await other.press("Enter")
    await expect(page.get_by_label("With one of the last tasks of the job")).to_have_value(task["id"])
    assert page.url.endswith(f"?with={task['id']}")


async def test_the_tags_and_the_tree_of_a_task(browser: Browser, database_url: str) -> None:
    """Children are shown with their status and progress, in parts; tags lead to the tasks that have them."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        top, child = await _plant(queue)
        await _show(dashboard, top, "Tree · root")
        tree = page.get_by_role("region", name="Tasks below")
        await expect(tree).to_contain_text("26 tasks: 25 pending, 1 running")
        await expect(tree.get_by_role("listitem")).to_have_count(20)
        await tree.get_by_role("button", name="Older ones").click()
        await expect(tree.get_by_role("listitem")).to_have_count(25)
        await expect(tree.get_by_text("40 %")).to_be_visible()
        await tree.get_by_role("button", name="Show children").click()
        await expect(tree.get_by_role("link", name=re.compile("leaf"))).to_be_visible()
        await _check_both_widths(dashboard, "task-tree")
        await _follow_a_tag(dashboard, tree, child)
        await _show(dashboard, top, "Tree · root")
        await tree.get_by_role("button", name="Cancel tree").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel the tree").click()
        await expect(tree).to_contain_text("26 tasks: 26 cancelled")
        assert dashboard.seen == []


async def test_the_steps_of_a_task(browser: Browser, database_url: str) -> None:
    """The page shows what a task waits for and what waits for it, each with its status, and cancels these."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        middle, last = await _lay_steps(queue)
        await _show(dashboard, middle, "Step · relax")
        await expect(page.get_by_label("Summary").get_by_text("predecessor", exact=True)).to_be_visible()
        await expect(page.locator('.why a[href^="#/tasks/"]')).to_have_count(1)
        await expect(page.locator(".legend").get_by_text("waited for other tasks")).to_be_visible()
        steps = page.get_by_role("region", name="Steps")
        await expect(steps.get_by_role("heading", name="Waits for", exact=True)).to_be_visible()
        await expect(steps.get_by_role("link", name="Step build")).to_be_visible()
        await expect(steps.get_by_text("waits for tasks")).to_have_count(10)
        await _check_both_widths(dashboard, "task-steps")
        await steps.get_by_role("button", name="more task").click()
        await expect(steps.get_by_text("waits for tasks")).to_have_count(12)
        await steps.get_by_role("link", name="Step build").click()
        await expect(page.get_by_role("heading", level=1, name="Step · build")).to_be_visible()
        await expect(steps.get_by_role("link", name="Step relax")).to_be_visible()
        await _check_both_widths(dashboard, "task-first-step")
        await steps.get_by_role("button", name="Cancel with successors").click()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
        await expect(steps.get_by_text("cancelled", exact=True)).to_have_count(1)
        await _show(dashboard, last, "Step · report 11")
        await expect(page.get_by_label("Summary").get_by_text("cancelled", exact=True)).to_be_visible()
        assert dashboard.seen == []


async def _lay_steps(queue: ExampleQueue) -> tuple[dict[str, Any], dict[str, Any]]:
    """Submit a task that runs, one after it, and twelve after that; return the second and the last."""
    job = await register(queue.client, "Step", room="lab")
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"

    async def add(name: str, *after: dict[str, Any], **payload: Any) -> dict[str, Any]:
        fields = {"after": {"tasks": [task["id"] for task in after]}} if after else {}
        response = await queue.client.post(url, json={"payload": {"name": name, **payload}, **fields})
        assert response.status_code == 202, response.text
        return response.json()

    first = await add("build")
    assert (await claim(queue.client, job["worker_id"]) or {})["id"] == first["id"]
    await report(queue.client, first, "running", progress={"current": 2, "total": 5})
    second = await add("relax", first, atoms={"$result": {"task": first["id"], "pointer": "/atoms"}})
    return second, [await add(f"report {number}", second) for number in range(12)][-1]


async def _follow_a_tag(dashboard: Dashboard, tree: Locator, child: dict[str, Any]) -> None:
    page = dashboard.page
    await tree.get_by_role("link", name=re.compile("leaf")).click()
    await expect(page.get_by_label("Summary").locator(f"a[title='{child['id']}']")).to_be_visible()
    await page.get_by_role("link", name="night/1", exact=True).click()
    await expect(page.get_by_role("heading", level=1, name="Tasks")).to_be_visible()
    await expect(page.get_by_label("Tag", exact=True)).to_have_value("night/1")
    await expect(page.get_by_role("table", name="Tasks").get_by_role("row")).to_have_count(2)
    await _check_both_widths(dashboard, "tasks-tagged")
    await page.get_by_label("Tag", exact=True).focus()
    await expect(page.locator("datalist option[value='day']")).to_have_count(1)


async def _plant(queue: ExampleQueue) -> tuple[dict[str, Any], dict[str, Any]]:
    """Submit a task with 25 children, the oldest of which runs and has a child with tags; return both."""
    job = await register(queue.client, "Tree", room="lab")
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"

    async def add(name: str, **fields: Any) -> dict[str, Any]:
        response = await queue.client.post(url, json={"payload": {"name": name}, **fields})
        assert response.status_code == 202, response.text
        return response.json()

    top = await add("root", tags=["day"])
    child = await add("first", parent=top["id"])
    for task in (top, child):
        claimed = await claim(queue.client, job["worker_id"])
        assert claimed is not None
        assert claimed["id"] == task["id"]
        running = await report(queue.client, task, "running", progress={"current": 2, "total": 5})
        assert running.status_code == 200
    for number in range(24):
        await add(f"next {number}", parent=top["id"])
    await add("leaf", parent=child["id"], tags=["night/1", "a, b"])
    return top, child
