"""Each command of the pages about GPUs, executors and autoscaling runs, or the page says that it does not."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers import ServerProcess
from sitegen import ROOT

from docs.code import code
from docs.commands import typed

# The pages in this order: the first one registers the jobs that the last one asks for.
PAGES = ("gpu-workers", "executors", "autoscaling")
# Commands that no test runs as they are, with what stands on the page about them.
OTHERS = {
    "executors": ("pip install", "--executor dask", "engine:gpus"),
    "autoscaling": ("token create keda", "kubectl", "scale slurm"),
}
JOBS = """
from zndraw_joblib import job

@job
def relax(steps: int = 10) -> int:
    return steps

@job
def predict(numbers: list[float]) -> list[float]:
    return numbers
"""
# What a command prints that runs until Ctrl-C.
READY = {"worker": "Serving ", "scale": "desired="}


def commands(page: str) -> list[str]:
    """Return the commands that a page shows, without those in `OTHERS`."""
    path = ROOT / "docs" / "how-to" / f"{page}.md"
    text = path.read_text()
    lines = [
        line
        for block in code("console")
        if block.page == path
        for line in typed("console", block.text).splitlines()
    ]
    others = [line for line in lines if any(part in line for part in OTHERS.get(page, ()))]
    assert not others or "not executed" in text
    return [line for line in lines if line not in others]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_of_the_pages_about_workers_run(tmp_path: Path) -> None:
    """Workers and `scale` start and stop as shown; the other commands end without an error."""
    (tmp_path / "jobs.py").write_text(JOBS)
    blocks = {block.page.stem: block.text for block in reversed(code("python"))}
    (tmp_path / "gpu_jobs.py").write_text(blocks["gpu-workers"])
    (tmp_path / "engine.py").write_text(blocks["executors"])
    with ServerProcess(f"sqlite+aiosqlite:///{tmp_path / 'queue.db'}") as server:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZNDRAW", "XDG"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "ZNDRAW_JOBLIB_URL": server.url,
            "ZNDRAW_JOBLIB_TOKEN": server.token,
        }
        for command in (command for page in PAGES for command in commands(page)):
            run(command, tmp_path, environment)


def run(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a command to its end, or until it is ready and then interrupt it."""
    [name] = re.findall(r"zndraw-joblib (\w+)", command)
    with subprocess.Popen(
        ["bash", "-c", re.sub(r"(?=zndraw-joblib)", "exec ", command, count=1)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if name in READY and READY[name] in line:
                process.send_signal(signal.SIGINT)
                break
        printed += process.stdout.read()
    assert process.returncode == 0, f"{command}\n{printed}"
    assert "Traceback" not in printed, printed
    assert name not in READY or READY[name] in printed, printed
