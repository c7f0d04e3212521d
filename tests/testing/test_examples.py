"""The example suites of a host and of a worker author pass, each in a folder of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = (ROOT / "docs" / "how-to" / "testing.md").read_text()


@pytest.mark.parametrize(
    ("name", "passed", "plugins"), [("host_tests", 5, ["pytest_asyncio.plugin"]), ("worker_tests", 4, [])]
)
def test_an_example_suite_passes(name: str, passed: int, plugins: list[str], tmp_path: Path) -> None:
    """With what the guide says: the package with its extra, pytest, and for coroutines pytest-asyncio."""
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    # An installed package has the plugin's entry point; this environment may be older.
    options = [f"-p{plugin}" for plugin in ("zndraw_joblib.testing.plugin", *plugins)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert f"{passed} passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_guide_quotes_the_examples() -> None:
    """Each Python block of the guide is a part of a file that these suites run."""
    files = [
        path.read_text() for name in ("host_tests", "worker_tests") for path in (EXAMPLES / name).glob("*.py")
    ]
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    parts = [part.strip("\n") for block in blocks for part in block.split("\n\n\n")]
    assert [part for part in parts if not any(part in text for text in files)] == []
