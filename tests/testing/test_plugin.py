"""The pytest plugin in the suites of others: cheap, beside other plugins, and clear without the server."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ANYIO = """
import httpx, pytest
from testing.tested_jobs import Area

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_with_anyio(joblib_app, async_joblib_queue):
    await async_joblib_queue.register(Area)
    url = "/v1/joblib/rooms/lab/tasks/@global:analysis:Area"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(joblib_app), base_url="http://test") as client:
        assert (await client.post(url, json={"payload": {"width": 2}})).status_code == 202
    assert [task.result for task in await async_joblib_queue.work()] == [2]

def test_without(joblib_queue):
    joblib_queue.refute_submitted(Area)
"""
WITHOUT_SERVER = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fastapi", "sqlalchemy", "starlette"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())

def test_queue(joblib_queue):
    pass
"""
LOADED = """
import sys

def test_nothing_is_loaded():
    names = ("fastapi", "sqlalchemy", "starlette", "httpx", "pydantic", "zndraw_joblib.server")
    assert [name for name in names if name in sys.modules] == []
"""
TESTS = Path(__file__).parents[1]


def run_pytest(folder: Path, code: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a folder of its own on one file, with the plugin of the package."""
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\npythonpath = {TESTS}\n")
    command = [sys.executable, "-m", "pytest", "-p", "zndraw_joblib.testing.plugin", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )


def test_it_works_with_anyio(tmp_path: Path) -> None:
    """Without pytest-asyncio, in random order, with warnings as errors."""
    ran = run_pytest(tmp_path, ANYIO, "-p", "anyio", "-p", "pytest_randomly")
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_it_names_the_extra_that_is_missing(tmp_path: Path) -> None:
    """A worker's installation has no server; the message is one sentence without a traceback."""
    ran = run_pytest(tmp_path, WITHOUT_SERVER)
    assert "A fixture of zndraw_joblib needs the extra 'server': the module '" in ran.stdout
    assert "Traceback" not in ran.stdout
    assert "1 error" in ran.stdout


def test_it_loads_nothing_before_a_fixture_is_used(tmp_path: Path) -> None:
    """Every run of pytest imports it, also in projects that test something else."""
    ran = run_pytest(tmp_path, LOADED)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_package_declares_it() -> None:
    """An installed package has the entry point, so that pytest finds the plugin by itself."""
    project = (TESTS.parent / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nzndraw_joblib = "zndraw_joblib.testing.plugin"' in project
    declared = [entry for entry in entry_points(group="pytest11") if entry.name == "zndraw_joblib"]
    assert {entry.value for entry in declared} <= {"zndraw_joblib.testing.plugin"}
