"""The client of the npm package in a page, against a server on another origin."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from databases import on_postgresql
from playwright.async_api import Page
from rest import V1, claim, register, report
from servers import ServerProcess
from tcp_proxy import TcpProxy
from typescript.package import build

from browser.conftest import MILLISECONDS
from browser.test_front_end_example import QuietFiles
from zndraw_joblib import JobManager, connect, job
from zndraw_joblib.worker.serving import Runner

pytestmark = pytest.mark.asyncio(loop_scope="session")


@job
def twice(value: int) -> int:
    """Return twice the value."""
    return 2 * value


@job
def field(size: int) -> Any:
    """Return a square array; of 300 rows it is uploaded as a file."""
    return np.arange(size * size, dtype=float).reshape(size, size)


# The page: what a front-end does, with the token in a header.
_SUBMITS = """
async ([url, token]) => {
  const { NdArray, ProblemError, Queue } = await import("zndraw-joblib");
  window.queue = new Queue({ url, token: async () => token, room: "lab" });
  const array = await queue.run("field", { size: 300 });
  const cancelled = await queue.submit("@global:modifiers:Rotate", {}, { tags: ["idle"] });
  const ending = cancelled.result().then(() => "completed", (error) => error.name);
  const began = performance.now();
  await cancelled.cancel();
  const cancelSeconds = (performance.now() - began) / 1000;
  const refused = await new Queue({ url, token: "unknown", room: "lab" }).tasks().catch((error) => error);
  return {
    big: String(await queue.run("twice", { value: 2n ** 62n + 1n })),
    small: await queue.run("twice", { value: 4 }),
    array: [array instanceof NdArray, array.dtype, array.shape, array.data.length, array.data[301]],
    cancelled: await ending,
    isCancelledSoon: cancelSeconds < 10,
    refused: [refused instanceof ProblemError, refused.status],
  };
}
"""
# A site that answers no preflight request.
_IS_REFUSED = """
async (url) => {
  const { Queue } = await import("zndraw-joblib");
  const queue = new Queue({ url, token: "any", retrySeconds: 0 });
  return queue.tasks().catch((error) => `${error.name}: ${error.message}`);
}
"""
_FOLLOWS = """
async () => {
  window.task = await queue.submit("@global:modifiers:Rotate", { angle: 1 });
  window.result = task.result();
  window.seen = [];
  window.following = (async () => {
    for await (const { event, data } of task.follow()) {
      seen.push(event === "log" ? data.data.lines[0].text : event);
    }
  })();
  return task.id;
}
"""


@pytest.fixture(scope="session")
def package_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a page with the package; return its origin."""
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    scripts = '{"imports": {"zndraw-joblib": "/node_modules/zndraw-joblib/dist/index.js"}}'
    page = f'<!doctype html><link rel=icon href=data:,><script type="importmap">{scripts}</script>'
    (folder / "index.html").write_text(page)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@on_postgresql
async def test_a_page_uses_the_client(page: Page, origin: str, package_site: str, database_url: str) -> None:
    """It submits, waits, cancels, reads arrays and big integers, and follows over lost connections."""
    page.set_default_timeout(MILLISECONDS)
    await page.goto(package_site)
    unreachable = await page.evaluate(_IS_REFUSED, origin)
    assert unreachable.startswith("ServerUnreachable: ")
    assert f"it may not allow pages of {package_site}: its setting cors_origins" in unreachable
    with ServerProcess(database_url, cors_origins=f'["{package_site}"]') as server:
        async with TcpProxy(urlsplit(server.url).port or 0).running() as proxy, server.client() as client:
            registered = await register(client)
            with connect(server.url, server.token) as api, JobManager(api, execute=Runner()) as manager:
                for function in (twice, field):
                    await asyncio.to_thread(manager.register, function)
                url = f"http://127.0.0.1:{proxy.port}"
                shown = await page.evaluate(_SUBMITS, [url, server.token])
            assert shown == {
                "big": str(2**63 + 2),
                "small": 8,
                "array": [True, "float64", [300, 300], 90_000, 301],
                "cancelled": "TaskCancelled",
                "isCancelledSoon": True,
                "refused": [True, 401],
            }
            await follow_over_cuts(page, proxy, client, registered["worker_id"])


async def follow_over_cuts(page: Page, proxy: TcpProxy, client: httpx.AsyncClient, worker_id: str) -> None:
    """Run a task that the page follows and waits for; each event comes once, and the result is whole."""
    task_id = await page.evaluate(_FOLLOWS)
    await page.wait_for_function("seen.includes('snapshot')")
    held = await claim(client, worker_id)
    assert held is not None
    assert held["id"] == task_id
    for number in (1, 2):
        await page.wait_for_function(f"seen.length === {number + 1}")
        assert proxy.cut()
        line = {"at": "2026-01-02T03:04:05Z", "text": f"line {number}"}
        details = {"attempt": held["attempt"], "log": {"first": number, "lines": [line]}}
        assert (await client.patch(f"{V1}/tasks/{task_id}", json=details)).is_success
    await report(client, held, "running")
    await report(client, held, "completed", result={"count": 10**18})
    await page.evaluate("following")
    assert await page.evaluate("result.then((value) => String(value.count))") == str(10**18)
    assert await page.evaluate("seen") == [
        "snapshot",
        "status",
        "line 1",
        "line 2",
        "status",
        "status",
        "end",
    ]
