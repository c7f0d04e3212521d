"""The form that submits a task, in a browser: choices of a provider, earlier payloads, secrets, errors."""

import asyncio
import re
from collections.abc import Awaitable
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect
from rest import V1, claim, register, submit

from browser.dashboard import Dashboard, example_queue
from browser.example_queue import ExampleQueue

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("kind", ["sqlite"]),  # the page does not depend on the database
]
_STRUCTURE = {"provider": "structures:all", "params": {"kind": "slab"}, "value": "id", "label": "formula"}
_SCHEMA = {
    "type": "object",
    "description": "Relax the adsorbate on its slab.\n\nOne task takes about two minutes.",
    "properties": {
        "structure": {"type": "string", "description": "The slab", "x-provider": _STRUCTURE},
        "sites": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2},
        "potential": {"type": "string", "default": "mace", "x-provider": "lab:potentials:all"},
    },
    "required": ["structure"],
}
_SLABS = {"items": [{"id": "CO-on-Pt-11", "formula": "CO Pt₁₁"}, {"id": "H-on-Ni-3", "formula": None}]}

# As pydantic describes a `SecretStr`.
_SECRET = {"type": "string", "format": "password", "writeOnly": True}
_WITH_SECRETS = {
    "type": "object",
    "properties": {
        "source": {"type": "string"},
        "token": {**_SECRET, "maxLength": 500},
        "proxy": {"anyOf": [_SECRET, {"type": "null"}], "default": None},
        "keys": {"type": "array", "items": _SECRET},
        "realm": {**_SECRET, "default": "**********"},
    },
    "required": ["source", "token"],
}


async def _put_provider(queue: ExampleQueue, name: str, category: str) -> dict[str, Any]:
    body = {"category": category, "name": name, "schema": {}}
    response = await queue.client.put(f"{V1}/rooms/lab/providers", json=body)
    assert response.status_code == 201, response.text
    return dict(response.json())


async def _claim(queue: ExampleQueue, provider: dict[str, Any]) -> dict[str, Any] | None:
    response = await queue.client.post(
        f"{V1}/providers/requests/claim",
        json={"worker_id": provider["worker_id"]},
        headers={"Prefer": "wait=50"},
    )
    assert response.status_code == 200, response.text
    return response.json()["request"]  # type: ignore[no-any-return]


async def _answer(
    queue: ExampleQueue, provider: dict[str, Any], claiming: Awaitable[dict[str, Any] | None]
) -> None:
    """Answer the request of the page as the worker of the provider, which claims it."""
    request = await claiming
    assert request is not None
    assert request["params"] == '{"kind":"slab"}'
    response = await queue.client.post(
        f"{V1}/providers/{provider['id']}/results",
        json=_SLABS,
        headers={"X-Request-Hash": request["request_id"]},
    )
    assert response.status_code == 204, response.text


async def test_a_form_with_choices_and_earlier_payloads(browser: Browser, database_url: str) -> None:
    """A provider has the choices of a field, an earlier payload fills the form, errors go when corrected."""
    async with example_queue(browser, database_url) as (dashboard, queue):
        page = dashboard.page
        job = await register(queue.client, "Adsorb", schema=_SCHEMA)
        earlier = await submit(queue.client, job, "lab", structure="H-on-Ni-3", sites=[4, 5])
        for _ in range(2):
            await submit(queue.client, job, "teaching", structure="CO-on-Pt-11")
        provider = await _put_provider(queue, "all", "structures")
        claiming = asyncio.create_task(_claim(queue, provider))  # it is connected from now on
        await dashboard.show(f"jobs/{job['full_name']}", "Adsorb")
        form = page.get_by_role("region", name="Submit a task")
        await expect(form.get_by_text("One task takes about two minutes.")).to_be_visible()
        await _choose_the_room(form)
        await expect(form.get_by_text("Reading the choices from the provider structures:all")).to_be_visible()
        await _answer(queue, provider, claiming)
        structure = form.get_by_label("structure").and_(form.locator("select"))
        await expect(structure.locator("option")).to_have_text(["choose …", "CO Pt₁₁", "H-on-Ni-3"])
        await expect(form.get_by_text("No choices from the provider lab:potentials:all")).to_be_visible()
        await expect(form.get_by_label("potential").and_(form.locator("input"))).to_have_value("mace")
        await _correct_the_errors(form)
        await _start_from(dashboard, form, earlier)
        await structure.select_option("CO Pt₁₁")
        await _submit(dashboard, queue, form)
        await _submit_a_secret_again(dashboard, queue)
        assert dashboard.seen == []


async def _submit(dashboard: Dashboard, queue: ExampleQueue, form: Locator) -> None:
    await form.get_by_role("button", name="Submit", exact=True).click()
    await expect(dashboard.page.get_by_text("Why it waits")).to_be_visible()
    listed = (await queue.client.get(f"{V1}/rooms/lab/tasks", params={"limit": 1})).json()["items"][0]
    assert listed["payload"] == {"structure": "CO-on-Pt-11", "sites": [4, 5]}


