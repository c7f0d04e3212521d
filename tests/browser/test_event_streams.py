"""A page reads event streams with the code of the documentation, from a server on another origin."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Page
from rest import V1, claim, register, report, submit
from servers import ServerProcess
from streams.writers import Writers
from tcp_proxy import TcpProxy
from waiting import until

from browser.conftest import MILLISECONDS

_PAGE_OF_DOCS = Path(__file__).parents[2] / "docs/how-to/live-events.md"
pytestmark = pytest.mark.asyncio(loop_scope="session")
READERS = pytest.mark.parametrize("function", ["follow", "read"], ids=["event-source", "fetch"])
# What the code of the documentation calls. `seen` has all that it got, in order.
_PAGE = """
const seen = [], sources = [];
window.EventSource = class extends EventSource {
  constructor(url) {
    super(url);
    sources.push(this);
  }
};
const show = (state) => seen.push({ snapshot: state });
const apply = (event) => seen.push(event);
const refuse = (problem) => seen.push({ problem });
"""
_IS_CLOSED = "sources.length === 1 && sources[0].readyState === EventSource.CLOSED"


def documented_functions() -> str:
    """Return the functions in the JavaScript of the documentation, without their calls."""
    snippets = re.findall(r"^```js\n(.*?)^```", _PAGE_OF_DOCS.read_text(), re.MULTILINE | re.DOTALL)
    of_one = re.compile(r"^(?:async )?function .*?^}\n", re.MULTILINE | re.DOTALL)
    return "".join(function for snippet in snippets for function in of_one.findall(snippet))


class Site:
    """A page of another origin, and a server behind a proxy from which it reads."""

    def __init__(self, page: Page, origin: str, database_url: str, proxy: TcpProxy) -> None:
        self.page = page
        self.proxy = proxy
        self._origin = origin
        self._database_url = database_url
        self.servers: list[ServerProcess] = []
        self.start_server()

    @property
    def server(self) -> ServerProcess:
        """The server that runs."""
        return self.servers[0]

    def start_server(self) -> None:
        """Start a server, to which the proxy forwards from now on."""
        self.servers[:] = [ServerProcess(self._database_url, cors_origins=f'["{self._origin}"]')]
        self.proxy.target_port = urlsplit(self.server.url).port or 0

    def kill_server(self) -> None:
        """Kill the server."""
        self.server.__exit__(None, None, None)

    async def run(self, code: str, token: str | None = None) -> None:
        """Run code in the page, with the functions of the documentation."""
        names = (
            f"const server = 'http://127.0.0.1:{self.proxy.port}', token = '{token or self.server.token}';"
        )
        content = "\n".join([names, _PAGE, documented_functions(), code])
        await self.page.add_script_tag(content=content)

    async def seen(self, count: int) -> list[dict[str, Any]]:
        """Return what the page has got, once there are so many snapshots and events."""
        await self.page.wait_for_function(f"seen.length >= {count}")
        found: list[dict[str, Any]] = await self.page.evaluate("seen")
        return found

    async def seen_up_to(self, n: int) -> list[dict[str, Any]]:
        """Return what the page has got, once it has the event with a number."""
        await self.page.wait_for_function(f"seen.some((event) => event.n >= {n})")
        found: list[dict[str, Any]] = await self.page.evaluate("seen")
        return found


@pytest_asyncio.fixture(loop_scope="session")
async def site(page: Page, origin: str, database_url: str) -> AsyncIterator[Site]:
    """Return a page, and start its server."""
    page.set_default_timeout(MILLISECONDS)
    async with TcpProxy(0).running() as proxy:
        site = Site(page, origin, database_url, proxy)
        yield site
        site.kill_server()


@READERS
async def test_a_page_continues_after_lost_connections_and_a_killed_server(site: Site, function: str) -> None:
    """It gets one snapshot, and then each event of the room once and in order, while tasks are submitted."""
    async with site.server.client() as client:
        writers = Writers(site.servers, await register(client))
    await site.run(f"{function}('rooms/lab')")
    [first] = await site.seen(1)
    assert first == {"snapshot": {"tasks": [], "total": 0}}
    writing = asyncio.create_task(writers.run())
    for count in (5, 10):
        await site.seen(count)
        await until(site.proxy.cut)  # the page may be about to connect again
    await site.seen(15)
    site.kill_server()
    site.start_server()
    await site.seen(20)
    writers.is_over = True
    await writing
    async with site.server.client() as client:
        kept = (await client.get(f"{V1}/rooms/lab/events", params={"after": 0})).json()
    _, *events = await site.seen_up_to(kept["next"])
    numbers = [event["n"] for event in events]
    assert numbers == list(range(kept["next"] + 1 - len(writers.made), kept["next"] + 1))
    assert [event["task_id"] for event in events] == writers.made


@READERS
async def test_a_page_follows_a_task_to_its_end(site: Site, function: str) -> None:
    """It gets the task, its statuses, progress, log and result, and connects no more after the end."""
    line = {"at": "2026-01-02T03:04:05Z", "text": "énergie -1.5", "level": "error", "source": "stdout"}
    async with site.server.client() as client:
        job = await register(client)
        task = await submit(client, job)
        await site.run(f"{function}('tasks/{task['id']}').then(() => window.hasReturned = true)")
        await site.seen(1)
        held = await claim(client, job["worker_id"])
        assert held is not None
        url = f"{V1}/tasks/{task['id']}"
        for told in (
            {"status": "running"},
            {"progress": {"current": 1}},
            {"log": {"first": 1, "lines": [line]}},
        ):
            response = await client.patch(url, json={"attempt": 1, **told})
            assert response.status_code == 200, response.text
        stored = await client.put(f"{url}/result", params={"attempt": 1}, content=b"image")
        assert stored.status_code in {200, 201}, stored.text
        await report(client, task, "completed", attempt=1)
    snapshot, *events = await site.seen(7)
    assert snapshot["snapshot"]["id"] == task["id"]
    kinds = ["status", "status", "progress", "log", "result", "status"]
    assert [event["kind"] for event in events] == kinds
    assert events[3]["data"]["lines"] == [line]
    assert events[4]["data"]["size"] == 5
    assert events[5]["data"]["status"] == "completed"
    await site.page.wait_for_function({"follow": _IS_CLOSED, "read": "window.hasReturned"}[function])


@READERS
@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_page_without_access_is_refused(site: Site, function: str) -> None:
    """It gets the problem, which a page of another origin may read."""
    await site.run(f"{function}('rooms/lab')", token="unknown")
    [refused] = await site.seen(1)
    assert refused["problem"]["status"] == 401


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_page_downloads_a_result(site: Site) -> None:
    """It reads the name, size and ETag of a result, a range of it, and whether it has changed."""
    async with site.server.client() as client:
        job = await register(client)
        task = await submit(client, job)
        await claim(client, job["worker_id"])
        stored = await client.put(
            f"{V1}/tasks/{task['id']}/result",
            params={"attempt": 1, "filename": "energy.bin"},
            content=bytes(range(10)),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert stored.status_code in {200, 201}, stored.text
        for status in ("running", "completed"):
            reported = await report(client, task, status, attempt=1)
            assert reported.status_code == 200, reported.text
    await site.run(_DOWNLOAD)
    url = f"/v1/joblib/tasks/{task['id']}/result"
    whole = await site.page.evaluate("(url) => download(url)", url)
    assert (whole["status"], whole["bytes"]) == (200, list(range(10)))
    assert "energy.bin" in whole["disposition"]
    assert whole["ranges"] == "bytes"
    part = await site.page.evaluate(
        "([url, tag]) => download(url, { Range: 'bytes=2-4', 'If-Range': tag })", [url, whole["tag"]]
    )
    assert (part["status"], part["bytes"], part["range"]) == (206, [2, 3, 4], "bytes 2-4/10")
    same = await site.page.evaluate(
        "([url, tag]) => download(url, { 'If-None-Match': tag })", [url, whole["tag"]]
    )
    assert (same["status"], same["bytes"], same["tag"]) == (304, [], whole["tag"])


_DOWNLOAD = """
async function download(url, headers = {}) {
  const sent = { Authorization: `Bearer ${token}`, ...headers };
  const answer = await fetch(server + url, { cache: "no-store", headers: sent });
  const of = (name) => answer.headers.get(name);
  const bytes = [...new Uint8Array(await answer.arrayBuffer())];
  return {
    status: answer.status, bytes, tag: of("ETag"), ranges: of("Accept-Ranges"), range: of("Content-Range"),
    disposition: of("Content-Disposition"),
  };
}
"""
