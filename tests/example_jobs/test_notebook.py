"""The notebook runs in a kernel, against a server with workers."""

import io
import json
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from typing import Any

import pytest
from cli.conftest import Stack
from cli.program import TIMEOUT
from PIL import Image

from example_jobs.conftest import ROOT

NAMES = ("notebook.ipynb", "relaxation.py", "image.py")


@pytest.fixture(scope="module")
def outputs(examples: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run a copy of the notebook; return for each cell the printed text and the shown values, by type."""
    folder = tmp_path_factory.mktemp("notebook")
    for name in NAMES:
        shutil.copy(ROOT / "examples" / name, folder)
    token = {"ZNDRAW_JOBLIB_TOKEN": str(examples.server.token), "IPYTHONDIR": str(folder / "ipython")}
    subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", "notebook.ipynb"],
        cwd=folder,
        env=examples.program.env | token,
        check=True,
        timeout=2 * TIMEOUT,
    )
    cells = json.loads((folder / "notebook.ipynb").read_text())["cells"]
    return {cell["id"]: shown(cell) for cell in cells if cell["cell_type"] == "code"}


def shown(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a cell by their type."""
    found: dict[str, Any] = {"stream": ""}
    for output in cell["outputs"]:
        found["stream"] += "".join(output.get("text", []))
        found |= output.get("data", {})
    return found


def test_tasks_are_watched_and_give_their_results(outputs: dict[str, dict[str, Any]]) -> None:
    """Progress while the task runs, its log, atoms, a number and an array."""
    lines = outputs["relax"]["stream"].splitlines()
    assert re.fullmatch(r"(\d+)/\1 steps -?\d+\.\d+ eV", lines[-2])
    assert lines[-1].strip() == "completed"
    assert float(outputs["relax"]["text/plain"][0]) < 1
    assert len(re.findall(r"step \d+: .* eV/Å", outputs["log"]["stream"])) == 3
    assert "1.05" in outputs["json"]["text/plain"][0]
    assert re.fullmatch(r"\(\d+, 108, 3\)", outputs["array"]["text/plain"][0])


@pytest.mark.parametrize(("cell", "size"), [("plot", (640, 480)), ("mandelbrot", (400, 300))])
def test_images_are_shown(outputs: dict[str, dict[str, Any]], cell: str, size: tuple[int, int]) -> None:
    """The cell has the PNG that the job drew."""
    image = Image.open(io.BytesIO(b64decode("".join(outputs[cell]["image/png"]))))
    assert (image.format, image.size) == ("PNG", size)


def test_a_failure_shows_its_traceback(outputs: dict[str, dict[str, Any]]) -> None:
    """The notebook itself goes on."""
    text = outputs["failure"]["stream"]
    assert "failed NotImplementedError: No EMT-potential for Fe" in text
    assert "examples/relaxation.py" in text
