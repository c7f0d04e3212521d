"""Relax atoms with ASE: progress, a log line for each step, and atoms or an array as the result.

    pip install ase
    zndraw-joblib serve
    zndraw-joblib worker examples.relaxation
    zndraw-joblib submit Relax atoms='{"symbols": "CO", "positions": [[0, 0, 0], [0, 0, 1.5]]}' --wait

A front-end sends plain JSON, as here. From Python, pass atoms of ASE: `Queue().submit(Relax(atoms=atoms))`.
`run` gets `task`, the running task, and `vis`, what the function of `worker --context` returns.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.optimize import FIRE
from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from zndraw_joblib import Category, Extension, TaskContext

Vector = tuple[float, float, float]


class Structure(BaseModel):
    """Atoms as plain JSON. Lengths are in Å."""

    model_config = ConfigDict(extra="forbid")

    symbols: str = Field(description="A formula, like Cu13 or CH3OH")
    positions: list[Vector]
    cell: tuple[Vector, Vector, Vector] | None = None
    pbc: bool = False


class EncodedAtoms(BaseModel):
    """Atoms as the SDK encodes them."""

    tag: Literal["ase.Atoms"] = Field(alias="$zndraw")
    atoms: dict[str, Any]


def to_atoms(value: Any) -> Atoms:
    """Return atoms of ASE; plain JSON is checked. The SDK has already decoded what it encoded."""
    return value if isinstance(value, Atoms) else Atoms(**dict(Structure.model_validate(value)))


# The second argument describes the payload in the job's schema, so the server refuses other payloads.
AtomsField = Annotated[Atoms, PlainValidator(to_atoms, json_schema_input_type=Structure | EncodedAtoms)]


class Relaxation(Extension):
    """What the jobs have in common. A class without `run` is no job."""

    model_config = ConfigDict(extra="forbid")  # the server refuses unknown fields
    category: ClassVar[Category] = Category.MODIFIER
    atoms: AtomsField
    fmax: float = Field(default=0.05, gt=0, description="The largest force at the end, in eV/Å")
    steps: int = Field(default=200, ge=1, le=10_000, description="The most steps to take")

    def relax(self, task: TaskContext) -> Iterator[Atoms]:
        """Yield the atoms before the first step and after each one; stop early if the task is cancelled."""
        atoms = self.atoms
        atoms.calc = EMT()
        states = FIRE(atoms, logfile=None).irun(fmax=self.fmax, steps=self.steps)
        for step, _ in enumerate(task.track(states, total=self.steps + 1, unit="steps")):
            energy, force = atoms.get_potential_energy(), np.linalg.norm(atoms.get_forces(), axis=1).max()
            task.progress(message=f"{energy:.3f} eV", data={"energy": energy, "force": force})
            task.log(f"step {step}: {energy:.4f} eV, largest force {force:.4f} eV/Å")
            yield atoms
            if task.cancelled.is_set():
                return
        task.progress(total=step + 1)
        if force > self.fmax:
            task.log(f"The forces are above {self.fmax} eV/Å after {self.steps} steps", level="warning")


class Relax(Relaxation):
    """Return the relaxed atoms, with their energy and forces."""

    def run(self, vis: Any, *, task: TaskContext) -> Atoms:
        """Relax the atoms."""
        for _ in self.relax(task):
            pass
        return self.atoms


class RelaxPath(Relaxation):
    """Return the positions at each step, an array of (steps, atoms, 3) in Å.

    The worker uploads an array of more than 512 KiB as an `.npy` file; a smaller one is in its report.
    """

    def run(self, vis: Any, *, task: TaskContext) -> np.ndarray:
        """Relax the atoms."""
        return np.array([atoms.get_positions() for atoms in self.relax(task)])
