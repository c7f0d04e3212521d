"""The relaxation: payloads of JSON and of ASE, progress and log, atoms and arrays, failures, cancellation."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.optimize import FIRE
from cli.conftest import Stack
from cli.program import TIMEOUT
from cli.terminal import OnTerminal
from waiting import wait_until

from example_jobs.conftest import ROOT, running
from zndraw_joblib.wire.messages import TaskResponse

CO = {"symbols": "CO", "positions": [[0, 0, 0], [0, 0, 1.5]]}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the example, as a client does that submits its jobs."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("examples.relaxation")


def copper(size: int) -> Atoms:
    """Return a crystal of copper whose atoms are displaced."""
    atoms = bulk("Cu", cubic=True) * (size, size, size)
    atoms.rattle(0.2, seed=1)
    return atoms


def relaxed(atoms: Atoms, fmax: float = 0.05) -> np.ndarray:
    """Return the positions at each step, computed here."""
    atoms = atoms.copy()
    atoms.calc = EMT()
    steps = FIRE(atoms, logfile=None).irun(fmax=fmax, steps=200)
    return np.array([atoms.get_positions() for _ in steps])


def log_of(stack: Stack, task: TaskResponse) -> list[list[str]]:
    """Return level, source and text of each line, as `task ID --logs` prints them."""
    out = stack.program.ok("task", str(task.id), "--logs")
    return [line.split("\t")[1:] for line in out.splitlines()]


def check_relax(stack: Stack, example: ModuleType) -> None:
    """Submit the same atoms as JSON and as atoms of ASE: both tasks return the relaxed atoms."""
    expected = relaxed(Atoms(**CO))
    as_json = stack.client.submit("@global:modifiers:Relax", {"atoms": CO}, room="lab")
    as_atoms = stack.client.submit(example.Relax(atoms=Atoms(**CO)), room="lab")
    for task_id in (as_json, as_atoms):
        task = stack.client.wait_for(task_id, TIMEOUT)
        assert (task.status, task.error) == ("completed", None)
        found = stack.client.result(task_id)
        assert isinstance(found, Atoms)
        assert np.allclose(found.positions, expected[-1])
        assert np.abs(found.get_forces()).max() < 0.05
        count = len(expected)
        assert task.progress is not None
        assert (task.progress.current, task.progress.total, task.progress.unit) == (count, count, "steps")
        assert task.progress.data == {
            "energy": pytest.approx(found.get_potential_energy()),
            "force": pytest.approx(np.linalg.norm(found.get_forces(), axis=1).max()),
        }
        lines = log_of(stack, task)
        assert [text.partition(":")[0] for *_, text in lines] == [f"step {n}" for n in range(count)]


def test_atoms_are_relaxed(examples: Stack, example: ModuleType) -> None:
    """The result has the positions that a relaxation without a queue has; each step has a line in the log."""
    check_relax(examples, example)


def test_atoms_are_relaxed_on_postgresql(tmp_path: Path, example: ModuleType, postgres_url: str) -> None:
    """And in processes of their own: the same results, progress and log."""
    with running(tmp_path, DATABASE_URL=postgres_url) as (stack, serve):
        serve("examples.relaxation", "--executor", "process", jobs=2)
        check_relax(stack, example)


def test_an_array_is_stored_and_downloaded(examples: Stack, example: ModuleType, tmp_path: Path) -> None:
    """A terminal shows the progress; `--result > file` and the SDK return the array."""
    atoms = copper(4)
    fields = {
        "symbols": "Cu256",
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.tolist(),
        "pbc": True,
    }
    payload = {"atoms": fields, "fmax": 0.001}
    examples.program.ok("pause", "RelaxPath")
    task_id = examples.program.ok("submit", "RelaxPath", "--payload", json.dumps(payload)).strip()
    with OnTerminal(examples.program, "task", task_id, "--follow") as command:
        command.read_until("pending")
        examples.program.ok("resume", "RelaxPath")
        command.read_until(" steps")  # also of a task that has ended
        code, out = command.end()
    assert code == 0
    expected = relaxed(atoms, 0.001)
    texts = [line.split("\t")[-1] for line in out.splitlines()]
    assert [text.partition(":")[0] for text in texts] == [f"step {n}" for n in range(len(expected))]
    path = tmp_path / "path.npy"
    with path.open("wb") as file:
        command_line = [sys.executable, "-m", "zndraw_joblib", "task", task_id, "--result"]
        subprocess.run(command_line, env=examples.program.env, stdout=file, check=True)
    stored = np.load(path)
    assert stored.nbytes > 512 * 1024
    assert np.allclose(stored, expected)
    assert np.array_equal(examples.client.result(task_id), stored)
    assert examples.client.download_result(task_id, path).content_type == "application/x-npy"


def test_a_terminal_shows_a_long_result_shortened(examples: Stack) -> None:
    """And says how to get all of it; in a pipe it is complete."""
    arguments = ["submit", "RelaxPath", f"atoms={json.dumps(CO)}", "--wait"]
    with OnTerminal(examples.program, *arguments, is_output=True) as terminal:
        code, _ = terminal.end()
    assert code == 0
    assert "float64 array (" in terminal.shown
    assert "Long values are shortened. 'zndraw-joblib task " in terminal.shown
    result: dict[str, Any] = json.loads(examples.program.ok(*arguments))
    assert len(result["data"]) > 1000


def test_a_failure_shows_only_the_frames_of_the_job(examples: Stack) -> None:
    """An element without a potential: ASE raises, and the traceback ends in the example."""
    fields = json.dumps({"symbols": "Fe", "positions": [[0, 0, 0]]})
    with examples.program.start("submit", "Relax", f"atoms={fields}", "--wait") as process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, "")
    frames = [line for line in err.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2
    assert all(str(ROOT / "examples" / "relaxation.py") in frame for frame in frames)
    assert "NotImplementedError: No EMT-potential for Fe" in err.splitlines()


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"atoms": {**CO, "symbol": "CO"}}, "'symbol' was unexpected"),
        ({"atoms": CO, "fmx": 1}, "'fmx' was unexpected"),
        ({"atoms": {**CO, "symbols": "CO2"}}, "The payload does not fit Relax: atoms: Array"),
    ],
    ids=["field of the atoms", "field", "number of atoms"],
)
def test_a_typo_is_refused(examples: Stack, payload: dict[str, Any], error: str) -> None:
    """By the server if the schema says so, else by the worker; the error names the field."""
    assert error in examples.program.error_of("submit", "Relax", "--payload", json.dumps(payload), "--wait")


def test_a_cancelled_task_stops_early(examples: Stack, example: ModuleType) -> None:
    """The worker's only thread is soon free for the next task."""
    endless = example.RelaxPath(atoms=copper(3), fmax=1e-300, steps=10_000)
    task_id = examples.client.submit(endless, room="lab")
    wait_until(lambda: examples.client.get_task(task_id).progress)
    examples.program.ok("cancel", task_id)
    next_id = examples.client.submit(example.Relax(atoms=Atoms(**CO)), room="lab")
    assert examples.client.wait_for(next_id, TIMEOUT).status == "completed"
