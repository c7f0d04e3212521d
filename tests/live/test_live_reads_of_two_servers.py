"""Two servers on one database: who reads at one is answered by whoever is connected to the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from rest import V1

from live.sockets import Live, serving
from live.test_live_providers import LONG, READ, asked, bring, join, offer
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.redis_results import RedisResults
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.engine import open_database

TOKEN = "admin-token-of-the-tests"
Pair = tuple[Live, Live]


@pytest.fixture(params=["postgresql", "valkey"])
def urls(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """Return a database, and a Valkey server if there is one."""
    url = request.getfixturevalue("postgres_url")
    return url, request.getfixturevalue("valkey_url") if request.param == "valkey" else None


@pytest.fixture
async def pair(urls: tuple[str, str | None]) -> AsyncIterator[Pair]:
    """Serve twice."""
    url, redis_url = urls
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
    settings: dict[str, Any] = {"database_url": url, "admin_token": TOKEN, "workers": 2}
    async with AsyncExitStack() as stack:
        lives = []
        prefix = f"test-{id(stack)}"
        for _ in range(2):
            app = create_app(ServerSettings(**settings, redis_url=redis_url, redis_prefix=prefix))
            lives.append(await stack.enter_async_context(serving(app, app, TOKEN)))
            kind = RedisResults if redis_url else DatabaseResults
            assert isinstance(app.state.joblib.results, kind)
        yield lives[0], lives[1]


async def test_many_readers_of_both_are_one_read(pair: Pair) -> None:
    """By Socket.IO: the provider is at the one, the readers are at both; it hears once, all are answered."""
    here, there = pair
    mine, rest, socket = await here.rest(), await there.rest(), await there.socket()
    provider = await offer(rest)
    await join(socket, provider)
    reading = [asyncio.ensure_future(client.get(f"{READ}?n=1", headers=LONG)) for client in (mine, rest) * 50]
    [request] = await asked(socket)
    await bring(mine, provider, request["request_id"], b"x" * 3_000_000)
    answers = await asyncio.gather(*reading)
    assert {(answer.status_code, answer.content) for answer in answers} == {(200, b"x" * 3_000_000)}
    assert len(await asked(socket)) == 1


async def test_a_claim_at_the_other_server_gets_the_read(pair: Pair) -> None:
    """Over REST: it sleeps at the one while somebody reads at the other; an error comes back too."""
    here, there = pair
    mine, rest = await here.rest(), await there.rest()
    provider = await offer(rest)
    body = {"worker_id": provider["worker_id"]}
    for status, expected in (("ok", 200), ("error", 502)):
        claiming = asyncio.ensure_future(rest.post(f"{V1}/providers/requests/claim", json=body, headers=LONG))
        reading = asyncio.ensure_future(mine.get(f"{READ}?s={status}", headers=LONG))
        read = (await claiming).json()["request"]
        headers = {"X-Request-Hash": read["request_id"], "X-Result-Status": status}
        url = f"{V1}/providers/{provider['id']}/results"
        assert (await rest.post(url, content=b"{}", headers=headers)).status_code == 204
        assert (await reading).status_code == expected


async def test_a_worker_that_leaves_there_ends_waits_here(pair: Pair) -> None:
    """The reader at the other server hears of it."""
    here, there = pair
    mine, rest, socket = await here.rest(), await there.rest(), await there.socket()
    provider = await offer(rest)
    await join(socket, provider)
    reading = asyncio.ensure_future(mine.get(READ, headers=LONG))
    await asked(socket)
    await rest.delete(f"{V1}/workers/{provider['worker_id']}")
    assert (await asyncio.wait_for(reading, 10)).status_code == 404
