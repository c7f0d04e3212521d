"""The pages of jobs, rooms, workers and servers in a browser, and what operators do there."""

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect
from receiver import Receiver, receiving
from rest import V1, claim, register, submit
from waiting import until

from browser.dashboard import Dashboard, example_queue, new_user, opened
from browser.example_queue import ExampleQueue
from zndraw_joblib.wire.webhooks import new_webhook_secret

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
_CELL = {
    "type": "object",
    "description": "The cell of the crystal",
    "properties": {
        "lattice": {"enum": ["bcc", "fcc", "hcp"]},
        "lengths": {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0},
            "minItems": 1,
            "default": [2.87],
        },
    },
    "required": ["lattice"],
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "Shown in the list of scans", "maxLength": 60},
        "seed": {"type": "integer", "minimum": 0},
        "tolerance": {"anyOf": [{"type": "number", "maximum": 1}, {"type": "null"}], "default": 0.001},
        "relax": {"type": "boolean", "default": True},
        "cell": {"$ref": "#/$defs/Cell"},
        "extra": {"type": "object", "description": "Passed on to the calculator"},
    },
    "required": ["title", "cell"],
    "$defs": {"Cell": _CELL},
}


async def _fill(queue: ExampleQueue) -> dict[str, Any]:
    """Register a job with a nested schema and a worker that describes itself; let it hold a task."""
    worker = {"name": "gpu-07", "host": "gpu-07.example.org", "pid": 4242, "version": "1.0.0", "slots": 4}
    policy = {"max_attempts": 3, "retry_on": ["error", "worker_lost"], "timeout_seconds": 900}
    queue.jobs["scan"] = await register(
        queue.client, "Scan", schema=_SCHEMA, worker=worker, max_in_flight=8, **policy
    )
    payload = {"title": "Iron", "cell": {"lattice": "bcc"}}
    return await queue.start("scan", "lab", **payload)


async def test_jobs_and_submitting(browser: Browser, database_url: str) -> None:
    """Pause and resume a job; submit a task with the form of its schema, and see problems at their fields."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        await _fill(queue)
        page = dashboard.page
        await _submit_with_the_form(dashboard, queue)
        await dashboard.show("jobs", "Jobs")
        row = page.get_by_role("row").filter(has_text="modifiers:Relax")
        await expect(row).to_contain_text("5")
        await row.get_by_role("button", name="Pause").click()
        await page.get_by_role("dialog").get_by_role("button", name="Pause the job").click()
        await expect(row.get_by_text("paused", exact=True)).to_be_visible()
        await dashboard.check("jobs")
        await until(partial(_statistics, queue), interval=0.2)  # the servers read them every 5 s
        await page.get_by_role("link", name="modifiers:Relax").click()
        await expect(page.get_by_role("region", name="Tasks per minute")).to_contain_text("In the last hour")
        await expect(page.get_by_text("held back by a pause")).to_contain_text("desired for 0 queued and")
        await dashboard.check("job-statistics")
        await _show_a_long_name_on_a_phone(dashboard, queue)
        await dashboard.show("jobs", "Jobs")
        await row.get_by_role("button", name="Resume").click()
        await expect(row.get_by_text("paused", exact=True)).to_be_hidden()
        await page.get_by_label("State").select_option("paused")
        await expect(page.get_by_text("No job matches this filter.")).to_be_visible()
        assert dashboard.seen == []


async def test_jobs_are_sorted_by_their_counts(browser: Browser, database_url: str) -> None:
    """By the heads of the columns, also with keys; the address has the order, and a phone a choice."""
    async with example_queue(browser, database_url) as (dashboard, _):
        page = dashboard.page
        await dashboard.show("jobs", "Jobs")
        names = page.locator("td.is-job")
        orders = [
            ("Failed", "-failed", "descending", ["Relax", "Render", "Export"]),
            ("Failed", "failed", "ascending", ["Render", "Export", "Relax"]),
            ("Queued", "-queued", "descending", ["Relax", "Export", "Render"]),
            ("Job", "", "ascending", ["Render", "Relax", "Export"]),
            ("Job", "-name", "descending", ["Export", "Relax", "Render"]),
        ]
        for label, sort, order, jobs in orders:
            await page.get_by_role("button", name=label, exact=True).press("Enter")
            await expect(page).to_have_url(re.compile(f"#/jobs{f'.sort={sort}' if sort else ''}$"))
            await expect(page.get_by_role("columnheader", name=label)).to_have_attribute("aria-sort", order)
            await expect(names).to_have_text([re.compile(f"{name}$") for name in jobs])
            await expect(page.locator("th[aria-sort=none]")).to_have_count(6)
        await page.reload()
        await expect(names.first).to_contain_text("Export")
        await dashboard.check("jobs-sorted")
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.get_by_label("Sort by").select_option("failed, most first")
        await expect(names.first).to_contain_text("Relax")
        await _fits_a_phone(dashboard, "jobs-sorted")
        assert dashboard.seen == []


async def test_a_pause_has_an_end(browser: Browser, database_url: str) -> None:
    """As a duration or a time; a text that is none is named at its field."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, name = dashboard.page, queue.jobs["relax"]["full_name"]
        await dashboard.show("jobs", "Jobs")
        row = page.get_by_role("row").filter(has_text="modifiers:Relax")
        await row.get_by_role("button", name="Pause").click()
        dialog = page.get_by_role("dialog")
        for text, said in {"soon": "“soon” is no time", "yesterday 9:00": "has passed"}.items():
            await dialog.get_by_label("Until").fill(text)
            await dialog.get_by_role("button", name="Pause the job").click()
            await expect(dialog).to_contain_text(said)
            await expect(dialog.get_by_label("Until")).to_have_attribute("aria-invalid", "true")
        await dashboard.check("pause-until")
        await dialog.get_by_label("Until").fill("2h")
        await expect(dialog).to_contain_text(re.compile("It ends .*Berlin"))
        await dialog.get_by_label("Until").press("Enter")
        await expect(row).to_contain_text(re.compile("paused, ends in (2 h|1 h 59 min)"))
        job = (await queue.client.get(f"{V1}/rooms/@global/jobs/{name}")).json()
        left = datetime.fromisoformat(job["paused_until"]) - datetime.now(UTC)
        assert timedelta(hours=1) < left <= timedelta(hours=2)
        await _pause_a_room_until_tomorrow(dashboard, queue)
        assert dashboard.seen == []


