"""All lists have the same pages."""

from typing import Any

import httpx
from databases import on_both
from rest import V1, claim, expect_problem, register, submit

HUGE = 10**30


async def lists(client: httpx.AsyncClient) -> list[str]:
    """Fill every list with five entries as fast as possible; return their paths."""
    first = await register(client, "A", room="lab")
    for name in "BCDE":
        await register(client, name, room="lab")
    for _ in range(5):
        await submit(client, first)
    job = f"{V1}/rooms/lab/jobs/{first['full_name']}/tasks"
    return [f"{V1}/workers", f"{V1}/rooms/lab/workers", f"{V1}/rooms/lab/jobs", job, f"{V1}/rooms/lab/tasks"]


def key(item: dict[str, Any]) -> str:
    """Return what identifies an entry."""
    return item.get("id") or item["full_name"]


@on_both
async def test_pages_never_repeat_or_skip(client: httpx.AsyncClient) -> None:
    """For every page size the list is the same, and each page repeats its parameters."""
    for url in await lists(client):
        whole = (await client.get(url)).json()
        assert (whole["total"], whole["limit"], whole["offset"]) == (5, 50, 0)
        for size in (1, 2, 3):
            walked = []
            for offset in range(0, 6, size):
                page = (await client.get(url, params={"limit": size, "offset": offset})).json()
                assert (page["total"], page["limit"], page["offset"]) == (5, size, offset)
                walked += page["items"]
            assert [key(item) for item in walked] == [key(item) for item in whole["items"]]


@on_both
async def test_the_bounds_of_a_page(client: httpx.AsyncClient) -> None:
    """limit 0-500, offset from 0; an empty page has the total; other values are 422, never 500."""
    for url in await lists(client):
        for params, count in (
            ({"limit": 0}, 0),
            ({"limit": 500}, 5),
            ({"offset": 5}, 0),
            ({"offset": 2**53}, 0),
        ):
            page = (await client.get(url, params=params)).json()
            assert (len(page["items"]), page["total"]) == (count, 5)
        for name, value in (
            *(("limit", v) for v in (-1, 501, "x", "", "1.5", "NaN", HUGE)),
            *(("offset", v) for v in (-1, "x", "", "1.5", "\x00", 2**63, HUGE, -HUGE)),
        ):
            expect_problem(await client.get(url, params={name: value}), 422, "invalid-request")


@on_both
async def test_a_status_change_keeps_the_order_of_a_list(client: httpx.AsyncClient) -> None:
    """Tasks may change between two pages."""
    job = await register(client)
    tasks = [(await submit(client, job))["id"] for _ in range(4)]
    url = f"{V1}/rooms/lab/tasks"
    first = (await client.get(url, params={"limit": 2})).json()["items"]
    await claim(client, job["worker_id"])
    second = (await client.get(url, params={"limit": 2, "offset": 2})).json()["items"]
    assert [t["id"] for t in first + second] == tasks[::-1]
