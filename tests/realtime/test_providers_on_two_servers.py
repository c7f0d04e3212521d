"""Two servers on one database: a provider connected to one server serves requests of the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from rest import V1

from realtime.sockets import LiveServer, serve
from realtime.test_providers import LONG, URL, join, register_provider, upload, wait_for_requests
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.redis import RedisResults

TOKEN = "admin-token-of-the-tests"
Pair = tuple[LiveServer, LiveServer]


@pytest.fixture(params=["postgresql", "valkey"])
def urls(request: pytest.FixtureRequest) -> tuple[str, str | None]:
    """Return the URLs of a database and of a Valkey server, or None for no Valkey server."""
    url = request.getfixturevalue("postgres_url")
    return url, request.getfixturevalue("valkey_url") if request.param == "valkey" else None


@pytest.fixture
async def pair(urls: tuple[str, str | None]) -> AsyncIterator[Pair]:
    """Run two servers on the same database."""
    url, redis_url = urls
    database = open_database(url)
    await schema.upgrade(database)
    await database.close()
    settings: dict[str, Any] = {"database_url": url, "admin_token": TOKEN, "workers": 2}
    async with AsyncExitStack() as stack:
        servers = []
        prefix = f"test-{id(stack)}"
        for _ in range(2):
            app = create_app(ServerSettings(**settings, redis_url=redis_url, redis_prefix=prefix))
            servers.append(await stack.enter_async_context(serve(app, app, TOKEN)))
            kind = RedisResults if redis_url else DatabaseResults
            assert isinstance(app.state.joblib.results, kind)
        yield servers[0], servers[1]


async def test_callers_of_both_servers_share_one_request(pair: Pair) -> None:
    """A provider connected by Socket.IO gets the request once, and 100 callers get the result."""
    here, there = pair
    here_rest, rest, socket = await here.rest(), await there.rest(), await there.connect()
    provider = await register_provider(rest)
    await join(socket, provider)
    requests = [
        asyncio.ensure_future(client.get(f"{URL}?n=1", headers=LONG)) for client in (here_rest, rest) * 50
    ]
    [request] = await wait_for_requests(socket)
    await upload(here_rest, provider, request["request_id"], b"x" * 3_000_000)
    responses = await asyncio.gather(*requests)
    assert {(response.status_code, response.content) for response in responses} == {(200, b"x" * 3_000_000)}
    assert len(await wait_for_requests(socket)) == 1


async def test_a_claim_at_the_other_server_gets_the_request(pair: Pair) -> None:
    """The claim waits at one server while a caller sends a request at the other; an error arrives too."""
    here, there = pair
    here_rest, rest = await here.rest(), await there.rest()
    provider = await register_provider(rest)
    body = {"worker_id": provider["worker_id"]}
    for status, expected in (("ok", 200), ("error", 400)):
        claiming = asyncio.ensure_future(rest.post(f"{V1}/providers/requests/claim", json=body, headers=LONG))
        requests = asyncio.ensure_future(here_rest.get(f"{URL}?s={status}", headers=LONG))
        claimed_request = (await claiming).json()["request"]
        headers = {"X-Request-Hash": claimed_request["request_id"], "X-Result-Status": status}
        url = f"{V1}/providers/{provider['id']}/results"
        assert (await rest.post(url, content=b"{}", headers=headers)).status_code == 204
        assert (await requests).status_code == expected


async def test_a_removed_worker_ends_requests_at_the_other_server(pair: Pair) -> None:
    """The caller at the other server gets a 404."""
    here, there = pair
    here_rest, rest, socket = await here.rest(), await there.rest(), await there.connect()
    provider = await register_provider(rest)
    await join(socket, provider)
    requests = asyncio.ensure_future(here_rest.get(URL, headers=LONG))
    await wait_for_requests(socket)
    await rest.delete(f"{V1}/workers/{provider['worker_id']}")
    assert (await requests).status_code == 404
