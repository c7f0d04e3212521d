"""The example of a front-end, compiled as its page says, in a browser and against a real server."""

import asyncio
import importlib
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import pytest_asyncio
from generate.types import MODULES, NODE
from playwright.async_api import Page, expect
from servers import ServerProcess

from browser.conftest import MILLISECONDS
from zndraw_joblib import JobManager, connect
from zndraw_joblib.worker.serving import Runner

pytestmark = pytest.mark.asyncio(loop_scope="session")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "front_end"


class QuietFiles(SimpleHTTPRequestHandler):
    """Serves files of a folder."""

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the example, with what `npm install` installs."""
    copy = tmp_path / "front_end"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("node_modules", "build"))
    (copy / "node_modules").symlink_to(MODULES)
    return copy


@pytest.fixture
def site(folder: Path) -> Iterator[str]:
    """Serve the folder; return its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path: Path, site: str) -> AsyncIterator[ServerProcess]:
    """Run a server that allows the page's origin."""
    with ServerProcess(f"sqlite:///{tmp_path / 'queue.db'}", cors_origins=f'["{site}"]') as process:
        yield process


async def compile_in(folder: Path, server: ServerProcess) -> None:
    """Fetch the types from the server, and compile."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for name in ("rest.d.ts", "events.d.ts"):
            (folder / name).write_bytes((await client.get(f"/v1/joblib/types/{name}")).content)
    command = [NODE, MODULES / "typescript" / "bin" / "tsc"]
    run = partial(subprocess.run, command, cwd=folder, capture_output=True, text=True, check=False)
    done = await asyncio.to_thread(run)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the jobs."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("examples.functions")


async def test_the_page_submits_lists_follows_and_cancels(
    page: Page, folder: Path, site: str, server: ServerProcess, example: ModuleType
) -> None:
    """It compiles in strict mode with the types that the server sends, and each part of it works."""
    await compile_in(folder, server)
    page.set_default_timeout(MILLISECONDS)
    rows, events = page.locator("#tasks li"), page.locator("#events")
    submit = page.get_by_role("button", name="Submit")
    with (
        connect(server.url, server.token) as api,
        JobManager(api) as idle,
        JobManager(api, execute=Runner()) as busy,
    ):
        for job in (example.area, example.estimate_pi):
            idle.register(job)
        await page.goto(f"{site}/?server={server.url}#{server.token}")
        await submit.click()
        await rows.filter(has_text="area: pending").get_by_role("button", name="Cancel").click()
        await expect(rows.filter(has_text="area: cancelled")).to_be_visible(timeout=MILLISECONDS)
        text = "snapshot: pending (attempt 0) status: cancelled end: the end"
        await expect(events).to_have_text(text)
        await page.get_by_label("Job").fill("@global:analysis:estimate_pi")
        await page.get_by_label("Payload").fill('{"samples": 20}')
        await submit.click()
        await expect(events).to_have_text("snapshot: pending (attempt 0)")
        await asyncio.to_thread(busy.register, example.estimate_pi)
        await expect(rows.first).to_have_attribute("data-status", "completed")
        for text in ("of 20 points are in the circle", "progress: 20 of 20", "end: the end"):
            await expect(events).to_contain_text(text)
        await page.get_by_label("Payload").fill('{"samples": 0}')
        await submit.click()
        await expect(page.get_by_role("alert")).to_contain_text("samples")