async def _choose_the_room(form: Locator) -> None:
    """The room has a default, and the server's rooms as suggestions."""
    room = form.get_by_label("Room")
    await expect(room).to_have_value("default")
    await expect(form.get_by_text("provider structures:all: ")).to_be_visible()  # no such room has it
    await room.focus()
    suggestions = form.locator("datalist option")
    await expect(suggestions).not_to_have_count(0)
    assert "teaching" in [await option.get_attribute("value") for option in await suggestions.all()]
    await room.fill("lab")
    await room.press("Tab")


async def _correct_the_errors(form: Locator) -> None:
    """The error of a field goes when the field is corrected, that of a list when an item is removed."""
    for value in ("-1", "2", "3"):
        await form.get_by_role("button", name="Add to sites").click()
        await form.get_by_role("textbox", name="sites").last.fill(value)
    await form.get_by_role("button", name="Submit", exact=True).click()
    await expect(form.get_by_text("A value is required.")).to_be_visible()
    await expect(form.get_by_text("-1 is less than")).to_be_visible()
    await expect(form.get_by_text("has more than 2 items")).to_be_visible()
    await form.get_by_label("structure").and_(form.locator("select")).select_option("H-on-Ni-3")
    await expect(form.get_by_text("A value is required.")).to_be_hidden()
    await expect(form.get_by_text("-1 is less than")).to_be_visible()
    await form.get_by_role("button", name="Remove sites 1").click()
    await expect(form.locator(".problem")).to_have_count(0)


async def _start_from(dashboard: Dashboard, form: Locator, earlier: dict[str, Any]) -> None:
    """The choice has each payload once, the newest first; the address has the task of the chosen one."""
    page, choice = dashboard.page, form.get_by_label("Start from")
    await expect(choice.locator("option")).to_have_count(3)
    await choice.select_option(index=2)
    await expect(form.get_by_role("textbox", name="sites 2")).to_have_value("5")
    assert page.url.endswith(f"?from={earlier['id']}")
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.get_by_role("button", name="Submit a task").click()
    await expect(choice).to_be_focused()
    await dashboard.fits(390)
    await page.evaluate("scrollTo(0, 0)")
    await dashboard.check("submit-narrow")
    await page.set_viewport_size({"width": 1280, "height": 860})
    await dashboard.check("submit")
    await page.reload()
    await expect(form.get_by_role("textbox", name="sites 2")).to_have_value("5")
    await expect(form.get_by_label("structure").and_(form.locator("select"))).to_have_value("H-on-Ni-3")


async def _submit_a_secret_again(dashboard: Dashboard, queue: ExampleQueue) -> None:
    """A task shows the mask of its secret values; submitted again, the form leaves them empty and asks."""
    page = dashboard.page
    job = await register(queue.client, "Fetch", schema=_WITH_SECRETS)
    task = await submit(queue.client, job, source="lab-7", token="first-1", proxy="first-2", keys=["first-3"])
    await dashboard.show(f"tasks/{task['id']}", "Fetch")
    await expect(page.get_by_text("**********").first).to_be_visible()
    assert "first-" not in await page.content()
    await page.get_by_role("link", name="Submit again").click()
    form = page.get_by_role("region", name="Submit a task")
    await expect(form.get_by_label("source")).to_have_value("lab-7")
    fields = [form.get_by_label(name) for name in ("token", "proxy", "keys 1")]
    for field in (*fields, form.get_by_label("realm")):
        await expect(field.and_(form.locator("input"))).to_have_attribute("type", "password")
        await expect(field.and_(form.locator("input"))).to_have_value("")
    await expect(form.get_by_text("The value of the earlier task is secret")).to_have_count(3)
    await dashboard.check("submit-secrets")
    await form.get_by_role("button", name="JSON").click()
    await expect(form.get_by_role("textbox", name="Payload")).not_to_have_value(re.compile(r"\*"))
    await form.get_by_role("button", name="Form", exact=True).click()
    await form.get_by_role("button", name="Submit", exact=True).click()
    await expect(form.get_by_text("A value is required.")).to_be_visible()
    for number, field in enumerate(fields, 1):
        await field.and_(form.locator("input")).fill(f"second-{number}")
    await form.get_by_role("button", name="Submit", exact=True).click()
    await expect(page.get_by_text("Why it waits")).to_be_visible()
    claims = [await claim(queue.client, job["worker_id"]) for _ in range(2)]
    assert [claimed and claimed["payload"] for claimed in claims] == [
        {"source": "lab-7", "token": f"{which}-1", "proxy": f"{which}-2", "keys": [f"{which}-3"]}
        for which in ("first", "second")
    ]
