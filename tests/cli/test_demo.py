"""The demo runs to its end on a part of its input, and leaves no process or file."""

import re
import signal
from pathlib import Path

import psutil
from waiting import wait_until

from cli.program import TIMEOUT, Process, Program

ROOT = Path(__file__).parents[2]


def start(program: Program, *arguments: str, **settings: str) -> Process:
    """Start the demo from the repository, where `make demo` starts it."""
    return program.start(*arguments, module="examples.demo", folder=ROOT, **settings)


def test_the_demo_accounts_for_every_task(program: Program) -> None:
    """One worker is killed, its tasks fail, all others complete. The user's settings are not used."""
    with start(program, "--limit", "600", WORKER_TIMEOUT_SECONDS="x", TOKEN="x") as demo:
        out, err = demo.communicate(timeout=2 * TIMEOUT)
    assert (demo.returncode, err) == (0, "")
    assert "Sent SIGKILL to the worker" in out
    assert "its task failed: 'Worker disconnected'" in out
    assert "submitted  600 tasks" in out
    assert "tasks per second" in out
    assert "s for counting, " in out
    assert re.search(r"slots      jobs' own time \d+% of the slots", out)
    assert re.search(r"failed     \d+: [1-9]", out)
    assert "latency    p50 " in out
    assert out.endswith("Every task is accounted for.\n")


def test_ctrl_c_stops_the_demo_and_its_processes(program: Program, tmp_path: Path) -> None:
    """No process and no temporary folder is left."""
    program.env["TMPDIR"] = str(tmp_path)
    demo = start(program)
    parent = psutil.Process(demo.pid)
    children = wait_until(lambda: len(found := parent.children(recursive=True)) > 2 and found)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=TIMEOUT)
    # A shell shows 130 for both.
    assert demo.returncode in (130, -signal.SIGINT)
    assert err == ""
    assert "modules of Python" in out
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.glob("zndraw-joblib-*"))
