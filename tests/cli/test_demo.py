"""The demo runs to its end, on a part of its input, and leaves nothing behind."""

import signal
from pathlib import Path

import psutil
from waiting import wait_until

from cli.program import Program


def test_the_demo_accounts_for_every_task(program: Program) -> None:
    """A worker is killed, its task fails, the others finish; nobody's settings disturb it."""
    out = program.ok("demo", "--limit", "150", WORKER_TIMEOUT_SECONDS="x", TOKEN="x")
    assert "SIGKILL to the worker" in out
    assert "later its task failed: 'Worker disconnected'" in out
    assert "submitted  150 tasks" in out
    assert "failed     1" in out
    assert "pick-up    p50 " in out
    assert out.endswith("Every task is accounted for.\n")


def test_ctrl_c_ends_everything_that_the_demo_started(program: Program, tmp_path: Path) -> None:
    """Its processes and its folder are gone."""
    program.env["TMPDIR"] = str(tmp_path)
    demo = program.start("demo")
    parent = psutil.Process(demo.pid)
    children = wait_until(lambda: len(found := parent.children(recursive=True)) > 2 and found)
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=20)
    assert (demo.returncode, err) == (130, "")
    assert "modules of Python" in out
    assert not [child for child in children if child.is_running()]
    assert not list(tmp_path.glob("zndraw-joblib-*"))
