"""The worker's job: `zndraw-joblib worker examples/host/worker.py`."""

from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib import Category, Extension, TaskContext


class Simulate(Extension):
    """Compute the energy of a simulation."""

    category: ClassVar[Category] = Category.ANALYSIS
    simulation: int
    steps: int = Field(gt=0, le=1000)

    def run(self, vis: Any, *, task: TaskContext) -> float:
        """Return the energy after all steps."""
        energy = 100.0
        for _ in task.track(range(self.steps), unit="steps"):
            energy /= 2
        task.log(f"simulation {self.simulation} has the energy {energy:g}")
        return energy
