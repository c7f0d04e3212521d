"""Scrape a server, and find values in what it returned."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
PREFIX = "zndraw_joblib_"
ADMIN_TOKEN = "admin-token-of-the-tests"


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Run an app's lifespan; yield a superuser's client in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


def parsed(content: str) -> Values:
    """Return the values of a response by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(content)
        for sample in family.samples
    }


async def scrape(client: httpx.AsyncClient, **headers: str) -> Values:
    """Return the metrics of a server."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    return parsed(response.text)


def value(found: Values, name: str, **labels: str) -> float:
    """Return the sum of the values of a metric that have these labels; there is at least one."""
    matching = [
        number
        for (metric, given), number in found.items()
        if metric == PREFIX + name and labels.items() <= dict(given).items()
    ]
    assert matching, (name, labels)
    return sum(matching)