async def _pause_a_room_until_tomorrow(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page, dialog = dashboard.page, dashboard.page.get_by_role("dialog")
    await dashboard.show("rooms/lab", "Room lab")
    await page.get_by_role("button", name="Pause room lab").click()
    await dialog.get_by_label("Until").fill("tomorrow 9:00")
    await dialog.get_by_role("button", name="Pause room lab").click()
    await expect(page.get_by_role("button", name="Resume room lab")).to_be_visible()
    [pause] = (await queue.client.get(f"{V1}/pauses")).json()["items"]
    assert pause["until"].endswith(("T08:00:00Z", "T07:00:00Z"))
    await _fits_a_phone(dashboard, "paused-room")


async def test_a_policy_is_said_in_words(browser: Browser, database_url: str) -> None:
    """The first pauses and the longest as times, and how long ended tasks are kept."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        backoffs = {
            "2.7 s, 7.4 s, 20 s, … at most 6 h 7 min": {},
            "4 s, 8 s, 16 s, … at most 5 min, each up to 10 % shorter": {
                **{"base_seconds": 2, "factor": 2, "cap_seconds": 300, "jitter": 0.1}
            },
            "5 s each": {"base_seconds": 5, "factor": 1},
            "none": {"base_seconds": 0},
        }
        for number, (text, backoff) in enumerate(backoffs.items()):
            keep = {"completed": 3600, "failed": "forever"}
            options = {
                "max_attempts": 3,
                "backoff": backoff,
                "keep": keep,
                "batch": {"max": 32, "key": "/model"},
            }
            job = await register(queue.client, f"Wait{number}", **options)
            await dashboard.show(f"jobs/{job['full_name']}", f"Wait{number}")
            policy = page.get_by_role("region", name="Policy")
            await expect(policy).to_contain_text("completed 1 h, failed for ever, cancelled")
            await expect(policy).to_contain_text(f"Pauses between attempts{text}Time")
            await expect(policy).to_contain_text("up to 32 tasks with equal /model, waits 100 ms for more")
        assert dashboard.seen == []


async def _place(queue: ExampleQueue) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a job, whose only worker has little time, and a task that no worker can run."""
    client, labels = queue.client, {"gpu": "a100", "memory_gb": 80}
    policy = {"requires": {"memory_gb": {">=": 40}}, "expected_seconds": 7200}
    job = await register(client, "Train", worker={"name": "gpu-08", "labels": labels}, **policy)
    body = {"worker_id": job["worker_id"], "remaining_seconds": 600}
    assert (await client.post(f"{V1}/tasks/claim", json=body)).json()["reason"] == "no_time"
    await submit(client, job)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    return job, (await client.post(url, json={"payload": {}, "requires": {"gpu": "h100"}})).json()


async def test_placement(browser: Browser, database_url: str) -> None:
    """What a job and a task require, what a worker has, and why the tasks of a job wait."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        job, task = await _place(queue)
        await dashboard.show("overview", "Overview")
        await expect(page.get_by_text("that require memory_gb>=40 and gpu=h100")).to_be_visible()
        await expect(page.get_by_text("has enough time for its tasks, which are")).to_be_visible()
        await dashboard.check("overview-placement")
        await dashboard.show(f"jobs/{job['full_name']}", "Train")
        about = page.get_by_role("region", name="Policy")
        await expect(about).to_contain_text("Expected to run for2 h")
        await expect(about).to_contain_text("Requiresmemory_gb>=40")
        await dashboard.show(f"tasks/{task['id']}")
        await expect(page.get_by_text("gpu=h100", exact=True)).to_be_visible()
        await expect(page.get_by_text("No worker of @global:modifiers:Train has")).to_be_visible()
        await dashboard.check("task-placement")
        await dashboard.show(f"workers/{job['worker_id']}", "Worker gpu-08")
        await expect(page.get_by_text("gpu=a100, memory_gb=80")).to_be_visible()
        await expect(page.get_by_text("Allocation ends")).to_be_visible()
        await dashboard.check("worker-placement")


async def _job_with_two_versions(queue: ExampleQueue) -> tuple[str, dict[str, Any]]:
    """Return the path of a job with a task of each version, and the task of the first one."""
    old = {"type": "object", "properties": {"steps": {"type": "integer", "maximum": 500}}}
    new = {"type": "object", "properties": {"steps": {"type": "integer"}, "force": {"type": "number"}}}
    job = await register(queue.client, "Anneal", room="lab", schema=old)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    body = {"payload": {"steps": 100}, "unique": {"key": "anneal the lab"}}
    task = (await queue.client.post(url, json=body)).json()
    await register(queue.client, "Anneal", room="lab", schema=new)
    await submit(queue.client, job, "lab", steps=1000)
    assert (await queue.client.post(url, json=body)).json()["duplicate"]
    return f"jobs/{job['full_name']}", task


async def test_tasks_of_an_earlier_version_are_moved(browser: Browser, database_url: str) -> None:
    """The job lists its versions; a task has its version and its unique key."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        path, task = await _job_with_two_versions(queue)
        await dashboard.show(path, "Anneal")
        versions = page.get_by_role("region", name="Versions of the schema")
        current, earlier = (versions.get_by_role("row").nth(number) for number in (1, 2))
        await expect(current).to_contain_text("Version 2 current")
        await dashboard.check("versions")
        await _fits_a_phone(dashboard, "versions")
        await earlier.get_by_role("button", name="Retarget version 1").click()
        await expect(page.get_by_role("dialog")).to_contain_text("1 task")
        await dashboard.check("retarget")
        await page.get_by_role("dialog").get_by_role("button", name="Retarget 1 task").click()
        await expect(page.get_by_text("1 task moved to the current version.")).to_be_visible()
        await expect(earlier.get_by_role("button")).to_be_hidden()
        await dashboard.show(f"tasks/{task['id']}")
        summary = page.get_by_role("region", name="Summary")
        await expect(summary).to_contain_text("anneal the lab")
        await expect(summary).to_contain_text("Version of the job2")
        await dashboard.check("unique-task")
        await _fits_a_phone(dashboard, "unique-task")


async def test_a_reader_of_a_room_sees_paused_jobs(browser: Browser, database_url: str) -> None:
    """In the list of the jobs that the room sees."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        name = queue.jobs["export"]["full_name"]
        await queue.client.post(f"{V1}/rooms/lab/jobs/{name}/pause")
        reader = await new_user(database_url, "reader")
        async with opened(browser, dashboard.url, reader) as other:
            await _choose_a_room(other)
            await other.show("jobs", "Jobs")
            await expect(other.page.get_by_role("row").filter(has_text="Export")).to_contain_text("paused")
            await other.check("jobs-of-a-room")
            await _fits_a_phone(other, "jobs-of-a-room")


async def _fits_a_phone(dashboard: Dashboard, name: str) -> None:
    page, size = dashboard.page, dashboard.page.viewport_size
    assert size is not None
    await page.set_viewport_size({"width": 390, "height": 800})
    await dashboard.fits(390)
    await dashboard.check(f"{name}-390")
    await page.set_viewport_size(size)


async def _show_a_long_name_on_a_phone(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page, size = dashboard.page, dashboard.page.viewport_size
    assert size is not None
    job = await register(queue.client, "export_of_all_structures_of_the_night", category="analysis")
    await page.set_viewport_size({"width": 390, "height": 800})
    await dashboard.show(f"jobs/{job['full_name']}", job["full_name"].split(":")[-1])
    await expect(page.get_by_role("region", name="Submit a task")).to_be_visible()
    await dashboard.fits(390)
    await page.set_viewport_size(size)


async def _submit_with_the_form(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    name = queue.jobs["scan"]["full_name"]
    await dashboard.show(f"jobs/{name}", "Scan")
    form = page.get_by_role("region", name="Submit a task")
    await expect(form.get_by_label("tolerance")).to_have_value("0.001")
    await expect(form.get_by_label("Room")).to_have_value("default")
    await form.get_by_label("Room").fill("lab")
    await form.get_by_label("seed").fill("-1")
    await form.get_by_role("button", name="Add to lengths").click()
    await form.get_by_role("textbox", name="lengths 2").fill("0")
    await form.get_by_label("extra").fill('{"kpoints": [4, 4, 9007199254740993]}')
    await form.get_by_role("button", name="Submit").click()
    for label, message in (
        ("title", "A value is required."),
        ("lattice", "A value is required."),
        ("seed", "-1 is less than"),
        ("lengths 2", "0 is less"),
    ):
        field = form.get_by_label(label).and_(form.locator("input, select"))
        await expect(field).to_have_attribute("aria-invalid", "true")
        await expect(field.locator("xpath=..").locator(".problem")).to_contain_text(message)
    await page.evaluate("scrollTo(0, 0)")
    await dashboard.check("job")
    await _correct_and_submit(form)
    await expect(page.get_by_text("Why it waits")).to_be_visible()
    task = await _newest(queue)
    assert (task["job_name"], task["priority"]) == (name, 7)
    assert task["payload"] == {
        "title": "Iron",
        "seed": 2**53 + 1,
        "tolerance": 0.001,
        "relax": True,
        "cell": {"lattice": "fcc", "lengths": [2.87]},
        "extra": {"kpoints": [4, 4, 2**53 + 1]},
    }


async def _statistics(queue: ExampleQueue) -> list[dict[str, Any]]:
    params = {"job": queue.jobs["relax"]["full_name"], "resolution": 60}
    response = await queue.client.get(f"{V1}/statistics", params=params)
    return list(response.json()["intervals"])


async def _newest(queue: ExampleQueue) -> dict[str, Any]:
    response = await queue.client.get(f"{V1}/rooms/lab/tasks", params={"limit": 1})
    return dict(response.json()["items"][0])


async def _correct_and_submit(form: Locator) -> None:
    """By way of JSON and back to the form, which keeps all digits."""
    await form.get_by_label("title").fill("Iron")
    await form.get_by_label("seed").fill("9007199254740993")
    await form.get_by_label("lattice").select_option("fcc")
    await form.get_by_role("button", name="Remove lengths 2").click()
    await form.get_by_role("button", name="JSON").click()
    text = form.get_by_role("textbox", name="Payload")
    assert '"seed": 9007199254740993' in await text.input_value()
    await form.get_by_role("button", name="Form").click()
    await form.get_by_text("Options").click()
    await form.get_by_label("Priority").fill("5000")
    await form.get_by_role("button", name="Submit").click()
    await expect(form.get_by_label("Priority")).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("Priority").fill("7")
    await expect(form.get_by_label("Priority")).not_to_have_attribute("aria-invalid", "true")
    await form.get_by_role("button", name="Submit").click()


async def _pause_rooms(dashboard: Dashboard) -> None:
    """Pause all rooms and one room; the list and the room say so; resume both."""
    page = dashboard.page
    await dashboard.check("rooms")
    await page.get_by_role("button", name="Pause all rooms").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause all rooms").click()
    await expect(page.get_by_role("button", name="Resume all rooms")).to_be_visible()
    await dashboard.show("rooms/teaching", "Room teaching")
    await page.get_by_role("button", name="Pause room teaching").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause room teaching").click()
    await expect(page.get_by_text("Room teaching is paused, by")).to_be_visible()
    await dashboard.check("room-paused")
    await page.get_by_role("button", name="Resume room teaching").click()
    await expect(page.get_by_text("Room teaching is paused, by")).to_be_hidden()
    await dashboard.show("rooms", "Rooms")
    await page.get_by_role("button", name="Resume all rooms").click()
    await expect(page.get_by_role("button", name="Pause all rooms")).to_be_visible()


async def test_rooms_and_workers(browser: Browser, database_url: str) -> None:
    """The shares of rooms, the overview of one, a worker with its task, and draining it."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        held = await _fill(queue)
        page = dashboard.page
        await dashboard.show("rooms", "Rooms")
        share = page.get_by_role("meter", name="lab: share of running tasks")
        await expect(share).to_have_attribute("value", "1")
        await expect(page.get_by_role("row").filter(has_text="teaching")).to_contain_text("5")
        await _pause_rooms(dashboard)
        await dashboard.show("rooms/teaching", "Room teaching")
        await expect(page.get_by_role("region", name="Newest tasks").get_by_role("row")).to_have_count(8)
        await expect(page.get_by_role("region", name="Counts")).to_contain_text("5pending")
        await dashboard.check("room")
        await dashboard.show("workers?text=gpu", "Workers")
        row = page.get_by_role("row").filter(has_text="gpu-07.example.org")
        await expect(row).to_contain_text("1 of 4")
        await _claim_ahead(queue)
        await expect(row).to_contain_text("1 of 4 +1 claimed")
        await dashboard.check("workers")
        await row.get_by_role("link", name="gpu-07").click()
        await expect(page.get_by_role("heading", level=1, name="Worker gpu-07")).to_be_visible()
        await expect(page.get_by_role("link", name=held["id"][-4:])).to_be_visible()
        await dashboard.check("worker")
        await _drain(page)
        assert dashboard.seen == []


async def _claim_ahead(queue: ExampleQueue) -> None:
    """Let the worker of the job claim one more task, which it does not start."""
    await submit(queue.client, queue.jobs["scan"], "lab", title="Cobalt", cell={"lattice": "hcp"})
    assert await claim(queue.client, queue.jobs["scan"]["worker_id"]) is not None


async def _drain(page: Page) -> None:
    await page.get_by_role("button", name="Drain").click()
    await page.get_by_role("dialog").get_by_role("button", name="Drain the worker").click()
    await expect(page.get_by_text("draining", exact=True)).to_be_visible()


async def test_the_servers(browser: Browser, database_url: str) -> None:
    """Providers, the sweeper with its mode and preview, the settings in force, and who changed what."""
    async with example_queue(browser, database_url, sweeper_interval_seconds="1") as (dashboard, queue):
        page, schema = dashboard.page, {"type": "object", "properties": {"path": {"type": "string"}}}
        body = {"category": "files", "name": "home", "schema": schema}
        assert (await queue.client.put(f"{V1}/rooms/lab/providers", json=body)).status_code == 201
        await dashboard.show("providers", "Providers")
        await page.get_by_role("button", name="Show the schema of lab:files:home").click()
        await expect(page.get_by_role("region", name="Schema")).to_contain_text('"path"')
        await page.keyboard.press("Escape")
        await dashboard.check("providers")
        await _change_the_sweeper(dashboard, queue)
        await _follow_the_audit_trail(dashboard, queue)
        await dashboard.show("settings?source=changed", "Settings")
        row = page.get_by_role("row").filter(has_text="admin_token")
        await expect(row).to_contain_text("secret, set")
        await expect(page.get_by_text("a-token-for-a-real-server")).to_have_count(0)
        await dashboard.check("settings")
        assert dashboard.seen == []


async def test_schedules(browser: Browser, database_url: str) -> None:
    """Write one with the form, see problems at their fields, change, run and delete it; also on a phone."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page, schema = dashboard.page, {"type": "object", "properties": {"days": {"type": "integer"}}}
        job = {"category": "jobs", "name": "Clean", "schema": schema}
        assert (await queue.client.put(f"{V1}/rooms/lab/jobs", json=job)).status_code == 201
        await dashboard.show("schedules?room=lab", "Schedules")
        await _write_a_schedule(dashboard)
        row = page.get_by_role("row").filter(has_text="nightly")
        await expect(row).to_contain_text("0 3 * * * Europe/Berlin")
        await _change_the_schedule(dashboard, queue, row)
        await row.get_by_role("button", name="Delete nightly").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete the schedule").click()
        await expect(page.get_by_text("This room has no schedules.")).to_be_visible()
        assert dashboard.seen == []


async def _write_a_schedule(dashboard: Dashboard) -> None:
    page = dashboard.page
    await page.get_by_role("button", name="New schedule").click()
    form = page.get_by_role("dialog", name="New schedule")
    await form.get_by_label("Name").fill("nightly")
    await form.get_by_label("Job").fill("lab:jobs:Clean")
    await form.get_by_label("Cron expression").fill("0 3 * *")
    await form.get_by_label("Payload").fill('{"days": "many"}')
    await form.get_by_role("button", name="Create the schedule").click()
    await expect(form.get_by_label("Cron expression")).to_have_attribute("aria-invalid", "true")
    await expect(form.get_by_text("is no cron expression")).to_be_visible()
    await form.get_by_label("Cron expression").fill("0 3 * * *")
    await form.get_by_label("Time zone").fill("Europe/Berlin")
    await form.get_by_role("button", name="Create the schedule").click()
    await expect(form.get_by_label("Payload")).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("Payload").fill('{"days": 30}')
    await form.get_by_text("More options").click()
    await form.get_by_label("Unique").fill('{"key": "clean"}')
    await dashboard.check("schedule-form")
    await form.get_by_role("button", name="Create the schedule").click()


async def _change_the_schedule(dashboard: Dashboard, queue: ExampleQueue, row: Locator) -> None:
    page, url = dashboard.page, f"{V1}/rooms/lab/schedules/nightly"
    before = (await queue.client.get(url)).json()
    await row.get_by_role("button", name="Edit nightly").click()
    form = page.get_by_role("dialog", name="Edit the schedule nightly")
    await expect(form.get_by_label("Payload")).to_have_value('{\n  "days": 30\n}')
    await form.get_by_text("More options").click()
    await form.get_by_label("While a task").select_option("skip")
    await form.get_by_label("First time").fill("2030-01-31T18:00:00")
    await form.get_by_role("button", name="Change the schedule").click()
    await expect(form).to_be_hidden()
    after = (await queue.client.get(url)).json()
    assert after["starts_at"] == "2030-01-31T17:00:00Z"
    assert (after["overlap"], after["unique"], after["payload"]) == ("skip", before["unique"], {"days": 30})
    await row.get_by_role("button", name="Run nightly").click()
    await expect(page.get_by_text("A task is submitted.")).to_be_visible()
    await row.get_by_role("button", name="Pause nightly").click()
    await expect(row.get_by_text("paused", exact=True)).to_be_visible()
    await dashboard.check("schedules")
    await _check_on_a_phone(dashboard, "schedules", "Edit nightly")


async def test_webhooks(browser: Browser, database_url: str) -> None:
    """Write one with the form, see problems at fields, test, repeat, rotate, delete; also on a phone."""
    ports = {"webhook_http": "true", "webhook_ports": "1-65535", "webhook_networks": "127.0.0.0/8"}
    async with receiving() as receiver, example_queue(browser, database_url, **ports) as (dashboard, queue):
        page = dashboard.page
        await dashboard.show("webhooks?room=lab", "Webhooks")
        secret = await _write_a_webhook(dashboard, receiver)
        row = page.get_by_role("region", name="Webhooks").get_by_role("row").filter(has_text="ci")
        await expect(row).to_contain_text("task.failed")
        await row.get_by_role("button", name="Test ci").click()
        [request] = await receiver.wait_for(1)
        assert request.verified(secret)["type"] == "webhook.test"
        await _repeat_a_delivery(page, receiver)
        await _change_the_secret(dashboard, receiver, row)
        await dashboard.check("webhooks")
        await _check_on_a_phone(dashboard, "webhooks", "Edit ci")
        await row.get_by_role("button", name="Delete ci").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete the webhook").click()
        await expect(page.get_by_text("Room lab has no webhooks.")).to_be_visible()
        assert (await queue.client.get(f"{V1}/rooms/lab/webhooks")).json()["total"] == 0
        assert dashboard.seen == []


async def _repeat_a_delivery(page: Page, receiver: Receiver) -> None:
    """It has the same id; the list is filtered by states."""
    deliveries = page.get_by_role("region", name="Deliveries", exact=True)
    await deliveries.get_by_role("button", name=re.compile("Repeat delivery")).click()
    assert len({item.headers["webhook-id"] for item in await receiver.wait_for(2)}) == 1
    await page.get_by_label("State").select_option("failed")
    await expect(page.get_by_text("No delivery matches this filter.")).to_be_visible()
    await page.get_by_label("State").select_option("delivered")
    await expect(deliveries.get_by_role("row")).to_have_count(3)


async def _write_a_webhook(dashboard: Dashboard, receiver: Receiver) -> str:
    """Write the webhook ci, and return its secret, which is shown once."""
    page = dashboard.page
    await page.get_by_role("button", name="New webhook").click()
    form = page.get_by_role("dialog", name="New webhook")
    await form.get_by_label("Name").fill("ci")
    await form.get_by_label("URL").fill("ftp://hooks.example.org")
    await form.get_by_label("Events").fill("task.failed task.done")
    await form.get_by_role("button", name="Create the webhook").click()
    for label in ("URL", "Events"):
        await expect(form.get_by_label(label)).to_have_attribute("aria-invalid", "true")
    await expect(form.get_by_text("must begin with https://")).to_be_visible()
    await dashboard.check("webhook-form")
    await form.get_by_label("URL").fill(receiver.url())
    await form.get_by_label("Events").fill("task.failed, task.completed")
    await form.get_by_role("button", name="Create the webhook").click()
    shown = page.get_by_role("dialog", name="The secret of ci")
    secret = await shown.locator("code").inner_text()
    await dashboard.check("webhook-secret")
    await shown.get_by_role("button", name="Close").last.click()
    return secret


async def _change_the_secret(dashboard: Dashboard, receiver: Receiver, row: Locator) -> None:
    """Both secrets sign; the page says until when."""
    page, secret = dashboard.page, new_webhook_secret()
    await row.get_by_role("button", name="New secret of ci").click()
    form = page.get_by_role("dialog", name="Change the secret of ci")
    await form.get_by_label("Secret", exact=True).fill("whsec_short")
    await form.get_by_role("button", name="Change the secret").click()
    await expect(form.get_by_label("Secret", exact=True)).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("Secret", exact=True).fill(secret)
    await form.get_by_role("button", name="Change the secret").click()
    await expect(row).to_contain_text("the secret before ends")
    await row.get_by_role("button", name="Test ci").click()
    (await receiver.wait_for(3))[-1].verified(secret)


async def _check_on_a_phone(dashboard: Dashboard, name: str, button: str) -> None:
    """Check that neither the list nor the form is wider than the screen."""
    page, size = dashboard.page, dashboard.page.viewport_size
    assert size is not None
    await page.set_viewport_size({"width": 390, "height": 844})
    table = page.get_by_role("region", name=name.capitalize())
    assert await table.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    await dashboard.fits(390)
    await dashboard.check(f"{name}-phone")
    await page.get_by_role("button", name=button).click()
    assert await page.get_by_role("dialog").evaluate(
        "(element) => element.scrollWidth <= element.clientWidth"
    )
    await dashboard.check(f"{name}-form-phone")
    await page.keyboard.press("Escape")
    await page.set_viewport_size(size)


async def test_limits_that_jobs_share(browser: Browser, database_url: str) -> None:
    """Define one, see problems at their fields, change it, and delete it when no job has it."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        await dashboard.show("limits", "Limits")
        await expect(page.get_by_text("There are no limits.")).to_be_visible()
        row = page.get_by_role("row").filter(has_text="api")
        await _define_a_limit(dashboard, row)
        limit = (await queue.client.get(f"{V1}/limits/api")).json()
        assert (limit["max_in_flight"], limit["rate"]["burst"]) == (5, 20)
        await dashboard.check("limits")
        await _check_on_a_phone(dashboard, "limits", "Edit api")
        limits = [{"name": "api"}, {"key": "room", "rate": {"count": 1, "per_seconds": 60}}]
        job = {"category": "jobs", "name": "Call", "limits": limits}
        assert (await queue.client.put(f"{V1}/rooms/lab/jobs", json=job)).status_code == 201
        await dashboard.show("jobs/lab:jobs:Call", "Call")
        await expect(page.get_by_text("api; 1 in 60 s for each room")).to_be_visible()
        await dashboard.show("limits", "Limits")
        for shown in ("Job 'lab:jobs:Call' has the limit", "The limit is deleted."):
            await row.get_by_role("button", name="Delete api").click()
            await page.get_by_role("dialog").get_by_role("button", name="Delete the limit").click()
            await expect(page.get_by_text(shown)).to_be_visible()
            await queue.client.put(f"{V1}/rooms/lab/jobs", json={**job, "limits": []})
        await expect(page.get_by_text("There are no limits.")).to_be_visible()
        assert dashboard.seen == []


async def _define_a_limit(dashboard: Dashboard, row: Locator) -> None:
    page = dashboard.page
    await page.get_by_role("button", name="New limit").click()
    form = page.get_by_role("dialog", name="New limit")
    await form.get_by_label("Name").fill("api")
    await form.get_by_label("Rate: tasks").fill("100")
    await form.get_by_role("button", name="Create the limit").click()
    await expect(form.get_by_label("Rate: period")).to_have_attribute("aria-invalid", "true")
    await form.get_by_label("Rate: period").fill("60")
    await dashboard.check("limit-form")
    await form.get_by_role("button", name="Create the limit").click()
    await expect(row).to_contain_text("100 in 60 s")
    await row.get_by_role("button", name="Edit api").click()
    form = page.get_by_role("dialog", name="Edit the limit api")
    await form.get_by_label("At once").fill("5")
    await form.get_by_label("Rate: burst").fill("20")
    await form.get_by_role("button", name="Change the limit").click()
    await expect(row).to_contain_text("100 in 60 s, burst 20")


async def _change_the_sweeper(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    await dashboard.show("sweeper", "Sweeper")
    await page.get_by_role("button", name="Preview").click()
    await expect(page.get_by_text("Nothing.")).to_be_visible()
    await page.get_by_role("button", name="observe").click()
    await page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
    mode = page.get_by_role("group", name="Mode")
    await expect(mode.get_by_role("button", pressed=True)).to_have_text("enforce")
    await page.get_by_role("button", name="observe").click()
    await page.get_by_role("button", name="Set to observe").click()
    await expect(mode.get_by_role("button", pressed=True)).to_have_text("observe")
    assert (await queue.client.get(f"{V1}/admin/sweeper")).json()["mode"] == "observe"
    await expect(page.get_by_role("region", name="Servers").last).to_contain_text("running")
    await page.get_by_label("quiet cycles too").check()
    await expect(page.get_by_role("region", name="Last cycles").last).to_contain_text("enforce")
    await dashboard.check("sweeper")


async def _follow_the_audit_trail(dashboard: Dashboard, queue: ExampleQueue) -> None:
    page = dashboard.page
    await queue.client.post(f"{V1}/rooms/@global/jobs/{queue.jobs['render']['full_name']}/pause")
    await dashboard.show("audit", "Audit trail")
    row = page.get_by_role("row").filter(has_text="paused a job")
    await expect(row.get_by_role("link", name="analysis:Render")).to_be_visible()
    await _cancel_a_match(queue)
    bulk = page.get_by_role("row").filter(has_text="cancelled all tasks that match")
    await expect(bulk).to_contain_text("status pending, room lab")
    await expect(bulk).to_contain_text("affected 1, skipped 0")
    await expect(
        page.get_by_text("to their own tasks and workers one by one is not recorded")
    ).to_be_visible()
    await dashboard.check("audit")
    await _fits_a_phone(dashboard, "audit")
    await page.get_by_label("Action", exact=True).select_option("changed the mode of the sweeper")
    await expect(page).to_have_url(re.compile("action=sweeper.mode$"))
    await expect(row).to_be_hidden()
    await expect(page.get_by_role("row").filter(has_text="mode observe")).to_contain_text("admin")


async def _cancel_a_match(queue: ExampleQueue) -> None:
    body = {"action": "cancel", "filter": {"room": ["lab"], "status": ["pending"]}}
    token = (await queue.client.post(f"{V1}/tasks/bulk/preview", json=body)).json()["token"]
    answer = await queue.client.post(f"{V1}/tasks/bulk", json={**body, "token": token})
    assert answer.json()["affected"] == 1


async def test_a_reader_of_a_room(browser: Browser, database_url: str) -> None:
    """It sees the jobs and workers of its room, submits a task there, and has no button of operators."""
    async with example_queue(browser, database_url) as (admin, queue):
        await _fill(queue)
        async with opened(browser, admin.url, await new_user(database_url, "ann")) as dashboard:
            page = dashboard.page
            await _choose_a_room(dashboard)
            await page.get_by_role("link", name="Rooms").click()
            await expect(dashboard.title).to_have_text("Room lab")
            await expect(page.get_by_role("region", name="Counts")).to_contain_text("2running")
            await dashboard.show("workers", "Workers")
            await expect(page.get_by_role("row").filter(has_text="gpu-07")).to_be_visible()
            await expect(page.get_by_text("gpu-07.example.org")).to_have_count(0)
            await dashboard.show("jobs", "Jobs")
            await page.get_by_role("link", name="modifiers:Relax").click()
            await expect(dashboard.title).to_have_text("Relax")
            for button in ("Pause", "Drain"):
                await expect(page.get_by_role("button", name=button)).to_have_count(0)
            await page.get_by_label("structure").select_option("hcp")
            await page.get_by_role("button", name="Submit", exact=True).click()
            await expect(page.get_by_text("Why it waits")).to_be_visible()
            assert (await _newest(queue))["payload"] == {"steps": 100, "structure": "hcp"}
            assert dashboard.seen == []


async def _choose_a_room(dashboard: Dashboard) -> None:
    page = dashboard.page
    for name in ("jobs", "rooms", "workers", "audit"):
        await dashboard.show(name)
        await expect(page.get_by_text("Name your room above")).to_be_visible()
    await page.get_by_role("banner").get_by_label("Room").fill("lab")
    await page.get_by_role("button", name="Show").click()
    await expect(dashboard.title).to_have_text("Tasks")
